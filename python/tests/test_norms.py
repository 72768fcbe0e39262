"""Compares the package with PyTorch: every dtype, shapes of all kinds, and the eager path with the operator."""

import math
import os
import threading

import pytest
import torch
from torch.nn import functional

import warpwright
from warpwright import _library, normalization
from warpwright.normalization import fused_layer_norm as functions

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() and _library._library.warpwright_cuda_device_count() else [])
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]

pytestmark = pytest.mark.parametrize("device", DEVICES)


def reference(x, weight, bias, shape, eps, centered):
    """The result in fp64, by PyTorch."""
    x, weight, bias = (None if t is None else t.double() for t in (x, weight, bias))
    if centered:
        return functional.layer_norm(x, shape, weight, bias, eps)
    dims = tuple(range(-len(shape), 0))
    out = x * torch.rsqrt(x.pow(2).mean(dims, keepdim=True) + eps)
    return out if weight is None else out * weight


def pytorch(x, weight, bias, shape, eps, centered):
    """PyTorch's result in the same dtype."""
    if weight is not None and weight.dtype != x.dtype:
        weight, bias = weight.to(x.dtype), None if bias is None else bias.to(x.dtype)
    if centered:
        return functional.layer_norm(x, shape, weight, bias, eps)
    return functional.rms_norm(x, shape, weight, eps)


def assert_close(got, wanted, dtype, what, slack=1.0):
    """Checks that ‖got − wanted‖/‖wanted‖ is within rounding of the stored values and of sums in fp32."""
    wanted = wanted.double()
    assert torch.isfinite(got).all(), what
    error = (got.double() - wanted).norm() / wanted.norm().clamp_min(1e-30)
    bound = slack * (2 * torch.finfo(dtype).eps + 64 * torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32).eps)
    assert error <= bound, f"{what}: {error:.2e} > {bound:.2e}"


def gradients(run, tensors, dout):
    leaves = [None if t is None else t.detach().clone().requires_grad_() for t in tensors]
    out = run(*leaves)
    out.backward(dout.to(out.dtype))
    return out.detach(), [None if t is None else t.grad for t in leaves]


