"""Decoders on libwarpwright. They continue texts or token ids, many at once."""

import collections
import ctypes
import numbers
import os
import typing
from array import array

import torch

from . import _arguments, _library, _locks

_DTYPES = {None: -1, torch.float32: 1, torch.bfloat16: 2, torch.int8: 7}
_NAMES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
_ENDS = (None, "length", "stop", "end_of_text", "error")
_MOST = 2**63 - 1


class _Options(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t), ("folder", ctypes.c_char_p), ("sequences", ctypes.c_int64), ("context", ctypes.c_int64),
        ("cache_tokens", ctypes.c_int64), ("dtype", ctypes.c_int32), ("batch_invariant", ctypes.c_int32),
        ("tf32", ctypes.c_int32), ("reserved", ctypes.c_int32),
    ]  # fmt: skip


class _Info(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t), ("vocabulary", ctypes.c_int64), ("model_context", ctypes.c_int64),
        ("context", ctypes.c_int64), ("sequences", ctypes.c_int64), ("running", ctypes.c_int64), ("waiting", ctypes.c_int64),
        ("has_tokenizer", ctypes.c_int32), ("dtype", ctypes.c_int32),
    ]  # fmt: skip


class _Sequence(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t), ("text", ctypes.c_char_p), ("text_bytes", ctypes.c_size_t), ("ids", ctypes.c_void_p),
        ("id_count", ctypes.c_int64), ("stops", ctypes.c_void_p), ("stop_bytes", ctypes.c_void_p),
        ("stop_count", ctypes.c_int64), ("max_tokens", ctypes.c_int64), ("temperature", ctypes.c_double),
        ("top_k", ctypes.c_int64), ("top_p", ctypes.c_double), ("min_p", ctypes.c_double),
        ("repetition_penalty", ctypes.c_double), ("seed", ctypes.c_uint64), ("ignore_end_of_text", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    ]  # fmt: skip


class _Event(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t), ("sequence", ctypes.c_int64), ("text", ctypes.c_void_p), ("text_bytes", ctypes.c_size_t),
        ("error", ctypes.c_char_p), ("token", ctypes.c_int32), ("end", ctypes.c_int32),
    ]  # fmt: skip


_c = _library.functions(
    warpwright_decoder_create=[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p],
    warpwright_decoder_get_info=[ctypes.c_void_p, ctypes.c_void_p],
    warpwright_decoder_encode=[ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int64,
                               ctypes.c_void_p],
    warpwright_decoder_decode=[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_size_t,
                               ctypes.c_void_p],
    warpwright_decoder_add=[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p],
    warpwright_decoder_remove=[ctypes.c_void_p, ctypes.c_int64],
    warpwright_decoder_step=[ctypes.c_void_p, ctypes.c_void_p],
    warpwright_decoder_get_event=[ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p],
)  # fmt: skip
_destroy = _library.functions(None, warpwright_decoder_destroy=[ctypes.c_void_p]).warpwright_decoder_destroy


class Generated(typing.NamedTuple):
    """The continuation of a prompt.

    text: without the prompt; "" if the folder has no tokenizer. Bytes that are not a character become U+FFFD.
    ids: the tokens drawn, with those of a stop text and without one that ends a text.
    finish_reason: "length", "stop" or "end_of_text", and "error" only in the results of a GenerateError.
    """

    text: str
    ids: list
    finish_reason: str


class Piece(typing.NamedTuple):
    """The text and tokens that a step has added to the continuation of prompt `index`.

    text: may be empty, because characters are whole and a text that could begin a stop text comes later.
    id: the token drawn; None at the end of a text and after an error.
    finish_reason: None while the continuation goes on; else "length", "stop", "end_of_text" or "error".
    error: the reason if finish_reason is "error".
    """

    index: int
    text: str
    id: typing.Optional[int]
    finish_reason: typing.Optional[str]
    error: typing.Optional[str]


