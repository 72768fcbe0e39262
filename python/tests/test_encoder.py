"""Tests encoders: against transformers' results (src/model/testdata, and transformers itself if it is installed), every
form of a call against the others, and a caller's mistakes."""

import json
import pickle
import struct
import threading
from pathlib import Path

import pytest
import torch

import warpwright
from warpwright import EncodeError, Encoder, _library

MODELS = Path(__file__).resolve().parents[2] / "src" / "model" / "testdata" / "bert"
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() and _library.cuda_device_count() else [])
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(5, 53))]

pytestmark = pytest.mark.skipif(not MODELS.is_dir(), reason="needs the repository's test models")
on_devices = pytest.mark.parametrize("device", DEVICES)


def safetensors(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    dtypes = {"F32": torch.float32, "I32": torch.int32, "BF16": torch.bfloat16}
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            flat = torch.frombuffer(bytearray(data[begin:end]), dtype=dtypes[entry["dtype"]]) if end > begin else torch.empty(0)
            tensors[name] = flat.reshape(entry["shape"])
    return tensors


def error(got, wanted):
    return ((got.double().cpu() - wanted.double().cpu()).norm() / wanted.double().norm()).item()


def padded(golden, pad_in_front=False):
    """The golden batch as padded ids, types and a mask, and the positions of its tokens."""
    lengths = golden["cu_seqlens"].diff().tolist()
    B, S = len(lengths), max(lengths) + 2
    ids, types, mask = (torch.zeros(B, S, dtype=torch.int64) for _ in range(3))
    for b, length in enumerate(lengths):
        at = slice(S - length, S) if pad_in_front else slice(0, length)
        first = int(golden["cu_seqlens"][b])
        ids[b, at] = golden["tokens"][first : first + length].long()
        types[b, at] = golden["types"][first : first + length].long()
        mask[b, at] = 1
    return ids, types, mask


def int8_encoder(folder):
    try:
        return Encoder(folder, device="cpu", dtype="int8")
    except RuntimeError as error:
        assert "needs a processor with AMX, AVX512_VNNI or AVX-VNNI" in str(error)
        pytest.skip("no kernel for int8 runs here")


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_int8(name):
    encoder, exact = int8_encoder(MODELS / name), Encoder(MODELS / name, device="cpu")
    assert encoder.dtype in (torch.float32, torch.bfloat16)
    ids, mask = torch.arange(2, 14).view(2, 6), torch.ones(2, 6, dtype=torch.int64)
    hidden, wanted = encoder(ids, mask), exact(ids, mask)
    assert hidden.dtype is encoder.dtype
    assert 1e-4 < (hidden.float() - wanted).norm() / wanted.norm() < 0.05
    assert torch.equal(pickle.loads(pickle.dumps(encoder))(ids, mask), hidden)


@on_devices
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["bert", "roberta", "sentence"])
def test_goldens(device, dtype, name):
    if device == "cpu" and dtype is torch.float16:
        with pytest.raises(ValueError, match="dtype is torch.float16, a CPU takes"):
            Encoder(MODELS / name, device=device, dtype=dtype)
        return
    golden = safetensors(MODELS / name / "golden.safetensors")
    bound = 1e-5 if dtype is torch.float32 else 2 * golden["bf16_error"].item()
    encoder = Encoder(MODELS / name, device=device, dtype=dtype, batch_tokens=100)
    ids, types, bounds = golden["tokens"], golden["types"], golden["cu_seqlens"]
    final = "vectors" if name == "sentence" else "logits"
    for _ in range(3):  # on a GPU: run directly, captured, launched again
        hidden = encoder.packed(ids, bounds, types)
        assert hidden.shape == golden["hidden"].shape and hidden.dtype == dtype and hidden.device.type == device
        assert error(hidden, golden["hidden"]) <= bound
        result = encoder.packed(ids, bounds, types, result=final)
        assert result.dtype == (torch.float32 if final == "vectors" else dtype)
        if dtype is torch.float32:
            assert error(result, golden[final].reshape(result.shape)) <= 1e-5
    for in_front in (False, True):
        if in_front and name == "roberta":
            continue  # its positions count from the first token, as ours do
        batch_ids, batch_types, mask = padded(golden, in_front)
        here = batch_ids.to(device), mask.to(device), batch_types.to(device)
        for remove in (True, False):
            before = encoder.wasted_tokens
            states = encoder(*here, remove_padding=remove)
            assert states.shape == (*batch_ids.shape, encoder.hidden_size)
            assert torch.equal(states[mask.to(device) == 0], torch.zeros_like(states[mask.to(device) == 0]))
            assert error(states[mask.to(device) == 1], golden["hidden"]) <= bound
            assert device == "cuda" or not remove or encoder.wasted_tokens == before
            assert error(encoder(*here, result=final, remove_padding=remove), result) <= bound


