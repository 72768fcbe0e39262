"""The functions and modules of apex.normalization.fused_layer_norm, with its names and arguments.

The output has the input's dtype in the Fused modules and the parameters' dtype in the Mixed ones. Under autocast both give
autocast's dtype. Tensors may be on a CPU or a GPU, in fp64, fp32, fp16 or bf16, contiguous or not.
"""

import math
import numbers

import torch
from torch.nn import functional

from .. import _library
from .._norms import Call, NormFunction, add_and_normalize, normalize, quickly, transforms_active
from ._checks import check_dense, check_input, check_memory, check_parameter, check_parameter_dtype, shape_of

_kept_columns = 16


def kept_columns(count=None):
    """Returns the number of columns of x that a forward with memory_efficient may keep; 16 by default. With `count`, sets
    it for later calls. A column must be kept if its weight is 0 or tiny compared with its bias, since the output then does
    not determine x. More such columns than this get NaN as their gradient."""
    global _kept_columns
    if count is not None:
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ValueError(f"kept_columns: count is {count!r}, needs an int of 0 or more")
        _kept_columns = count
    return _kept_columns


def _wants_pytorchs_own():
    """True under torch.export, torch.onnx and torch.jit.trace, whose results run elsewhere and need PyTorch's own
    operators, and under torch.func, which can transform only PyTorch's operators."""
    if torch.compiler.is_compiling():
        # is_exporting() is also True under torch.compile in some versions.
        return getattr(torch.compiler, "_is_exporting_flag", False)
    return torch.jit.is_tracing() or transforms_active()


def _plain_pytorch(input, weight, bias, shape, eps, centered, out_dtype):
    if centered:
        if weight is not None and weight.dtype != input.dtype:
            input = input.to(torch.promote_types(input.dtype, weight.dtype))
            weight = weight.to(input.dtype)
            bias = None if bias is None else bias.to(input.dtype)
        return functional.layer_norm(input, shape, weight, bias, eps).to(out_dtype)
    wide = input.to(torch.promote_types(input.dtype, torch.float32))
    dims = tuple(range(-len(shape), 0))
    out = wide * torch.rsqrt(wide.pow(2).mean(dims, keepdim=True) + eps)
    return (out if weight is None else out * weight).to(out_dtype)


def manual_rms_norm(input, normalized_shape, weight, eps):
    """RMS normalization by PyTorch's own operators. The statistics are fp32 (fp64 for fp64). The result has a 16-bit
    weight's dtype, otherwise the statistics'."""
    wide = input.to(torch.promote_types(input.dtype, torch.float32))
    dims = tuple(range(-len(normalized_shape), 0))
    out = wide * torch.rsqrt(wide.pow(2).mean(dims, keepdim=True) + eps)
    if weight is None:
        return out
    return weight * (out.to(weight.dtype) if weight.dtype.itemsize == 2 else out)


def _affine(function, input, weight, bias, normalized_shape, eps, memory_efficient, centered, mixed=False):
    shape = shape_of(function, normalized_shape)
    if not mixed and not torch.compiler.is_compiling():
        out = quickly(input, None, weight, bias, shape, eps, memory_efficient, centered, _kept_columns)
        if out is not None:
            return out
    check_input(function, input, shape, eps)
    check_parameter(function, "weight", weight, input, shape)
    if bias is not None:
        check_parameter(function, "bias", bias, input, shape)
        if bias.dtype is not weight.dtype:
            raise TypeError(f"{function}: bias is {bias.dtype}, weight {weight.dtype}: they need one dtype")
    return _norm(input, weight, bias, shape, eps, memory_efficient, centered, mixed)


def _without_parameters(function, input, normalized_shape, eps, memory_efficient, centered):
    shape = shape_of(function, normalized_shape)
    check_input(function, input, shape, eps)
    return _norm(input, None, None, shape, eps, memory_efficient, centered, False)


