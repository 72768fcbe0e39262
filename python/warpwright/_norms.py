"""The two normalizations, also after a residual connection, on checked tensors: what they allocate, what the backward
keeps, and how PyTorch sees them.

Two paths lead to the same kernels. `torch.ops.warpwright.fused_norm` is a custom operator with a fake implementation and
autograd, which torch.compile, tracing modes and tensor subclasses see. Plain tensors in eager mode use an
autograd.Function, because an operator written in Python costs 15 to 25 µs per call.
"""

import math
from typing import NamedTuple, Optional

import torch

from . import _library

# Maps the `centered` argument of the operators' schemas to the normalization.
_NORMS = {True: _library.LAYERNORM, False: _library.RMSNORM}


class Call(NamedTuple):
    """The settings of a normalization. centered: by mean and deviation, else by the root mean square. Also the number of
    columns of a row, eps, and the dtype of the output. memory_efficient: the backward works from the output. Up to `kept`
    columns of x are kept if the output does not determine them."""

    centered: bool
    columns: int
    eps: float
    out_dtype: torch.dtype
    memory_efficient: bool
    kept: int


def _rows(call, x):
    return x.numel() // call.columns if call.columns else 0


def _kept_count(call, weight):
    """The number of columns of x that the forward may keep. None: it does not look for lost columns."""
    return min(call.kept, call.columns) if call.memory_efficient and weight is not None else None


# A forward's data for its backward, here none: the addresses (or 0) of the means, the reciprocal deviations,
# the list of lost columns and their x, then the number of columns for which there is room.
_NOTHING = 0, 0, 0, 0, 0


def _sixteenths(count):
    return (count + 15) // 16 * 16


def _places(centered, rows, dtype, count, at):
    """The places in one buffer that starts at `at`, and its end."""
    statistics = rows * (8 if dtype is torch.float64 else 4)
    mean, rstd = (at, at + statistics) if centered else (0, at)
    end = rstd + statistics
    if count is None:
        return (mean, rstd, 0, 0, 0), end
    kept_columns = _sixteenths(end)
    kept = _sixteenths(kept_columns + 4 * (1 + count))
    return (mean, rstd, kept_columns, kept if count else 0, count), kept + rows * count * dtype.itemsize


def _places_of(call, stats, kept_columns, kept):
    """The places in separate tensors, as the operator has them."""
    rstd = stats.data_ptr()
    mean = 0
    if call.centered:
        mean, rstd = rstd, rstd + stats.shape[1] * stats.element_size()
    if kept_columns is None:
        return mean, rstd, 0, 0, 0
    count = kept.shape[1]
    return mean, rstd, kept_columns.data_ptr(), kept.data_ptr() if count else 0, count