@on_devices
@pytest.mark.parametrize("name", ["bert", "roberta", "sentence"])
def test_tensors_and_small_batches(device, name):
    """Weights from a mapping, and memory for less than the batch, give the same result."""
    golden = safetensors(MODELS / name / "golden.safetensors")
    arguments = golden["tokens"], golden["cu_seqlens"], golden["types"]
    config = json.loads((MODELS / name / "config.json").read_text())
    longest = int(golden["cu_seqlens"].diff().max())
    wanted = Encoder(MODELS / name, device=device).packed(*arguments)
    tensors = safetensors(MODELS / name / "model.safetensors")
    for encoder in (
        Encoder(tensors, config=config, device=device),
        Encoder({n: t.double() for n, t in tensors.items()}, config=config, device=device),
        Encoder(MODELS / name, device=device, batch_tokens=longest),
    ):
        assert error(encoder.packed(*arguments), wanted) <= 1e-6


@on_devices
def test_layers(device):
    golden = safetensors(MODELS / "bert" / "golden.safetensors")
    tensors = safetensors(MODELS / "bert" / "model.safetensors")
    config = json.loads((MODELS / "bert" / "config.json").read_text())
    whole = Encoder(MODELS / "bert", device=device)
    ids, types, mask = padded(golden)
    prefix = next(n for n in tensors if n.endswith("embeddings.word_embeddings.weight"))[: -len("word_embeddings.weight")]
    embedding = {n[len(prefix) :]: t for n, t in tensors.items() if n.startswith(prefix)}
    states = embedding["word_embeddings.weight"][ids] + embedding["token_type_embeddings.weight"][types]
    states = states + embedding["position_embeddings.weight"][: ids.shape[1]]
    states = torch.nn.functional.layer_norm(
        states, states.shape[-1:], embedding["LayerNorm.weight"], embedding["LayerNorm.bias"], 1e-12
    ).to(device)
    layers = {n: t for n, t in tensors.items() if "encoder.layer." in n}
    alone = Encoder(layers, config=config, device=device)
    bare = Encoder({n[n.index("layer.") :]: t for n, t in layers.items()}, config=config, device=device)
    wanted = whole(ids, mask, types)
    boolean = (mask == 1)[:, None, None, :].expand(-1, 1, ids.shape[1], -1)
    added = torch.where(boolean, 0.0, torch.finfo(torch.float32).min)
    for encoder in (whole, alone, bare):
        for attention_mask in (mask, mask == 1, mask.to(device), mask.to(torch.bfloat16)):
            for remove in (True, False):
                got = encoder.layers_from(states, attention_mask, remove_padding=remove)
                assert error(got, wanted) <= 1e-6
        for attention_mask in (mask, boolean, added, boolean[:, :, :1], added.to(device)):
            output = encoder.as_layers()(states, attention_mask=attention_mask)
            assert torch.equal(output.last_hidden_state, output[0]) and error(output[0], wanted) <= 1e-6
        # A mask whose rows differ keeps them all.
        blocks = (torch.arange(ids.shape[1])[:, None] < 2) == (torch.arange(ids.shape[1]) < 2)
        blocks = blocks.expand(ids.shape[0], 1, -1, -1)
        got, short = encoder.as_layers()(states, attention_mask=blocks)[0], encoder.layers_from(states[:, :2])
        assert error(got[:, :2], short) <= 1e-6
    with pytest.raises(RuntimeError, match="layers and no embedding"):
        alone(ids, mask)
    with pytest.raises(RuntimeError, match="torch.no_grad"):
        whole.layers_from(states.clone().requires_grad_())
    with torch.no_grad():
        whole.layers_from(states.clone().requires_grad_())
    with pytest.raises(ValueError, match="hidden_states is torch.float64"):
        whole.layers_from(states.double())
    with pytest.raises(ValueError, match="hidden_states has shape"):
        whole.layers_from(states[..., :-1])