def _norm(input, weight, bias, shape, eps, memory_efficient, centered, mixed):

    device = input.device.type
    if device != "meta" and torch.is_autocast_enabled(device) and input.dtype is not torch.float64:
        # The parameters keep their dtype: the kernels take fp32 parameters with 16-bit inputs.
        input = input.to(torch.get_autocast_dtype(device))
        mixed = False
    dtype = input.dtype
    out_dtype = weight.dtype if mixed else dtype
    if _wants_pytorchs_own():
        return _plain_pytorch(input, weight, bias, shape, eps, centered, out_dtype)

    narrowed = None
    if weight is not None and weight.dtype is not dtype:
        sixteen_bits = dtype is torch.float16 or dtype is torch.bfloat16
        if not (sixteen_bits and weight.dtype is torch.float32):
            # There is no kernel for this pair of dtypes. Use the wider of the two, or fp32 for fp16 with
            # bf16.
            wide = torch.promote_types(dtype, weight.dtype)
            input = input.to(wide)
            weight = weight.to(wide)
            bias = None if bias is None else bias.to(wide)
            narrowed, out_dtype = out_dtype, wide
    call = Call(centered, math.prod(shape), eps, out_dtype, memory_efficient, _kept_columns)
    out = normalize(call, input, weight, bias)
    return out if narrowed is None else out.to(narrowed)


def fused_layer_norm_affine(input, weight, bias, normalized_shape, eps=1e-6, memory_efficient=False):
    return _affine("fused_layer_norm_affine", input, weight, bias, normalized_shape, eps, memory_efficient, True)


def fused_layer_norm(input, normalized_shape, eps=1e-6, memory_efficient=False):
    return _without_parameters("fused_layer_norm", input, normalized_shape, eps, memory_efficient, True)


def mixed_dtype_fused_layer_norm_affine(input, weight, bias, normalized_shape, eps=1e-6, memory_efficient=False):
    name = "mixed_dtype_fused_layer_norm_affine"
    return _affine(name, input, weight, bias, normalized_shape, eps, memory_efficient, True, mixed=True)


def fused_rms_norm_affine(input, weight, normalized_shape, eps=1e-6, memory_efficient=False):
    return _affine("fused_rms_norm_affine", input, weight, None, normalized_shape, eps, memory_efficient, False)


def fused_rms_norm(input, normalized_shape, eps=1e-6, memory_efficient=False):
    return _without_parameters("fused_rms_norm", input, normalized_shape, eps, memory_efficient, False)


def mixed_dtype_fused_rms_norm_affine(input, weight, normalized_shape, eps=1e-6, memory_efficient=False):
    name = "mixed_dtype_fused_rms_norm_affine"
    return _affine(name, input, weight, None, normalized_shape, eps, memory_efficient, False, mixed=True)


# ---- Apex's autograd functions: for plain tensors in eager mode, whatever autocast says ------------------------------------


def _forward(ctx, name, input, weight, bias, normalized_shape, eps, memory_efficient, centered, mixed=False):
    shape = shape_of(name, normalized_shape)
    check_input(name, input, shape, eps)
    check_memory(name, input)
    for what, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None:
            check_parameter(name, what, parameter, input, shape)
            check_parameter_dtype(name, what, parameter, weight, input)
    out_dtype = weight.dtype if mixed else input.dtype
    call = Call(centered, math.prod(shape), eps, out_dtype, memory_efficient, _kept_columns)
    weight, bias = (None if t is None else t.contiguous() for t in (weight, bias))
    return NormFunction.forward(ctx, input, weight, bias, call)


class FusedLayerNormAffineFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, normalized_shape, eps, memory_efficient=False):
        name = "FusedLayerNormAffineFunction"
        return _forward(ctx, name, input, weight, bias, normalized_shape, eps, memory_efficient, True)

    @staticmethod
    def backward(ctx, grad_output):
        return *NormFunction.backward(ctx, grad_output)[:3], None, None, None


class FusedLayerNormAffineMixedDtypesFunction(FusedLayerNormAffineFunction):
    @staticmethod
    def forward(ctx, input, weight, bias, normalized_shape, eps, memory_efficient=False):
        name = "FusedLayerNormAffineMixedDtypesFunction"
        return _forward(ctx, name, input, weight, bias, normalized_shape, eps, memory_efficient, True, mixed=True)


class FusedLayerNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, normalized_shape, eps, memory_efficient=False):
        name = "FusedLayerNormFunction"
        return _forward(ctx, name, input, None, None, normalized_shape, eps, memory_efficient, True)

    @staticmethod
    def backward(ctx, grad_output):
        return NormFunction.backward(ctx, grad_output)[0], None, None, None


class FusedRMSNormAffineFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, normalized_shape, eps, memory_efficient=False):
        name = "FusedRMSNormAffineFunction"
        return _forward(ctx, name, input, weight, None, normalized_shape, eps, memory_efficient, False)

    @staticmethod
    def backward(ctx, grad_output):
        return *NormFunction.backward(ctx, grad_output)[:2], None, None, None


class FusedRMSNormAffineMixedDtypesFunction(FusedRMSNormAffineFunction):
    @staticmethod
    def forward(ctx, input, weight, normalized_shape, eps, memory_efficient=False):
        name = "FusedRMSNormAffineMixedDtypesFunction"
        return _forward(ctx, name, input, weight, None, normalized_shape, eps, memory_efficient, False, mixed=True)


class FusedRMSNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, normalized_shape, eps, memory_efficient=False):
        name = "FusedRMSNormFunction"
        return _forward(ctx, name, input, None, None, normalized_shape, eps, memory_efficient, False)

    @staticmethod
    def backward(ctx, grad_output):
        return NormFunction.backward(ctx, grad_output)[0], None, None, None


# ---- With a residual -------------------------------------------------------------------------------------------------------


def _add(function, input, residual, weight, bias, normalized_shape, eps, memory_efficient, centered):
    shape = shape_of(function, normalized_shape)
    if residual is not None and not torch.compiler.is_compiling():
        out = quickly(input, residual, weight, bias, shape, eps, memory_efficient, centered, _kept_columns)
        if out is not None:
            return out
    check_input(function, input, shape, eps)
    check_dense(function, "residual", residual)
    if residual.shape != input.shape:
        raise ValueError(f"{function}: residual has shape {tuple(residual.shape)}, input {tuple(input.shape)}")
    if residual.dtype not in _library.DTYPES:
        raise TypeError(f"{function}: residual is {residual.dtype}, needs float64, float32, float16 or bfloat16")
    if residual.device != input.device:
        raise ValueError(f"{function}: residual is on {residual.device}, input on {input.device}")
    dtype, device = input.dtype, input.device.type
    one_dtype = residual.dtype is dtype and isinstance(weight, torch.Tensor) and weight.dtype is dtype
    cast = device != "meta" and torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) is not dtype
    if not one_dtype or cast or _wants_pytorchs_own():
        sum = input + residual
        return _affine(function, sum, weight, bias, shape, eps, memory_efficient, centered), sum
    check_parameter(function, "weight", weight, input, shape)
    if bias is not None:
        check_parameter(function, "bias", bias, input, shape)
        if bias.dtype is not dtype:
            raise TypeError(f"{function}: bias is {bias.dtype}, weight {dtype}: they need one dtype")
    call = Call(centered, math.prod(shape), eps, dtype, memory_efficient, _kept_columns)
    return tuple(add_and_normalize(call, input, residual, weight, bias))


def fused_add_layer_norm_affine(input, residual, weight, bias, normalized_shape, eps=1e-6, memory_efficient=False):
    """Returns the normalization of input + residual, and that sum. Takes one pass over memory if all dtypes are equal,
    otherwise two steps."""
    name = "fused_add_layer_norm_affine"
    return _add(name, input, residual, weight, bias, normalized_shape, eps, memory_efficient, True)


def fused_add_rms_norm_affine(input, residual, weight, normalized_shape, eps=1e-6, memory_efficient=False):
    """Like fused_add_layer_norm_affine, by the root mean square."""
    name = "fused_add_rms_norm_affine"
    return _add(name, input, residual, weight, None, normalized_shape, eps, memory_efficient, False)


