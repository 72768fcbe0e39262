#!/usr/bin/env python3
"""Times an encoder's attention over packed texts on one GPU next to PyTorch's flash attention for varying lengths.

    python3 bench/peers/attention_varlen.py --warpwright build/release/warpwright [--head-size 64]… [--rounds 3] [--json]

The setting is fp16 with 12 heads and no mask. q, k and v are views of one qkv product of (N, 3, 12, D). There are texts of
one length, 16,384 tokens in all, and batches of B texts whose lengths are evenly spaced between 0.2 and 1.0 of S, the
longest first. One rival is PyTorch's FlashAttention-2 with cu_seqlens on the same rows. The other is its padded form, (B, S)
with a mask if lengths differ, by the faster of cuDNN and FlashAttention-2. Calls cycle through copies of the tensors that
are together larger than any L2. Ours is `warpwright bench ops attention`, call after call. Theirs run in CUDA graphs, which
excludes the host's time. The programs take turns, round by round. A figure is the median of the rounds' medians.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

HEADS, TOKENS = 12, 16384
UNIFORM = (16, 32, 64, 128, 256, 512, 2048)
MIXED = ((1, 64), (1, 256), (1, 1024), (16, 64), (16, 256), (16, 512), (16, 1024), (64, 128), (64, 256), (64, 512), (64, 1024))
FOOTPRINT = 200e6  # bytes of all copies together


def between(texts, longest):
    """The lengths of packed_bench_cases() in src/ops/attention/cases.hpp."""
    return [int(longest * (0.2 + 0.8 * (i + 0.5) / texts)) for i in reversed(range(texts))]


def rows_of(size):
    rows = [(f"{TOKENS // length} of {length}", [length] * (TOKENS // length)) for length in UNIFORM]
    rows += [(f"{texts}, {longest}", between(texts, longest)) for texts, longest in MIXED]
    return [{"row": name, "head_size": size, "lengths": lengths} for name, lengths in rows]


def problem_of(row):
    lengths = row["lengths"]
    tokens = sum(lengths)
    note = "" if len(set(lengths)) == 1 else f" lengths {min(lengths)} to {max(lengths)}"
    return f"S={len(lengths)} Nq={tokens} Nk={tokens} NH={HEADS} HS={row['head_size']} fp16{note}"


def ours(program):
    """For each problem {variant: seconds} and the chosen variant."""
    command = [program, "bench", "ops", "attention", "--device", "cuda", "--json", "--filter", " fp16"]
    found = {}
    for row in json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)["rows"]:
        problem = found.setdefault(row["problem"], {"variants": {}})
        variant = row["variant"].split("[")[0]  # without its configuration
        problem["variants"][variant] = row["median_seconds"]
        if row["chosen"]:
            problem["chosen"] = variant
    return found


class Torch:
    """CUDA graphs of one row's calls, by rival."""

    def __init__(self, row):
        import torch
        from torch.nn.attention import SDPBackend

        self.torch, lengths, size = torch, row["lengths"], row["head_size"]
        torch.manual_seed(1)
        texts, longest, tokens = len(lengths), max(lengths), sum(lengths)
        copies = min(64, max(2, int(FOOTPRINT / (8 * tokens * HEADS * size))))
        self.calls = max(copies, 20)
        make = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.float16)
        bounds = torch.tensor([0] + lengths, device="cuda").cumsum(0).int()
        packed = [make(tokens, 3, HEADS, size).unbind(1) for _ in range(copies)]
        flash = lambda q, k, v: torch.ops.aten._flash_attention_forward(q, k, v, bounds, bounds, longest, longest, 0.0, False, False)
        self.graphs = {"flash varlen": self.capture(flash, packed)}
        mask = None
        if len(set(lengths)) > 1:
            mask = (torch.arange(longest, device="cuda") < torch.tensor(lengths, device="cuda")[:, None])[:, None, None, :]
        padded = [[x.transpose(1, 2) for x in make(texts, longest, 3, HEADS, size).unbind(2)] for _ in range(copies)]
        for name, backend in (("padded cuDNN", SDPBackend.CUDNN_ATTENTION), ("padded flash", SDPBackend.FLASH_ATTENTION)):
            if mask is not None and backend is SDPBackend.FLASH_ATTENTION:
                continue
            with torch.nn.attention.sdpa_kernel([backend]):
                try:
                    call = lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
                    self.graphs[name] = self.capture(call, padded)
                except RuntimeError as error:
                    print(f"attention_varlen.py: no {name} for {row['row']}: {str(error).splitlines()[0]}", file=sys.stderr)

    def capture(self, call, copies):
        torch, stream = self.torch, self.torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            for copy in copies[:2]:
                call(*copy)
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                for i in range(self.calls):
                    call(*copies[i % len(copies)])
        return graph

    def run(self, seconds):
        """Returns the seconds of a call by rival. Each is called for about this long."""
        torch, found = self.torch, {}
        for name, graph in self.graphs.items():
            samples, start = [], time.monotonic()
            graph.replay()
            while len(samples) < 5 or time.monotonic() - start < seconds:
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                graph.replay()
                end.record()
                end.synchronize()
                samples.append(begin.elapsed_time(end) * 1e-3 / self.calls)
            found[name] = statistics.median(samples)
        return found


def measure(args):
    results = [row for size in args.head_size or (64, 32) for row in rows_of(size) if not args.row or row["row"] in args.row]
    for row in results:
        row["rounds"] = {}
    for _ in range(args.rounds):
        mine = ours(args.warpwright) if args.warpwright else {}
        for row in results:
            if args.warpwright:
                if problem_of(row) not in mine:
                    sys.exit(f"attention_varlen.py: {args.warpwright} has no figure for {problem_of(row)}")
                problem = mine[problem_of(row)]
                row["chosen"] = problem["chosen"]
                for variant, seconds in problem["variants"].items():
                    row["rounds"].setdefault(variant, []).append(seconds)
        for row in results:
            for name, seconds in ({} if args.no_torch else Torch(row).run(args.seconds)).items():
                row["rounds"].setdefault(name, []).append(seconds)
    for row in results:
        row["us"] = {name: statistics.median(seconds) * 1e6 for name, seconds in row.pop("rounds").items()}
        row["tokens"], row["texts"] = sum(row["lengths"]), len(row.pop("lengths"))
        rivals = {name: us for name, us in row["us"].items() if not name.startswith("cuda.")}
        if rivals and "chosen" in row:
            row["over_flash_varlen"] = rivals["flash varlen"] / row["us"][row["chosen"]]
            row["over_best"] = min(rivals.values()) / row["us"][row["chosen"]]
    return results


def print_table(results):
    for row in results:
        line = f"D={row['head_size']:<3} {row['row']:<12} {row['tokens']:>6} tokens "
        line += "  ".join(f"{name}{'*' if name == row.get('chosen') else ''} {us:.1f}" for name, us in row["us"].items())
        if "over_best" in row:
            line += f"  x flash varlen {row['over_flash_varlen']:.2f}, x best {row['over_best']:.2f}"
        print(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warpwright", type=os.path.abspath, help="the program; without it only PyTorch is timed")
    parser.add_argument("--head-size", action="append", type=int, choices=(32, 64), help="default: 64 and 32")
    parser.add_argument("--row", action="append", help="only rows of this name")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.1, help="seconds per rival and row in a round")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table (microseconds; * marks the variant that is chosen)")
    args = parser.parse_args()
    results = measure(args)
    print(json.dumps(results, indent=1)) if args.json else print_table(results)


if __name__ == "__main__":
    main()