def _forward(call, x, weight, bias, places):
    """Returns out, and the library's plan if the library was called. x, weight and bias are contiguous."""
    centered, columns, eps, out_dtype, _, _ = call
    out = torch.empty_like(x) if out_dtype is x.dtype else torch.empty_like(x, dtype=out_dtype)
    elements, plan = x.numel(), None
    if elements:
        plan = _library.forward(_NORMS[centered], x, weight, bias, out, places, elements // columns, columns, eps)
    return out, plan


def _residual_forward(call, x, residual, weight, bias, places):
    """Like _forward: returns out and the sum."""
    out, sum = torch.empty_like(x), torch.empty_like(x)
    elements = x.numel()
    if elements:
        rows = elements // call.columns
        norm = _NORMS[call.centered]
        _library.residual_forward(norm, x, residual, weight, bias, sum, out, places, rows, call.columns, call.eps)
    return out, sum


def _backward(call, dout, dsum, x, out, weight, bias, places, dtype, parameters):
    """Returns the gradient of x, of dtype `dtype`, and of weight and bias if `parameters` is true. dsum, if given, is added
    to the gradient of x."""
    dout = dout.contiguous()
    dsum = None if dsum is None else dsum.contiguous()
    columns = call.columns
    dx = torch.empty_like(dout, dtype=dtype)
    dweight = torch.empty_like(weight) if parameters else None
    dbias = torch.empty_like(bias) if parameters and bias is not None else None
    elements = dout.numel()
    if elements == 0:
        return dx, *(None if g is None else g.zero_() for g in (dweight, dbias))
    if out is None:
        bias = None
        places = places[0], places[1], 0, 0, 0
    elif places[4] == 0:
        places = 0, *places[1:]
    norm = _NORMS[call.centered]
    rows = elements // columns
    _library.backward(norm, dout, x, out, weight, bias, dsum, places, dx, dweight, dbias, rows, columns)
    return dx, dweight, dbias


# ---- Eager -------------------------------------------------------------------------------------------------------------


def _reserve(call, x, weight):
    """A buffer for the data that the forward leaves, and the places in it."""
    dtype, rows = x.dtype, _rows(call, x)
    count = _kept_count(call, weight) if call.memory_efficient else None
    _, size = _places(call.centered, rows, dtype, count, 0)
    left = x.new_empty(-(-size // x.element_size()))
    return left, _places(call.centered, rows, dtype, count, left.data_ptr())[0]


class _Training(NamedTuple):
    """A forward that leaves data for its backward, as first called: the library's plan, the buffer's size in elements of x,
    and the offsets of the means, the reciprocal deviations, the list of lost columns and their x. None: not in the buffer."""

    norm: object
    plan: object
    size: int
    mean: Optional[int]
    rstd: int
    kept_columns: Optional[int]
    kept: Optional[int]


def _train(call, x, weight, bias):
    """Returns out, and the buffer with the backward's data. x, weight and bias are contiguous."""
    elements = x.numel()
    context = _library.context_of(x.device)
    kind = call, elements, x.dtype, None if weight is None else weight.dtype, bias is None
    training = context.trainings.get(kind)
    if training is None:
        left, places = _reserve(call, x, weight)
        out, plan = _forward(call, x, weight, bias, places)
        if elements:
            if len(context.trainings) > 4096:  # sizes that never repeat must not fill the memory
                context.trainings.clear()
            offsets = (place - left.data_ptr() if place else None for place in places[:4])
            context.trainings[kind] = _Training(_NORMS[call.centered], plan, left.numel(), *offsets)
        return out, left
    norm, plan, size, mean, rstd, kept_columns, kept = training
    out_dtype = call.out_dtype
    out = torch.empty_like(x) if out_dtype is x.dtype else torch.empty_like(x, dtype=out_dtype)
    left = x.new_empty(size)
    at = left.data_ptr()
    _library.run(
        context, norm, plan, x, weight, bias, out, 0 if mean is None else at + mean, at + rstd,
        0 if kept_columns is None else at + kept_columns, 0 if kept is None else at + kept,
    )  # fmt: skip
    return out, left


def _left(call, saved, weight, dtype, left):
    return _places(call.centered, _rows(call, saved), dtype, _kept_count(call, weight), left.data_ptr())[0]


class NormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, call):
        x = x.contiguous()
        out, left = _train(call, x, weight, bias)
        ctx.call = call
        ctx.dtype = x.dtype
        ctx.save_for_backward(out if call.memory_efficient else x, weight, bias, left)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dout):
        saved, weight, bias, left = ctx.saved_tensors
        call = ctx.call
        x, out = (None, saved) if call.memory_efficient else (saved, None)
        needs = ctx.needs_input_grad
        places = _left(call, saved, weight, ctx.dtype, left)
        return *_backward(call, dout, None, x, out, weight, bias, places, ctx.dtype, needs[1] or needs[2]), None


# Bypasses Function.apply(), which in some versions of PyTorch handles torch.func's transforms in Python.
# quickly() lets no transform through.
_apply_norm = getattr(super(torch.autograd.Function, NormFunction), "apply", NormFunction.apply)


class ResidualNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, residual, weight, bias, call):
        x, residual = x.contiguous(), residual.contiguous()
        left, places = _reserve(call, x, weight)
        out, sum = _residual_forward(call, x, residual, weight, bias, places)
        ctx.call = call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(out if call.memory_efficient else sum, weight, bias, left)
        return out, sum

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dout, dsum):
        if dout is None:
            return dsum, dsum, None, None, None
        saved, weight, bias, left = ctx.saved_tensors
        call = ctx.call
        x, out = (None, saved) if call.memory_efficient else (saved, None)
        parameters = ctx.needs_input_grad[2] or ctx.needs_input_grad[3]
        places = _left(call, saved, weight, saved.dtype, left)
        dx, dweight, dbias = _backward(call, dout, dsum, x, out, weight, bias, places, saved.dtype, parameters)
        return dx, dx, dweight, dbias, None


