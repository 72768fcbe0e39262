"""Loads libwarpwright through its C ABI (include/warpwright/warpwright.h), holds a context for each thread and device, and
calls the normalizations.

A call's arguments form a structure. `struct` packs it into one buffer per context. This takes a fifth of the time of a
ctypes.Structure, and this time is a call's only cost besides its kernel.
"""

import ctypes
import logging
import os
import struct
import threading
import types
from pathlib import Path

import torch

ABI_MAJOR, ABI_MINOR = 1, 6  # this package needs the same major version and at least this minor version

DTYPES = {torch.float64: 0, torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}
MASK_DTYPES = {**DTYPES, torch.int32: 4, torch.int64: 5, torch.uint8: 6}

_CPU, _CUDA = 0, 1
_INVALID_ARGUMENT, _OUT_OF_MEMORY = 1, 4

_FORWARD = struct.Struct("@Qqq8PqPQd3ii")
_FORWARD_POINTERS, _FORWARD_POINTERS_AT = struct.Struct("@8P"), struct.calcsize("@Qqq")
_FORWARD_WORKSPACE, _FORWARD_WORKSPACE_AT = struct.Struct("@PQ"), struct.calcsize("@Qqq8Pq")
_BACKWARD = struct.Struct("@Qqq10Pq4PQ4iii")
_RESIDUAL = struct.Struct("@Qqq11PqPQdii")
_OPTIONS = struct.Struct("@Q4i2P")


def _open():
    path = os.environ.get("WARPWRIGHT_LIBRARY") or Path(__file__).parent / "lib" / "libwarpwright.so.1"
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(f"warpwright cannot load its library {path}: {error}") from error
    check_abi(library, path)
    library.warpwright_version.restype = ctypes.c_char_p
    library.warpwright_last_error.restype = ctypes.c_char_p
    library.warpwright_context_create.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.warpwright_context_destroy.argtypes = [ctypes.c_void_p]
    library.warpwright_context_destroy.restype = None
    library.warpwright_context_set_stream.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.warpwright_context_set_threads.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    for norm in ("layernorm", "rmsnorm"):
        for direction in ("forward", "backward"):
            name = f"warpwright_{norm}_{direction}"
            getattr(library, name).argtypes = [ctypes.c_void_p, ctypes.c_void_p]
            getattr(library, name + "_workspace").argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    library.warpwright_residual_norm_forward.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.warpwright_residual_norm_forward_workspace.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    return library


def check_abi(library, path):
    """Raises ImportError if the library is too old or too new for this package."""
    needs = f"this package needs {ABI_MAJOR}.{ABI_MINOR} or a later {ABI_MAJOR}.x"
    try:
        found = library.warpwright_abi_version()
    except AttributeError:
        raise ImportError(f"{path} is not a libwarpwright: it has no warpwright_abi_version, but {needs}") from None
    major, minor = divmod(found, 1000)
    if major == ABI_MAJOR and minor >= ABI_MINOR:
        return
    age = "newer" if major > ABI_MAJOR else "older"
    raise ImportError(f"{path} is {age} than this package: its ABI is {major}.{minor}, {needs}; install both from one build")


_library = _open()
version = _library.warpwright_version().decode()


def _log_line(_, line):
    logging.getLogger("warpwright").info(line.decode())


# With WARPWRIGHT_VERBOSE=1, Python's logging gets one line per operation, with the chosen kernel and its
# time. Each call then waits for the device.
_log = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)(_log_line)
_log_address = 0 if os.environ.get("WARPWRIGHT_VERBOSE", "0") in ("", "0") else ctypes.cast(_log, ctypes.c_void_p).value


class _Norm:
    """The functions of one normalization."""

    residual = _library.warpwright_residual_norm_forward, _library.warpwright_residual_norm_forward_workspace

    def __init__(self, name):
        self.name = name
        self.rms = name == "rmsnorm"
        self.run_forward = getattr(_library, f"warpwright_{name}_forward")
        for direction in ("forward", "backward"):
            function = getattr(_library, f"warpwright_{name}_{direction}")
            workspace = getattr(_library, f"warpwright_{name}_{direction}_workspace")
            setattr(self, direction, (function, workspace))


LAYERNORM, RMSNORM = _Norm("layernorm"), _Norm("rmsnorm")


def raise_status(status, invalid=RuntimeError):
    """Raises the thread's last error. An invalid argument raises `invalid`."""
    message = _library.warpwright_last_error().decode()
    if status == _OUT_OF_MEMORY:
        raise MemoryError(message)
    raise (invalid if status == _INVALID_ARGUMENT else RuntimeError)(message)


def functions(result=ctypes.c_int32, **argument_types):
    """Returns the library's functions of these names, as attributes."""
    found = types.SimpleNamespace()
    for name, arguments in argument_types.items():
        function = getattr(_library, name)
        function.restype, function.argtypes = result, arguments
        setattr(found, name, function)
    return found


