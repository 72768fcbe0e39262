#!/usr/bin/env python3
"""Measures the cost and the savings of the Python package compared with PyTorch.

    python3 bench/peers/python_norms.py [--device cuda|cpu] [--calls] [--memory] [--json]

calls    Python's share of a forward call: the time of many calls on a tensor so small that only overhead counts, minus the
         time of the bare C call. Also timed are an operator made with torch.library.custom_op that only allocates its
         output, and PyTorch's own layer_norm. On a GPU this is the host's time to enqueue, without waiting.
memory   Peak memory of a training step of a pre-norm transformer (GPT-2's block: norm, causal attention, norm, MLP) in
         bf16. The norms are PyTorch's, this package's, this package's with memory_efficient, and this package's with the
         residual connection in the norm. GPU only.

By default both are measured. Needs the package warpwright, installed or in PYTHONPATH.
"""

import argparse
import json
import statistics
import time

import torch
from torch.nn import functional

import warpwright
from warpwright import _library, _norms


def microseconds(call, device, repeats=7, calls=400):
    """The median of `repeats` means."""
    for _ in range(100):
        call()
    times = []
    for _ in range(repeats):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls)
        if device == "cuda":
            torch.cuda.synchronize()
    return statistics.median(times) * 1e6


@torch.library.custom_op("warpwright_bench::empty", mutates_args=())
def empty_op(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.empty_like(x)


empty_op.register_fake(lambda x, weight, bias, eps: torch.empty_like(x))
empty_op.register_autograd(
    lambda ctx, grad: (grad, None, None, None), setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0])
)


def measure_calls(device, show):
    """Shows each row as soon as it is measured."""
    report = {}

    def measure(name, call):
        report[name] = microseconds(call, device)
        show(name, report[name])

    torch.set_num_threads(1)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    C = 64
    x = torch.randn(1, C, device=device, dtype=dtype)
    leaf = x.clone().requires_grad_()
    ours = warpwright.FusedLayerNorm(C).to(device, dtype)
    frugal = warpwright.FusedLayerNorm(C, memory_efficient=True).to(device, dtype)
    theirs = torch.nn.LayerNorm(C).to(device, dtype)
    weight, bias = ours.weight.detach(), ours.bias.detach()

    # Only the C call, on arguments that the call before has packed.
    out = torch.empty_like(x)
    _library.forward(_library.LAYERNORM, x, weight, bias, out, (0, 0, 0, 0, 0), 1, C, 1e-5)
    context = _library.context_of(x.device)
    (plan,) = context.plans.values()
    function = _library.LAYERNORM.run_forward
    measure("C call", lambda: function(context.handle, plan.address))
    operator = torch.ops.warpwright.fused_norm.default
    settings = (True, C, 1e-5, False, False, 16)
    with torch.no_grad():
        measure("FusedLayerNorm, inference", lambda: ours(x))
        measure("its operator, inference", lambda: operator(x, weight, bias, *settings))
        measure("empty custom operator, inference", lambda: empty_op(x, weight, bias, 1e-5))
        measure("torch.nn.LayerNorm, inference", lambda: theirs(x))
    measure("FusedLayerNorm, training", lambda: ours(leaf))
    measure("FusedLayerNorm memory_efficient, training", lambda: frugal(leaf))
    measure("its operator, training", lambda: operator(leaf, ours.weight, ours.bias, *settings))
    measure("empty custom operator, training", lambda: empty_op(leaf, ours.weight, ours.bias, 1e-5))
    measure("torch.nn.LayerNorm, training", lambda: theirs(leaf))
    return report


class Block(torch.nn.Module):
    def __init__(self, channels, heads, norm):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = norm(channels), norm(channels)
        self.qkv, self.projection = torch.nn.Linear(channels, 3 * channels), torch.nn.Linear(channels, channels)
        self.up, self.down = torch.nn.Linear(channels, 4 * channels), torch.nn.Linear(4 * channels, channels)

    def attention(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.heads, -1).transpose(1, 2) for t in self.qkv(x).split(C, dim=2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.projection(y.transpose(1, 2).reshape(B, T, C))

    def mlp(self, x):
        return self.down(functional.gelu(self.up(x), approximate="tanh"))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class FusedBlock(Block):
    """The same block on the previous branch's output and the residual stream. Each norm takes both."""

    def forward(self, branch_and_stream):
        x, stream = self.norm1(*branch_and_stream)
        x, stream = self.norm2(self.attention(x), stream)
        return self.mlp(x), stream


class FusedStack(torch.nn.Sequential):
    def forward(self, x):
        branch, stream = super().forward((torch.zeros_like(x), x))
        return branch + stream


def measure_memory(layers=12, channels=768, heads=12, batch=32, tokens=1024):
    norms = {
        "torch.nn.LayerNorm": torch.nn.LayerNorm,
        "FusedLayerNorm": warpwright.FusedLayerNorm,
        "FusedLayerNorm memory_efficient": lambda c: warpwright.FusedLayerNorm(c, memory_efficient=True),
        "torch.nn.RMSNorm": lambda c: torch.nn.RMSNorm(c, eps=1e-5),
        "FusedRMSNorm": warpwright.FusedRMSNorm,
        "FusedRMSNorm memory_efficient": lambda c: warpwright.FusedRMSNorm(c, memory_efficient=True),
        "FusedAddLayerNorm": warpwright.FusedAddLayerNorm,
        "FusedAddLayerNorm memory_efficient": lambda c: warpwright.FusedAddLayerNorm(c, memory_efficient=True),
    }
    report = {}
    for name, norm in norms.items():
        torch.manual_seed(1)
        block, stack = (FusedBlock, FusedStack) if "Add" in name else (Block, torch.nn.Sequential)
        with torch.device("cuda"):
            model = stack(*(block(channels, heads, norm) for _ in range(layers))).to(torch.bfloat16)
        x = torch.randn(batch, tokens, channels, device="cuda", dtype=torch.bfloat16)
        times = []
        for step in range(4):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            start = time.perf_counter()
            loss = model(x).float().square().mean()
            loss.backward()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
            peak = torch.cuda.max_memory_allocated() - before
            value = loss.item()
            model.zero_grad(set_to_none=True)
            del loss
        report[name] = {"peak_MiB": peak / 2**20, "ms": statistics.median(times[1:]) * 1e3, "loss": value}
        del model, x
        torch.cuda.empty_cache()
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--calls", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    both = not args.calls and not args.memory
    report = {"torch": torch.__version__, "warpwright": warpwright.__version__, "device": args.device}
    if args.calls or both:
        show = lambda name, value: args.json or print(f"{name:45} {value:7.2f} us", flush=True)
        report["calls_us"] = measure_calls(args.device, show)
    if (args.memory or both) and args.device == "cuda":
        report["memory"] = measure_memory()
        for name, value in {} if args.json else report["memory"].items():
            print(f"{name:45} {value['peak_MiB']:9.1f} MiB {value['ms']:8.2f} ms  loss {value['loss']:.6f}")
    if args.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