class _Norm(torch.nn.Module):
    _centered = True
    _mixed = False

    def __init__(self, normalized_shape, eps=1e-5, elementwise_affine=True, memory_efficient=False):
        super().__init__()
        shape = shape_of(type(self).__name__, normalized_shape)
        if not all(isinstance(size, numbers.Integral) and size >= 0 for size in shape):
            raise ValueError(f"{type(self).__name__}: normalized_shape is {normalized_shape!r}, needs sizes of 0 or more")
        self.normalized_shape = torch.Size(shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.memory_efficient = memory_efficient
        for name in ("weight", "bias") if self._centered else ("weight",):
            parameter = torch.nn.Parameter(torch.empty(self.normalized_shape)) if elementwise_affine else None
            self.register_parameter(name, parameter)
        self.reset_parameters()

    def reset_parameters(self):
        if self.elementwise_affine:
            torch.nn.init.ones_(self.weight)
            if self._centered:
                torch.nn.init.zeros_(self.bias)

    def forward(self, input):
        shape = self.normalized_shape
        parameters = self._parameters  # self.weight takes ten times as long
        weight, bias = parameters.get("weight"), parameters.get("bias")
        if weight is not None and (bias is not None) is self._centered and not torch.compiler.is_compiling():
            out = quickly(
                input, None, weight, bias, shape, self.eps, self.memory_efficient, self._centered, _kept_columns
            )
            if out is not None:
                return out
        name = type(self).__name__
        weight = self.weight
        if weight is None:
            return _without_parameters(name, input, shape, self.eps, self.memory_efficient, self._centered)
        bias = self.bias if self._centered else None
        return _affine(
            name, input, weight, bias, shape, self.eps, self.memory_efficient, self._centered, self._mixed
        )

    def extra_repr(self):
        shape, eps, affine = tuple(self.normalized_shape), self.eps, self.elementwise_affine
        return f"{shape}, eps={eps}, elementwise_affine={affine}, memory_efficient={self.memory_efficient}"


class FusedLayerNorm(_Norm):
    """Layer normalization over the last dimensions, which must equal normalized_shape: an int, a list or a torch.Size.

    memory_efficient: the backward works from the output, so that the input need not be kept (see kept_columns).
    """


class FusedRMSNorm(_Norm):
    """Normalization by the root mean square over the last dimensions. Takes the arguments of FusedLayerNorm."""

    _centered = False


class _AddNorm(_Norm):
    def __init__(self, normalized_shape, eps=1e-5, memory_efficient=False):
        super().__init__(normalized_shape, eps, True, memory_efficient)

    def forward(self, input, residual):
        name, bias = type(self).__name__, self.bias if self._centered else None
        return _add(
            name, input, residual, self.weight, bias, self.normalized_shape, self.eps, self.memory_efficient, self._centered
        )


class FusedAddLayerNorm(_AddNorm):
    """A residual connection and a FusedLayerNorm after it. Maps (input, residual) to (the normalization of their sum, the
    sum)."""


class FusedAddRMSNorm(_AddNorm):
    """A residual connection and a FusedRMSNorm after it. Maps (input, residual) to (the normalization of their sum, the sum)."""

    _centered = False


def _require_affine(name, arguments):
    if not arguments.pop("elementwise_affine", True):
        raise RuntimeError(f"{name}: elementwise_affine is False, and its output has the dtype of its parameters")
    if arguments:
        raise TypeError(f"{name}: there is no argument {', '.join(arguments)}")


class MixedFusedLayerNorm(FusedLayerNorm):
    """FusedLayerNorm whose output has the dtype of its parameters."""

    _mixed = True

    def __init__(self, normalized_shape, eps=1e-5, *, memory_efficient=False, **kwargs):
        _require_affine("MixedFusedLayerNorm", kwargs)
        super().__init__(normalized_shape, eps, True, memory_efficient)


class MixedFusedRMSNorm(FusedRMSNorm):
    """FusedRMSNorm whose output has the dtype of its parameters."""

    _mixed = True

    def __init__(self, normalized_shape, eps=1e-5, *, memory_efficient=False, **kwargs):
        _require_affine("MixedFusedRMSNorm", kwargs)
        super().__init__(normalized_shape, eps, True, memory_efficient)