class GenerateError(RuntimeError):
    """Prompts whose logits were not finite. errors: the reasons by prompt index. results: of all prompts."""

    def __init__(self, errors, results):
        index, message = next(iter(errors.items()))
        others = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        super().__init__(f"prompts[{index}]: {message}{others}")
        self.errors = errors
        self.results = results

    def __reduce__(self):  # so that a worker process can send it
        return GenerateError, (self.errors, self.results)


def _open_again(folder, settings):
    return Decoder(folder, **settings)


def _check(status):
    if status:
        _library.raise_status(status, ValueError)


def _ids(name, ids, wanted):
    refused = TypeError(f"Decoder: {name} is {type(ids).__name__}, needs {wanted}")
    if isinstance(ids, (bytes, bytearray, memoryview)):  # an array would take their bytes for ids
        raise refused
    if isinstance(ids, torch.Tensor):
        ids = ids.tolist()
    try:
        return array("i", ids)
    except OverflowError:
        raise ValueError(f"Decoder: {name} has an id of more than 32 bits") from None
    except TypeError:
        raise refused from None


def _listed(prompts):
    """The prompts, each of them bytes in UTF-8 or an array of ids, and whether only one was given."""
    is_one = isinstance(prompts, (str, bytes, bytearray, memoryview))
    if isinstance(prompts, torch.Tensor):
        is_one = prompts.dim() == 1
        prompts = prompts if is_one else prompts.tolist()
    if not is_one:
        try:
            prompts = list(prompts)
        except TypeError:
            raise TypeError(f"Decoder: prompts is {type(prompts).__name__}, needs str, ids or a list of them") from None
        is_one = bool(prompts) and isinstance(prompts[0], numbers.Integral)
    listed = []
    for i, prompt in enumerate([prompts] if is_one else prompts):
        name = "prompt" if is_one else f"prompts[{i}]"
        if isinstance(prompt, str):
            prompt = prompt.encode("utf-8", "surrogatepass")
        if not isinstance(prompt, bytes):
            prompt = _ids(name, prompt, "a str or token ids")
            if not prompt:
                raise ValueError(f"{name}: has no tokens; give at least one")
        listed.append((name, prompt))
    return listed, is_one


def _seeds(seed, count):
    if isinstance(seed, (list, tuple, range)):
        if len(seed) != count:
            raise ValueError(f"Decoder: seed has {len(seed)} values, needs one for each of {count} prompts")
        return [_arguments.integer("Decoder", f"seed[{i}]", s, 0, 2**64 - 1) for i, s in enumerate(seed)]
    return [_arguments.integer("Decoder", "seed", seed, 0, 2**64 - 1)] * count


