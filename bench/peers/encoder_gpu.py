#!/usr/bin/env python3
"""Times an encoder's forward on one GPU beside PyTorch, packed and padded, in one run.

    python3 bench/peers/encoder_gpu.py --warpwright build/release/warpwright [--models bert-base,minilm] [--dtype fp16]
        [--rows 1x64,16x256,64x512] [--forms packed,padded] [--rounds 2] [--tokens 16384,65536] [--json FILE]

A row BxS is a batch of B sequences whose lengths are uniform on [0.2, 1.0]·S (seeded), sorted; random weights and ids.
PyTorch packed: the same packed rows through its flash attention for sequences of varying length; padded: (B, S) with a
mask through scaled_dot_product_attention; each with a layer under torch.compile and the whole forward in a CUDA graph.
torch.compile makes every row anew (what it makes is kept in TORCHINDUCTOR_CACHE_DIR; --compile N: beforehand, in N
processes) or, with --dynamic, takes the numbers of tokens, texts and positions as variables, once for all rows: that is
quicker to wait for and up to a third slower to run. Figures are milliseconds of the forward on the device, median over
the rounds; warpwright's first one comes before the others, the next ones behind them. --tokens: tokens/s of warpwright
on so many packed tokens of texts of 128 and of 512, and the share of what a large product of the library reaches in the
same dtype.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys

SIZES = {"minilm": (6, 12, 384, 1536), "bert-base": (12, 12, 768, 3072), "bert-large": (24, 16, 1024, 4096)}
TABLE = "1x64,1x256,1x1024,16x64,16x256,16x512,16x1024,64x128,64x256,64x512,64x1024"
VOCAB, POSITIONS = 30522, 1024
MEASURE_MS = 60  # of replays, about


def lengths_of(batch, longest):
    generator = random.Random(batch * 10007 + longest)
    return sorted((max(1, round(generator.uniform(0.2, 1.0) * longest)) for _ in range(batch)), reverse=True)


def ours(args, model, lists):
    command = [args.warpwright, "bench", "encoder", "--device", "cuda", "--model", model, "--dtype", args.dtype]
    command += ["--lengths", ";".join(",".join(map(str, lengths)) for lengths in lists), "--steps", "7", "--json"]
    command += ["--batch-tokens", str(max(64, *(sum(lengths) for lengths in lists)))]
    reports = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return reports if isinstance(reports, list) else [reports]


class Torch:
    """A BERT of plain operations on `packed` tokens (N) with cu_seqlens, else on (B, S) with a mask."""

    def __init__(self, args, model, packed):
        import torch
        import torch.nn.functional as F
        layers, heads, hidden, wide = SIZES[model]
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[args.dtype]
        self.torch, self.packed, self.static = torch, packed, not args.dynamic
        make = lambda *shape: (torch.randn(*shape, device="cuda") * 0.02).to(dtype)
        one, zero = (torch.ones(hidden, device="cuda", dtype=dtype), torch.zeros(hidden, device="cuda", dtype=dtype))
        self.tables = make(VOCAB, hidden), make(POSITIONS, hidden), make(2, hidden)
        self.weights = [(make(3 * hidden, hidden), make(3 * hidden), make(hidden, hidden), make(hidden),
                         make(wide, hidden), make(wide), make(hidden, wide), make(hidden)) for _ in range(layers)]

        def attention(qkv, where, longest):
            q, k, v = qkv.unflatten(-1, (3, heads, hidden // heads)).unbind(-3)
            if packed:
                return torch.ops.aten._flash_attention_forward(q, k, v, where, where, longest, longest, 0.0, False,
                                                               False)[0].flatten(-2)
            mixed = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), where)
            return mixed.transpose(1, 2).flatten(-2)

        def layer(x, w, where, longest):
            mixed = F.linear(attention(F.linear(x, w[0], w[1]), where, longest), w[2], w[3])
            x = F.layer_norm(x + mixed, (hidden,), one, zero, 1e-12)
            inner = F.linear(F.gelu(F.linear(x, w[4], w[5])), w[6], w[7])
            return F.layer_norm(x + inner, (hidden,), one, zero, 1e-12)

        def embed(ids, positions, tables):
            x = F.embedding(ids, tables[0]) + F.embedding(positions, tables[1]) + tables[2][0]
            return F.layer_norm(x, (hidden,), one, zero, 1e-12)

        self.layer = torch.compile(layer, dynamic=args.dynamic)
        self.embed = torch.compile(embed, dynamic=args.dynamic)

    def prepare(self, lengths):
        """Captures the forward of a batch of these lengths."""
        torch, longest = self.torch, max(lengths)
        if self.static:
            torch._dynamo.reset()
        if self.packed:
            ids = torch.randint(VOCAB, (sum(lengths),), device="cuda")
            positions = torch.cat([torch.arange(length, device="cuda") for length in lengths])
            where = torch.tensor([0] + lengths, device="cuda").cumsum(0).int()
        else:
            ids = torch.randint(VOCAB, (len(lengths), longest), device="cuda")
            positions = torch.arange(longest, device="cuda").expand_as(ids).contiguous()
            where = (torch.arange(longest, device="cuda") < torch.tensor(lengths, device="cuda")[:, None])[:, None, None]

        def forward():
            x = self.embed(ids, positions, self.tables)
            for w in self.weights:
                x = self.layer(x, w, where, longest)
            return x

        with torch.inference_mode():
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(2):
                    forward()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.out = forward()
        return graph


def milliseconds(torch, graph):
    def replays(count):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(count):
            graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / count
    replays(2)
    count = max(1, min(20, int(MEASURE_MS / 5 / replays(2))))
    return statistics.median(replays(count) for _ in range(7))


def library_flops(torch, dtype):
    a, b = (torch.randn(8192, 8192, device="cuda", dtype={"fp16": torch.float16, "bf16": torch.bfloat16}[dtype])
            for _ in range(2))
    out = torch.empty_like(a)
    torch.matmul(a, b, out=out)
    times = []
    for _ in range(5):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(4):
            torch.matmul(a, b, out=out)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 4)
    return 2 * 8192**3 / statistics.median(times) * 1e3


def compile_ahead(args, rows):
    """What PyTorch compiles, by processes that share out models, rows and forms."""
    cases = [f"{model}:{batch}x{longest}:{form}" for model in args.models.split(",") for batch, longest in rows
             for form in args.forms.split(",") if form]
    processes = []
    for first in range(min(args.compile, len(cases))):
        command = [sys.executable, __file__, "--warpwright", args.warpwright, "--dtype", args.dtype]
        command += ["--only-compile", ",".join(cases[first::args.compile])]
        processes.append(subprocess.Popen(command, env=os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}))
    for process in processes:
        process.wait()


def only_compile(args):
    for case in args.only_compile.split(","):
        model, row, form = case.split(":")
        Torch(args, model, form == "packed").prepare(lengths_of(*map(int, row.split("x"))))


def measure(args, torch, model, rows, show):
    """Ours, the rivals row by row, and ours again where there are more rounds; show(result) as soon as there is one."""
    lists = [lengths_of(*row) for row in rows]
    forms = [form for form in args.forms.split(",") if form]
    reports = [ours(args, model, lists)]
    rivals = {form: Torch(args, model, form == "packed") for form in forms}
    times = [{form: [] for form in forms} for _ in rows]

    def result_of(index):
        (batch, longest), lengths = rows[index], lists[index]
        mine = statistics.median(report[index]["ms_median"] for report in reports)
        ms = {"ours": mine} | {form: statistics.median(values) for form, values in times[index].items()}
        report = reports[-1][index]
        return {"model": model, "batch": batch, "seq": longest, "tokens": sum(lengths), "ms": ms,
                "ratio": min(ms[form] for form in forms) / mine if forms else 0,
                "tflops": report["flops"] / mine * 1e-9, "wasted_tokens": report["wasted_tokens"], "ops": report["ops"]}

    for index, lengths in enumerate(lists):
        for form, rival in rivals.items():
            graph = rival.prepare(lengths)
            for _ in range(args.rounds):
                times[index][form].append(milliseconds(torch, graph))
            assert torch.isfinite(rival.out).all()
            del graph
        show(result_of(index))
    reports += [ours(args, model, lists) for _ in range(args.rounds - 1)]
    return [result_of(index) for index in range(len(rows))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warpwright", required=True, type=os.path.abspath, help="the program")
    parser.add_argument("--models", default="bert-base", help="with commas, of: " + ", ".join(SIZES))
    parser.add_argument("--dtype", default="fp16", choices=["fp16", "bf16"])
    parser.add_argument("--rows", default=TABLE, help="BxS with commas")
    parser.add_argument("--forms", default="packed,padded", help="PyTorch's that are timed")
    parser.add_argument("--dynamic", action="store_true", help="PyTorch compiles once for all rows")
    parser.add_argument("--compile", type=int, default=0, help="processes that compile beforehand")
    parser.add_argument("--only-compile", help=argparse.SUPPRESS)
    parser.add_argument("--tokens", default="", help="packed tokens whose tokens/s are told, with commas")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", help="file for the figures")
    args = parser.parse_args()
    if args.only_compile:
        return only_compile(args)
    rows = [tuple(map(int, row.split("x"))) for row in args.rows.split(",")]
    if args.compile:
        compile_ahead(args, rows)
    import torch
    document = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "dtype": args.dtype, "rows": []}

    def save():
        if args.json:
            with open(args.json, "w") as file:
                json.dump(document, file, indent=1)

    def show(result):
        ms, head = result["ms"], f"{result['model']} {result['batch']}, {result['seq']} ({result['tokens']})"
        print(f"{head:<28}{ms['ours']:>12.3f}{ms.get('packed', 0):>10.3f}{ms.get('padded', 0):>10.3f}"
              f"{result['ratio']:>8.2f}{result['tflops']:>9.0f}{result['wasted_tokens']:>8}", flush=True)

    print(f"{'model B, S (tokens)':<28}{'warpwright':>12}{'packed':>10}{'padded':>10}{'ratio':>8}{'TFLOP/s':>9}{'wasted':>8}",
          flush=True)
    for model in args.models.split(","):
        results = measure(args, torch, model, rows, show)
        document["rows"] += results
        save()
        if args.rounds > 1:
            print("all rounds")
            for result in results:
                show(result)
        for result in results:
            ops = sorted(result["ops"], key=lambda op: -op["ms"])[:4]
            print(f"{result['batch']}x{result['seq']}: "
                  + "; ".join(f"{op['op']} {op['variant']} {op['calls']}× {op['ms'] * 1e3:.0f} us" for op in ops))
        ratios = [result["ratio"] for result in results]
        if all(ratios):
            print(f"{model}: geometric mean {statistics.geometric_mean(ratios):.3f}, least {min(ratios):.2f}", flush=True)
        torch.cuda.empty_cache()
    if args.tokens:
        ceiling = library_flops(torch, args.dtype)
        document["library_tflops"] = ceiling * 1e-12
        document["throughput"] = []
        lists = [[length] * (tokens // length) for tokens in map(int, args.tokens.split(",")) for length in (128, 512)]
        for model in args.models.split(","):
            for lengths, report in zip(lists, ours(args, model, lists)):
                share = report["flops"] / report["ms_median"] * 1e3 / ceiling
                document["throughput"].append({"model": model, "length": lengths[0], "tokens": sum(lengths),
                                               "tokens_per_second": report["tokens_per_second"], "share": share})
                print(f"{model} {sum(lengths)} tokens of texts of {lengths[0]}: {report['tokens_per_second']:.0f} tokens/s, "
                      f"{share:.0%} of the library's {ceiling * 1e-12:.0f} TFLOP/s", flush=True)
        save()


if __name__ == "__main__":
    main()