def mask_tensor(mask):
    """A contiguous tensor with the values of a mask, of a dtype that the library takes."""
    try:
        mask = torch.as_tensor(mask).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"attention_mask: is {type(mask).__name__}; give a tensor") from error
    if mask.is_complex():
        raise TypeError(f"attention_mask: is {mask.dtype}; give a real dtype")
    if mask.dtype is torch.bool:
        return mask.contiguous().view(torch.uint8)
    if mask.dtype not in MASK_DTYPES:
        mask = mask.to(torch.float32 if mask.is_floating_point() else torch.int64)
    return mask.contiguous()


def cuda_device_count():
    return _library.warpwright_cuda_device_count()


def to_numpy(tensor):
    try:
        return tensor.numpy()
    except RuntimeError as error:  # PyTorch's error without numpy
        raise ImportError("warpwright: arrays need the package numpy; install it, or pass as_tensor=True") from error


class _Context:
    """A context of the library, with the buffers into which its calls are packed."""

    handle = None  # so that __del__ finds it even if __init__ fails

    def __init__(self, device, index):
        self.index = index if device == _CUDA else None
        handle = ctypes.c_void_p()
        options = ctypes.create_string_buffer(_OPTIONS.size)
        self.threads = torch.get_num_threads()
        _OPTIONS.pack_into(options, 0, _OPTIONS.size, device, index, self.threads, 0, _log_address, 0)
        status = _library.warpwright_context_create(options, ctypes.byref(handle))
        if status:
            raise_status(status)
        self.handle = handle.value
        self.stream = 0
        self.bytes = ctypes.c_size_t()
        self.bytes_address = ctypes.addressof(self.bytes)
        self.backward = ctypes.create_string_buffer(_BACKWARD.size)
        self.backward_address = ctypes.addressof(self.backward)
        self.residual = ctypes.create_string_buffer(_RESIDUAL.size)
        self.residual_address = ctypes.addressof(self.residual)
        self.plans = {}  # forwards
        self.trainings = {}  # forwards that leave data for a backward: _norms._Training
        self.workspaces = {}  # of the other calls

    # Bound early, because modules disappear first when the interpreter ends.
    def __del__(self, destroy=_library.warpwright_context_destroy):
        if self.handle:
            destroy(self.handle)

    def follow_torch(self, ordered=False):
        """Takes over PyTorch's current stream and number of threads. ordered: the new stream waits for the work on the
        previous one."""
        if self.index is None:
            threads = torch.get_num_threads()
            if threads != self.threads:
                status = _library.warpwright_context_set_threads(self.handle, threads)
                if status:
                    raise_status(status)
                self.threads = threads
            return
        stream = _stream_of(self.index)
        if stream != self.stream:
            if ordered:
                # ExternalStream(0) is not the default stream.
                before = (torch.cuda.ExternalStream(self.stream, device=self.index) if self.stream
                          else torch.cuda.default_stream(self.index))
                torch.cuda.current_stream(self.index).wait_event(before.record_event())
            status = _library.warpwright_context_set_stream(self.handle, stream)
            if status:
                raise_status(status)
            self.stream = stream

    def workspace(self, key, ask, address):
        """The bytes of workspace for a call with this key."""
        known = self.workspaces.get(key)
        if known is None:
            status = ask(self.handle, address, self.bytes_address)
            if status:
                raise_status(status)
            if len(self.workspaces) > 4096:  # sizes that never repeat must not fill the memory
                self.workspaces.clear()
            known = self.workspaces[key] = self.bytes.value
        return known


_contexts = threading.local()
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def _stream_of(index):
    return _raw_stream(index) if _raw_stream else torch.cuda.current_stream(index).cuda_stream


def new_context(device):
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"warpwright: device is {device}, needs a CPU or a CUDA device")
    return _Context(_CPU, 0) if device.type == "cpu" else _Context(_CUDA, device.index)


def context_of(device):
    """Returns this thread's context for a device, on PyTorch's current stream and with PyTorch's number of threads."""
    try:
        context = _contexts.made[device]
    except (AttributeError, KeyError):
        if not hasattr(_contexts, "made"):
            _contexts.made = {}
        context = _contexts.made[device] = new_context(device)
    context.follow_torch()
    return context


def _pointer(tensor):
    return 0 if tensor is None else tensor.data_ptr()


class _Plan:
    """A forward as first called. Its arguments are packed, except the tensors' pointers."""

    __slots__ = ("buffer", "address", "workspace_bytes")


