"""The functions of Apex's extension module fused_layer_norm_cuda, with its names and the order of its arguments, for CPUs
and GPUs:

    from warpwright import fused_layer_norm_cuda

They see neither autograd nor autocast. `invvar` is 1 / √(variance + eps) of each row. With memory_efficient, pass the output
instead of the input, and None for the mean. A weight of 0, or one that is tiny compared with its bias, then gives NaN: such
an output does not determine the input. The modules and functions of warpwright.normalization keep what it needs.
"""

import math

import torch

from . import _norms
from .normalization._checks import check_dense, check_input, check_memory, check_parameter, check_parameter_dtype, shape_of


def _check(function, input, normalized_shape, parameters, eps):
    """Returns the number of columns."""
    shape = shape_of(function, normalized_shape)
    check_input(function, input, shape, eps)
    check_memory(function, input)
    weight = parameters.get("weight")
    for name, parameter in parameters.items():
        check_parameter(function, name, parameter, input, shape)
        check_parameter_dtype(function, name, parameter, weight, input)
    return math.prod(shape)


def _contiguous(*tensors):
    return (None if t is None else t.contiguous() for t in tensors)


def _address(tensor):
    return 0 if tensor is None else tensor.data_ptr()


def _forward(function, input, normalized_shape, parameters, eps, centered, mixed=False):
    columns = _check(function, input, normalized_shape, parameters, eps)
    x, weight, bias = _contiguous(input, parameters.get("weight"), parameters.get("bias"))
    call = _norms.Call(centered, columns, eps, weight.dtype if mixed else x.dtype, False, 0)
    rows = x.numel() // columns if columns else 0
    mean, invvar = (x.new_empty(rows, dtype=_statistics_dtype(x)) for _ in range(2))
    places = _address(mean) if centered else 0, _address(invvar), 0, 0, 0
    out, _ = _norms._forward(call, x, weight, bias, places)
    return (out, mean, invvar) if centered else (out, invvar)


def _statistics_dtype(tensor):
    return torch.float64 if tensor.dtype is torch.float64 else torch.float32


def _check_statistics(function, name, tensor, input, rows):
    check_dense(function, name, tensor)
    wanted = _statistics_dtype(input)
    if tensor.dtype is not wanted or tensor.numel() != rows or tensor.device != input.device:
        raise ValueError(
            f"{function}: {name} is {tuple(tensor.shape)}, {tensor.dtype}, on {tensor.device}; "
            f"needs ({rows},), {wanted}, on {input.device}"
        )


def _backward(function, dout, mean, invvar, saved, normalized_shape, parameters, eps, memory_efficient, centered):
    columns = _check(function, saved, normalized_shape, parameters, eps)
    check_dense(function, "dout", dout)
    if dout.shape != saved.shape or dout.device != saved.device:
        raise ValueError(
            f"{function}: dout is {tuple(dout.shape)} on {dout.device}, input_or_output {tuple(saved.shape)} on {saved.device}"
        )
    rows = saved.numel() // columns if columns else 0
    _check_statistics(function, "invvar", invvar, saved, rows)
    if centered and not memory_efficient:
        _check_statistics(function, "mean", mean, saved, rows)
    dout, saved, mean, invvar = _contiguous(dout, saved, mean if centered and not memory_efficient else None, invvar)
    weight, bias = _contiguous(parameters.get("weight"), parameters.get("bias"))
    x, out = (None, saved) if memory_efficient else (saved, None)
    out_dtype = dout.dtype
    if out_dtype is not saved.dtype and (weight is None or out_dtype is not weight.dtype):
        raise TypeError(f"{function}: dout is {out_dtype}, needs the dtype of the output")
    call = _norms.Call(centered, columns, eps, out_dtype, memory_efficient, 0)
    places = _address(mean), _address(invvar), 0, 0, 0
    return _norms._backward(call, dout, None, x, out, weight, bias, places, saved.dtype, bool(parameters))


def forward(input, normalized_shape, eps):
    return _forward("forward", input, normalized_shape, {}, eps, True)


def forward_affine(input, normalized_shape, weight, bias, eps):
    return _forward("forward_affine", input, normalized_shape, {"weight": weight, "bias": bias}, eps, True)


def forward_affine_mixed_dtypes(input, normalized_shape, weight, bias, eps):
    parameters = {"weight": weight, "bias": bias}
    return _forward("forward_affine_mixed_dtypes", input, normalized_shape, parameters, eps, True, mixed=True)


def backward(dout, mean, invvar, input_or_output, normalized_shape, eps, memory_efficient=False):
    arguments = dout, mean, invvar, input_or_output, normalized_shape, {}, eps, memory_efficient
    return _backward("backward", *arguments, True)[0]


def backward_affine(dout, mean, invvar, input_or_output, normalized_shape, weight, bias, eps, memory_efficient=False):
    parameters = {"weight": weight, "bias": bias}
    arguments = dout, mean, invvar, input_or_output, normalized_shape, parameters, eps, memory_efficient
    return _backward("backward_affine", *arguments, True)


def rms_forward(input, normalized_shape, eps):
    return _forward("rms_forward", input, normalized_shape, {}, eps, False)


def rms_forward_affine(input, normalized_shape, weight, eps):
    return _forward("rms_forward_affine", input, normalized_shape, {"weight": weight}, eps, False)


def rms_forward_affine_mixed_dtypes(input, normalized_shape, weight, eps):
    return _forward("rms_forward_affine_mixed_dtypes", input, normalized_shape, {"weight": weight}, eps, False, mixed=True)


def rms_backward(dout, invvar, input_or_output, normalized_shape, eps, memory_efficient=False):
    arguments = dout, None, invvar, input_or_output, normalized_shape, {}, eps, memory_efficient
    return _backward("rms_backward", *arguments, False)[0]


def rms_backward_affine(dout, invvar, input_or_output, normalized_shape, weight, eps, memory_efficient=False):
    arguments = dout, None, invvar, input_or_output, normalized_shape, {"weight": weight}, eps, memory_efficient
    return _backward("rms_backward_affine", *arguments, False)[:2]
