"""The checks of the arguments of a normalization. Errors name the function, the argument and its value."""

import math
import numbers

import torch

from .. import _library


def shape_of(function, normalized_shape):
    if type(normalized_shape) is torch.Size and normalized_shape:
        return normalized_shape
    if isinstance(normalized_shape, numbers.Integral):
        return (normalized_shape,)
    try:
        shape = tuple(normalized_shape)
    except TypeError:
        raise TypeError(
            f"{function}: normalized_shape is {normalized_shape!r}, needs an int, a list or a torch.Size"
        ) from None
    if not shape:
        raise ValueError(f"{function}: normalized_shape is {normalized_shape!r}, needs at least one dimension")
    return shape


def check_dense(function, name, tensor):
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{function}: {name} is {type(tensor).__name__}, needs a Tensor")
    if tensor.layout is not torch.strided or tensor.is_nested:
        layout = "nested" if tensor.is_nested else str(tensor.layout)
        raise TypeError(f"{function}: {name} is {layout}, needs a dense tensor")


def check_input(function, input, shape, eps):
    check_dense(function, "input", input)
    if not isinstance(eps, (numbers.Real, torch.SymFloat)):
        raise TypeError(f"{function}: eps is {eps!r}, needs a number")
    if isinstance(eps, numbers.Real) and not 0 <= eps < math.inf:
        raise ValueError(f"{function}: eps is {eps!r}, needs a finite number, 0 or more")
    if input.dtype not in _library.DTYPES:
        raise TypeError(f"{function}: input is {input.dtype}, needs float64, float32, float16 or bfloat16")
    if input.device.type not in ("cpu", "cuda", "meta"):
        raise ValueError(f"{function}: input is on {input.device}, needs a CPU or a CUDA device")
    if input.shape[-len(shape) :] != shape:
        raise ValueError(
            f"{function}: input has shape {tuple(input.shape)}, whose last dimensions are not normalized_shape {tuple(shape)}"
        )


def check_memory(function, input):
    if input.device.type == "meta":
        raise ValueError(f"{function}: input is on meta, needs a CPU or a CUDA device")


def check_parameter(function, name, tensor, input, shape):
    check_dense(function, name, tensor)
    if tensor.shape != shape:
        raise ValueError(f"{function}: {name} has shape {tuple(tensor.shape)}, needs normalized_shape {tuple(shape)}")
    if tensor.dtype not in _library.DTYPES:
        raise TypeError(f"{function}: {name} is {tensor.dtype}, needs float64, float32, float16 or bfloat16")
    if tensor.device != input.device:
        raise ValueError(f"{function}: {name} is on {tensor.device}, input on {input.device}")


def check_parameter_dtype(function, name, tensor, weight, input):
    """The kernels take parameters of one dtype: the input's or, if the input has 16 bits, fp32."""
    allowed = (input.dtype, torch.float32) if input.dtype.itemsize == 2 else (input.dtype,)
    if tensor.dtype not in allowed:
        needed = " or ".join(str(dtype) for dtype in allowed)
        raise TypeError(f"{function}: {name} is {tensor.dtype} and input {input.dtype}: it needs {needed}")
    if tensor.dtype is not weight.dtype:
        raise TypeError(f"{function}: {name} is {tensor.dtype}, weight {weight.dtype}: they need one dtype")