class Decoder:
    """A decoder, for inference: GPT-2, Llama, Mistral, Qwen2, Qwen3, GPT-NeoX.

    model         the path of a folder with a Hugging Face model, or of a run of `warpwright train`
    device        "cpu", "cuda", "cuda:1", …; by default a GPU if there is one
    dtype         torch.float32 or bfloat16, or their names; by default bfloat16 for a folder in bfloat16, else float32.
                  "int8" or torch.int8, on a CPU: the products in int8; the attribute dtype is that of the rest,
                  bfloat16 where the processor multiplies it faster than float32, else float32
    sequences     continuations that run at once, while others wait; by default 64, or fewer if the memory does not hold them
    context       the most tokens a continuation attends to; by default the model's, at most 2048
    cache_tokens  of the keys and values of all sequences, at least context; by default enough for all that run

    batch_invariant: a continuation does not depend on the others that run with it; slower.
    tf32: products in fp32 may round to TF32 on a GPU.

    All memory is allocated here. MemoryError says what would fit.

    Several threads may call generate() and stream(): their continuations run together. A decoder can be pickled and copied.
    The copy reads the folder again and has its own memory. If a process used this package before a fork, every call of this
    package in the child is a RuntimeError. close(), or the end of a with statement, frees the memory.
    """

    _handle = None  # so that __del__ finds it even if __init__ fails

    def __init__(
        self, model, *, device=None, dtype=None, sequences=None, context=None, cache_tokens=None, batch_invariant=False,
        tf32=False,
    ):  # fmt: skip
        _locks.add_lock(self)
        self._streams = {}  # sequence: its stream's pieces and running sequences
        self._abandoned = collections.deque()  # sequences whose stream has been closed
        self._events, self._delivered = ctypes.c_int64(), 0  # of the latest step
        options = _Options(size=ctypes.sizeof(_Options), folder=_arguments.path("Decoder", "model", model))
        dtype = _arguments.named(dtype, _NAMES)
        options.dtype = _arguments.choice("Decoder", "dtype", dtype, _DTYPES)
        for name, value in (("sequences", sequences), ("context", context), ("cache_tokens", cache_tokens)):
            setattr(options, name, 0 if value is None else _arguments.integer("Decoder", name, value, 1, _MOST))
        options.batch_invariant, options.tf32 = bool(batch_invariant), bool(tf32)
        self.device = _arguments.device("Decoder", device)
        self._context = _library.new_context(self.device)
        handle = ctypes.c_void_p()
        _check(_c.warpwright_decoder_create(self._context.handle, ctypes.byref(options), ctypes.byref(handle)))
        self._handle = handle.value
        info = self._info()
        self.vocabulary, self.model_context = info.vocabulary, info.model_context
        self.context, self.sequences = info.context, info.sequences
        self.has_tokenizer = bool(info.has_tokenizer)
        self.dtype = next(of for of, number in _DTYPES.items() if number == info.dtype)
        settings = {
            "device": str(self.device), "dtype": str(self.dtype if dtype is None else dtype).removeprefix("torch."),
            "sequences": sequences, "context": context, "cache_tokens": cache_tokens, "batch_invariant": batch_invariant, "tf32": tf32,
        }  # fmt: skip
        self._again = os.path.abspath(os.fsdecode(model)), settings

    # Bound early, because modules disappear first when the interpreter ends.
    def __del__(self, destroy=_destroy):
        handle, self._handle = self._handle, None
        if handle:
            destroy(handle)

    def close(self):
        """Ends all continuations and frees the memory. Later calls are a RuntimeError."""
        with self._lock:
            self.__del__()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __reduce_ex__(self, protocol):
        """For pickle, copy.copy() and copy.deepcopy()."""
        return _open_again, self._again

    def __repr__(self):
        return f"Decoder({self._again[0]!r}, {self.sequences} sequences, context {self.context}, {self._again[1]['dtype']}, {self.device})"

    def _info(self):
        info = _Info(size=ctypes.sizeof(_Info))
        with self._lock:
            self._begin_call()
            _check(_c.warpwright_decoder_get_info(self._handle, ctypes.byref(info)))
        return info

    @property
    def running(self):
        """Continuations that run now."""
        return self._info().running

    @property
    def waiting(self):
        """Continuations that wait for a place or for room in the cache."""
        return self._info().waiting

    # ---- Texts and ids -------------------------------------------------------------------------------------------------

    def encode(self, text):
        """Returns the ids with which a continuation of this text begins. Special tokens in the text are plain text."""
        (text,) = _arguments.byte_strings("Decoder", "text", [text])
        ids = array("i", bytes(4 * (len(text) + 16)))  # more if the tokenizer adds many
        count = ctypes.c_int64()
        with self._lock:
            self._begin_call()
            for _ in range(2):
                _check(_c.warpwright_decoder_encode(
                    self._handle, text, len(text), ids.buffer_info()[0], len(ids), ctypes.byref(count)))  # fmt: skip
                if count.value <= len(ids):
                    return ids[: count.value].tolist()
                ids = array("i", bytes(4 * count.value))

    def decode(self, ids):
        """Returns the text of ids. Bytes that are not a character become U+FFFD."""
        ids = _ids("ids", ids, "token ids")
        size = ctypes.c_size_t()
        with self._lock:
            self._begin_call()
            arguments = self._handle, ids.buffer_info()[0], len(ids)
            _check(_c.warpwright_decoder_decode(*arguments, None, 0, ctypes.byref(size)))
            text = ctypes.create_string_buffer(size.value + 1)
            _check(_c.warpwright_decoder_decode(*arguments, text, size.value, ctypes.byref(size)))
        return text.raw[: size.value].decode()

    # ---- Generation ----------------------------------------------------------------------------------------------------

    def generate(self, prompts, **options):
        """Returns the continuation of a prompt as a Generated, or a list of them in the order of several prompts.

        prompts: a str, a sequence of ids, or a list of either. A str without ids of its own, and no id before it, gets the
        end-of-text token if there is one.

        options, with their defaults:
        max_tokens          256; most tokens to generate
        temperature         1; 0 takes the most likely token each time
        top_k               0; choose among the k most likely tokens; 0: all
        top_p               1; choose among the most likely tokens that together reach this probability
        min_p               0; choose among the tokens that have this share of the most likely one's probability
        repetition_penalty  1; divides the positive logits of tokens that the text already has, and multiplies negative ones
        seed                0; or a list with one for each prompt. The same seed gives the same tokens, if the logits have the
                            same bits: see batch_invariant
        stop                None; or a str or a list of them: the continuation ends before the first, which is not in its text
        ignore_end_of_text  False; True treats the tokens that end a text as any other

        A ValueError or TypeError names a bad argument, before anything runs; other calls are not disturbed. If logits are not
        finite, GenerateError has the other prompts' results.
        """
        for name in options:
            if name not in Decoder.stream.__kwdefaults__:
                raise TypeError(f"Decoder.generate() got an unexpected keyword argument {name!r}")
        errors = {}
        with self.stream(prompts, **options) as stream:
            texts, ids, ends = [[] for _ in stream.prompts], [[] for _ in stream.prompts], [None] * len(stream.prompts)
            for piece in stream:
                texts[piece.index].append(piece.text)
                if piece.id is not None:
                    ids[piece.index].append(piece.id)
                ends[piece.index] = piece.finish_reason
                if piece.error is not None:
                    errors[piece.index] = piece.error
        results = [Generated("".join(t), i, e) for t, i, e in zip(texts, ids, ends)]
        if errors:
            raise GenerateError(dict(sorted(errors.items())), results)
        return results[0] if stream.is_one else results

    def stream(
        self, prompts, *, max_tokens=256, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, seed=0,
        stop=None, ignore_end_of_text=False,
    ):  # fmt: skip
        """Returns an iterator over the pieces of the continuations, as they are drawn. It takes the arguments of generate(),
        and checks them at once. close(), the end of a with statement, or the iterator's end removes its continuations."""
        listed, is_one = _listed(prompts)
        args = _Sequence(size=ctypes.sizeof(_Sequence), ignore_end_of_text=bool(ignore_end_of_text))
        args.max_tokens = _arguments.integer("Decoder", "max_tokens", max_tokens, 1, _MOST)
        args.top_k = _arguments.integer("Decoder", "top_k", top_k, 0, _MOST)
        for name, value in (("temperature", temperature), ("top_p", top_p), ("min_p", min_p),
                            ("repetition_penalty", repetition_penalty)):  # fmt: skip
            setattr(args, name, _arguments.number("Decoder", name, value))
        stop = [stop] if isinstance(stop, (str, bytes)) else [] if stop is None else stop
        if not isinstance(stop, (list, tuple)):
            raise TypeError(f"Decoder: stop is {type(stop).__name__}, needs a str or a list of them")
        stops = _arguments.byte_strings("Decoder", "stop", stop)
        pointers, lengths = _arguments.arrays(stops)
        args.stops, args.stop_bytes, args.stop_count = ctypes.addressof(pointers), ctypes.addressof(lengths), len(stops)
        return _Stream(self, listed, is_one, args, _seeds(seed, len(listed)))

    # The caller holds the lock. A context manager of Python code would not do: an interrupt could leave it with the lock held.
    def _begin_call(self):
        if not self._handle:
            raise RuntimeError("Decoder: it is closed")
        self._context.follow_torch()
        while self._abandoned:  # popped last, so that the next call continues after an interrupt
            sequence = self._abandoned[0]
            _check(_c.warpwright_decoder_remove(self._handle, sequence))
            _, running = self._streams.get(sequence, (None, {}))
            running.pop(sequence, None)
            self._streams.pop(sequence, None)
            self._abandoned.popleft()

    def _add(self, args, pieces, running, index):
        sequence = ctypes.c_int64(-1)
        try:
            with self._lock:
                self._begin_call()
                _check(_c.warpwright_decoder_add(self._handle, ctypes.byref(args), ctypes.byref(sequence)))
                self._streams[sequence.value] = pieces, running
                running[sequence.value] = index
        except BaseException:
            if sequence.value >= 0:
                self._abandoned.append(sequence.value)
            raise

    # Takes no lock, since Python may close a stream in the middle of any call.
    def _abandon(self, pieces, running):
        self._abandoned.extend(running)
        running.clear()
        pieces.clear()

    def _next_piece(self, pieces, running):
        """The first of a stream's pieces. Steps until there is one. Pieces of other streams go to them."""
        while running or pieces:  # in this order: a sequence is in running until its last piece is in pieces
            try:
                return pieces.popleft()
            except IndexError:
                pass
            with self._lock:
                self._begin_call()
                if running and not pieces:
                    self._step()
        raise StopIteration

    def _step(self):
        """Delivers the events of a step. If an interrupt has left some of the latest step, delivers those instead."""
        if self._delivered >= self._events.value:
            self._events.value = 0
            self._delivered = 0
            _check(_c.warpwright_decoder_step(self._handle, ctypes.byref(self._events)))
        event = _Event(size=ctypes.sizeof(_Event))
        while self._delivered < self._events.value:
            _check(_c.warpwright_decoder_get_event(self._handle, self._delivered, ctypes.byref(event)))
            sequence, end = event.sequence, _ENDS[event.end]
            pieces, running = self._streams.get(sequence, (None, {}))
            text = ctypes.string_at(event.text, event.text_bytes).decode()
            token = event.token if event.token >= 0 else None
            error = event.error.decode() if end == "error" else None
            piece = (Piece(running.get(sequence), text, token, end, error),)
            # Python interrupts a thread at calls and loops. There are none from here to the end of the loop's body.
            self._delivered += 1
            if sequence in running:
                pieces += piece
                if end is not None:
                    del running[sequence]
                    del self._streams[sequence]


