"""Compares encode() with sentence-transformers: prompts, batches and a progress bar."""

import json
import logging
import sys
from pathlib import Path

import pytest
import torch
from prompt_model import CALLS, MODELS, TEXTS, make_folder

from warpwright import EncodeError, Encoder

GOLDENS = Path(__file__).resolve().parent / "prompt_goldens.json"

pytestmark = pytest.mark.skipif(not MODELS.is_dir(), reason="needs the repository's test models")


@pytest.fixture
def folder(tmp_path):
    make_folder(tmp_path)
    return tmp_path


def close(got, wanted):
    return torch.allclose(got, torch.as_tensor(wanted), atol=1e-5)


def test_vectors_of_sentence_transformers(folder):
    golden = json.loads(GOLDENS.read_text())
    encoder = Encoder(folder, device="cpu")
    assert encoder.prompts == {"query": "w30 w31 ", "passage": "w40 ", "empty": ""}
    assert encoder.default_prompt_name == "query"
    for call, wanted in zip(CALLS, golden["vectors"]):
        got = encoder.encode(TEXTS, **call, as_tensor=True)
        assert close(got, wanted), call
        alone = encoder.encode(TEXTS[0], **call, as_tensor=True)
        assert close(alone, wanted[0]), call
    default, plain = golden["vectors"][:2]
    assert not close(torch.tensor(default), plain)
    # A positional prompt_name, as in sentence-transformers.
    assert close(encoder.encode(TEXTS, "passage", as_tensor=True), golden["vectors"][3])


def test_sentence_transformers_itself(folder):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    encoder = Encoder(folder, device="cpu")
    for call in CALLS:
        assert close(encoder.encode(TEXTS, **call, as_tensor=True), model.encode(TEXTS, **call)), call


def test_refusals(folder, caplog):
    encoder = Encoder(folder, device="cpu")
    with pytest.raises(ValueError, match='no prompt is called "quarry"; the model has "empty", "passage", "query"'):
        encoder.encode(TEXTS, prompt_name="quarry")
    for arguments in ({"prompt": 3}, {"prompt_name": 3}, {"prompt": b"w5 "}):
        with pytest.raises(TypeError, match="Encoder: prompt"):
            encoder.encode(TEXTS, **arguments)
    with pytest.raises(ValueError, match="prompt_name is"):
        encoder.encode(TEXTS, prompt_name="query\0")
    for value, error in ((0, ValueError), (-1, ValueError), (2**70, ValueError), (1.5, TypeError), (True, TypeError), ("2", TypeError)):
        with pytest.raises(error, match="Encoder: batch_size is"):
            encoder.encode(TEXTS, batch_size=value)
    with caplog.at_level(logging.WARNING, "warpwright"):
        encoder.encode(TEXTS, prompt="w22 ", prompt_name="passage", as_tensor=True)
    assert "prompt_name, 'passage', is ignored" in caplog.text
    (folder / "config_sentence_transformers.json").write_text('{"prompts": {"a": "b"}, "default_prompt_name": "c"}')
    with pytest.raises(ValueError, match="default_prompt_name"):
        Encoder(folder, device="cpu")


def test_pooling_without_the_prompt(folder):
    path = folder / "1_Pooling" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "include_prompt": False}))
    encoder = Encoder(folder, device="cpu")
    with pytest.raises(ValueError, match="include_prompt"):
        encoder.encode(TEXTS)
    encoder.encode(TEXTS, prompt="", as_tensor=True)


def test_batch_size(folder):
    encoder = Encoder(folder, device="cpu")
    texts = [f"w{5 + i % 40} " * (1 + i % 11) for i in range(50)]
    wanted = encoder.encode(texts, as_tensor=True)
    for size in (1, 3, 49, 50, 1000):
        assert torch.allclose(encoder.encode(texts, batch_size=size, as_tensor=True), wanted, atol=1e-5)
    assert encoder.encode([], batch_size=3, as_tensor=True).shape == (0, encoder.vector_size)
    strict = Encoder(folder, device="cpu", max_length=8, truncate=False)
    with pytest.raises(EncodeError) as caught:
        strict.encode(texts, prompt="", batch_size=3, as_tensor=True)
    long = [i for i in range(50) if 1 + i % 11 > 6]
    assert list(caught.value.errors) == long
    assert not caught.value.results[long].any() and caught.value.results[0].any()


def test_progress_bar(folder, capsys, monkeypatch):
    pytest.importorskip("tqdm")
    encoder = Encoder(folder, device="cpu")
    for arguments in ({}, {"batch_size": 2}):
        encoder.encode(TEXTS, show_progress_bar=True, as_tensor=True, **arguments)
        assert "4/4" in capsys.readouterr().err
        encoder.encode(TEXTS, as_tensor=True, **arguments)
        encoder.encode(TEXTS, show_progress_bar=False, as_tensor=True, **arguments)
        assert capsys.readouterr().err == ""
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ImportError, match="needs the package tqdm"):
        encoder.encode(TEXTS, show_progress_bar=True, as_tensor=True)