@pytest.fixture
def folder(tmp_path):
    """A cross-encoder with a vocabulary."""
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((MODELS / "bert" / name).read_bytes())
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return tmp_path


def test_texts(folder):
    numpy = pytest.importorskip("numpy")
    encoder = Encoder(folder, device="cpu")
    texts = ["w5 w6", "", "W7 nothing w8", "w9" * 30]
    vectors = encoder.encode(texts)
    assert isinstance(vectors, numpy.ndarray) and vectors.shape == (4, encoder.vector_size) and vectors.dtype == numpy.float32
    numpy.testing.assert_allclose(encoder.encode("w5 w6"), vectors[0], atol=1e-6)
    tensor = encoder.encode(texts, as_tensor=True)
    assert isinstance(tensor, torch.Tensor) and torch.equal(tensor, torch.from_numpy(vectors))
    wanted = encoder([[2, 5, 6, 3]], result="vectors")[0]
    assert error(tensor[0], wanted) <= 1e-6
    assert encoder.encode([]).shape == (0, encoder.vector_size)
    for odd, same in (("w5\0 w6", "w5 w6"), (b"w5 \xff w6", "w5 \ufffd w6"), ("w5 \ud800", "w5 \ufffd"), ("w5 " * 10**6, "w5 " * 100)):
        assert torch.equal(encoder.encode(odd, as_tensor=True), encoder.encode(same, as_tensor=True)), odd[:9]
    for changes in ({"pooling": "cls"}, {"pooling": "max", "normalize": True}):
        other = Encoder(folder, device="cpu", **changes)
        states = other([[2, 5, 6, 3]])[0]
        pooled = states[0] if changes["pooling"] == "cls" else states.amax(0)
        pooled = pooled / pooled.norm() if "normalize" in changes else pooled
        assert error(other.encode(["w5 w6"], as_tensor=True)[0], pooled) <= 1e-6

    logits = encoder.classify([("w5 w6", "w7"), ("w8", "w9 w10")], as_tensor=True)
    wanted = encoder(
        [[2, 5, 6, 3, 7, 3], [2, 8, 3, 9, 10, 3]], token_type_ids=[[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1]], result="logits"
    )
    assert error(logits, wanted) <= 1e-6
    assert error(encoder.classify(["w5"], as_tensor=True), encoder([[2, 5, 3]], result="logits")) <= 1e-6
    ranked = encoder.rank("w8", ["w9 w10", "w7", "w5"], label=1)
    assert sorted(i for i, _ in ranked) == [0, 1, 2] and ranked == sorted(ranked, key=lambda item: -item[1])
    assert abs(dict(ranked)[0] - wanted[1, 1].item()) <= 1e-5
    assert encoder.rank("w8", ["w9 w10", "w7", "w5"], label=1, top=1) == ranked[:1]
    with pytest.raises(ValueError, match="label is None, and the model has 3"):
        encoder.rank("w8", ["w9"])

    strict = Encoder(folder, device="cpu", max_length=4, truncate=False)
    with pytest.raises(EncodeError, match="text 1 has more than 4 tokens") as caught:
        strict.encode(["w5 w6", "w5 w6 w7", "w8"], as_tensor=True)
    assert list(caught.value.errors) == [1]
    results = caught.value.results
    assert torch.equal(results[1], torch.zeros(encoder.vector_size)) and error(results[0], tensor[0]) <= 1e-6
    marked, plain = "w5 [SEP] w6", Encoder(folder, device="cpu", special_tokens=False)
    assert error(plain.encode(marked, as_tensor=True), encoder.encode(marked, as_tensor=True)) > 1e-3


