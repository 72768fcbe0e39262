"""BERT-family encoders on libwarpwright. They turn texts, token ids or hidden states into vectors."""

import contextlib
import ctypes
import json
import logging
import os
from collections.abc import Mapping

import torch

from . import _arguments, _library, _locks

_POOLINGS = {None: 0, "mean": 1, "cls": 2, "max": 3, "mean_sqrt": 4}
_NORMALIZATIONS = {None: 0, True: 1, False: 2}
_RESULTS = {"vectors": 0, "logits": 1, "hidden": 2}
_DTYPES = {torch.float32: 1, torch.bfloat16: 2, torch.float16: 3, torch.int8: 7}
_NAMES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.int8}
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_MOST_TOKENS = 2**28
_logger = logging.getLogger("warpwright")
_WORD = "embeddings.word_embeddings.weight"


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p), ("data", ctypes.c_void_p), ("rows", ctypes.c_int64), ("columns", ctypes.c_int64),
        ("rank", ctypes.c_int32), ("dtype", ctypes.c_int32),
    ]  # fmt: skip


class _Options(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t), ("folder", ctypes.c_char_p), ("config", ctypes.c_char_p),
        ("tensors", ctypes.POINTER(_Tensor)), ("tensor_count", ctypes.c_int64), ("max_batch_tokens", ctypes.c_int64),
        ("max_batch_sequences", ctypes.c_int64), ("max_length", ctypes.c_int64), ("dtype", ctypes.c_int32),
        ("pooling", ctypes.c_int32), ("normalization", ctypes.c_int32), ("batch_invariant", ctypes.c_int32),
        ("refuse_long", ctypes.c_int32), ("plain_text", ctypes.c_int32), ("tf32", ctypes.c_int32),
        ("reserved", ctypes.c_int32), ("weights_cache", ctypes.c_char_p),
    ]  # fmt: skip


_INFO = ("hidden_size", "layers", "heads", "vocabulary", "token_types", "max_length", "vector_size", "labels",
         "max_batch_tokens", "max_batch_sequences", "wasted_tokens")  # fmt: skip


class _Info(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), *((name, ctypes.c_int64) for name in _INFO),
                ("has_tokenizer", ctypes.c_int32), ("dtype", ctypes.c_int32),
                ("prompts", ctypes.c_int32), ("default_prompt", ctypes.c_int32)]  # fmt: skip


class _Texts(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t), ("count", ctypes.c_int64), ("texts", ctypes.c_void_p), ("text_bytes", ctypes.c_void_p),
        ("seconds", ctypes.c_void_p), ("second_bytes", ctypes.c_void_p), ("out", ctypes.c_void_p),
        ("tokens", ctypes.c_void_p), ("statuses", ctypes.c_void_p), ("result", ctypes.c_int32), ("reserved", ctypes.c_int32),
        ("prompt", ctypes.c_char_p), ("prompt_bytes", ctypes.c_size_t), ("prompt_name", ctypes.c_char_p),
    ]  # fmt: skip


class _Tokens(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t), ("sequences", ctypes.c_int64), ("length", ctypes.c_int64), ("ids", ctypes.c_void_p),
        ("types", ctypes.c_void_p), ("cu_seqlens", ctypes.c_void_p), ("mask", ctypes.c_void_p), ("states", ctypes.c_void_p),
        ("out", ctypes.c_void_p), ("result", ctypes.c_int32), ("keep_padding", ctypes.c_int32), ("attention", ctypes.c_void_p),
    ]  # fmt: skip


class _Attention(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t), ("mask", ctypes.c_void_p), ("bias", ctypes.c_void_p), ("mask_shape", ctypes.c_int64 * 4),
        ("bias_shape", ctypes.c_int64 * 4), ("mask_rank", ctypes.c_int32), ("bias_rank", ctypes.c_int32),
        ("mask_dtype", ctypes.c_int32), ("mask_on_device", ctypes.c_int32), ("temperature", ctypes.c_double),
    ]  # fmt: skip


