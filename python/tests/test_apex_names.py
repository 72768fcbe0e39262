"""Code written for Apex runs: scripts with their imports replaced, every autograd function, and every function of the
extension module."""

import re
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from warpwright import _library, fused_layer_norm_cuda
from warpwright.normalization import fused_layer_norm as apex

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() and _library._library.warpwright_cuda_device_count() else [])
EPS, COLUMNS, SHAPE = 1e-5, 48, (3, 5, 48)

on_devices = pytest.mark.parametrize("device", DEVICES)
in_both_modes = pytest.mark.parametrize("memory_efficient", [False, True])
by_both_norms = pytest.mark.parametrize("centered", [True, False])


@on_devices
@pytest.mark.parametrize("script", ["apex_normalization.py", "apex_extension.py"])
def test_scripts(script, device):
    text = (Path(__file__).parent / script).read_text()
    text, apexs = re.subn(r"^from apex\.", "from warpwright.", text, flags=re.M)
    text, extensions = re.subn(r"^import (fused_layer_norm_cuda)$", r"from warpwright import \1", text, flags=re.M)
    assert apexs + extensions > 0
    names = {}
    exec(compile(text, script, "exec"), names)
    names["main"](device)


def reference(x, weight, bias, centered):
    if centered:
        return functional.layer_norm(x, (COLUMNS,), weight, bias, EPS)
    out = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)
    return out if weight is None else out * weight


def make(device, dtype, parameter_dtype, count):
    """x, dout, and the first `count` of weight and bias."""
    torch.manual_seed(1)
    x, dout = (torch.randn(SHAPE, device=device).to(dtype) for _ in range(2))
    weight, bias = 1 + torch.rand(COLUMNS, device=device), torch.randn(COLUMNS, device=device)
    return x, dout, [t.to(parameter_dtype) for t in (weight, bias)][:count]


def exact(x, dout, parameters, centered):
    """The output and the gradients in fp64."""
    leaves = [t.double().clone().requires_grad_() for t in (x, *parameters)]
    weight, bias = (leaves[1:] + [None, None])[:2]
    out = reference(leaves[0], weight, bias, centered)
    return out.detach(), torch.autograd.grad(out, leaves, dout.double())


def assert_close(got, wanted, dtype, slack=4):
    error = (got.double() - wanted).norm() / wanted.norm()
    assert error <= slack * torch.finfo(dtype).eps, error


FUNCTIONS = {  # by centered, affine, mixed
    (True, False, False): apex.FusedLayerNormFunction,
    (True, True, False): apex.FusedLayerNormAffineFunction,
    (True, True, True): apex.FusedLayerNormAffineMixedDtypesFunction,
    (False, False, False): apex.FusedRMSNormFunction,
    (False, True, False): apex.FusedRMSNormAffineFunction,
    (False, True, True): apex.FusedRMSNormAffineMixedDtypesFunction,
}
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@on_devices
@in_both_modes
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_autograd_functions(kind, dtype, memory_efficient, device):
    centered, affine, mixed = kind
    parameter_dtype = torch.float32 if mixed and dtype.itemsize == 2 else dtype
    x, dout, parameters = make(device, dtype, parameter_dtype, (2 if centered else 1) if affine else 0)
    wanted, gradients = exact(x, dout, parameters, centered)
    leaves = [t.clone().requires_grad_() for t in (x, *parameters)]
    out = FUNCTIONS[kind].apply(*leaves, (COLUMNS,), EPS, memory_efficient)
    assert out.dtype is (parameter_dtype if mixed else dtype)
    assert_close(out, wanted, out.dtype)
    out.backward(dout.to(out.dtype))
    for leaf, gradient in zip(leaves, gradients):
        assert leaf.grad.dtype is leaf.dtype
        assert_close(leaf.grad, gradient, dtype, 16)


def call(centered, name, *arguments):
    return getattr(fused_layer_norm_cuda, name if centered else "rms_" + name)(*arguments)