def test_weights_cache(folder, tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    wanted = Encoder(folder, device="cpu").encode(["w5 w6"], as_tensor=True)
    for _ in range(2):
        encoder = Encoder(folder, device="cpu", weights_cache=cache)
        assert error(encoder.encode(["w5 w6"], as_tensor=True), wanted) <= 1e-6
    with pytest.raises(ValueError, match="weights_cache is .* cannot contain NUL"):
        Encoder(folder, device="cpu", weights_cache="a\0b")
    assert len(list(cache.iterdir())) <= 1  # empty if the kernels take the weights in their original layout


def test_threads_wait_for_each_other(folder):
    pytest.importorskip("numpy")
    encoder = Encoder(folder, device="cpu")
    texts = [f"w{5 + i % 40} w{6 + i % 30}" for i in range(50)]
    wanted = encoder.encode(texts, as_tensor=True)
    results, failures = [], []

    def work():
        try:
            results.extend(encoder.encode(texts, as_tensor=True) for _ in range(5))
        except Exception as failure:  # the main thread shows it
            failures.append(failure)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures, failures
    assert len(results) == 15 and all(torch.equal(r, wanted) for r in results)


def test_streams():
    if "cuda" not in DEVICES:
        pytest.skip("needs an NVIDIA GPU")
    golden = safetensors(MODELS / "bert" / "golden.safetensors")
    arguments = golden["tokens"], golden["cu_seqlens"], golden["types"]
    encoder = Encoder(MODELS / "bert", device="cuda")
    flipped = golden["tokens"].flip(0), golden["cu_seqlens"], golden["types"]
    wanted, other = encoder.packed(*arguments).clone(), encoder.packed(*flipped).clone()
    assert not torch.equal(wanted, other)
    results, others = [], []
    for _ in range(4):
        torch.cuda._sleep(10_000_000)  # delays the default stream, and the other streams wait for it
        results.append(encoder.packed(*arguments))
        with torch.cuda.stream(torch.cuda.Stream()):
            others.extend(encoder.packed(*flipped) for _ in range(3))
            torch.cuda._sleep(10_000_000)
            results.append(encoder.packed(*arguments))
    torch.cuda.synchronize()
    for result in results:
        assert torch.equal(result, wanted)
    for result in others:
        assert torch.equal(result, other)


@on_devices
def test_padding_over_the_limit(device):
    encoder = Encoder(MODELS / "bert", device=device, batch_tokens=37)
    for length in (38, 50, 200_000):
        mask = torch.zeros(1, length, dtype=torch.int64)
        mask[0, :3] = 1
        ids = torch.ones(1, length, dtype=torch.int64)
        assert encoder(ids, mask).shape == (1, length, encoder.hidden_size)
        with pytest.raises(ValueError, match=f"sequence 0 has {length} tokens with its padding, the encoder takes 37"):
            encoder(ids, mask, remove_padding=False)


@on_devices
def test_nothing(device):
    encoder = Encoder(MODELS / "bert", device=device)
    for shape in ((0, 3), (2, 0), (0, 0)):
        ids = torch.zeros(shape, dtype=torch.int64)
        assert encoder(ids).shape == (*shape, encoder.hidden_size)
        assert torch.equal(encoder(ids, result="vectors").cpu(), torch.zeros(shape[0], encoder.vector_size))
    for remove in (True, False):
        states = encoder([[1, 2]], [[0, 0]], remove_padding=remove)
        assert torch.equal(states.cpu(), torch.zeros(1, 2, encoder.hidden_size))


@on_devices
def test_random_masks(device):
    """Compares padded batches of all shapes, in memory for a part of them, with one sequence at a time."""
    generator = torch.Generator().manual_seed(0)

    def integers(low, high, shape=()):
        return torch.randint(low, high, shape, generator=generator)

    alone = Encoder(MODELS / "bert", device=device)
    encoders = [Encoder(MODELS / "bert", device=device, batch_tokens=tokens) for tokens in (37, 64, 1000)]
    for case in range(60):
        B, S = int(integers(1, 9)), int(integers(1, 37))
        ids, types = integers(0, 53, (B, S)), integers(0, 3, (B, S))
        mask = (torch.rand(B, S, generator=generator) < torch.rand((), generator=generator)).long()
        result = ("hidden", "vectors", "logits")[case % 3]
        got = encoders[case % 2 + case % 7 // 6](ids, mask, types, result=result, remove_padding=case % 4 > 0).cpu()
        for b in range(B):
            valid = mask[b] == 1
            wanted = alone.packed(ids[b][valid], [0, int(valid.sum())], types[b][valid], result=result).cpu()
            torch.testing.assert_close(got[b][valid] if result == "hidden" else got[b : b + 1], wanted, atol=2e-5, rtol=1e-4)


IDS = torch.tensor([[5, 6, 52, 7, 9, 10], [11, 12, 13, 14, 15, 16], [1, 2, 3, 4, 5, 6]])


@on_devices
def test_masks_of_any_dtype(device):
    encoder = Encoder(MODELS / "bert", device=device)
    mask = torch.tensor([[1, 1, 0, 1, 1, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1]])
    wanted = encoder(IDS, mask)
    for dtype in (torch.bool, torch.int8, torch.uint8, torch.int32, torch.float16, torch.bfloat16, torch.float64):
        assert torch.equal(encoder(IDS, mask.to(dtype)), wanted)
        assert torch.equal(encoder(IDS.to(device), mask.to(device, dtype)), wanted)
    blocks = (torch.arange(6)[:, None] < 2) == (torch.arange(6) < 2)
    for dtype in (torch.bool, torch.int8, torch.float32):
        pairs = blocks.to(dtype).expand(3, 1, 6, 6)
        assert error(encoder(IDS, pairs)[:, :2], encoder(IDS[:, :2])) <= 1e-6
        packed = encoder.packed(IDS.flatten(), [0, 6, 12, 18], attention_mask=pairs)
        assert error(packed.reshape(3, 6, -1), encoder(IDS, pairs)) <= 1e-6


@on_devices
def test_bias_and_temperature(device):
    encoder = Encoder(MODELS / "bert", device=device)
    blocks = (torch.arange(6)[:, None] < 2) == (torch.arange(6) < 2)
    bias = torch.where(blocks, 0.5, -1e4)
    for shape in ((encoder.heads, 6, 6), (3, encoder.heads, 6, 6)):
        assert error(encoder(IDS, bias=bias.expand(shape))[:, :2], encoder(IDS[:, :2])) <= 1e-6
    assert torch.equal(encoder(IDS, temperature=1.0), encoder(IDS))
    assert error(encoder(IDS, temperature=0.25), encoder(IDS)) > 1e-3
    states = torch.randn(3, 6, encoder.hidden_size, device=device)
    alone = encoder.layers_from(states, bias=bias.expand(encoder.heads, 6, 6))
    assert error(alone[:, :2], encoder.layers_from(states[:, :2])) <= 1e-6


NOT_SEEN = "; use 1 for what is seen and 0 for what is not"


@on_devices
def test_attention_refusals(device):
    encoder = Encoder(MODELS / "bert", device=device)
    ones = torch.ones(3, 1, 6, 6, device=device)

    def refusal(*args, **arguments):
        with pytest.raises(ValueError) as caught:
            encoder(IDS, *args, **arguments)
            encoder.check_mask()
        return str(caught.value)

    give = "; give (3, 6) for the tokens or (3, 1, 6, 6) for pairs"
    for shape in ((3, 5), (2, 6), (3, 6, 6), (3, 1, 1, 6), (3, 2, 6, 6), (18,)):
        assert refusal(torch.ones(shape)) == f"attention_mask: has shape {shape if len(shape) > 1 else '(18)'}{give}"
    for odd in (0.5, 2.0, -1.0, float("nan")):
        mask = torch.ones(3, 6)
        mask[1, 4] = odd
        assert refusal(mask) == f"attention_mask: has a value other than 0 and 1 at (1, 4){NOT_SEEN}"
        ones[2, 0, 3, 5] = odd
        assert refusal(ones) == f"attention_mask: has a value other than 0 and 1 at (2, 0, 3, 5){NOT_SEEN}"
    for temperature, name in ((0, "0"), (1e-38, "1e-38"), (-1.0, "-1"), (float("nan"), "nan"), (float("inf"), "inf")):
        assert refusal(temperature=temperature) == f"temperature: is {name}; give a number of 1e-30 or more"
    for arguments, message in (
        ({"temperature": "x"}, "Encoder: temperature is 'x', needs a number"),
        ({"attention_mask": "x"}, "attention_mask: is str; give a tensor"),
        ({"attention_mask": torch.ones(3, 6, dtype=torch.complex64)}, "attention_mask: is torch.complex64; give a real dtype"),
    ):
        with pytest.raises(TypeError, match=message):
            encoder(IDS, **arguments)
    heads = encoder.heads
    empty = ((heads, 0, 0), (heads, 6, 0), (0, 6, 6), (0, heads, 6, 6))
    for shape in ((heads, 5, 5), (heads + 1, 6, 6), (2, heads, 6, 6), (heads, 6, 7), (6, 6), *empty):
        wanted = f"bias: has shape {shape}; give ({heads}, L, L) or (3, {heads}, L, L) with L of at least 6"
        assert refusal(bias=torch.zeros(shape)) == wanted
    assert "padding before a token" in refusal([[0, 1, 1, 1, 1, 1]] * 3, bias=torch.zeros(heads, 6, 6))


@on_devices
def test_pack(device):
    mask = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 1, 1]], device=device)
    for dtype in (torch.bool, torch.int8, torch.int64, torch.float32, torch.bfloat16):
        places = warpwright.places(mask.to(dtype))
        assert places.cu_seqlens.tolist() == [0, 2, 2, 5] and places.rows() == 5
        assert places.indices.tolist() == [0, 2, 9, 10, 11] + [-1] * 7
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = torch.randn(3, 4, 5, 2, device=device).to(dtype)
        packed = warpwright.pack(x, places)
        assert torch.equal(packed, x[mask == 1])
        assert torch.equal(warpwright.unpack(packed, places), x * mask[..., None, None].to(dtype))
        more = warpwright.pack(x, places, rows=8)
        assert torch.equal(more[:5], packed) and not more[5:].any()
        assert torch.equal(warpwright.unpack(more, places), warpwright.unpack(packed, places))
    with pytest.raises(ValueError, match=r"attention_mask: has a value other than 0 and 1 at \(1, 0\)" + NOT_SEEN):
        warpwright.places(torch.tensor([[1, 0], [2, 1]], device=device)).rows()
    with pytest.raises(TypeError, match="x is NoneType, needs a tensor"):
        warpwright.pack(None, places)
    with pytest.raises(TypeError, match="places is Tensor, needs the result of warpwright.places"):
        warpwright.pack(x, mask)
    with pytest.raises(ValueError, match=r"attention_mask: has shape \(4,\)"):
        warpwright.places(mask[0])
    with pytest.raises(ValueError, match="device is meta, needs a CPU or a CUDA device"):
        warpwright.places(mask.to("meta"))
    with pytest.raises(ValueError, match="rows is 13"):
        warpwright.pack(x, places, rows=13)
    with pytest.raises(ValueError, match=r"x has shape \(4, 3\)"):
        warpwright.pack(torch.zeros(4, 3, device=device), places)


