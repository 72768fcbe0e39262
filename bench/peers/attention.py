#!/usr/bin/env python3
"""Times causal attention on one GPU next to PyTorch's FlashAttention-2, its deterministic mode and cuDNN's, in one run.
With a window the rival is PyTorch's FlexAttention, compiled for it: scaled_dot_product_attention takes no window.

    python3 bench/peers/attention.py --warpwright build/release/warpwright [--shape B,H,T,D[,K[,W]]]… [--rounds 5] [--json]

The dtype is bf16. q, k and v are views of one qkv product of (B, T, H + 2 K, D), as in a decoder, and together larger than any
L2. K is the number of key heads, H if it is left out. W is the window, 0 (none) if it is left out.
The programs take turns, round by round. In a turn each direction is called for half a second without a break; ours is
`warpwright bench ops attention`, which does the same. Alternating single calls would be unfair: a kernel that draws less power
would leave higher clocks to the next one. A figure is the median over all rounds, printed with the range of the rounds'
medians. TFLOP/s count the pairs that the mask leaves, and five products in a backward.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings

SHAPES = [(64, 12, 1024, 64), (32, 16, 2048, 128), (4, 16, 8192, 128), (8, 14, 2048, 64, 2), (16, 9, 2048, 64, 3),
          (4, 32, 2048, 64, 8), (4, 32, 4096, 128, 8), (1, 32, 8192, 128, 8, 4096)]
VARIANTS = ("cuda.flash_sm90", "cuda.flash")


def parts_of(shape):
    """B, H, T, D, K and W."""
    defaults = (shape[1], 0)
    return (*shape, *defaults[len(shape) - 4 :])


def ours(args, shape):
    """Seconds by direction, and the variant: the first of VARIANTS that takes this shape."""
    batch, heads, tokens, size, key_heads, window = parts_of(shape)
    groups = "" if key_heads == heads else f" KH={key_heads}"
    seen = f" window={window}" if window else ""
    problem = f"S={batch} Nq={batch * tokens} Nk={batch * tokens} NH={heads}{groups} HS={size} bf16 causal{seen}"
    for variant in VARIANTS:
        command = [args.warpwright, "bench", "ops", "attention", "--device", "cuda", "--json", "--filter", f"{variant} {problem}"]
        result = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        rows = json.loads(result.stdout)["rows"]
        if rows:
            return {row["op"].split(".")[1]: row["median_seconds"] for row in rows}, variant
    sys.exit(f"attention.py: `warpwright bench ops attention` has no row for {problem}; give one of its shapes")


class Torch:
    """One shape's tensors, and each rival's forward result for its backward."""

    def __init__(self, shape):
        import torch
        from torch.nn.attention import SDPBackend

        self.torch = torch
        warnings.filterwarnings("ignore", message=".*deterministic")
        batch, heads, tokens, size, key_heads, window = parts_of(shape)
        torch.manual_seed(1)
        qkv = torch.randn(batch, tokens, heads + 2 * key_heads, size, device="cuda", dtype=torch.bfloat16)
        self.grouped = key_heads != heads
        self.parts = [part.transpose(1, 2).detach().requires_grad_() for part in qkv.split((heads, key_heads, key_heads), 2)]
        self.dout = torch.randn(batch, tokens, heads, size, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
        self.backends = {"cuDNN": SDPBackend.CUDNN_ATTENTION}
        self.rivals = ("FlexAttention",) if window else ("cuDNN", "FlashAttention-2", "FlashAttention-2, deterministic")
        self.flex = self.flex_attention(tokens, window) if window else None
        self.kept = {name: self.forward(name) for name in self.rivals}

    def flex_attention(self, tokens, window):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        def seen(batch, head, query, key):
            return (query >= key) & (query - key < window)

        mask = create_block_mask(seen, None, None, tokens, tokens, device="cuda")
        compiled = self.torch.compile(flex_attention, mode="max-autotune-no-cudagraphs")
        return lambda: compiled(*self.parts, block_mask=mask, enable_gqa=self.grouped)

    def forward(self, name):
        if self.flex:
            return self.flex()
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel([self.backends.get(name, SDPBackend.FLASH_ATTENTION)]):
            return self.torch.nn.functional.scaled_dot_product_attention(*self.parts, is_causal=True, enable_gqa=self.grouped)

    def backward(self, name):
        self.torch.use_deterministic_algorithms(name.endswith("deterministic"), warn_only=True)
        self.torch.autograd.grad(self.kept[name], self.parts, self.dout, retain_graph=True)
        self.torch.use_deterministic_algorithms(False)

    def run(self, seconds):
        """Returns the seconds of a call by rival and direction. Each is called for this long, and every call is waited for."""
        samples = {}
        for name in self.rivals:
            for direction in ("forward", "backward"):
                begin, calls = time.time(), []
                while time.time() - begin < seconds or len(calls) < 5:
                    start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
                    start.record()
                    getattr(self, direction)(name)
                    end.record()
                    end.synchronize()
                    calls.append(start.elapsed_time(end) * 1e-3)
                samples[name, direction] = calls[2:]
        return samples


def summary(shape, direction, rounds):
    batch, heads, tokens, size, _, window = parts_of(shape)
    hidden = tokens - window if window else 0
    pairs = (tokens**2 - hidden**2) / 2
    flops = 4 * batch * heads * pairs * size * (2.5 if direction == "backward" else 1)
    medians = [statistics.median(seconds) for seconds in rounds]
    seconds = statistics.median(medians)
    return {"us": seconds * 1e6, "us_of_rounds": [min(medians) * 1e6, max(medians) * 1e6], "tflops": flops / seconds * 1e-12}


def measure(args, shape):
    peers = None if args.no_torch else Torch(shape)
    rounds, variant = {}, None
    for _ in range(args.rounds):
        mine, variant = ours(args, shape)
        for direction, seconds in mine.items():
            rounds.setdefault(("warpwright", direction), []).append([seconds])
        for key, seconds in (peers.run(args.seconds) if peers else {}).items():
            rounds.setdefault(key, []).append(seconds)
    programs = {}
    for (name, direction), seconds in rounds.items():
        programs.setdefault(name, {})[direction] = summary(shape, direction, seconds)
    return {"shape": shape, "variant": variant, "programs": programs}


def print_table(result):
    batch, heads, tokens, size, key_heads, window = parts_of(result["shape"])
    seen = f" W={window}" if window else ""
    print(f"B={batch} H={heads} K={key_heads} T={tokens} D={size}{seen} causal bf16, ours {result['variant']}")
    mine = result["programs"]["warpwright"]
    for name, row in result["programs"].items():
        line = f"  {name:<34}"
        for direction in ("forward", "backward"):
            if cell := row.get(direction):
                low, high = cell["us_of_rounds"]
                line += f"{direction:>10}{cell['us']:>9.0f} us ({low:.0f} to {high:.0f}){cell['tflops']:>5.0f} TFLOP/s"
                line += f" {mine[direction]['tflops'] / cell['tflops']:>5.2f}"
        print(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warpwright", required=True, type=os.path.abspath, help="the program")
    parser.add_argument("--shape", action="append", type=lambda text: tuple(int(part) for part in text.split(",")),
                        metavar="B,H,T,D[,K[,W]]", help=f"default: {'; '.join(','.join(map(str, s)) for s in SHAPES)}")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="seconds per rival and direction in a round; default: 0.5, as for ours")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables (a table's last column is ours over theirs)")
    args = parser.parse_args()
    results = [measure(args, shape) for shape in args.shape or SHAPES]
    if args.json:
        print(json.dumps(results, indent=1))
    for result in [] if args.json else results:
        print_table(result)


if __name__ == "__main__":
    main()