@on_devices
@in_both_modes
@by_both_norms
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_extension(dtype, affine, centered, memory_efficient, device):
    x, dout, parameters = make(device, dtype, dtype, (2 if centered else 1) if affine else 0)
    wanted, gradients = exact(x, dout, parameters, centered)
    suffix = "_affine" if affine else ""
    out, *statistics = call(centered, "forward" + suffix, x, (COLUMNS,), *parameters, EPS)
    assert_close(out, wanted, dtype)
    rows = x.double().reshape(-1, COLUMNS)
    mean = rows.mean(1) if centered else 0 * rows[:, 0]
    invvar = torch.rsqrt((rows - mean[:, None]).square().mean(1) + EPS)
    assert len(statistics) == (2 if centered else 1)
    if centered:
        torch.testing.assert_close(statistics[0].double(), mean, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(statistics[-1].double(), invvar, atol=1e-6, rtol=1e-6)

    if memory_efficient and centered:
        statistics[0] = None
    saved = out if memory_efficient else x
    got = call(centered, "backward" + suffix, dout, *statistics, saved, (COLUMNS,), *parameters, EPS, memory_efficient)
    for gradient, exact_gradient in zip(got if affine else [got], gradients):
        assert_close(gradient, exact_gradient, dtype, 16)


@on_devices
@by_both_norms
def test_extension_with_mixed_dtypes(centered, device):
    x, dout, parameters = make(device, torch.bfloat16, torch.float32, 2 if centered else 1)
    wanted, gradients = exact(x, dout, parameters, centered)
    out, *statistics = call(centered, "forward_affine_mixed_dtypes", x, (COLUMNS,), *parameters, EPS)
    assert out.dtype is torch.float32
    assert_close(out, wanted, torch.float32, 16)
    got = call(centered, "backward_affine", dout.float(), *statistics, x, (COLUMNS,), *parameters, EPS, False)
    for gradient, exact_gradient in zip(got, gradients):
        assert_close(gradient, exact_gradient, gradient.dtype, 16)


@on_devices
def test_no_rows(device):
    x = torch.empty(0, COLUMNS, device=device)
    weight = torch.ones(COLUMNS, device=device)
    out, mean, invvar = fused_layer_norm_cuda.forward_affine(x, (COLUMNS,), weight, weight, EPS)
    assert out.shape == x.shape and mean.numel() == invvar.numel() == 0
    got = fused_layer_norm_cuda.backward_affine(out, mean, invvar, x, (COLUMNS,), weight, weight, EPS, False)
    assert got[0].shape == x.shape and not got[1].any() and not got[2].any()


def test_manual_rms_norm():
    x, _, (weight,) = make("cpu", torch.bfloat16, torch.bfloat16, 1)
    wanted = exact(x, x, [weight], False)[0]
    out = apex.manual_rms_norm(x, (COLUMNS,), weight, EPS)
    assert out.dtype is torch.bfloat16
    assert_close(out, wanted, torch.bfloat16)
    assert apex.manual_rms_norm(x, (COLUMNS,), None, EPS).dtype is torch.float32
    assert apex.manual_rms_norm(x.double(), (COLUMNS,), weight.double(), EPS).dtype is torch.float64


def test_refusals():
    x, weight = torch.randn(4, 8), torch.ones(8)
    out, mean, invvar = fused_layer_norm_cuda.forward_affine(x, (8,), weight, weight, EPS)
    with pytest.raises(TypeError, match="forward_affine: weight is torch.float64 and input torch.float32"):
        fused_layer_norm_cuda.forward_affine(x, (8,), weight.double(), weight, EPS)
    with pytest.raises(ValueError, match=r"forward: input has shape \(4, 8\)"):
        fused_layer_norm_cuda.forward(x, (7,), EPS)
    with pytest.raises(ValueError, match=r"backward: invvar is \(3,\), torch.float32, on cpu; needs \(4,\)"):
        fused_layer_norm_cuda.backward(x, mean, invvar[:3], x, (8,), EPS)
    with pytest.raises(TypeError, match="backward: mean is NoneType, needs a Tensor"):
        fused_layer_norm_cuda.backward(x, None, invvar, x, (8,), EPS)
    with pytest.raises(ValueError, match=r"backward: dout is \(2, 8\) on cpu, input_or_output \(4, 8\)"):
        fused_layer_norm_cuda.backward(x[:2], mean, invvar, x, (8,), EPS)
    with pytest.raises(TypeError, match="backward: dout is torch.float64, needs the dtype of the output"):
        fused_layer_norm_cuda.backward(x.double(), mean, invvar, x, (8,), EPS)
    for on_meta in (fused_layer_norm_cuda.rms_forward, apex.FusedRMSNormFunction.apply):
        with pytest.raises(ValueError, match="input is on meta, needs a CPU or a CUDA device"):
            on_meta(x.to("meta"), (8,), EPS)
    with pytest.raises(TypeError, match="FusedRMSNormAffineFunction: weight is torch.float16 and input torch.float32"):
        apex.FusedRMSNormAffineFunction.apply(x, weight.half(), (8,), EPS)
    with pytest.raises(TypeError, match="bias is torch.bfloat16, weight torch.float32: they need one dtype"):
        apex.FusedLayerNormAffineFunction.apply(x.bfloat16(), weight, weight.bfloat16(), (8,), EPS)


def test_memory_efficient_saves_what_the_next_layer_keeps():
    """A linear layer saves its input itself only if its weight needs a gradient and autocast does not convert the input."""
    saved = []

    def run(linear):
        saved.clear()
        x = torch.randn(4, 8, requires_grad=True)
        out = apex.FusedLayerNormAffineFunction.apply(x, torch.ones(8), torch.zeros(8), (8,), EPS, True)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.data_ptr()) or t, lambda t: t):
            linear(out)
        return out.data_ptr() in saved

    assert run(torch.nn.Linear(8, 8))
    assert not run(torch.nn.Linear(8, 8).requires_grad_(False))
    with torch.autocast("cpu", torch.bfloat16):
        assert not run(torch.nn.Linear(8, 8))