def test_refusals(folder):
    with pytest.raises(ValueError, match="/nowhere"):
        Encoder("/nowhere", device="cpu")
    with pytest.raises(ValueError, match="config is given with a folder"):
        Encoder(folder, config={}, device="cpu")
    with pytest.raises(ValueError, match="config is None"):
        Encoder({"x": torch.ones(2)}, device="cpu")
    with pytest.raises(TypeError, match="values that are not tensors"):
        Encoder({"x": 1}, config={}, device="cpu")
    with pytest.raises(ValueError, match="dtype is torch.float64, needs one of torch.float32"):
        Encoder(folder, dtype=torch.float64, device="cpu")
    with pytest.raises(ValueError, match="pooling is 'median'"):
        Encoder(folder, pooling="median", device="cpu")
    with pytest.raises(ValueError, match="device is meta"):
        Encoder(folder, device="meta")
    encoder = Encoder(MODELS / "bert", device="cpu")
    with pytest.raises(RuntimeError, match="no tokenizer"):
        encoder.encode(["a"])
    with pytest.raises(ValueError, match=r"input_ids has shape \(3,\), needs \(B, S\)"):
        encoder([1, 2, 3])
    with pytest.raises(TypeError, match="input_ids is torch.float32"):
        encoder(torch.ones(2, 3))
    with pytest.raises(ValueError, match="ids has 53 in sequence 1"):
        encoder([[1, 2], [3, 53]])
    with pytest.raises(ValueError, match=f"input_ids has values from 1 to {2**40}"):
        encoder([[1, 2**40]])
    with pytest.raises(ValueError, match="result is 'all'"):
        encoder([[1]], result="all")
    with pytest.raises(ValueError, match=r"cu_seqlens' last, 4"):
        encoder.packed([1, 2, 3], [0, 4])
    sentence = Encoder(MODELS / "sentence", device="cpu")
    with pytest.raises(ValueError, match="no classification head"):
        sentence([[1]], result="logits")
    with pytest.raises(ValueError, match="no classification head"):
        sentence.rank("a", ["b"])
    tensors = safetensors(MODELS / "bert" / "model.safetensors")
    next(t for n, t in tensors.items() if n.endswith("word_embeddings.weight"))[7] = torch.inf
    config = json.loads((MODELS / "bert" / "config.json").read_text())
    broken = Encoder(tensors, config=config, device="cpu", batch_tokens=5)
    for result in ("hidden", "vectors", "logits"):
        with pytest.raises(RuntimeError, match="sequence 3 gets values that are not finite"):
            broken.packed([1, 2, 3, 4, 7, 8], [0, 2, 2, 3, 6], result=result)
        with pytest.raises(RuntimeError, match="sequence 2 gets values that are not finite"):
            broken([[1, 2], [3, 4], [0, 7]], [[1, 1], [1, 1], [0, 1]], result=result)
        assert torch.isfinite(broken([[1, 2], [3, 4], [5, 7]], [[1, 1], [1, 1], [1, 0]], result=result)).all()
    texts = Encoder(folder, device="cpu")
    with pytest.raises(TypeError, match=r"texts\[1\] is int, needs str"):
        texts.encode(["w5", 7])
    assert "2 layers" in repr(texts)