def make(device, dtype, shape, normalized, parameter_dtype=None, bias=True, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = (torch.randn(shape, generator=g, dtype=torch.float64) + 0.3).to(dtype).to(device)
    weight = (1 + 0.5 * torch.rand(normalized, generator=g, dtype=torch.float64)).to(parameter_dtype or dtype).to(device)
    b = torch.randn(normalized, generator=g, dtype=torch.float64).to(parameter_dtype or dtype).to(device) if bias else None
    dout = torch.randn(shape, generator=g, dtype=torch.float64).to(dtype).to(device)
    return x, weight, b, dout


SHAPES = [
    ((4, 8), (8,)),
    ((3, 5, 32, 16), (32, 16)),
    ((7, 1), (1,)),
    ((2, 769), (769,)),
    ((33, 768), (768,)),
    ((5, 3, 1600), (1600,)),
    ((3, 12289), (12289,)),
    ((65,), (65,)),
    ((300, 17), (17,)),
]


@pytest.mark.parametrize("memory_efficient", [False, True])
@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape, normalized", SHAPES)
def test_affine(device, dtype, shape, normalized, centered, memory_efficient):
    x, weight, bias, dout = make(device, dtype, shape, normalized, bias=centered)

    def ours(x, weight, bias):
        if centered:
            return functions.fused_layer_norm_affine(x, weight, bias, normalized, 1e-5, memory_efficient)
        return functions.fused_rms_norm_affine(x, weight, normalized, 1e-5, memory_efficient)

    out, grads = gradients(ours, (x, weight, bias), dout)
    wanted, wanted_grads = gradients(
        lambda *t: reference(*t, normalized, 1e-5, centered), [None if t is None else t.double() for t in (x, weight, bias)], dout
    )
    assert out.dtype == dtype and out.shape == x.shape and out.is_contiguous()
    if math.prod(normalized) == 1 and centered:
        assert torch.equal(out, bias.expand_as(out))
        return
    assert_close(out, wanted, dtype, "out")
    # The backward then has only the rounded output: x̂ = (out − bias)/weight.
    slack = 4.0 if memory_efficient else 1.0
    for name, got, exact in zip(("dx", "dweight", "dbias"), grads, wanted_grads):
        if exact is not None:
            assert got.dtype == dtype
            assert_close(got, exact, dtype, name, slack)


@pytest.mark.parametrize("memory_efficient", [False, True])
@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_without_parameters(device, dtype, centered, memory_efficient):
    x, _, _, dout = make(device, dtype, (6, 4, 96), (96,))
    run = functions.fused_layer_norm if centered else functions.fused_rms_norm
    out, grads = gradients(lambda x: run(x, 96, 1e-5, memory_efficient), (x,), dout)
    wanted, wanted_grads = gradients(lambda x: reference(x, None, None, (96,), 1e-5, centered), (x.double(),), dout)
    assert_close(out, wanted, dtype, "out")
    assert_close(grads[0], wanted_grads[0], dtype, "dx", 4.0 if memory_efficient else 1.0)


@pytest.mark.parametrize("memory_efficient", [False, True])
@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("parameter_dtype", DTYPES)
def test_mixed_dtypes(device, dtype, parameter_dtype, centered, memory_efficient):
    """The output has the parameters' dtype in the mixed functions and the input's dtype in the others."""
    x, weight, bias, dout = make(device, dtype, (6, 200), (200,), parameter_dtype, bias=centered)
    arguments = ((200,), 1e-5, memory_efficient)
    for mixed in (True, False):

        def ours(x, weight, bias):
            if centered:
                run = functions.mixed_dtype_fused_layer_norm_affine if mixed else functions.fused_layer_norm_affine
                return run(x, weight, bias, *arguments)
            run = functions.mixed_dtype_fused_rms_norm_affine if mixed else functions.fused_rms_norm_affine
            return run(x, weight, *arguments)

        out, grads = gradients(ours, (x, weight, bias), dout)
        wanted, wanted_grads = gradients(
            lambda *t: reference(*t, (200,), 1e-5, centered),
            [None if t is None else t.double() for t in (x, weight, bias)],
            dout.to(out.dtype),
        )
        assert out.dtype == (parameter_dtype if mixed else dtype)
        coarse = max((dtype, parameter_dtype), key=lambda d: torch.finfo(d).eps)
        assert_close(out, wanted, out.dtype if out.dtype == coarse else coarse, "out")
        for name, got, exact, like in zip(("dx", "dweight", "dbias"), grads, wanted_grads, (x, weight, bias)):
            if exact is not None:
                assert got.dtype == like.dtype
                assert_close(got, exact, coarse, name, 4.0 if memory_efficient else 1.0)


@pytest.mark.parametrize("centered", [True, False])
def test_modules(device, centered):
    x = torch.randn(3, 4, 10, device=device)
    for shape in (10, [4, 10], torch.Size([4, 10]), (3, 4, 10)):
        name = "LayerNorm" if centered else "RMSNorm"
        plain = getattr(normalization, "Fused" + name)(shape).to(device)
        mixed = getattr(normalization, "MixedFused" + name)(shape).to(device)
        assert list(plain.state_dict()) == (["weight", "bias"] if centered else ["weight"])
        assert isinstance(plain.normalized_shape, torch.Size) and plain.eps == 1e-5
        mixed.load_state_dict(plain.state_dict())
        native = (torch.nn.LayerNorm if centered else torch.nn.RMSNorm)(shape, eps=1e-5).to(device)
        native.load_state_dict(plain.state_dict())
        torch.testing.assert_close(plain(x), native(x))
        torch.testing.assert_close(mixed(x), native(x))
        assert mixed.to(torch.bfloat16)(x).dtype == torch.bfloat16
        bare = getattr(normalization, "Fused" + name)(shape, elementwise_affine=False)
        assert bare.weight is None and not bare.state_dict()
        torch.testing.assert_close(bare(x), native(x))
    with pytest.raises(RuntimeError, match="elementwise_affine"):
        normalization.MixedFusedLayerNorm(4, elementwise_affine=False)
    with pytest.raises(TypeError, match="colour"):
        normalization.MixedFusedRMSNorm(4, colour=1)


def test_not_contiguous(device):
    weight, bias = torch.randn(2, 16, 8, device=device).unbind(0)
    strided = torch.randn(12, 32, 16, device=device)[::3, ::2, ::2]
    transposed = torch.randn(8, 16, 5, device=device).permute(2, 1, 0)
    expanded = torch.randn(1, 16, 8, device=device).expand(4, 16, 8)
    for x in (strided, transposed, expanded):
        leaf, twin = x.detach().requires_grad_(), x.detach().requires_grad_()
        for w in (weight, weight.t().contiguous().t()):
            out = functions.fused_layer_norm_affine(leaf, w, bias, (16, 8), 1e-5)
            wanted = functional.layer_norm(twin, (16, 8), w, bias, 1e-5)
            torch.testing.assert_close(out, wanted)
        out.sum().backward()  # this gradient is an expanded tensor
        wanted.sum().backward()
        torch.testing.assert_close(leaf.grad, twin.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("memory_efficient", [False, True])
def test_empty(device, memory_efficient):
    for shape, normalized in (((0, 8), (8,)), ((3, 0, 8), (8,)), ((4, 0), (0,)), ((0, 0), (0,))):
        x = torch.randn(shape, device=device, requires_grad=True)
        weight = torch.ones(normalized, device=device, requires_grad=True)
        bias = torch.zeros(normalized, device=device, requires_grad=True)
        out = functions.fused_layer_norm_affine(x, weight, bias, normalized, 1e-5, memory_efficient)
        assert out.shape == x.shape
        out.sum().backward()
        assert x.grad.shape == x.shape
        assert torch.equal(weight.grad, torch.zeros_like(weight)) and torch.equal(bias.grad, torch.zeros_like(bias))
        assert functions.fused_rms_norm(x, normalized).shape == x.shape


@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_of_zero_from_the_output(device, dtype, centered):
    """Columns that the output does not determine are kept. If there is no room, their gradient is NaN."""
    x, weight, bias, dout = make(device, dtype, (40, 64), (64,), bias=centered)
    weight[5], weight[17] = 0, 1e-30

    def ours(x, weight, bias):
        if centered:
            return functions.fused_layer_norm_affine(x, weight, bias, 64, 1e-5, True)
        return functions.fused_rms_norm_affine(x, weight, 64, 1e-5, True)

    _, grads = gradients(ours, (x, weight, bias), dout)
    _, wanted = gradients(
        lambda *t: reference(*t, (64,), 1e-5, centered), [None if t is None else t.double() for t in (x, weight, bias)], dout
    )
    assert_close(grads[0], wanted[0], dtype, "dx", 8)
    assert_close(grads[1], wanted[1], dtype, "dweight", 8)
    assert_close(grads[1][[5, 17]], wanted[1][[5, 17]], dtype, "dweight where weight is 0", 8)
    before = warpwright.kept_columns()
    weight[17] = 0
    try:
        assert warpwright.kept_columns(1) == 1
        _, grads = gradients(ours, (x, weight, bias), dout)
    finally:
        warpwright.kept_columns(before)
    lost = torch.isnan(grads[1])
    assert lost[17] and lost.sum() == 1
    with pytest.raises(ValueError, match="-2"):
        warpwright.kept_columns(-2)


@pytest.mark.parametrize("affine", (True, False))
@pytest.mark.parametrize("eps", (-1.0, -1, float("inf"), float("nan")))
def test_eps_that_cannot_be(device, eps, affine):
    with pytest.raises(ValueError, match=f"eps is {eps}, needs a finite number, 0 or more"):
        normalization.FusedLayerNorm(8, eps=eps, elementwise_affine=affine).to(device)(torch.ones(2, 8, device=device))


def test_memory_efficient_keeps_the_output_alone(device):
    norm = normalization.FusedLayerNorm(512, memory_efficient=True).to(device)
    x = torch.randn(64, 512, device=device, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        out = norm(x)
    large = [t for t in saved if t.numel() >= out.numel()]
    assert [t.data_ptr() for t in large] == [out.data_ptr()]


def test_inference_and_frozen_parts(device):
    norm = normalization.FusedLayerNorm(32).to(device)
    x = torch.randn(4, 32, device=device)
    with torch.no_grad():
        assert norm(x).grad_fn is None
    with torch.inference_mode():
        assert not norm(x).requires_grad
    norm.weight.requires_grad_(False)
    norm(x).sum().backward()
    assert norm.weight.grad is None and norm.bias.grad is not None
    norm.bias.requires_grad_(False)
    leaf = x.clone().requires_grad_()
    norm(leaf).square().sum().backward()
    assert leaf.grad is not None


@pytest.mark.parametrize("memory_efficient", [False, True])
@pytest.mark.parametrize("centered", [True, False])
def test_gradcheck(device, centered, memory_efficient):
    x, weight, bias, _ = make(device, torch.float64, (3, 2, 7), (2, 7))
    inputs = [t.requires_grad_() for t in ((x, weight, bias) if centered else (x, weight))]
    run = functions.fused_layer_norm_affine if centered else functions.fused_rms_norm_affine
    assert torch.autograd.gradcheck(lambda *t: run(*t, (2, 7), 1e-5, memory_efficient), inputs)
    run = functions.fused_layer_norm if centered else functions.fused_rms_norm
    assert torch.autograd.gradcheck(lambda x: run(x, (2, 7), 1e-5, memory_efficient), inputs[:1])


@pytest.mark.parametrize("memory_efficient", [False, True])
@pytest.mark.parametrize("centered", [True, False])
def test_operator(device, centered, memory_efficient):
    """PyTorch's own check of a custom operator: schema, fake implementation, autograd, tracing with fixed and free sizes."""
    x, weight, bias, _ = make(device, torch.float32, (5, 12), (12,), bias=centered)
    inputs = [None if t is None else t.requires_grad_() for t in (x, weight, bias)]
    operator = torch.ops.warpwright.fused_norm.default
    # No column is kept, because the unused places would differ from call to call.
    torch.library.opcheck(operator, (*inputs, centered, 12, 1e-5, False, memory_efficient, 0))
    torch.library.opcheck(operator, (x, None, None, centered, 12, 1e-5, False, memory_efficient, 0))


@pytest.mark.parametrize("memory_efficient", [False, True])
@pytest.mark.parametrize("name", ["FusedLayerNorm", "FusedRMSNorm", "MixedFusedLayerNorm", "MixedFusedRMSNorm"])
def test_compile(device, name, memory_efficient):
    """The operator gives the eager path's bits, as a whole graph, and again with another number of rows."""
    torch._dynamo.reset()
    backend = os.environ.get("WARPWRIGHT_TEST_BACKEND", "aot_eager" if device == "cpu" else "inductor")
    norm = getattr(normalization, name)(24, memory_efficient=memory_efficient).to(device)
    compiled = torch.compile(norm, fullgraph=True, backend=backend)
    for rows in (3, 5, 9):
        x = torch.randn(rows, 24, device=device)
        dout = torch.randn(rows, 24, device=device)
        results = []
        for run in (norm, compiled):
            norm.zero_grad()
            out, (dx,) = gradients(run, (x,), dout)
            results.append([out, dx] + [p.grad.clone() for p in norm.parameters()])
        for eager, traced in zip(*results):
            assert torch.equal(eager, traced)
    with torch.no_grad():
        assert torch.equal(norm(x), compiled(x))


@pytest.mark.parametrize("name", ["FusedLayerNorm", "FusedRMSNorm", "FusedAddLayerNorm"])
def test_compile_takes_the_operator(device, name):
    graphs = []
    norm = getattr(normalization, name)(24).to(device)
    x = torch.randn(3, 24, device=device)
    torch._dynamo.reset()
    torch.compile(norm, fullgraph=True, backend=lambda graph, _: graphs.append(graph) or graph)(*[x] * (2 if "Add" in name else 1))
    operator = "fused_add_norm" if "Add" in name else "fused_norm"
    assert len(graphs) == 1 and f"warpwright.{operator}" in graphs[0].code, graphs[0].code


@pytest.mark.parametrize("memory_efficient", [False, True])
@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape, normalized", [((33, 768), (768,)), ((2, 3, 4, 8), (4, 8)), ((5, 1601), (1601,)), ((0, 8), (8,))])
def test_residual(device, dtype, shape, normalized, centered, memory_efficient):
    """The sum has the bits of two steps, the other results are right, and a gradient of the sum is added."""
    x, weight, bias, dout = make(device, dtype, shape, normalized, bias=centered)
    residual, _, _, dsum = make(device, dtype, shape, normalized, seed=1)
    norm = (normalization.FusedAddLayerNorm if centered else normalization.FusedAddRMSNorm)(normalized, 1e-5, memory_efficient)
    norm = norm.to(device, dtype)
    norm.load_state_dict({"weight": weight, "bias": bias} if centered else {"weight": weight})

    def run(x, residual):
        leaves = [x.detach().clone().requires_grad_(), residual.detach().clone().requires_grad_()]
        norm.zero_grad()
        out, sum = norm(*leaves)
        torch.autograd.backward([out, sum], [dout, dsum])
        return out.detach(), sum.detach(), leaves[0].grad, leaves[1].grad, norm.weight.grad, norm.bias.grad if centered else None

    out, sum, dx, dresidual, dweight, dbias = run(x, residual)
    assert torch.equal(sum, x + residual) and torch.equal(dx, dresidual)
    if x.numel() == 0:
        return
    wanted, grads = gradients(
        lambda *t: reference(*t, normalized, 1e-5, centered),
        [None if t is None else t.double() for t in (sum, weight, bias)],
        dout,
    )
    assert_close(out, wanted, dtype, "out")
    slack = 4.0 if memory_efficient else 1.0
    assert_close(dx, grads[0] + dsum.double(), dtype, "dx", slack)
    assert_close(dweight, grads[1], dtype, "dweight", slack)
    if centered:
        assert_close(dbias, grads[2], dtype, "dbias", slack)
    with torch.no_grad():
        again = norm(x, residual)
    assert torch.equal(again[0], out) and torch.equal(again[1], sum)
    # The gradient of the sum alone, and of the output alone.
    leaf = x.detach().clone().requires_grad_()
    norm(leaf, residual)[1].backward(dsum)
    assert torch.equal(leaf.grad, dsum)
    leaf = x.detach().clone().requires_grad_()
    norm(leaf, residual)[0].backward(dout)
    assert_close(leaf.grad, grads[0], dtype, "dx of the output alone", slack)


@pytest.mark.parametrize("memory_efficient", [False, True])
@pytest.mark.parametrize("centered", [True, False])
def test_residual_operator(device, centered, memory_efficient):
    """torch.compile gives the eager path's result, opcheck passes, and fp64 gradients equal finite differences."""
    name = "FusedAddLayerNorm" if centered else "FusedAddRMSNorm"
    norm = getattr(normalization, name)(12, memory_efficient=memory_efficient).to(device)
    x, residual, dout, dsum = torch.randn(4, 5, 12, device=device).unbind(0)
    torch._dynamo.reset()
    compiled = torch.compile(norm, fullgraph=True, backend=os.environ.get("WARPWRIGHT_TEST_BACKEND", "aot_eager"))
    results = []
    for run in (norm, compiled):
        leaves = [x.clone().requires_grad_(), residual.clone().requires_grad_()]
        norm.zero_grad()
        outputs = run(*leaves)
        torch.autograd.backward(outputs, [dout, dsum])
        results.append([*outputs, *(t.grad.clone() for t in (*leaves, *norm.parameters()))])
    for eager, traced in zip(*results):
        assert torch.equal(eager, traced)
    operator = torch.ops.warpwright.fused_add_norm.default
    tensors = [t.double().requires_grad_() for t in (x, residual, *(p.detach() for p in norm.parameters()))]
    bias = tensors[3] if centered else None
    torch.library.opcheck(operator, (*tensors[:3], bias, centered, 12, 1e-5, memory_efficient, 0))

    def outputs(x, residual, weight, bias=None):
        if centered:
            return functions.fused_add_layer_norm_affine(x, residual, weight, bias, 12, 1e-5, memory_efficient)
        return functions.fused_add_rms_norm_affine(x, residual, weight, 12, 1e-5, memory_efficient)

    assert torch.autograd.gradcheck(outputs, tensors)


def test_residual_of_several_dtypes(device):
    """Different dtypes take two steps and are promoted as in PyTorch, under autocast too."""
    norm = normalization.FusedAddLayerNorm(32).to(device)
    x, residual = torch.randn(2, 6, 32, device=device).unbind(0)
    out, sum = norm(x.bfloat16(), residual)
    assert torch.equal(sum, x.bfloat16() + residual) and out.dtype == torch.float32
    out, sum = norm(x.bfloat16(), residual.bfloat16())
    assert sum.dtype == out.dtype == torch.bfloat16
    with torch.autocast(device, dtype=torch.bfloat16):
        out, sum = norm(x.bfloat16(), residual)
    assert sum.dtype == torch.float32 and out.dtype == torch.bfloat16
    with pytest.raises(ValueError, match=r"FusedAddLayerNorm: residual has shape \(6, 31\), input \(6, 32\)"):
        norm(x, residual[:, :31])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["FusedLayerNorm", "FusedRMSNorm", "MixedFusedLayerNorm", "MixedFusedRMSNorm"])
def test_autocast(device, name, dtype):
    norm = getattr(normalization, name)(48).to(device)
    x = torch.randn(6, 48, device=device, requires_grad=True)
    with torch.autocast(device, dtype=dtype):
        out = norm(x)
        assert out.dtype == dtype
        double = norm(x.double())
        assert double.dtype == (norm.weight.dtype if name.startswith("Mixed") else torch.float64)
    out.float().square().sum().backward()
    assert x.grad.dtype == torch.float32 and norm.weight.grad.dtype == torch.float32
    with torch.autocast(device, dtype=dtype), torch.no_grad():
        torch._dynamo.reset()
        assert torch.equal(torch.compile(norm, fullgraph=True, backend="aot_eager")(x), norm(x))


def test_fake_and_meta_modes(device):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), torch.device(device):
        norm = normalization.FusedLayerNorm(32, memory_efficient=True)
        x = torch.empty(4, 32, device=device, requires_grad=True)
        out = norm(x)
        assert out.shape == (4, 32) and out.device.type == device
        out.sum().backward()
        assert norm.weight.grad.shape == (32,)
    norm = normalization.FusedLayerNorm(32).to("meta")
    assert norm(torch.empty(4, 32, device="meta")).is_meta


def test_export(device):
    """An exported program holds PyTorch's operators, so it runs without this package."""
    norm = normalization.FusedRMSNorm(32).to(device).eval()
    x = torch.randn(4, 32, device=device)
    program = torch.export.export(norm, (x,))
    assert "warpwright" not in str(program.graph)
    torch.testing.assert_close(program.module()(x), norm(x))


def test_transforms(device):
    """torch.func transforms PyTorch's own operators."""
    norm = normalization.FusedLayerNorm(8, memory_efficient=True).to(device)
    x = torch.randn(3, 8, device=device)
    torch.testing.assert_close(torch.func.vmap(norm)(x), norm(x))
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(norm(leaf).square().sum(), leaf)
    torch.testing.assert_close(torch.func.grad(lambda t: norm(t).square().sum())(x), expected, atol=1e-5, rtol=1e-4)


def test_checkpointing(device):
    from torch.utils.checkpoint import checkpoint

    norm = normalization.FusedLayerNorm(32, memory_efficient=True).to(device)
    x = torch.randn(4, 32, device=device, requires_grad=True)
    out = checkpoint(lambda t: norm(t).sin(), x, use_reentrant=False)
    out.sum().backward()
    (expected,) = torch.autograd.grad(norm(x).sin().sum(), x)
    assert torch.equal(x.grad, expected)


def test_no_second_derivative(device):
    x = torch.randn(4, 32, device=device, requires_grad=True)
    (dx,) = torch.autograd.grad(functions.fused_layer_norm(x, 32).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()


def test_changed_output_is_noticed(device):
    x = torch.randn(4, 32, device=device, requires_grad=True)
    out = functions.fused_layer_norm(x, 32, 1e-5, True)
    out.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_hard_rows(device, dtype, centered):
    """Large means, constant rows, one huge element, denormals: the error is at most twice PyTorch's in the same dtype, plus
    a unit in the last place. If PyTorch gives NaN or inf, so do we."""
    C = 256
    g = torch.Generator().manual_seed(1)
    noise = torch.randn(8, C, generator=g)
    huge = noise.clone()
    huge[:, 7] = 6e4 if dtype is torch.float16 else 1e6
    ones = torch.ones(C, dtype=dtype, device=device)
    for name, x in {
        "a large mean": noise + 1e4,
        "constant": torch.full((8, C), 3.0),
        "one huge element": huge,
        "denormal": noise * torch.finfo(dtype).smallest_normal / 64,
    }.items():
        x = x.to(dtype).to(device)
        exact = reference(x, ones, None, (C,), 1e-5, centered)
        got = functions.fused_layer_norm(x, C, 1e-5) if centered else functions.fused_rms_norm(x, C, 1e-5)
        theirs = pytorch(x, ones, None, (C,), 1e-5, centered)
        scale = max(exact.norm().item(), 1e-30)
        error, their_error = ((t.double() - exact).norm().item() / scale for t in (got, theirs))
        assert error <= 2 * their_error + torch.finfo(dtype).eps, name
    for bad in (math.nan, math.inf, -math.inf):
        x = noise.clone().to(dtype).to(device)
        x[3, 5] = bad
        got = functions.fused_layer_norm(x, C, 1e-5) if centered else functions.fused_rms_norm(x, C, 1e-5)
        theirs = pytorch(x, None, None, (C,), 1e-5, centered)
        assert torch.equal(torch.isnan(got), torch.isnan(theirs)), bad
        assert torch.isfinite(got[:3]).all() and torch.isfinite(got[4:]).all()


def test_same_bits_from_threads_and_streams(device):
    norm = normalization.FusedLayerNorm(768, memory_efficient=True).to(device)
    x = torch.randn(257, 768, device=device)
    dout = torch.randn(257, 768, device=device)

    def run():
        leaf = x.clone().requires_grad_()
        out = norm(leaf)
        grads = torch.autograd.grad(out, [leaf, *norm.parameters()], dout)
        return [out.detach(), *grads]

    wanted = run()
    results, failures = [], []

    def work():
        try:
            if device == "cuda":
                stream = torch.cuda.Stream()
                stream.wait_stream(torch.cuda.default_stream())
                with torch.cuda.stream(stream):
                    got = [run() for _ in range(10)]
                stream.synchronize()
            else:
                got = [run() for _ in range(10)]
            results.extend(got)
        except Exception as error:  # the main thread shows it
            failures.append(error)

    if device == "cuda":
        torch.cuda.synchronize()
    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures, failures
    assert len(results) == 30
    for got in results:
        assert all(torch.equal(a, b) for a, b in zip(got, wanted))


def test_cuda_graph(device):
    if device == "cpu":
        pytest.skip("needs an NVIDIA GPU")
    norm = normalization.FusedLayerNorm(1024).to(device)
    x = torch.randn(64, 1024, device=device, requires_grad=True)

    def step():
        norm.zero_grad(set_to_none=True)
        x.grad = None
        out = norm(x)
        out.square().sum().backward()
        return out

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    dx, dweight = x.grad, norm.weight.grad
    with torch.no_grad():
        x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    got = [t.clone() for t in (captured, dx, dweight)]
    out = step()
    for a, b in zip(got, (out, x.grad, norm.weight.grad)):
        assert torch.equal(a, b)


def test_second_gpu(device):
    if device == "cpu" or torch.cuda.device_count() < 2:
        pytest.skip("needs two NVIDIA GPUs")
    norm = normalization.FusedLayerNorm(768).to("cuda:1")
    x = torch.randn(8, 768, device="cuda:1")
    torch.testing.assert_close(norm(x), functional.layer_norm(x, (768,), norm.weight, norm.bias))
    assert torch.cuda.current_device() == 0