class _Stream:
    """The iterator of Decoder.stream()."""

    _decoder = None  # so that __del__ finds it even if __init__ fails

    def __init__(self, decoder, prompts, is_one, args, seeds):
        self.prompts, self.is_one = prompts, is_one
        self._pieces, self._running = collections.deque(), {}  # sequence: its prompt's index
        self._decoder = decoder
        try:
            for i, (name, prompt) in enumerate(prompts):
                args.seed = seeds[i]
                self._add(args, name, prompt, i)
        except BaseException:
            self.close()
            raise

    def _add(self, args, name, prompt, index):
        is_text = isinstance(prompt, bytes)
        args.text, args.text_bytes = (prompt, len(prompt)) if is_text else (None, 0)
        args.ids, args.id_count = (None, 0) if is_text else prompt.buffer_info()
        try:
            self._decoder._add(args, self._pieces, self._running, index)
        except ValueError as error:  # the library knows one prompt
            message = str(error)
            raise ValueError(name + message[len("prompt") :] if message.startswith("prompt:") else message) from None

    def __iter__(self):
        return self

    def __next__(self):
        return self._decoder._next_piece(self._pieces, self._running)

    def close(self):
        self._decoder._abandon(self._pieces, self._running)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if self._decoder is not None:
            self.close()
