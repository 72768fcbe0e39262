"""A script written for Apex's extension module. test_apex_names.py replaces the import and runs it."""

import fused_layer_norm_cuda
import torch


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, eps):
        ctx.shape, ctx.eps = weight.shape, eps
        out, mean, invvar = fused_layer_norm_cuda.forward_affine(input.contiguous(), ctx.shape, weight, bias, eps)
        ctx.save_for_backward(input, weight, bias, mean, invvar)
        return out

    @staticmethod
    def backward(ctx, dout):
        input, weight, bias, mean, invvar = ctx.saved_tensors
        arguments = dout.contiguous(), mean, invvar, input, ctx.shape, weight, bias, ctx.eps, False
        return *fused_layer_norm_cuda.backward_affine(*arguments), None


def main(device):
    torch.manual_seed(0)
    x = torch.randn(6, 40, device=device, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(40, device=device, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(40, device=device, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(
        LayerNorm.apply(x, weight, bias, 1e-5), torch.nn.functional.layer_norm(x, (40,), weight, bias, 1e-5)
    )
    assert torch.autograd.gradcheck(LayerNorm.apply, (x, weight, bias, 1e-5))
    out, invvar = fused_layer_norm_cuda.rms_forward(x.detach(), (40,), 1e-5)
    torch.testing.assert_close(invvar, torch.rsqrt(x.detach().square().mean(1) + 1e-5))
    torch.testing.assert_close(out, x.detach() * invvar[:, None])