_c = _library.functions(
    warpwright_encoder_create=[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p],
    warpwright_encoder_get_info=[ctypes.c_void_p, ctypes.c_void_p],
    warpwright_encoder_get_prompt=[ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p],
    warpwright_encoder_texts=[ctypes.c_void_p, ctypes.c_void_p],
    warpwright_encoder_tokens=[ctypes.c_void_p, ctypes.c_void_p],
    warpwright_encoder_check_mask=[ctypes.c_void_p],
)
_destroy = _library.functions(None, warpwright_encoder_destroy=[ctypes.c_void_p]).warpwright_encoder_destroy
_text_error = _library.functions(
    ctypes.c_char_p, warpwright_encoder_text_error=[ctypes.c_void_p, ctypes.c_int64]
).warpwright_encoder_text_error


class EncodeError(ValueError):
    """Texts without a result. errors: the reasons by text index. results: of all texts, with zeros for the failed ones."""

    def __init__(self, errors, results):
        index, message = next(iter(errors.items()))
        others = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        super().__init__(f"text {index} {message}{others}")
        self.errors = errors
        self.results = results

    def __reduce__(self):  # so that a worker process can send it
        return EncodeError, (self.errors, self.results)


def _prompt(name, value):
    """The string in UTF-8, or None."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"Encoder: {name} is {type(value).__name__}, needs str")
    encoded = value.encode("utf-8", "surrogatepass")
    if name == "prompt_name" and b"\0" in encoded:
        raise ValueError(f"Encoder: prompt_name is {value!r}, which no prompt has")
    return encoded


_TEXTS_BETWEEN_STEPS = 1024  # of a progress bar, if batch_size is None


@contextlib.contextmanager
def _progress_bar(wanted, texts):
    """A progress bar for this many texts, or None."""
    if wanted is None:
        wanted = _logger.isEnabledFor(logging.INFO)
    if not wanted:
        yield None
        return
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError("warpwright: a progress bar needs the package tqdm; or pass show_progress_bar=False") from error
    with tqdm(total=texts, desc="Texts", unit=" texts") as bar:
        yield bar


def _open_again(folder, settings):
    return Encoder(folder, **settings)


def _host(name, value, dtype, shape):
    """A contiguous tensor of integers in the host's memory, of this dtype."""
    try:
        tensor = torch.as_tensor(value)
    # Raised by PyTorch for an int of more than 64 bits.
    except (OverflowError, RuntimeError, ValueError) as error:
        raise ValueError(f"Encoder: {name} is not a tensor of integers: {error}") from None
    if tensor.dtype not in _INTEGERS and tensor.numel():
        raise TypeError(f"Encoder: {name} is {tensor.dtype}, needs integers")
    if shape is not None and tensor.shape != shape:
        raise ValueError(f"Encoder: {name} has shape {tuple(tensor.shape)}, needs {tuple(shape)}")
    if dtype is torch.int32 and tensor.dtype is torch.int64 and tensor.numel():
        low, high = tensor.aminmax()
        if low < -(2**31) or high >= 2**31:
            raise ValueError(f"Encoder: {name} has values from {low.item()} to {high.item()}")
    return tensor.detach().to("cpu", dtype).contiguous()


def _layers_mask(mask):
    """A mask as Hugging Face's models pass it to their layers, (B, 1, 1 or S, S), boolean or added to the scores, as one
    that the encoder takes. If its rows are equal, it is a mask of tokens."""
    if mask is None or mask.dim() != 4:
        return mask
    seen = mask if mask.dtype is torch.bool else mask >= 0
    first = seen[:, :, :1]
    return first[:, 0, 0] if torch.equal(seen, first.expand_as(seen)) else seen