def _plan(context, norm, x, weight, bias, out, places, rows, columns, eps):
    if len(context.plans) > 4096:  # sizes that never repeat must not fill the memory
        context.plans.clear()
    plan = _Plan()
    plan.buffer = ctypes.create_string_buffer(_FORWARD.size)
    plan.address = ctypes.addressof(plan.buffer)
    pointers = x.data_ptr(), _pointer(weight), _pointer(bias), out.data_ptr()
    dtypes = (DTYPES[t.dtype] for t in (x, x if weight is None else weight, out))
    _FORWARD.pack_into(plan.buffer, 0, _FORWARD.size, rows, columns, *pointers, *places, 0, 0, eps, *dtypes, 0)
    _, ask = norm.forward
    status = ask(context.handle, plan.address, context.bytes_address)
    if status:
        raise_status(status)
    plan.workspace_bytes = context.bytes.value
    return plan


def forward(norm, x, weight, bias, out, places, rows, columns, eps):
    """places: the addresses (or 0) of mean, rstd, kept_columns and kept, then kept_count. All tensors are contiguous and on
    one device. Returns the plan, with which run() repeats the call."""
    context = context_of(x.device)
    mean, rstd, kept_columns, kept, count = places
    key = (norm, rows, columns, eps, x.dtype, None if weight is None else weight.dtype, out.dtype, bias is None, mean == 0,
           rstd == 0, kept_columns == 0, count)  # fmt: skip
    plan = context.plans.get(key)
    if plan is None:
        plan = context.plans[key] = _plan(context, norm, x, weight, bias, out, places, rows, columns, eps)
    run(context, norm, plan, x, weight, bias, out, mean, rstd, kept_columns, kept)
    return plan


def run(context, norm, plan, x, weight, bias, out, mean, rstd, kept_columns, kept):
    _FORWARD_POINTERS.pack_into(
        plan.buffer, _FORWARD_POINTERS_AT, x.data_ptr(), 0 if weight is None else weight.data_ptr(),
        0 if bias is None else bias.data_ptr(), out.data_ptr(), mean, rstd, kept_columns, kept,
    )  # fmt: skip
    if plan.workspace_bytes:
        workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=x.device)
        _FORWARD_WORKSPACE.pack_into(plan.buffer, _FORWARD_WORKSPACE_AT, workspace.data_ptr(), plan.workspace_bytes)
    status = norm.run_forward(context.handle, plan.address)
    if status:
        raise_status(status)


def residual_forward(norm, x, residual, weight, bias, sum, out, places, rows, columns, eps):
    """Like forward(). All tensors have one dtype."""
    device = x.device
    context = context_of(device)
    dtype = DTYPES[x.dtype]
    function, ask = norm.residual
    arguments = (
        _RESIDUAL.size, rows, columns, x.data_ptr(), 0, residual.data_ptr(), weight.data_ptr(), _pointer(bias),
        sum.data_ptr(), out.data_ptr(), *places,
    )  # fmt: skip
    _RESIDUAL.pack_into(context.residual, 0, *arguments, 0, 0, eps, dtype, norm.rms)
    mean, rstd, kept_columns, _, count = places
    key = (norm, 2, rows, columns, dtype, bias is None, mean == 0, rstd == 0, kept_columns == 0, count)
    needed = context.workspace(key, ask, context.residual_address)
    if needed:
        workspace = torch.empty(needed, dtype=torch.uint8, device=device)
        _RESIDUAL.pack_into(context.residual, 0, *arguments, workspace.data_ptr(), needed, eps, dtype, norm.rms)
    status = function(context.handle, context.residual_address)
    if status:
        raise_status(status)


def backward(norm, dout, x, out, weight, bias, dsum, places, dx, dweight, dbias, rows, columns):
    """places: as in forward(). Either x or out is None."""
    device = dout.device
    context = context_of(device)
    dtype, out_dtype = DTYPES[dx.dtype], DTYPES[dout.dtype]
    parameter_dtype = dtype if weight is None else DTYPES[weight.dtype]
    mean, rstd, kept_columns, kept, count = places
    function, ask = norm.backward
    arguments = (
        _BACKWARD.size, rows, columns, dout.data_ptr(), _pointer(x), _pointer(out), _pointer(weight), _pointer(bias),
        mean, rstd, _pointer(dsum), kept_columns, kept, count, dx.data_ptr(), _pointer(dweight), _pointer(dbias),
    )  # fmt: skip
    dtypes = (dtype, parameter_dtype, out_dtype, parameter_dtype, 0, 0)
    _BACKWARD.pack_into(context.backward, 0, *arguments, 0, 0, *dtypes)
    key = (norm, 1, rows, columns, dtype, parameter_dtype, out_dtype, x is None, weight is None, bias is None,
           mean == 0, dsum is None, kept_columns == 0, count, dweight is None, dbias is None)  # fmt: skip
    needed = context.workspace(key, ask, context.backward_address)
    if needed:
        workspace = torch.empty(needed, dtype=torch.uint8, device=device)
        _BACKWARD.pack_into(context.backward, 0, *arguments, workspace.data_ptr(), needed, *dtypes)
    status = function(context.handle, context.backward_address)
    if status:
        raise_status(status)
