"""Tests decoders: against transformers' greedy tokens (tests/goldens/decoders), against `warpwright generate`, every form of a
call against the others, and a caller's mistakes."""

import copy
import itertools
import json
import os
import pickle
import struct
import subprocess
import threading
from pathlib import Path

import pytest
import torch
from test_encoder import DEVICES, safetensors
from test_processes import run

import warpwright
from warpwright import Decoder, GenerateError, _decoder

ROOT = Path(__file__).resolve().parents[2]
GOLDENS = ROOT / "tests" / "goldens" / "decoders"
TOKENIZER = ROOT / "src" / "text" / "golden" / "tokenizer.json"
PROGRAM = os.environ.get("WARPWRIGHT_PROGRAM")
CONTEXT, VOCABULARY = 64, 704  # 4 ids more than the tokenizer has
PROMPTS = ["the cat", "", "a dog and its man", "\u00e4\u4f60 \U0001f600"]

pytestmark = pytest.mark.skipif(not GOLDENS.is_dir(), reason="needs the repository's goldens")


def save_safetensors(path, tensors):
    header, data = {}, b""
    for name, tensor in tensors.items():
        values = tensor.float().contiguous().flatten().tolist()
        at = len(data)
        data += struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def make_folder(folder, tokenizer=True, odd_position=None):
    """A small GPT-2 of random weights. The embedding of odd_position is not finite."""
    torch.manual_seed(1)
    C = 32
    config = {
        "model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": C, "n_positions": CONTEXT, "n_ctx": CONTEXT,
        "vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0, "activation_function": "gelu_new",
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {"wte.weight": torch.randn(VOCABULARY, C) * 0.3, "wpe.weight": torch.randn(CONTEXT, C) * 0.3}
    if odd_position is not None:
        tensors["wpe.weight"][odd_position, 0] = float("nan")
    for prefix in ("h.0.", "h.1."):
        for norm in ("ln_1", "ln_2"):
            tensors |= {f"{prefix}{norm}.weight": torch.ones(C), f"{prefix}{norm}.bias": torch.zeros(C)}
        for name, inputs, outputs in (("attn.c_attn", C, 3 * C), ("attn.c_proj", C, C), ("mlp.c_fc", C, 4 * C),
                                      ("mlp.c_proj", 4 * C, C)):  # fmt: skip
            tensors |= {f"{prefix}{name}.weight": torch.randn(inputs, outputs) * 0.3, f"{prefix}{name}.bias": torch.zeros(outputs)}
    tensors |= {"ln_f.weight": torch.ones(C), "ln_f.bias": torch.zeros(C)}
    save_safetensors(folder / "model.safetensors", tensors)
    if tokenizer:
        (folder / "tokenizer.json").write_bytes(TOKENIZER.read_bytes())
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="module", params=DEVICES)
def decoder(folder, request):
    return Decoder(folder, device=request.param, sequences=4, batch_invariant=True)


def philox(count, stream):
    """The first word of Philox4x32-10, as tests/goldens/make_goldens.py has it."""
    np = pytest.importorskip("numpy")
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    c = [np.arange(count, dtype=np.uint64), np.zeros(count, np.uint64), np.full(count, stream, np.uint64), np.zeros(count, np.uint64)]
    k = [0, 0]
    for _ in range(10):
        p, q = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(q >> half) ^ c[1] ^ np.uint64(k[0]), q & low, (p >> half) ^ c[3] ^ np.uint64(k[1]), p & low]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return torch.from_numpy(c[0].astype(np.int64))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["llama", "llama3", "mistral", "mistral_window", "qwen2", "qwen3", "qwen3_windows", "gpt_neox", "gpt_neox_serial"])