def _weights(model):
    """Tensors by name and a config, from a Hugging Face module or a mapping."""
    config = None
    if isinstance(model, torch.nn.Module):
        config = getattr(model, "config", None)
        model = model.state_dict()
    if not all(isinstance(t, torch.Tensor) for t in model.values()):
        raise TypeError("Encoder: model has values that are not tensors")
    tensors = {name: t.detach() for name, t in model.items() if t.is_floating_point()}
    if any(name.startswith("layer.") for name in tensors):  # the module holds only the layers
        tensors = {f"encoder.{name}": t for name, t in tensors.items()}
    return tensors, config


def _without_embeddings(tensors, config):
    """Adds an embedding of one token to tensors that hold only the layers. No call reads it."""
    hidden = config["hidden_size"]
    prefix = next(name[: name.index("encoder.layer.")] for name in tensors if "encoder.layer." in name) + "embeddings."
    ones, zeros = torch.ones(hidden), torch.zeros
    positions = config.get("max_position_embeddings", 512)
    stand_in = {
        "word_embeddings.weight": zeros(1, hidden),
        "position_embeddings.weight": zeros(positions, hidden),
        "token_type_embeddings.weight": zeros(1, hidden),
        "LayerNorm.weight": ones,
        "LayerNorm.bias": zeros(hidden),
    }
    config = {**config, "vocab_size": 1, "type_vocab_size": 1, "pad_token_id": 0}
    return {**tensors, **{prefix + name: t for name, t in stand_in.items()}}, config