# ---- Compared with transformers ----------------------------------------------------------------------------------------


@on_devices
@pytest.mark.parametrize("family", ["Bert", "Roberta"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_modules_of_transformers(device, family, dtype):
    """A module becomes an encoder, and an encoder takes the place of a module's layers."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    config = getattr(transformers, family + "Config")(
        vocab_size=101, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=88,
        max_position_embeddings=70, num_labels=2,
    )  # fmt: skip
    model = getattr(transformers, family + "ForSequenceClassification")(config).eval().to(device)
    ids = torch.randint(5, 101, (4, 33), device=device)
    mask = (torch.arange(33, device=device) < torch.tensor([[33], [1], [20], [7]], device=device)).long()
    ids = torch.where(mask == 1, ids, config.pad_token_id)
    with torch.no_grad():
        wanted = model(ids, attention_mask=mask, output_hidden_states=True)
        bound, logit_bound = 1e-5, 1e-4
        if dtype is not torch.float32:
            theirs = model.to(dtype)(ids, attention_mask=mask, output_hidden_states=True)
            valid = mask == 1
            bound = 2 * error(theirs.hidden_states[-1][valid], wanted.hidden_states[-1][valid])
            logit_bound = 0.1
        encoder = Encoder(model)
        assert encoder.dtype is dtype and encoder.device.type == device
        hidden = encoder(ids, mask)
        assert error(hidden[mask == 1], wanted.hidden_states[-1][mask == 1]) <= bound
        assert error(encoder(ids, mask, result="logits"), wanted.logits) <= logit_bound

        body = getattr(model, family.lower())
        body.encoder = Encoder(body.encoder, config=config, device=device, dtype=dtype).as_layers()
        replaced = model(ids, attention_mask=mask)
        assert error(replaced.logits, wanted.logits) <= logit_bound
        assert error(body(ids, attention_mask=mask).last_hidden_state[mask == 1], wanted.hidden_states[-1][mask == 1]) <= bound


LINES = ["a cat sat on the mat", "The dog's  CAFÉ, naïve!", "你好 world", "", "numbers 12345 and\ttabs", "x" * 80, "word " * 60]


def tokenizer_for(family, folder):
    """Saves a Hugging Face tokenizer with a small vocabulary to the folder."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    corpus = LINES * 3
    if family == "Bert":
        trained = tokenizers.BertWordPieceTokenizer(lowercase=True)
        trained.train_from_iterator(corpus, vocab_size=180, min_frequency=1, show_progress=False)
        (folder / "vocab.txt").write_text("\n".join(sorted(trained.get_vocab(), key=trained.get_vocab().get)) + "\n")
        tokenizer = transformers.BertTokenizerFast(tokenizer_object=trained._tokenizer, do_lower_case=True)
        pairs = [("[CLS]", trained.token_to_id("[CLS]")), ("[SEP]", trained.token_to_id("[SEP]"))]
        tokenizer.backend_tokenizer.post_processor = tokenizers.processors.BertProcessing(pairs[1], pairs[0])
    else:
        trained = tokenizers.ByteLevelBPETokenizer()
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        trained.train_from_iterator(corpus, vocab_size=330, min_frequency=1, special_tokens=special, show_progress=False)
        trained._tokenizer.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
        tokenizer = transformers.RobertaTokenizerFast(tokenizer_object=trained._tokenizer)
    tokenizer.save_pretrained(folder)
    return tokenizer


@on_devices
@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("family", ["Bert", "Roberta"])
def test_cross_encoders_of_transformers(device, family, labels, tmp_path):
    """Turns text into scores as transformers does, from a folder saved by transformers. The weights are random, because no
    package index offers a real cross-encoder."""
    transformers = pytest.importorskip("transformers")
    tokenizer = tokenizer_for(family, tmp_path)
    torch.manual_seed(2)
    config = getattr(transformers, family + "Config")(
        vocab_size=len(tokenizer), hidden_size=40, num_hidden_layers=2, num_attention_heads=5, intermediate_size=72,
        max_position_embeddings=130, num_labels=labels, pad_token_id=tokenizer.pad_token_id,
        type_vocab_size=2 if family == "Bert" else 1, initializer_range=0.2,
    )  # fmt: skip
    model = getattr(transformers, family + "ForSequenceClassification")(config).eval()
    model.save_pretrained(tmp_path)
    pairs = [(a, b) for a in LINES for b in LINES if len(a) + len(b) < 120]
    with torch.no_grad():
        batch = tokenizer(*map(list, zip(*pairs)), padding=True, return_tensors="pt")
        wanted = model(**batch).logits
        singles = model(**tokenizer(LINES[:5], padding=True, return_tensors="pt")).logits
    encoder = Encoder(tmp_path, device=device)
    assert encoder.has_tokenizer and encoder.labels == labels
    logits = encoder.classify(pairs, as_tensor=True)
    assert error(logits, wanted) <= 1e-5
    assert error(encoder.classify(LINES[:5], as_tensor=True), singles) <= 1e-5
    label = None if labels == 1 else 2
    ranked = encoder.rank(LINES[0], [b for a, b in pairs if a == LINES[0]], label=label)
    of_first = wanted[[i for i, (a, _) in enumerate(pairs) if a == LINES[0]], label or 0]
    assert [i for i, _ in ranked] == of_first.argsort(descending=True).tolist()