_PLAIN = (torch.Tensor, torch.nn.Parameter)
_modes = getattr(torch._C, "_len_torch_dispatch_stack", None)
# Returns True while transforms of torch.func (vmap, grad, …) are active.
transforms_active = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)


def _is_plain(x, weight, bias):
    """True for plain tensors with real memory while no mode is active. False if this PyTorch cannot tell."""
    return (
        type(x) in _PLAIN
        and not x.is_meta
        and (weight is None or type(weight) in _PLAIN)
        and (bias is None or type(bias) in _PLAIN)
        and _modes is not None
        and not _modes()
    )


_DENSE = torch.strided
_is_tracing = getattr(torch._C, "_is_tracing", torch.jit.is_tracing)


def quickly(input, residual, weight, bias, shape, eps, memory_efficient, centered, kept):
    """Handles the most frequent call, with or without a residual: plain tensors of one dtype that fit each other, no mode
    that observes or converts. Returns None for any other call, without a reason. Not for torch.compile."""
    if type(input) is not torch.Tensor or type(weight) not in _PLAIN or (bias is not None and type(bias) not in _PLAIN):
        return None
    if _modes is None or _modes() or transforms_active() or _is_tracing():
        return None
    if type(eps) is not float or not 0 <= eps < math.inf:
        return None
    if input.is_nested or input.layout is not _DENSE or weight.layout is not _DENSE:
        return None
    dtype, device = input.dtype, input.device
    if not (
        weight.dtype is dtype
        and dtype in _library.DTYPES
        and (input.is_cuda or input.is_cpu)
        and weight.device == device
        and weight.shape == shape
        and input.shape[-len(shape) :] == shape
        and weight.is_contiguous()
        and not torch.is_autocast_enabled("cuda" if input.is_cuda else "cpu")
    ):
        return None
    if bias is not None and not (
        bias.dtype is dtype and bias.device == device and bias.shape == shape and bias.is_contiguous()
    ):
        return None
    # Call(…) would take three times as long.
    call = tuple.__new__(Call, (centered, math.prod(shape), eps, dtype, memory_efficient, kept))
    if residual is not None:
        if not (
            type(residual) is torch.Tensor
            and residual.layout is _DENSE
            and residual.dtype is dtype
            and residual.device == device
            and residual.shape == input.shape
        ):
            return None
        return _add_and_normalize(call, input, residual, weight, bias)
    if torch.is_grad_enabled() and (
        input.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    ):
        return _apply_norm(input, weight, bias, call)
    return _forward(call, input.contiguous(), weight, bias, _NOTHING)[0]


def _any_requires_grad(*tensors):
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def normalize(call, x, weight, bias):
    if torch.compiler.is_compiling() or not _is_plain(x, weight, bias):
        return torch.ops.warpwright.fused_norm.default(
            x, weight, bias, call.centered, call.columns, call.eps, call.out_dtype != x.dtype, call.memory_efficient,
            call.kept,
        )[0]  # fmt: skip
    weight = None if weight is None else weight.contiguous()
    bias = None if bias is None else bias.contiguous()
    if _any_requires_grad(x, weight, bias):
        return NormFunction.apply(x, weight, bias, call)
    return _forward(call, x.contiguous(), weight, bias, _NOTHING)[0]


def add_and_normalize(call, x, residual, weight, bias):
    """Returns out and x + residual. All tensors have one dtype and shape; the weight is given."""
    if torch.compiler.is_compiling() or not _is_plain(x, weight, bias) or not _is_plain(residual, None, None):
        return torch.ops.warpwright.fused_add_norm.default(
            x, residual, weight, bias, call.centered, call.columns, call.eps, call.memory_efficient, call.kept
        )[:2]
    return _add_and_normalize(call, x, residual, weight.contiguous(), None if bias is None else bias.contiguous())


def _add_and_normalize(call, x, residual, weight, bias):
    if _any_requires_grad(x, residual, weight, bias):
        return ResidualNormFunction.apply(x, residual, weight, bias, call)
    return _residual_forward(call, x.contiguous(), residual.contiguous(), weight, bias, _NOTHING)


# ---- The operator ------------------------------------------------------------------------------------------------------

