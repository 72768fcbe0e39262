#!/usr/bin/env python3
"""Times an encoder's forward on one GPU beside PyTorch, packed and padded, in one run.

    python3 bench/peers/encoder_gpu.py --warpwright build/release/warpwright [--models bert-base] [--dtype fp16]
        [--rows 1x64,16x256,64x512] [--forms packed,padded] [--rounds 3] [--json FILE]

A row BxS is a batch of B sequences whose lengths are uniform on [0.2, 1.0]·S (seeded), sorted; random weights and ids.
PyTorch packed: the same packed rows through its flash attention for sequences of varying length; padded: (B, S) with a
mask through scaled_dot_product_attention; each with a layer under torch.compile and the whole forward in a CUDA graph.
What torch.compile makes is kept in TORCHINDUCTOR_CACHE_DIR, and --compile N makes it beforehand in N processes.
Figures are milliseconds of the forward on the device, median over the rounds, which alternate between the programs.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time

SIZES = {"minilm": (6, 12, 384, 1536), "bert-base": (12, 12, 768, 3072), "bert-large": (24, 16, 1024, 4096)}
TABLE = "1x64,1x256,1x1024,16x64,16x256,16x512,16x1024,64x128,64x256,64x512,64x1024"
VOCAB, POSITIONS = 30522, 1024


def lengths_of(batch, longest):
    generator = random.Random(batch * 10007 + longest)
    return sorted((max(1, round(generator.uniform(0.2, 1.0) * longest)) for _ in range(batch)), reverse=True)


def ours(args, model, lengths):
    command = [args.warpwright, "bench", "encoder", "--device", "cuda", "--model", model, "--dtype", args.dtype]
    command += ["--lengths", ",".join(map(str, lengths)), "--steps", "15", "--json"]
    command += ["--batch-tokens", str(max(sum(lengths), 64))]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


class Torch:
    """A BERT of plain operations; `packed` tokens (N) with cu_seqlens, else (B, S) with a mask."""

    def __init__(self, dtype, model, lengths, packed):
        import torch
        import torch.nn.functional as F
        layers, heads, hidden, wide = SIZES[model]
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
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


def cases_of(args):
    return [(model, *map(int, row.split("x"))) for model in args.models.split(",") for row in args.rows.split(",")]


def compile_ahead(args):
    """Each case and form in a process of its own, so many at a time."""
    waiting = [(model, f"{batch}x{longest}", form) for model, batch, longest in cases_of(args)
               for form in args.forms.split(",")]
    running = []
    environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    while waiting or running:
        while waiting and len(running) < args.compile:
            model, row, form = waiting.pop(0)
            command = [sys.executable, __file__, "--warpwright", args.warpwright, "--dtype", args.dtype, "--models", model,
                       "--rows", row, "--forms", form, "--only-compile"]
            running.append(subprocess.Popen(command, env=environment))
        running = [process for process in running if process.poll() is None]
        time.sleep(0.05)


def measure(args, model, batch, longest):
    lengths = lengths_of(batch, longest)
    rivals = {form: Torch(args.dtype, model, lengths, form == "packed") for form in args.forms.split(",")}
    times = {"ours": []} | {name: [] for name in rivals}
    for _ in range(args.rounds):
        report = ours(args, model, lengths)
        times["ours"].append(report["ms_median"])
        for name, rival in rivals.items():
            times[name].append(rival.run())
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratio = min(medians[name] for name in rivals) / medians["ours"]
    return {"model": model, "batch": batch, "seq": longest, "tokens": sum(lengths), "ms": medians, "ratio": ratio,
            "tflops": report["flops"] / medians["ours"] * 1e-9, "wasted_tokens": report["wasted_tokens"],
            "ops": report["ops"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warpwright", required=True, type=os.path.abspath, help="the program")
    parser.add_argument("--models", default="bert-base", help="with commas, of: " + ", ".join(SIZES))
    parser.add_argument("--dtype", default="fp16", choices=["fp16", "bf16"])
    parser.add_argument("--rows", default=TABLE, help="BxS with commas")
    parser.add_argument("--forms", default="packed,padded", help="PyTorch's that are timed")
    parser.add_argument("--rounds", type=int, default=2, help="0: only compile")
    parser.add_argument("--compile", type=int, default=0, help="processes that compile beforehand")
    parser.add_argument("--only-compile", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", help="file for the figures")
    args = parser.parse_args()
    if args.only_compile:
        for model, batch, longest in cases_of(args):
            Torch(args.dtype, model, lengths_of(batch, longest), args.forms == "packed")
        return
    if args.compile:
        compile_ahead(args)
    if not args.rounds:
        return
    import torch
    results = []
    print(f"{'model B, S (tokens)':<28}{'warpwright':>12}{'packed':>10}{'padded':>10}{'ratio':>8}{'TFLOP/s':>9}{'wasted':>8}",
          flush=True)
    for model, batch, longest in cases_of(args):
        result = measure(args, model, batch, longest)
        results.append(result)
        ms, tokens = result["ms"], result["tokens"]
        print(f"{f'{model} {batch}, {longest} ({tokens})':<28}"
              f"{ms['ours']:>12.3f}{ms.get('packed', 0):>10.3f}{ms.get('padded', 0):>10.3f}{result['ratio']:>8.2f}"
              f"{result['tflops']:>9.0f}{result['wasted_tokens']:>8}", flush=True)
        ops = sorted(result["ops"], key=lambda op: -op["ms"])
        print("    " + "; ".join(f"{op['op']} {op['variant']} {op['calls']}× {op['ms'] * 1e3:.0f} us" for op in ops[:8]),
              flush=True)
        torch.cuda.empty_cache()
        if args.json:
            with open(args.json, "w") as file:
                json.dump({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "dtype": args.dtype,
                           "rows": results}, file, indent=1)
    for model in dict.fromkeys(result["model"] for result in results):
        ratios = [result["ratio"] for result in results if result["model"] == model]
        print(f"{model}: geometric mean {statistics.geometric_mean(ratios):.3f}, least {min(ratios):.2f}")


if __name__ == "__main__":
    main()