def test_greedy_tokens_of_transformers(tmp_path, device, name):
    golden = json.loads((GOLDENS / name / "golden.json").read_text())
    shapes = {n: t.shape for n, t in safetensors(GOLDENS / name / "golden.safetensors").items()}
    tensors = {}
    for stream, parameter in enumerate(golden["parameters"]):
        is_norm = parameter.endswith("norm.weight")
        is_projection = (parameter.endswith(".weight") and not is_norm
                         and any(part in parameter for part in ("attn.", ".attention.", ".mlp.")))  # fmt: skip
        shape = shapes[f"fp32.{parameter}"]
        uniform = ((philox(shape.numel(), stream) >> 8).double() - 2.0**23) * 2.0**-23
        scale = golden["projection_scale"] if is_projection else golden["scale"]
        tensors[parameter] = (uniform * scale + is_norm).reshape(shape)
    save_safetensors(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_bytes((GOLDENS / name / "config.json").read_bytes())
    with Decoder(tmp_path, device=device, sequences=2) as decoder:
        prompt = (philox(8, 1000) % decoder.vocabulary).tolist()
        results = decoder.generate([prompt, torch.tensor(prompt)], temperature=0, max_tokens=len(golden["greedy"]),
                                   ignore_end_of_text=True)  # fmt: skip
    for result in results:
        assert result.ids == golden["greedy"] and result.text == "" and result.finish_reason == "length"


def command(folder, *arguments):
    line = [PROGRAM, "generate", "--model", str(folder), "--batch-invariant", "--json", *arguments]
    output = subprocess.run(line, check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.skipif(PROGRAM is None, reason="needs the program warpwright")
def test_equals_the_command(folder, tmp_path):
    decoder = Decoder(folder, device="cpu", batch_invariant=True)
    prompts = ["the cat", "", "a dog and its man"]
    (tmp_path / "prompts").write_text("\n".join(prompts) + "\n")
    for flags, options in (
        ([], {}),
        (["--temperature", "0", "--max-tokens", "40"], {"temperature": 0, "max_tokens": 40}),
        (["--top-k", "9", "--top-p", "0.9", "--min-p", "0.1", "--repetition-penalty", "1.2", "--temperature", "0.7", "--seed", "5"],
         {"top_k": 9, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.2, "temperature": 0.7, "seed": 5}),
        (["--stop", "e", "--stop", " t"], {"stop": ["e", " t"]}),
    ):  # fmt: skip
        wanted = command(folder, "--input", str(tmp_path / "prompts"), *flags)
        got = decoder.generate(prompts, **options)
        assert [(r.text, len(r.ids), r.finish_reason) for r in got] == [(w["text"], w["tokens"], w["end"]) for w in wanted]


def test_forms_of_a_call(decoder):
    assert decoder.has_tokenizer and decoder.vocabulary == VOCABULARY and decoder.dtype is torch.float32
    assert decoder.context == decoder.model_context == CONTEXT and decoder.sequences == 4
    options = {"max_tokens": 30, "seed": 3}
    results = decoder.generate(PROMPTS, **options)
    assert [decoder.generate(p, **options) for p in PROMPTS] == results
    ids = [decoder.encode(p) for p in PROMPTS]
    assert ids[1] == [0]
    assert decoder.generate(ids, **options) == results
    assert decoder.generate(ids[0], **options) == results[0]
    assert decoder.generate(torch.tensor(ids[0]), **options) == results[0]
    assert decoder.generate((i for i in ids), **options) == results
    assert decoder.generate([ids[0], PROMPTS[2]], **options) == [results[0], results[2]]
    assert decoder.generate([], **options) == []
    for result in results:
        known = [i for i in result.ids if i < 700]
        assert result.text == decoder.decode(known) == decoder.decode(result.ids)
        assert result.finish_reason in ("length", "end_of_text")
    assert decoder.decode([]) == ""


def test_pieces_join_to_the_whole(decoder):
    wanted = decoder.generate(PROMPTS, max_tokens=40, temperature=3, seed=[1, 2, 3, 4], stop="z")
    texts, ids, ends = [""] * 4, [[], [], [], []], [None] * 4
    for piece in decoder.stream(PROMPTS, max_tokens=40, temperature=3, seed=[1, 2, 3, 4], stop="z"):
        assert ends[piece.index] is None and piece.error is None
        texts[piece.index] += piece.text
        ids[piece.index] += [] if piece.id is None else [piece.id]
        ends[piece.index] = piece.finish_reason
    assert list(zip(texts, ids, ends)) == wanted
    assert decoder.running == decoder.waiting == 0


def test_seeds_give_the_same_in_any_order(decoder):
    seeds = list(range(7))  # more than run at once
    wanted = decoder.generate(["the cat"] * 7, max_tokens=20, seed=seeds)
    assert len({r.text for r in wanted}) > 3
    assert decoder.generate(["the cat"] * 7, max_tokens=20, seed=seeds[::-1]) == wanted[::-1]
    assert decoder.generate("the cat", max_tokens=20, seed=4) == wanted[4]
    assert decoder.generate(["the cat", "the cat"], max_tokens=20, seed=4) == [wanted[4]] * 2


def test_stop_texts(decoder):
    whole = decoder.generate("the cat", max_tokens=40, seed=2, ignore_end_of_text=True)
    stop = whole.text[10:13]
    for given in (stop, [stop], ["never here", stop]):
        stopped = decoder.generate("the cat", max_tokens=40, seed=2, ignore_end_of_text=True, stop=given)
        assert stopped.finish_reason == "stop" and stopped.text == whole.text[: whole.text.index(stop)]
        assert stopped.ids == whole.ids[: len(stopped.ids)]


def test_a_closed_stream_leaves_nothing(decoder):
    wanted = decoder.generate("the cat", max_tokens=30, seed=5)
    stream = decoder.stream(PROMPTS, max_tokens=10**6)
    next(stream)
    assert decoder.running == 4
    stream.close()
    assert decoder.running == decoder.waiting == 0
    with pytest.raises(StopIteration):
        next(stream)
    stream = decoder.stream(PROMPTS, max_tokens=10**6)  # never started
    del stream
    assert decoder.running == decoder.waiting == 0
    with decoder.stream("the cat", max_tokens=10**6) as stream:
        next(stream)
    assert decoder.running == decoder.waiting == 0
    assert decoder.generate("the cat", max_tokens=30, seed=5) == wanted


def test_streams_and_threads_run_together(decoder):
    wanted = [decoder.generate("the cat", max_tokens=30, seed=seed) for seed in range(6)]
    streams = [decoder.stream("the cat", max_tokens=30, seed=seed) for seed in range(2)]
    texts = ["", ""]
    for pieces in zip(*streams):
        for i, piece in enumerate(pieces):
            texts[i] += piece.text
    for i, stream in enumerate(streams):  # one may be longer
        texts[i] += "".join(piece.text for piece in stream)
    if len(wanted[0].ids) == len(wanted[1].ids):
        assert texts == [wanted[0].text, wanted[1].text]
    results = [None] * 6

    def run(seed):
        results[seed] = decoder.generate("the cat", max_tokens=30, seed=seed)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == wanted


class Interrupt(Exception):
    """As a handler of a signal raises it."""


def interrupt_after(monkeypatch, function, calls):
    """Raises Interrupt when this call of a function of the library returns."""
    original, count = getattr(_decoder._c, function), itertools.count(1)

    def interrupted(*arguments):
        status = original(*arguments)
        if next(count) == calls:
            raise Interrupt
        return status

    monkeypatch.setattr(_decoder._c, function, interrupted)


@pytest.mark.parametrize("function", ["warpwright_decoder_step", "warpwright_decoder_get_event"])
@pytest.mark.parametrize("calls", [1, 2, 3, 4])
def test_an_interrupt_loses_nothing(decoder, monkeypatch, function, calls):
    options = {"ignore_end_of_text": True, "max_tokens": 5}
    wanted = [decoder.generate("the cat", seed=seed, **options).ids for seed in range(3)]
    streams = [decoder.stream("the cat", seed=seed, **options) for seed in range(3)]
    ids = [[], [], []]
    interrupt_after(monkeypatch, function, calls)
    with pytest.raises(Interrupt):
        for _ in range(5):
            for got, stream in zip(ids, streams):
                got.append(next(stream).id)
        raise AssertionError("nothing was interrupted")
    for got, stream in zip(ids, streams):
        got += [piece.id for piece in stream]
    assert ids == wanted and decoder.running == 0


def test_an_interrupt_leaves_no_continuation(decoder, monkeypatch):
    interrupt_after(monkeypatch, "warpwright_decoder_add", 2)
    with pytest.raises(Interrupt):
        decoder.generate(["the cat", "a dog"], max_tokens=10**6)
    assert decoder.running == decoder.waiting == 0
    stream = decoder.stream("the cat", max_tokens=10**6)
    stream.close()
    interrupt_after(monkeypatch, "warpwright_decoder_remove", 1)
    with pytest.raises(Interrupt):
        decoder.encode("a")
    assert decoder.running == decoder.waiting == 0


def in_threads(*calls):
    """Fails if a call does not return within a minute."""
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_a_stream_closed_by_another_thread_ends(decoder):
    stream = decoder.stream("the cat", max_tokens=10**9, ignore_end_of_text=True)
    has_begun = threading.Event()

    def close():
        has_begun.wait()
        stream.close()

    in_threads(lambda: [has_begun.set() for _ in stream], close)
    assert decoder.running == 0 and list(stream) == []


def test_threads_share_a_stream(decoder):
    wanted = sorted(decoder.generate("the cat", max_tokens=50, seed=3, ignore_end_of_text=True).ids)
    for _ in range(10):
        stream = decoder.stream("the cat", max_tokens=50, seed=3, ignore_end_of_text=True)
        ids = []
        in_threads(*[lambda: ids.extend(piece.id for piece in stream)] * 3)
        assert sorted(ids) == wanted


def refused(error, message, call, *arguments, **options):
    with pytest.raises(error) as caught:
        call(*arguments, **options)
    assert message in str(caught.value), str(caught.value)


def test_refused_prompts_and_options(decoder):
    wanted = decoder.generate("the cat", max_tokens=30, seed=5)
    stream = decoder.stream("the cat", max_tokens=30, seed=5)
    pieces = [next(stream)]
    for call in (decoder.generate, decoder.stream):
        for value, error, message in (
            ([5] * (CONTEXT + 1), ValueError, f"prompt: has {CONTEXT + 1} tokens, the context is {CONTEXT}; shorten it"),
            (["the cat", [5, VOCABULARY]], ValueError, f"prompts[1]: has the token {VOCABULARY}, the vocabulary has ids below"),
            ([[5], [-1]], ValueError, "prompts[1]: has the token -1"),
            ([[5], []], ValueError, "prompts[1]: has no tokens; give at least one"),
            ([5, 2**40], ValueError, "prompt has an id of more than 32 bits"),
            ([5, 1.5], TypeError, "prompt is list, needs a str or token ids"),
            (bytearray(b"the cat"), TypeError, "prompt is bytearray, needs a str or token ids"),
            (["the cat", memoryview(b"ab\0\0")], TypeError, "prompts[1] is memoryview, needs a str or token ids"),
            (torch.empty(0), ValueError, "prompt: has no tokens; give at least one"),
            (torch.ones(2), TypeError, "prompt is Tensor, needs a str or token ids"),
            ([None], TypeError, "prompts[0] is NoneType"),
            (None, TypeError, "prompts is NoneType"),
        ):  # fmt: skip
            refused(error, message, call, value)
        for name, value, error, message in (
            ("max_tokens", 0, ValueError, "max_tokens is 0, needs an int from 1"),
            ("max_tokens", 2.0, TypeError, "max_tokens is 2.0"),
            ("temperature", -1, ValueError, "temperature: is -1; give 0 or a positive number"),
            ("temperature", float("nan"), ValueError, "temperature: is nan"),
            ("temperature", "hot", TypeError, "temperature is 'hot', needs a number"),
            ("temperature", 10**400, ValueError, "Decoder: temperature is an int that no float holds"),
            ("top_p", torch.ones(2), TypeError, "top_p is tensor([1., 1.]), needs a number"),
            ("top_k", -1, ValueError, "top_k is -1"),
            ("top_p", 0, ValueError, "top_p: is 0; give a number in (0, 1]"),
            ("min_p", 1.5, ValueError, "min_p: is 1.5"),
            ("repetition_penalty", 0, ValueError, "repetition_penalty: is 0"),
            ("seed", -1, ValueError, "seed is -1"),
            ("seed", [1, 2], ValueError, "seed has 2 values, needs one for each of 1 prompts"),
            ("stop", "", ValueError, "stop: is empty"),
            ("stop", [3], TypeError, "stop[0] is int, needs str"),
            ("stop", 3, TypeError, "stop is int, needs a str or a list of them"),
        ):
            refused(error, message, call, "the cat", **{name: value})
        refused(ValueError, "top_k: is 4, but temperature 0 takes the most likely token", call, "a", temperature=0, top_k=4)
        refused(ValueError, "top_p: is 0.5, but temperature 0", call, "a", temperature=0, top_p=0.5)
        wrong = f"Decoder.{call.__name__}() got an unexpected keyword argument 'temprature'"
        refused(TypeError, wrong, call, "a", temprature=0)
    pieces += stream
    assert "".join(piece.text for piece in pieces) == wanted.text


def test_refused_ids(decoder):
    for value in ("abc", b"a\0\0\0", bytearray(4), memoryview(bytes(4)), 5, [[1, 2]], [1.5]):
        refused(TypeError, f"Decoder: ids is {type(value).__name__}, needs token ids", decoder.decode, value)
    refused(ValueError, "Decoder: ids has an id of more than 32 bits", decoder.decode, [2**31])


def test_refused_decoders(folder, tmp_path):
    refused(ValueError, str(tmp_path), Decoder, tmp_path, device="cpu")
    refused(ValueError, "Decoder: dtype is 'float16', needs one of None", Decoder, folder, dtype="float16")
    refused(ValueError, "Decoder: dtype is ['bfloat16'], needs one of None", Decoder, folder, dtype=["bfloat16"])
    refused(ValueError, "Decoder: sequences is 0", Decoder, folder, sequences=0)
    refused(TypeError, "Decoder: context is 1.0", Decoder, folder, context=1.0)
    refused(ValueError, f"context: is {CONTEXT + 1}, the model's is {CONTEXT}", Decoder, folder, context=CONTEXT + 1)
    refused(ValueError, "cache: holds 32 tokens, one sequence may have 64", Decoder, folder, device="cpu", cache_tokens=32)
    refused(ValueError, "Decoder: device is meta", Decoder, folder, device="meta")
    refused(ValueError, "cannot contain NUL", Decoder, "a\0b")
    refused(MemoryError, " tokens would fit", Decoder, folder, device="cpu", cache_tokens=2147483000)
    bare = Decoder(make_folder(tmp_path / "bare", tokenizer=False), device="cpu", sequences=1)
    assert not bare.has_tokenizer and len(bare.generate([5, 6], max_tokens=3).ids) == 3
    refused(ValueError, "the decoder has no tokenizer", bare.generate, "the cat")
    refused(ValueError, "stop: is given, but the model has no tokenizer", bare.generate, [5], stop="a")


@pytest.mark.parametrize("device", DEVICES)
def test_an_error_of_one_prompt(tmp_path, device):
    decoder = Decoder(make_folder(tmp_path / "odd", odd_position=20), device=device, batch_invariant=True)
    wanted = decoder.generate([5, 6], max_tokens=10)
    with pytest.raises(GenerateError, match=r"prompts\[1\]: .*a logit is not finite") as caught:
        decoder.generate([[5, 6], [5] * 15], max_tokens=10, ignore_end_of_text=True, temperature=0)
    assert list(caught.value.errors) == [1] and caught.value.results[1].finish_reason == "error"
    assert len(caught.value.results[1].ids) == 6 and caught.value.results[0].finish_reason == "length"
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.errors == caught.value.errors and str(error) == str(caught.value)
    assert decoder.generate([5, 6], max_tokens=10) == wanted


def test_int8(folder):
    try:
        decoder = Decoder(folder, device="cpu", dtype="int8")
    except RuntimeError as error:
        assert "needs a processor with AMX, AVX512_VNNI or AVX-VNNI" in str(error)
        pytest.skip("no kernel for int8 runs here")
    assert decoder.dtype in (torch.float32, torch.bfloat16) and "int8" in repr(decoder)
    wanted = decoder.generate(["the cat", "a dog"], max_tokens=10, temperature=0)
    for same in (Decoder(folder, device="cpu", dtype=torch.int8), pickle.loads(pickle.dumps(decoder))):
        assert "int8" in repr(same)
        assert same.generate(["the cat", "a dog"], max_tokens=10, temperature=0) == wanted


def test_close_and_copies(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    decoder = Decoder(folder.name, device="cpu", dtype="bfloat16", sequences=2, context=40)
    wanted = decoder.generate("the cat", max_tokens=10)
    monkeypatch.chdir("/")
    for same in (copy.copy(decoder), copy.deepcopy(decoder), pickle.loads(pickle.dumps(decoder))):
        assert same._handle != decoder._handle and same.context == 40 and same.dtype is torch.bfloat16
        assert same.generate("the cat", max_tokens=10) == wanted
    stream = decoder.stream("the cat")
    with decoder:
        next(stream)
    for call in (lambda: decoder.generate("the cat"), lambda: next(stream), lambda: decoder.running):
        refused(RuntimeError, "Decoder: it is closed", call)
    stream.close()
    decoder.close()
    Decoder.__new__(Decoder).__del__()
    assert warpwright.Decoder is Decoder


def test_a_forked_process_gets_an_error_and_the_end_is_silent(folder, tmp_path):
    code, out, errors = run(
        f"""
        import os, signal, sys, warpwright
        decoder = warpwright.Decoder({str(folder)!r}, device="cpu", sequences=2)
        stream = decoder.stream("the cat", max_tokens=10**6)
        next(stream)
        decoder._lock.acquire()  # as if another thread were in a call
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            for call in (lambda: next(stream), lambda: decoder.generate("the cat"), lambda: decoder.running):
                try:
                    call()
                    os._exit(1)
                except RuntimeError as error:
                    assert "forked" in str(error), error
            decoder.close()
            os._exit(7)
        decoder._lock.release()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        next(stream)
        sys.kept = cycle = [decoder, stream]
        cycle.append(cycle)
        """,
        tmp_path,
    )
    assert (code, out, errors) == (0, "", "")
