"""Packing and unpacking of padded rows, with a mask of ones in any pattern."""

import ctypes
from typing import NamedTuple

import torch

from . import _library


class _Args(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t), ("sequences", ctypes.c_int64), ("length", ctypes.c_int64), ("columns", ctypes.c_int64),
        ("rows", ctypes.c_int64), ("mask", ctypes.c_void_p), ("cu_seqlens", ctypes.c_void_p), ("indices", ctypes.c_void_p),
        ("odd", ctypes.c_void_p), ("padded", ctypes.c_void_p), ("packed", ctypes.c_void_p), ("mask_dtype", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
    ]  # fmt: skip


_c = _library.functions(
    warpwright_padding_lengths=[ctypes.c_void_p, ctypes.c_void_p],
    warpwright_pack=[ctypes.c_void_p, ctypes.c_void_p],
    warpwright_unpack=[ctypes.c_void_p, ctypes.c_void_p],
)


class Places(NamedTuple):
    """The places of the packed rows in a padded batch (B, S, …). cu_seqlens (B + 1) int32: the offsets of the sequences' rows.
    indices (B·S) int32: each row's place b·S + s, then -1. odd (1) int64: the index of the first value of the mask other
    than 0 and 1, or -1. shape: (B, S)."""

    cu_seqlens: torch.Tensor
    indices: torch.Tensor
    odd: torch.Tensor
    shape: tuple

    def rows(self):
        """The number of packed rows. Waits for the device, and raises ValueError if the mask has a value other than 0 and
        1."""
        odd = int(self.odd)
        if odd >= 0:
            raise ValueError(
                f"attention_mask: has a value other than 0 and 1 at ({odd // self.shape[1]}, {odd % self.shape[1]}); "
                "use 1 for what is seen and 0 for what is not"
            )
        return int(self.cu_seqlens[-1])


def _run(function, places, device, **arguments):
    args = _Args(size=ctypes.sizeof(_Args), sequences=places.shape[0], length=places.shape[1])
    args.cu_seqlens, args.indices, args.odd = (t.data_ptr() for t in places[:3])
    for name, value in arguments.items():
        setattr(args, name, value)
    status = function(_library.context_of(device).handle, ctypes.byref(args))
    if status:
        _library.raise_status(status, ValueError)


def places(attention_mask):
    """Returns the Places of a mask (B, S): 0 and 1 of any dtype, more than 0.5 means one. They are found on the mask's
    device, and nothing waits for it."""
    mask = _library.mask_tensor(attention_mask)
    if mask.dim() != 2:
        raise ValueError(f"attention_mask: has shape {tuple(mask.shape)}; give (B, S)")
    B, S = mask.shape

    def integers(count, dtype):
        return torch.empty(count, dtype=dtype, device=mask.device)

    found = Places(integers(B + 1, torch.int32), integers(B * S, torch.int32), integers(1, torch.int64), (B, S))
    dtype = _library.MASK_DTYPES[mask.dtype]
    _run(_c.warpwright_padding_lengths, found, mask.device, mask=mask.data_ptr(), mask_dtype=dtype)
    return found


def _moved(name, tensor, places):
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} is {type(tensor).__name__}, needs a tensor")
    if not isinstance(places, Places):
        raise TypeError(f"places is {type(places).__name__}, needs the result of warpwright.places(mask)")
    if tensor.dtype not in _library.DTYPES or tensor.device != places.indices.device:
        raise ValueError(f"{name} is {tensor.dtype} on {tensor.device}, needs a floating dtype on {places.indices.device}")
    return tensor.detach().contiguous()


def pack(x, places, rows=None):
    """Returns the rows (N, …) of x (B, S, …) that `places` names, without a gradient. With `rows`, there are this many
    instead of N, those from N on are 0, and nothing waits for the device."""
    x = _moved("x", x, places)
    if tuple(x.shape[:2]) != places.shape:
        raise ValueError(f"x has shape {tuple(x.shape)}, needs {places.shape} first")
    rows = places.rows() if rows is None else rows
    out = torch.zeros((rows, *x.shape[2:]), dtype=x.dtype, device=x.device)
    if x.numel():
        _run(_c.warpwright_pack, places, x.device, padded=x.data_ptr(), packed=out.data_ptr(), rows=rows,
             columns=x.shape[2:].numel(), dtype=_library.DTYPES[x.dtype])  # fmt: skip
    return out


def unpack(x, places):
    """Returns (B, S, …) with the rows of x (N or more, …) at their places, and 0 elsewhere, without a gradient. Nothing
    waits for the device."""
    x = _moved("x", x, places)
    out = torch.empty((*places.shape, *x.shape[1:]), dtype=x.dtype, device=x.device)
    if out.numel():
        _run(_c.warpwright_unpack, places, x.device, padded=out.data_ptr(), packed=x.data_ptr(), rows=x.shape[0],
             columns=x.shape[1:].numel(), dtype=_library.DTYPES[x.dtype])  # fmt: skip
    return out