_operators = torch.library.Library("warpwright", "DEF")
_operators.define(
    "fused_norm(Tensor x, Tensor? weight, Tensor? bias, bool centered, SymInt columns, float eps, bool out_as_parameters, "
    "bool memory_efficient, int kept) -> (Tensor out, Tensor stats, Tensor kept_columns, Tensor kept_x)"
)
_operators.define(
    "fused_add_norm(Tensor x, Tensor residual, Tensor weight, Tensor? bias, bool centered, SymInt columns, float eps, "
    "bool memory_efficient, int kept) -> (Tensor out, Tensor sum, Tensor stats, Tensor kept_columns, Tensor kept_x)"
)
_operators.define(
    "fused_norm_backward(Tensor dout, Tensor? x, Tensor? out, Tensor? weight, Tensor? bias, Tensor stats, "
    "Tensor? kept_columns, Tensor? kept_x, bool centered, SymInt columns, bool parameters) "
    "-> (Tensor dx, Tensor dweight, Tensor dbias)"
)


def _allocate(call, x, weight):
    """The operator's tensors: statistics (mean above rstd, or only rstd), and places for lost columns or None."""
    rows = _rows(call, x)
    dtype = torch.float64 if x.dtype is torch.float64 else torch.float32
    stats = x.new_empty((2 if call.centered else 1, rows), dtype=dtype)
    count = _kept_count(call, weight)
    if count is None:
        return stats, None, None
    return stats, x.new_empty(1 + count, dtype=torch.int32), x.new_empty((rows, count))


def _norm_outputs(allocate_only, x, weight, bias, centered, columns, eps, out_as_parameters, memory_efficient, kept):
    call = Call(centered, columns, eps, weight.dtype if out_as_parameters else x.dtype, memory_efficient, kept)
    if allocate_only:
        out = torch.empty(x.shape, dtype=call.out_dtype, device=x.device)
        stats, kept_columns, kept_x = _allocate(call, x, weight)
    else:
        x = x.contiguous()
        weight = None if weight is None else weight.contiguous()
        bias = None if bias is None else bias.contiguous()
        stats, kept_columns, kept_x = _allocate(call, x, weight)
        out, _ = _forward(call, x, weight, bias, _places_of(call, stats, kept_columns, kept_x))
    return out, stats, *_kept_outputs(x, kept_columns, kept_x)


def _kept_outputs(x, kept_columns, kept_x):
    """Replaces None, because an operator always returns tensors. kept_x also tells the backward x's dtype."""
    if kept_columns is not None:
        return kept_columns, kept_x
    return torch.empty(0, dtype=torch.int32, device=x.device), torch.empty(0, dtype=x.dtype, device=x.device)


def _norm(*arguments):
    return _norm_outputs(False, *arguments)


def _norm_fake(*arguments):
    return _norm_outputs(True, *arguments)


def _add_norm_outputs(allocate_only, x, residual, weight, bias, centered, columns, eps, memory_efficient, kept):
    call = Call(centered, columns, eps, x.dtype, memory_efficient, kept)
    if allocate_only:
        out, sum = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
        stats, kept_columns, kept_x = _allocate(call, x, weight)
    else:
        x, residual, weight = x.contiguous(), residual.contiguous(), weight.contiguous()
        bias = None if bias is None else bias.contiguous()
        stats, kept_columns, kept_x = _allocate(call, x, weight)
        places = _places_of(call, stats, kept_columns, kept_x)
        out, sum = _residual_forward(call, x, residual, weight, bias, places)
    return out, sum, stats, *_kept_outputs(x, kept_columns, kept_x)


def _add_norm(*arguments):
    return _add_norm_outputs(False, *arguments)


def _add_norm_fake(*arguments):
    return _add_norm_outputs(True, *arguments)


def _norm_backward_fake(dout, x, out, weight, bias, stats, kept_columns, kept_x, centered, columns, parameters):
    dx = torch.empty(dout.shape, dtype=(kept_x if x is None else x).dtype, device=dout.device)
    dweight = torch.empty_like(weight, memory_format=torch.contiguous_format) if parameters else dx.new_empty(0)
    dbias = torch.empty_like(bias, memory_format=torch.contiguous_format) if parameters and bias is not None else dx.new_empty(0)
    return dx, dweight, dbias


def _add_norm_backward_fake(dout, dsum, *arguments):
    return _norm_backward_fake(dout, *arguments)


def _norm_backward(dout, *arguments):
    return _add_norm_backward(dout, None, *arguments)


