#!/usr/bin/env python3
"""Compares the forms of a normalization's statistics, two passes, Chan's merge and Welford's update, in error and in speed.

    python3 bench/peers/norms_forms.py --library build/release/src/capi/libwarpwright.so [--device cuda|cpu]
        [--variants cuda.loop,cuda.block_row,cuda.warp_row,cuda.welford] [--dtypes float32,bfloat16] [--rounds 15]

A row is a variant on one kind of input: the largest relative error of rstd, the largest error of the mean in units of the
row's deviation, and the largest error of out in units of the row's largest |out|. The reference is fp64 on the same rounded
input. The time is the median of calls in turn; on a GPU the L2 is emptied before each, and rows × columns are 2^24 elements
(on a CPU 2^20). A variant that refuses a case is left out.
"""

import argparse
import os
import statistics
import time

import torch
from norms import DTYPES, Forward, Ours, timed

EPS = 1e-5
KINDS = {
    "normal": lambda x: x,
    "mean 100": lambda x: x + 100,
    "mean 1e4": lambda x: x + 1e4,
    "half 0, half 1000": lambda x: x + 1000 * (torch.arange(x.shape[1], device=x.device) >= x.shape[1] // 2),
    "one of 1e4": lambda x: torch.cat([x[:, :1] + 1e4, x[:, 1:]], 1),
    "sorted": lambda x: 100 * x.sort(1).values,
}
COLUMNS = [64, 256, 768, 1600, 4096, 16384]


def largest(values):
    return values.abs().max().item()


def errors(x, out, mean, rstd, weight, bias):
    exact = x.double()
    centre = exact.mean(1)
    exact_rstd = torch.rsqrt((exact - centre[:, None]).square().mean(1) + EPS)
    wanted = (exact - centre[:, None]) * exact_rstd[:, None] * weight.double() + bias.double()
    return (
        largest(rstd.double() / exact_rstd - 1),
        largest((mean.double() - centre) * exact_rstd),
        largest((out.double() - wanted) / wanted.abs().amax(1, keepdim=True)),
    )


def timed_on_cpu(calls, rounds):
    samples = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            samples[name].append((time.perf_counter() - start) * 1e6)
    return {name: statistics.median(values) for name, values in samples.items()}


def contexts(options):
    """A context for each variant, which it alone runs in."""
    made = {}
    for variant in options.variants.split(","):
        os.environ["WARPWRIGHT_FORCE"] = f"norm.forward={variant}"
        made[variant] = Ours(options.library, options.device)
    return made


def measure(ours, dtype, columns, options, flush):
    elements = 1 << (24 if options.device == "cuda" else 20)
    rows, device, number = elements // columns, options.device, DTYPES[dtype]
    torch.manual_seed(columns)
    normal = torch.randn(rows, columns, device=device)
    weight = (torch.rand(columns, device=device) + 0.5).to(dtype)
    bias = torch.randn(columns, device=device).to(dtype)
    out = torch.empty(rows, columns, device=device, dtype=dtype)
    mean, rstd = torch.empty(rows, device=device), torch.empty(rows, device=device)
    dtypes = {"x_dtype": number, "parameter_dtype": number, "out_dtype": number}
    microseconds = None
    for kind, change in KINDS.items():
        x = change(normal).to(dtype)
        tensors = {"x": x, "weight": weight, "bias": bias, "out": out, "mean": mean, "rstd": rstd}
        calls = {}
        for variant, library in ours.items():
            try:
                calls[variant] = library.call("layernorm_forward", Forward, rows, columns, tensors, eps=EPS, **dtypes)
            except SystemExit:  # the variant refuses the case
                continue
        if microseconds is None:
            rounds = options.rounds
            microseconds = timed(calls, flush, rounds) if device == "cuda" else timed_on_cpu(calls, rounds)
        for variant, call in calls.items():
            call()
            if device == "cuda":
                torch.cuda.synchronize()
            figures = " | ".join(f"{error:.1e}" for error in errors(x, out, mean, rstd, weight, bias))
            name = str(dtype).removeprefix("torch.")
            print(f"| {rows} × {columns} {name} | {kind} | {variant} | {figures} | {microseconds[variant]:.1f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--variants")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    if not options.variants:
        cuda = "cuda.loop,cuda.block_row,cuda.warp_row,cuda.welford"
        options.variants = cuda if options.device == "cuda" else "cpu.portable,cpu.avx2,cpu.avx512"
    ours = contexts(options)
    flush = torch.empty(1 << 29, dtype=torch.uint8, device="cuda") if options.device == "cuda" else None
    print("| rows × columns | input | variant | rstd | mean | out | µs |\n|---|---|---|---|---|---|---|")
    for dtype in options.dtypes.split(","):
        for columns in COLUMNS:
            measure(ours, getattr(torch, dtype), columns, options, flush)


if __name__ == "__main__":
    main()
