"""Tests encoders with processes: copies, pickles, forks, workers, and the end of the interpreter."""

import copy
import json
import os
import pickle
import subprocess
import sys
import textwrap

import pytest
import torch
from prompt_model import MODELS, TEXTS, make_folder
from test_encoder import safetensors

from warpwright import EncodeError, Encoder

pytestmark = pytest.mark.skipif(not MODELS.is_dir(), reason="needs the repository's test models")


@pytest.fixture
def folder(tmp_path):
    make_folder(tmp_path)
    return tmp_path


def run(program, folder):
    """Returns the program's exit status and output. The limit is two minutes."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path])}
    script = folder / "program.py"
    script.write_text(textwrap.dedent(program))
    result = subprocess.run(
        [sys.executable, str(script), str(folder)], env=environment, capture_output=True, text=True, timeout=120
    )
    return result.returncode, result.stdout, result.stderr


def test_copies_read_the_folder_again(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    options = {"pooling": "max", "normalize": True, "max_length": 9, "batch_tokens": 77, "special_tokens": False}
    encoder = Encoder(folder.name, device="cpu", dtype="bfloat16", **options)
    wanted = encoder.encode(TEXTS, as_tensor=True)
    monkeypatch.chdir("/")
    for same in (copy.copy(encoder), copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
        assert same._handle != encoder._handle and same.max_length == 9 and same.dtype is torch.bfloat16
        assert torch.equal(same.encode(TEXTS, as_tensor=True), wanted)
    layers = copy.deepcopy(encoder.as_layers())
    assert layers._encoder._handle != encoder._handle


def test_an_encoder_of_tensors_is_not_copied():
    config = json.loads((MODELS / "bert" / "config.json").read_text())
    encoder = Encoder(safetensors(MODELS / "bert" / "model.safetensors"), config=config, device="cpu")
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="made of tensors, and cannot be pickled or copied"):
            attempt(encoder)


def test_errors_are_pickled(folder):
    error = pickle.loads(pickle.dumps(EncodeError({3: "is odd"}, torch.zeros(4, 2))))
    assert error.errors == {3: "is odd"} and error.results.shape == (4, 2) and str(error) == "text 3 is odd"


def test_a_failed_init_prints_nothing(folder, capfd):
    for arguments in ({"pooling": "sum"}, {"dtype": "int8"}, {"max_length": -4}, {"device": "mps"}):
        with pytest.raises(ValueError):
            Encoder(folder, **{"device": "cpu", **arguments})
    Encoder.__new__(Encoder).__del__()
    with pytest.raises(TypeError):
        Encoder()
    assert capfd.readouterr().err == ""


def test_integers_that_cannot_be(folder):
    for name in ("max_length", "batch_tokens"):
        for value, error in ((0, ValueError), (-1, ValueError), (2**40, ValueError), (2**70, ValueError), (8.0, TypeError), (True, TypeError)):
            with pytest.raises(error, match=f"Encoder: {name} is"):
                Encoder(folder, device="cpu", **{name: value})
    with pytest.raises(ValueError, match="Encoder: dtype is"):
        Encoder(folder, device="cpu", dtype=["float32"])
    encoder = Encoder(folder, device="cpu")
    for ids in ([[2**40]], [[-(2**40)]], [[2**70]]):
        with pytest.raises(ValueError, match="input_ids"):
            encoder(ids)
    for ids in ([[True]], [[2.0]], torch.ones(1, 2, dtype=torch.uint64)):
        with pytest.raises(TypeError, match="input_ids is torch"):
            encoder(ids)
    for top, error in ((-1, ValueError), (1.0, TypeError), (True, TypeError), (2**70, ValueError)):
        with pytest.raises(error, match="Encoder: top is"):
            encoder.rank("w5", ["w6"], label=0, top=top)
    for label, error in ((-1, ValueError), (1.0, TypeError), (True, TypeError), (2**70, ValueError), (9, ValueError)):
        with pytest.raises(error, match="Encoder: label is"):
            encoder.rank("w5", ["w6"], label=label)


def test_a_forked_process_gets_an_error(folder):
    code, out, errors = run(
        """
        import os, signal, sys, torch, warpwright
        encoder = warpwright.Encoder(sys.argv[1], device="cpu")
        encoder.encode(["w5"], as_tensor=True)
        norm = warpwright.FusedLayerNorm(8)
        norm(torch.randn(2, 8))
        encoder._lock.acquire()  # as if another thread were in a call
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            for call in (lambda: encoder.encode(["w5"], as_tensor=True), lambda: norm(torch.randn(2, 8)),
                         lambda: warpwright.Encoder(sys.argv[1], device="cpu")):
                try:
                    call()
                    os._exit(1)
                except RuntimeError as error:
                    assert "forked" in str(error), error
            del encoder
            os._exit(7)
        encoder._lock.release()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        encoder.encode(["w5"], as_tensor=True)
        """,
        folder,
    )
    assert code == 0 and errors == "", errors


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_workers_of_a_data_loader(folder, method):
    """Spawned workers read the encoder again. Forked workers get an error, or make an encoder first."""
    code, out, errors = run(
        f"""
        import sys, torch, warpwright
        from torch.utils.data import DataLoader, Dataset

        class Texts(Dataset):
            def __init__(self, encoder=None, folder=None):
                self.encoder, self.folder = encoder, folder
            def __len__(self):
                return 4
            def __getitem__(self, i):
                if self.encoder is None:
                    self.encoder = warpwright.Encoder(self.folder, device="cpu")
                return self.encoder.encode(f"w{{5 + i}}", as_tensor=True)

        def load(texts):
            loader = DataLoader(texts, batch_size=2, num_workers=2, multiprocessing_context="{method}", timeout=100)
            return torch.cat(list(loader))

        if __name__ == "__main__":
            made_by_workers = load(Texts(folder=sys.argv[1]))
            encoder = warpwright.Encoder(sys.argv[1], device="cpu")
            wanted = encoder.encode([f"w{{5 + i}}" for i in range(4)], as_tensor=True)
            assert torch.allclose(made_by_workers, wanted, atol=1e-5)
            try:
                assert torch.allclose(load(Texts(encoder)), wanted, atol=1e-5)
                print("loaded")
            except RuntimeError as error:
                assert "forked" in str(error), error
                print("refused")
        """,
        folder,
    )
    assert code == 0, errors
    assert out == ("loaded\n" if method == "spawn" else "refused\n")


def test_the_end_of_the_interpreter_is_silent(folder):
    code, out, errors = run(
        """
        import sys, torch, warpwright
        encoder = warpwright.Encoder(sys.argv[1], device="cpu")
        layers = encoder.as_layers()
        sys.kept = cycle = [encoder]
        cycle.append(cycle)
        warpwright.FusedLayerNorm(8)(torch.randn(2, 8))
        """,
        folder,
    )
    assert (code, out, errors) == (0, "", "")