def _add_norm_backward(dout, dsum, x, out, weight, bias, stats, kept_columns, kept_x, centered, columns, parameters):
    dtype = (kept_x if x is None else x).dtype
    if x is not None or kept_columns.numel() == 0:
        kept_columns = kept_x = None
    call = Call(centered, columns, 0.0, dout.dtype, out is not None, 0)
    stats = stats.contiguous()
    gradients = _backward(
        call,
        dout,
        dsum,
        None if x is None else x.contiguous(),
        None if out is None else out.contiguous(),
        None if weight is None else weight.contiguous(),
        None if bias is None else bias.contiguous(),
        _places_of(call, stats, kept_columns, kept_x),
        dtype,
        parameters,
    )
    return tuple(g if g is not None else dout.new_empty(0) for g in gradients)


def _save(ctx, inputs, output):
    x, weight, bias, centered, columns, _, _, memory_efficient, _ = inputs
    out, stats, kept_columns, kept_x = output
    ctx.centered, ctx.columns = centered, columns
    ctx.memory_efficient = memory_efficient
    ctx.mark_non_differentiable(stats, kept_columns, kept_x)
    ctx.set_materialize_grads(False)
    if memory_efficient:
        ctx.save_for_backward(None, out, weight, bias, stats, kept_columns, kept_x)
    else:
        ctx.save_for_backward(x, None, weight, bias, stats, None, None)


def _differentiate(ctx, dout, *_):
    if dout is None:
        return (None,) * 9
    needs = ctx.needs_input_grad
    parameters = needs[1] or needs[2]
    dx, dweight, dbias = torch.ops.warpwright.fused_norm_backward.default(
        dout, *ctx.saved_tensors, ctx.centered, ctx.columns, parameters
    )
    return dx, dweight if needs[1] else None, dbias if needs[2] else None, *(None,) * 6


def _save_sum(ctx, inputs, output):
    _, _, weight, bias, centered, columns, _, memory_efficient, _ = inputs
    out, sum, stats, kept_columns, kept_x = output
    ctx.centered, ctx.columns = centered, columns
    ctx.mark_non_differentiable(stats, kept_columns, kept_x)
    ctx.set_materialize_grads(False)
    if memory_efficient:
        ctx.save_for_backward(None, out, weight, bias, stats, kept_columns, kept_x)
    else:
        ctx.save_for_backward(sum, None, weight, bias, stats, None, None)


def _differentiate_sum(ctx, dout, dsum, *_):
    if dout is None:
        return dsum, dsum, *(None,) * 7
    needs = ctx.needs_input_grad
    dx, dweight, dbias = torch.ops.warpwright.fused_add_norm_backward.default(
        dout, dsum, *ctx.saved_tensors, ctx.centered, ctx.columns, needs[2] or needs[3]
    )
    return dx, dx, dweight if needs[2] else None, dbias if needs[3] else None, *(None,) * 5


# A released schema never changes; a changed one gets a new name. PyTorch stores compiled backwards on disk
# under the name of their forward.
_operators.define(
    "fused_add_norm_backward(Tensor dout, Tensor? dsum, Tensor? sum, Tensor? out, Tensor weight, Tensor? bias, Tensor stats, "
    "Tensor? kept_columns, Tensor? kept_x, bool centered, SymInt columns, bool parameters) "
    "-> (Tensor dx, Tensor dweight, Tensor dbias)"
)

for _device in ("CPU", "CUDA"):
    _operators.impl("fused_norm", _norm, _device)
    _operators.impl("fused_add_norm", _add_norm, _device)
    _operators.impl("fused_norm_backward", _norm_backward, _device)
    _operators.impl("fused_add_norm_backward", _add_norm_backward, _device)
torch.library.register_fake("warpwright::fused_norm", _norm_fake, lib=_operators)
torch.library.register_fake("warpwright::fused_add_norm", _add_norm_fake, lib=_operators)
torch.library.register_fake("warpwright::fused_norm_backward", _norm_backward_fake, lib=_operators)
torch.library.register_fake("warpwright::fused_add_norm_backward", _add_norm_backward_fake, lib=_operators)
torch.library.register_autograd("warpwright::fused_norm", _differentiate, setup_context=_save, lib=_operators)
torch.library.register_autograd("warpwright::fused_add_norm", _differentiate_sum, setup_context=_save_sum, lib=_operators)
