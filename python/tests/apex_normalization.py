"""A script written for apex.normalization. test_apex_names.py replaces the imports' package and runs it."""

import torch
from apex.normalization import FusedLayerNorm, FusedRMSNorm, MixedFusedLayerNorm, MixedFusedRMSNorm
from apex.normalization.fused_layer_norm import (
    FusedLayerNormAffineFunction,
    FusedLayerNormAffineMixedDtypesFunction,
    FusedLayerNormFunction,
    FusedRMSNormAffineFunction,
    FusedRMSNormAffineMixedDtypesFunction,
    FusedRMSNormFunction,
    fused_layer_norm_affine,
    manual_rms_norm,
)


class Norm(torch.nn.Module):
    """As in Megatron: parameters of its own, and the autograd function called directly."""

    def __init__(self, columns):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, columns))
        self.bias = torch.nn.Parameter(torch.linspace(-1, 1, columns))
        self.shape = torch.Size((columns,))

    def forward(self, input):
        return FusedLayerNormAffineFunction.apply(input, self.weight, self.bias, self.shape, 1e-5, True)


def main(device):
    torch.manual_seed(0)
    norm = Norm(48).to(device)
    x = torch.randn(5, 7, 48, device=device, requires_grad=True)
    out = norm(x)
    torch.testing.assert_close(out, torch.nn.functional.layer_norm(x, (48,), norm.weight, norm.bias, 1e-5))
    torch.testing.assert_close(out, fused_layer_norm_affine(x, norm.weight, norm.bias, (48,), 1e-5))
    out.square().sum().backward()
    assert x.grad.shape == x.shape and norm.weight.grad.shape == norm.bias.grad.shape == (48,)

    weight = norm.weight.detach()
    rms = manual_rms_norm(x.detach(), (48,), weight, 1e-5)
    torch.testing.assert_close(FusedRMSNormAffineFunction.apply(x, weight, (48,), 1e-5), rms)
    torch.testing.assert_close(FusedRMSNormFunction.apply(x, (48,), 1e-5), rms / weight)
    torch.testing.assert_close(FusedLayerNormFunction.apply(x, (48,), 1e-5), torch.nn.functional.layer_norm(x, (48,)))

    half = x.detach().to(torch.bfloat16)
    assert FusedLayerNormAffineMixedDtypesFunction.apply(half, weight, norm.bias, (48,), 1e-5).dtype is torch.float32
    assert FusedRMSNormAffineMixedDtypesFunction.apply(half, weight, (48,), 1e-5).dtype is torch.float32
    for module in (FusedLayerNorm, FusedRMSNorm, MixedFusedLayerNorm, MixedFusedRMSNorm):
        assert module(48).to(device)(x).shape == x.shape