class Encoder:
    """An encoder of the BERT family, for inference: BERT, MiniLM, RoBERTa, cross-encoders.

    model   the path of a folder with a Hugging Face model, or a Hugging Face module, or a mapping of names to tensors; the
            values of a module or a mapping are copied, and a mapping needs `config`
    config  a dict, or an object with to_dict(); not for a folder
    device  "cpu", "cuda", "cuda:1", …; by default the tensors' device, or for a folder a GPU if there is one
    dtype   of weights and hidden states: torch.float32, bfloat16 or float16, or their names; by default the tensors' dtype,
            or float32 for a folder. "int8" or torch.int8, on a CPU: the layers' products in int8; the attribute dtype is that of the rest,
            bfloat16 where the processor multiplies it faster than float32

    pooling ("mean", "cls", "max", "mean_sqrt") and normalize: None takes the folder's setting.
    truncate: texts of more than max_length tokens are cut; with False they are an error.
    special_tokens: with False, "[SEP]" in a text is plain text.
    batch_tokens: memory is allocated for batches of this many tokens. Larger calls are divided.
    batch_invariant: a text's bits do not depend on the other texts in its batch.
    tf32: products in fp32 may round to TF32 on a GPU.
    weights_cache: on a CPU, a folder that keeps a model's weights in the kernels' layout for all processes. Creating an
    encoder is then faster, and processes share the memory.

    Calls from several threads wait for each other. An encoder of a folder can be pickled and copied. The copy reads the
    folder again and has its own memory. An encoder of tensors cannot be pickled or copied. If a process used this package
    before a fork, every call of this package in the child is a RuntimeError: let multiprocessing spawn its workers.

    prompts (a dict) and default_prompt_name come from the folder's config_sentence_transformers.json.
    """

    _handle = None  # so that __del__ finds it even if __init__ fails
    _context = None

    def __init__(
        self,
        model,
        *,
        config=None,
        device=None,
        dtype=None,
        pooling=None,
        normalize=None,
        max_length=None,
        truncate=True,
        special_tokens=True,
        batch_tokens=16384,
        batch_invariant=False,
        tf32=False,
        weights_cache=None,
    ):
        _locks.add_lock(self)
        self._again = None  # the arguments that make it again, for pickle
        self._has_embedding = True
        options = _Options(size=ctypes.sizeof(_Options))
        kept = []  # keeps alive what the options point to
        if isinstance(model, (torch.nn.Module, Mapping)):
            tensors, own_config = _weights(model)
            config = own_config if config is None else config
            if config is None:
                raise ValueError("Encoder: config is None, but a model that is a mapping of tensors needs one")
            config = dict(config if isinstance(config, Mapping) else config.to_dict())
            first = next(iter(tensors.values()), None)
            if first is not None:
                device = first.device if device is None else device
                dtype = first.dtype if dtype is None and first.dtype in _DTYPES else dtype
            if not any(name.endswith(_WORD) for name in tensors) and any("encoder.layer." in name for name in tensors):
                self._has_embedding = False
                tensors, config = _without_embeddings(tensors, config)
            structures = (_Tensor * len(tensors))()
            for structure, (name, tensor) in zip(structures, tensors.items()):
                if tensor.dtype not in _library.DTYPES or tensor.dim() not in (1, 2):
                    raise ValueError(f"Encoder: {name} is {tensor.dtype} of shape {tuple(tensor.shape)}")
                tensor = tensor.cpu().contiguous()
                kept.append(tensor)
                rows, columns = (1, tensor.shape[0]) if tensor.dim() == 1 else tensor.shape
                structure.name, structure.data = name.encode(), tensor.data_ptr()
                structure.rows, structure.columns, structure.rank = rows, columns, tensor.dim()
                structure.dtype = _library.DTYPES[tensor.dtype]
            options.tensors, options.tensor_count = structures, len(tensors)
            options.config = json.dumps(config, default=str).encode()
        else:
            if config is not None:
                raise ValueError("Encoder: config is given with a folder, which has its own config")
            options.folder = _arguments.path("Encoder", "model", model)
        self.device = _arguments.device("Encoder", device)
        dtype = torch.float32 if dtype is None else _arguments.named(dtype, _NAMES)
        options.dtype = _arguments.choice("Encoder", "dtype", dtype, _DTYPES)
        if self.device.type == "cpu" and dtype is torch.float16:
            raise ValueError("Encoder: dtype is torch.float16, a CPU takes torch.float32 or torch.bfloat16")
        options.pooling = _arguments.choice("Encoder", "pooling", pooling, _POOLINGS)
        options.normalization = _arguments.choice("Encoder", "normalize", normalize, _NORMALIZATIONS)
        options.max_length = 0 if max_length is None else _arguments.integer("Encoder", "max_length", max_length, 1, _MOST_TOKENS)
        options.max_batch_tokens = _arguments.integer("Encoder", "batch_tokens", batch_tokens, 1, _MOST_TOKENS)
        if weights_cache is not None:
            options.weights_cache = _arguments.path("Encoder", "weights_cache", weights_cache)
        options.batch_invariant, options.tf32 = bool(batch_invariant), bool(tf32)
        options.refuse_long, options.plain_text = not truncate, not special_tokens
        self._context = _library.new_context(self.device)
        handle = ctypes.c_void_p()
        status = _c.warpwright_encoder_create(self._context.handle, ctypes.byref(options), ctypes.byref(handle))
        if status:
            _library.raise_status(status, ValueError)
        self._handle = handle.value
        info = self._info()
        for name in _INFO:
            if name != "wasted_tokens":
                setattr(self, name, getattr(info, name))
        self.dtype = next(of for of, number in _DTYPES.items() if number == info.dtype)
        self.has_tokenizer = bool(info.has_tokenizer)
        prompts = [self._prompt_at(i) for i in range(info.prompts)]
        self.prompts = dict(prompts)
        self.default_prompt_name = prompts[info.default_prompt][0] if info.default_prompt >= 0 else None
        if options.folder is not None:
            settings = {
                "pooling": pooling, "normalize": normalize, "max_length": max_length, "truncate": truncate,
                "special_tokens": special_tokens, "batch_tokens": batch_tokens, "batch_invariant": batch_invariant, "tf32": tf32,
                "weights_cache": None if weights_cache is None else os.path.abspath(os.fsdecode(weights_cache)),
            }  # fmt: skip
            settings["device"], settings["dtype"] = str(self.device), str(dtype).removeprefix("torch.")
            self._again = os.path.abspath(os.fsdecode(model)), settings

    # Bound early, because modules disappear first when the interpreter ends.
    def __del__(self, destroy=_destroy):
        handle, self._handle = self._handle, None
        if handle:
            destroy(handle)

    def __reduce_ex__(self, protocol):
        """For pickle, copy.copy() and copy.deepcopy()."""
        if self._again is None:
            raise TypeError(
                "Encoder: it was made of tensors, and cannot be pickled or copied; make another one, or save the model and "
                "name its folder"
            )
        return _open_again, self._again

    def __repr__(self):
        return (
            f"Encoder({self.layers} layers, hidden_size {self.hidden_size}, {self.heads} heads, {self.dtype}, {self.device})"
        )

    def _prompt_at(self, index):
        name, text = ctypes.c_char_p(), ctypes.c_char_p()
        status = _c.warpwright_encoder_get_prompt(self._handle, index, ctypes.byref(name), ctypes.byref(text))
        if status:
            _library.raise_status(status)
        return name.value.decode(), text.value.decode()

    def _info(self):
        info = _Info(size=ctypes.sizeof(_Info))
        status = _c.warpwright_encoder_get_info(self._handle, ctypes.byref(info))
        if status:
            _library.raise_status(status)
        return info

    @property
    def wasted_tokens(self):
        """Rows computed so far in addition to the given tokens."""
        with self._lock:
            return self._info().wasted_tokens

    # ---- Texts ---------------------------------------------------------------------------------------------------------

    def encode(
        self, texts, prompt_name=None, prompt=None, batch_size=None, show_progress_bar=None, *, as_tensor=False
    ):
        """Returns the vectors of texts: an array (n, vector_size) in fp32, or (vector_size,) if texts is one str. With
        as_tensor, a tensor on the CPU. Raises EncodeError if texts cannot be encoded; it has the others' vectors.

        prompt: put before each text. By default it is the entry of `prompts` named prompt_name, or else the model's default
        prompt, if there is one. prompt="" means no prompt.
        batch_size: at most this many texts at a time, of similar length. By default, batches are as large as batch_tokens
        allows.
        show_progress_bar: shows a bar on standard error; needs the package tqdm. None: only if the logger "warpwright"
        shows INFO.
        """
        if prompt is not None and prompt_name is not None:
            _logger.warning("Encoder: prompt and prompt_name are given; prompt_name, %r, is ignored", prompt_name)
            prompt_name = None
        prompts = {"prompt": _prompt("prompt", prompt), "prompt_name": _prompt("prompt_name", prompt_name)}
        if batch_size is not None:
            batch_size = _arguments.integer("Encoder", "batch_size", batch_size, 1, 2**31 - 1)
        if isinstance(texts, (str, bytes)):
            return self._texts("vectors", [texts], None, as_tensor, batch_size, show_progress_bar, prompts)[0]
        return self._texts("vectors", list(texts), None, as_tensor, batch_size, show_progress_bar, prompts)

    def classify(self, texts, *, as_tensor=False):
        """Returns the logits (n, labels) of texts or of pairs of texts. Needs a classification head."""
        texts = list(texts)
        if texts and not isinstance(texts[0], (str, bytes)):
            for i, pair in enumerate(texts):
                if isinstance(pair, (str, bytes)) or len(pair) != 2:
                    raise TypeError(f"Encoder: texts[{i}] is {pair!r}, needs a pair like the others")
            return self._texts("logits", [a for a, _ in texts], [b for _, b in texts], as_tensor)
        return self._texts("logits", texts, None, as_tensor)

    def rank(self, query, texts, *, top=None, label=None):
        """Returns (index, logit) of each text paired with the query, the best first. Needs a cross-encoder. label: which
        logit, if there are several."""
        if self.labels > 1 and label is None:
            raise ValueError(f"Encoder: label is None, and the model has {self.labels}")
        if label is not None and not 0 <= _arguments.integer("Encoder", "label", label, 0, 2**31 - 1) < self.labels:
            raise ValueError(f"Encoder: label is {label}, the model has {self.labels}")
        if top is not None:
            top = _arguments.integer("Encoder", "top", top, 0, 2**63 - 1)
        texts = list(texts)
        scores = self._texts("logits", [query] * len(texts), texts, True)[:, label or 0].tolist()
        return sorted(enumerate(scores), key=lambda item: -item[1])[:top]

    def _texts(self, result, texts, seconds, as_tensor, batch_size=None, show_progress_bar=False, prompts=None):
        width = self.vector_size if result == "vectors" else self.labels
        if width == 0:
            raise ValueError("Encoder: the model has no classification head; use encode() for vectors")
        if not self.has_tokenizer:
            raise RuntimeError("Encoder: the encoder has no tokenizer; use a folder that has one, or give token ids")
        firsts = _arguments.byte_strings("Encoder", "texts", texts)
        others = None if seconds is None else _arguments.byte_strings("Encoder", "texts", seconds)
        with _progress_bar(show_progress_bar, len(texts)) as bar:
            out, errors = self._run_batches(result, width, firsts, others, prompts, batch_size, bar)
        results = out if as_tensor else _library.to_numpy(out)
        if errors:
            raise EncodeError(dict(sorted(errors.items())), results)
        return results

    def _run_batches(self, result, width, texts, seconds, prompts, batch_size, bar):
        """_run_texts() with at most batch_size texts at a time, the longest first."""
        if batch_size is None:
            batch_size = max(len(texts), 1) if bar is None else _TEXTS_BETWEEN_STEPS
        out, errors = torch.empty((len(texts), width), dtype=torch.float32), {}
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i])) if len(texts) > batch_size else range(len(texts))
        for at in range(0, len(texts), batch_size):
            batch = order[at : at + batch_size]
            second = None if seconds is None else [seconds[i] for i in batch]
            rows, failed = self._run_texts(result, width, [texts[i] for i in batch], second, prompts)
            out[list(batch)] = rows
            errors.update((batch[i], why) for i, why in failed.items())
            if bar is not None:
                bar.update(len(batch))
        return out, errors

    def _run_texts(self, result, width, texts, seconds, prompts):
        """Returns a tensor of results for UTF-8 texts, and the reasons by the index of each text without a result."""
        out = torch.empty((len(texts), width), dtype=torch.float32)
        statuses = (ctypes.c_int32 * len(texts))()
        args = _Texts(size=ctypes.sizeof(_Texts), count=len(texts), out=out.data_ptr(), result=_RESULTS[result])
        pointers, lengths = _arguments.arrays(texts)
        args.texts, args.text_bytes = ctypes.addressof(pointers), ctypes.addressof(lengths)
        args.statuses = ctypes.addressof(statuses)
        if seconds is not None:
            second_pointers, second_lengths = _arguments.arrays(seconds)
            args.seconds, args.second_bytes = ctypes.addressof(second_pointers), ctypes.addressof(second_lengths)
        if prompts:
            args.prompt, args.prompt_name = prompts["prompt"], prompts["prompt_name"]
            args.prompt_bytes = len(prompts["prompt"] or b"")
        with self._call():
            status = _c.warpwright_encoder_texts(self._handle, ctypes.byref(args))
            if status:
                _library.raise_status(status, ValueError)
            errors = {i: _text_error(self._handle, i).decode() for i, s in enumerate(statuses) if s}
        return out, errors

    # ---- Token ids and hidden states -----------------------------------------------------------------------------------

    def __call__(
        self, input_ids, attention_mask=None, token_type_ids=None, *, result="hidden", remove_padding=True, bias=None,
        temperature=1.0,
    ):  # fmt: skip
        """Returns the last hidden states (B, S, hidden_size) of padded token ids (B, S), with 0 in padding.
        result="vectors" gives (B, vector_size) in fp32, and result="logits" gives (B, labels). Padding is not computed
        unless remove_padding is False.

        attention_mask: 0 and 1 of any dtype; more than 0.5 means one. (B, S): 1 for a token, 0 for padding, in any pattern.
        (B, 1, S, S): 1 if the query sees the key; no position is padding. Another shape is a ValueError, and so is another
        value. On a GPU, a value in (B, 1, S, S) is reported by check_mask() or by the next call.
        bias: (heads, S, S) or (B, heads, S, S), added to the scores. With a bias, padding comes last.
        temperature: divides the scores, before the bias; 1e-30 or more.
        """
        self._require_embedding()
        ids = _host("input_ids", input_ids, torch.int32, None)
        if ids.dim() != 2:
            raise ValueError(f"Encoder: input_ids has shape {tuple(ids.shape)}, needs (B, S)")
        types = None if token_type_ids is None else _host("token_type_ids", token_type_ids, torch.int32, ids.shape)
        B, S = ids.shape
        out = self._out(result, B, (B, S, self.hidden_size))
        attention = attention_mask, bias, temperature
        self._tokens(result, out, B, attention, length=S, ids=ids, types=types, keep_padding=not remove_padding)
        return out

    def packed(
        self, input_ids, cu_seqlens, token_type_ids=None, *, result="hidden", attention_mask=None, bias=None,
        temperature=1.0,
    ):  # fmt: skip
        """Returns the last hidden states (N, hidden_size) of token ids without padding, or one row per sequence for other
        results. Sequence s is input_ids[cu_seqlens[s] : cu_seqlens[s + 1]]. attention_mask: (sequences, 1, L, L), and bias:
        (heads, L, L) or (sequences, heads, L, L), as in a call, with L of at least the longest sequence."""
        self._require_embedding()
        bounds = _host("cu_seqlens", cu_seqlens, torch.int32, None)
        ids = _host("input_ids", input_ids, torch.int32, None)
        if bounds.dim() != 1 or bounds.numel() < 1:
            raise ValueError(f"Encoder: cu_seqlens has shape {tuple(bounds.shape)}, needs (sequences + 1,)")
        if ids.dim() != 1 or ids.numel() != int(bounds[-1]):
            raise ValueError(
                f"Encoder: input_ids has shape {tuple(ids.shape)}, needs (N,) with N = cu_seqlens' last, {int(bounds[-1])}"
            )
        types = None if token_type_ids is None else _host("token_type_ids", token_type_ids, torch.int32, ids.shape)
        sequences = bounds.numel() - 1
        out = self._out(result, sequences, (ids.numel(), self.hidden_size))
        attention = attention_mask, bias, temperature
        self._tokens(result, out, sequences, attention, ids=ids, types=types, cu_seqlens=bounds)
        return out

    def layers_from(self, hidden_states, attention_mask=None, *, remove_padding=True, bias=None, temperature=1.0):
        """Runs only the layers: hidden states (B, S, hidden_size) from the embedding to the last hidden states, with 0 in
        padding. The other arguments are those of a call. A mask (B, S) on the encoder's GPU stays there, and the call waits
        for nothing."""
        states = hidden_states
        if states.dim() != 3 or states.shape[2] != self.hidden_size:
            raise ValueError(f"Encoder: hidden_states has shape {tuple(states.shape)}, needs (B, S, {self.hidden_size})")
        if states.device != self.device or states.dtype is not self.dtype:
            raise ValueError(
                f"Encoder: hidden_states is {states.dtype} on {states.device}, but the encoder is {self.dtype} on {self.device}"
            )
        if torch.is_grad_enabled() and states.requires_grad:
            raise RuntimeError("Encoder: hidden_states requires a gradient, which an encoder does not compute: use torch.no_grad()")
        B, S, _ = states.shape
        states = states.detach().contiguous()
        out = torch.empty_like(states)
        attention = attention_mask, bias, temperature
        self._tokens("hidden", out, B, attention, length=S, states=states, keep_padding=not remove_padding)
        return out

    def as_layers(self):
        """Returns a module that replaces the layers of a Hugging Face BERT: model.encoder = Encoder(model).as_layers()."""
        return EncoderLayers(self)

    def _require_embedding(self):
        if not self._has_embedding:
            raise RuntimeError("Encoder: model has layers and no embedding; give layers_from() its hidden states")

    def _out(self, result, rows, hidden_shape):
        _arguments.choice("Encoder", "result", result, _RESULTS)
        if result == "hidden":
            return torch.empty(hidden_shape, dtype=self.dtype, device=self.device)
        if result == "vectors":
            return torch.empty((rows, self.vector_size), dtype=torch.float32, device=self.device)
        return torch.empty((rows, self.labels), dtype=self.dtype, device=self.device)

    def check_mask(self):
        """Waits until the latest call's mask has been read, and raises ValueError if a value was neither 0 nor 1."""
        with self._lock:
            status = _c.warpwright_encoder_check_mask(self._handle)
        if status:
            _library.raise_status(status, ValueError)

    def _attention(self, mask, bias, temperature):
        """The structure for the library, and the tensors that it points to. None: nothing to change."""
        if mask is None and bias is None and temperature == 1:
            return None, ()
        attention = _Attention(
            size=ctypes.sizeof(_Attention), temperature=_arguments.number("Encoder", "temperature", temperature)
        )
        if mask is not None:
            mask = _library.mask_tensor(mask)
            if mask.dim() == 4:
                mask = mask.to(self.device)
            elif mask.device != self.device:
                mask = mask.cpu()
            attention.mask, attention.mask_rank = mask.data_ptr(), mask.dim()
            attention.mask_shape[: min(mask.dim(), 4)] = mask.shape[:4]
            attention.mask_dtype, attention.mask_on_device = _library.MASK_DTYPES[mask.dtype], mask.device.type != "cpu"
        if bias is not None:
            bias = torch.as_tensor(bias).detach().to(self.device, self.dtype).contiguous()
            attention.bias, attention.bias_rank = bias.data_ptr(), bias.dim()
            attention.bias_shape[: min(bias.dim(), 4)] = bias.shape[:4]
        return attention, (mask, bias)

    def _tokens(self, result, out, sequences, attention, length=0, keep_padding=False, **tensors):
        args = _Tokens(size=ctypes.sizeof(_Tokens), sequences=sequences, length=length, result=_RESULTS[result])
        args.keep_padding, args.out = keep_padding, out.data_ptr()
        for name, tensor in tensors.items():
            if tensor is not None:
                setattr(args, name, tensor.data_ptr())
        changes, kept = self._attention(*attention)
        if changes is not None:
            args.attention = ctypes.addressof(changes)
        with self._call():
            status = _c.warpwright_encoder_tokens(self._handle, ctypes.byref(args))
        if status:
            _library.raise_status(status, ValueError)

    @contextlib.contextmanager
    def _call(self):
        with self._lock:
            self._context.follow_torch(ordered=True)
            yield


class LayersOutput(tuple):
    """The output of EncoderLayers: (last_hidden_state,), with the attribute names that Hugging Face's models read."""

    last_hidden_state = property(lambda self: self[0])
    past_key_values = hidden_states = attentions = cross_attentions = None


class EncoderLayers(torch.nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self._encoder = encoder

    def forward(self, hidden_states, attention_mask=None, *_, output_hidden_states=False, output_attentions=False, **__):
        if output_hidden_states or output_attentions:
            raise ValueError("EncoderLayers: output_hidden_states or output_attentions is True; only the last states exist")
        return LayersOutput((self._encoder.layers_from(hidden_states, _layers_mask(attention_mask)),))
