#!/usr/bin/env python3
"""Times an encoder's forward on one GPU beside PyTorch, packed and padded, in one run.

    python3 bench/peers/encoder_gpu.py --warpwright build/release/warpwright [--model bert-base] [--dtype fp16]
        [--rows 1x64,16x256,64x512] [--padded] [--rounds 3] [--json]

A row BxS is a batch of B sequences whose lengths are uniform on [0.2, 1.0]·S (seeded), sorted; random weights and ids.
PyTorch packed: the same packed rows through its flash attention for sequences of varying length; padded: (B, S) with a
mask through scaled_dot_product_attention; each with a layer under torch.compile and the whole forward in a CUDA graph.
Figures are milliseconds of the forward on the device, median over the rounds, which alternate between the programs.
"""

import argparse
import json
import os
import random
import statistics
import subprocess

SIZES = {"minilm": (6, 12, 384, 1536), "bert-base": (12, 12, 768, 3072), "bert-large": (24, 16, 1024, 4096)}
TABLE = "1x64,1x256,1x1024,16x64,16x256,16x512,16x1024,64x128,64x256,64x512,64x1024"
VOCAB, POSITIONS = 30522, 1024


def lengths_of(batch, longest):
    generator = random.Random(batch * 10007 + longest)
    return sorted((max(1, round(generator.uniform(0.2, 1.0) * longest)) for _ in range(batch)), reverse=True)


def ours(args, lengths):
    command = [args.warpwright, "bench", "encoder", "--device", "cuda", "--model", args.model, "--dtype", args.dtype]
    command += ["--lengths", ",".join(map(str, lengths)), "--steps", "15", "--json"]
    command += ["--batch-tokens", str(max(sum(lengths), 64))]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


class Torch:
    """A BERT of plain operations; `packed` tokens (N) with cu_seqlens, else (B, S) with a mask."""

    def __init__(self, args, lengths, packed):
        import torch
        import torch.nn.functional as F
        layers, heads, hidden, wide = SIZES[args.model]
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[args.dtype]
        self.torch, self.layers = torch, layers
        make = lambda *shape: (torch.randn(*shape, device="cuda") * 0.02).to(dtype)
        one, zero = (torch.ones(hidden, device="cuda", dtype=dtype), torch.zeros(hidden, device="cuda", dtype=dtype))
        tables = make(VOCAB, hidden), make(POSITIONS, hidden), make(2, hidden)
        weights = [(make(3 * hidden, hidden), make(3 * hidden), make(hidden, hidden), make(hidden), make(wide, hidden),
                    make(wide), make(hidden, wide), make(hidden)) for _ in range(layers)]
        longest, tokens = max(lengths), sum(lengths)
        cu_seqlens = torch.tensor([0] + lengths, device="cuda").cumsum(0).int()
        if packed:
            ids = torch.randint(VOCAB, (tokens,), device="cuda")
            positions = torch.cat([torch.arange(length, device="cuda") for length in lengths])
        else:
            ids = torch.randint(VOCAB, (len(lengths), longest), device="cuda")
            positions = torch.arange(longest, device="cuda").expand_as(ids)
            mask = (torch.arange(longest, device="cuda") < torch.tensor(lengths, device="cuda")[:, None])[:, None, None]

        def attention(qkv):
            q, k, v = qkv.unflatten(-1, (3, heads, hidden // heads)).unbind(-3)
            if packed:
                return torch.ops.aten._flash_attention_forward(q, k, v, cu_seqlens, cu_seqlens, longest, longest, 0.0,
                                                               False, False)[0].flatten(-2)
            mixed = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask)
            return mixed.transpose(1, 2).flatten(-2)

        def layer(x, w):
            x = F.layer_norm(x + F.linear(attention(F.linear(x, w[0], w[1])), w[2], w[3]), (hidden,), one, zero, 1e-12)
            inner = F.linear(F.gelu(F.linear(x, w[4], w[5])), w[6], w[7])
            return F.layer_norm(x + inner, (hidden,), one, zero, 1e-12)

        def embed():
            return F.layer_norm(F.embedding(ids, tables[0]) + F.embedding(positions, tables[1]) + tables[2][0], (hidden,),
                                one, zero, 1e-12)

        torch._dynamo.reset()
        layer, embed = torch.compile(layer, dynamic=False), torch.compile(embed, dynamic=False)

        def forward():
            x = embed()
            for w in weights:
                x = layer(x, w)
            return x

        with torch.inference_mode():
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(3):
                    forward()
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.out = forward()
        assert torch.isfinite(self.out).all()

    def run(self):
        torch = self.torch
        times = []
        for _ in range(15):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(20):
                self.graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / 20)
        return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warpwright", required=True, type=os.path.abspath, help="the program")
    parser.add_argument("--model", default="bert-base", choices=list(SIZES))
    parser.add_argument("--dtype", default="fp16", choices=["fp16", "bf16"])
    parser.add_argument("--rows", default=TABLE, help="BxS with commas")
    parser.add_argument("--padded", action="store_true", help="time PyTorch's padded form, too")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    results = []
    if not args.json:
        print(f"{'B, S (tokens)':<20}{'warpwright':>12}{'packed':>10}{'padded':>10}{'ratio':>8}{'wasted':>8}", flush=True)
    for row in args.rows.split(","):
        batch, longest = map(int, row.split("x"))
        lengths = lengths_of(batch, longest)
        rivals = {"packed": Torch(args, lengths, True)}
        if args.padded:
            rivals["padded"] = Torch(args, lengths, False)
        times = {"ours": []} | {name: [] for name in rivals}
        for _ in range(args.rounds):
            report = ours(args, lengths)
            times["ours"].append(report["ms_median"])
            for name, rival in rivals.items():
                times[name].append(rival.run())
        medians = {name: statistics.median(values) for name, values in times.items()}
        ratio = min(medians[name] for name in rivals) / medians["ours"]
        results.append({"batch": batch, "seq": longest, "tokens": sum(lengths), "ms": medians, "ratio": ratio,
                        "wasted_tokens": report["wasted_tokens"], "ops": report["ops"]})
        if not args.json:
            padded = f"{medians['padded']:>10.3f}" if args.padded else f"{'':>10}"
            print(f"{f'{batch}, {longest} ({sum(lengths)})':<20}{medians['ours']:>12.3f}{medians['packed']:>10.3f}{padded}"
                  f"{ratio:>8.2f}{report['wasted_tokens']:>8}", flush=True)
        del rivals
    mean = statistics.geometric_mean(result["ratio"] for result in results)
    if args.json:
        print(json.dumps({"model": args.model, "dtype": args.dtype, "rows": results, "geometric_mean": mean}, indent=2))
        return
    print(f"geometric mean {mean:.2f}")
    for result in results:
        ops = sorted(result["ops"], key=lambda op: -op["ms"])
        print(f"{result['batch']}x{result['seq']}: "
              + "; ".join(f"{op['op']} {op['variant']} {op['calls']}× {op['ms'] * 1e3:.0f} us" for op in ops[:8]))


if __name__ == "__main__":
    main()
