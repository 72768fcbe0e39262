#!/usr/bin/env python3
"""Times an encoder's forward on one GPU next to PyTorch, packed and padded, in one run.

    python3 bench/peers/encoder_gpu.py --warpwright build/release/warpwright [--models bert-base,minilm] [--dtype fp16]
        [--rows 1x64,16x256,64x512] [--forms packed,padded,static] [--rounds 2] [--tokens 16384,65536] [--json FILE]

A row BxS is a batch of B sequences whose lengths are uniform on [0.2, 1.0]·S (seeded), sorted. Weights and ids are random.
PyTorch runs in three forms. packed: the same packed rows through its flash attention for sequences of varying length.
padded: (B, S) with a mask through scaled_dot_product_attention. static: packed, and compiled for each row's number of
tokens. In all forms torch.compile compiles the operations between two attentions, and the whole forward is a CUDA graph.
packed and padded are compiled once for all rows, with the number of tokens as the only variable; with dynamic=True for all
sizes it would take a third longer. Figures are milliseconds of the forward on the device, the median over the rounds.
warpwright's first round comes first, its other rounds after the first form. Nothing else should run on the GPU, including
processes that compile. --tokens: warpwright's tokens/s on this many packed tokens of texts of 128 and of 512 tokens, and the
share of the speed that a large product of the library reaches in the same dtype.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys

SIZES = {"minilm": (6, 12, 384, 1536), "bert-base": (12, 12, 768, 3072), "bert-large": (24, 16, 1024, 4096)}
FIRST_ROW = "16x256"
TABLE = "1x64,1x256,1x1024,16x64,16x256,16x512,16x1024,64x128,64x256,64x512,64x1024"
VOCAB, POSITIONS = 30522, 1024
MEASURE_MS = 60  # of replays, about; ours too, because longer runs meet lower clocks


def lengths_of(batch, longest):
    generator = random.Random(batch * 10007 + longest)
    return sorted((max(1, round(generator.uniform(0.2, 1.0) * longest)) for _ in range(batch)), reverse=True)


def ours(args, model, lists):
    command = [args.warpwright, "bench", "encoder", "--device", "cuda", "--model", model, "--dtype", args.dtype]
    command += ["--lengths", ";".join(",".join(map(str, lengths)) for lengths in lists), "--rounds", "5", "--json"]
    command += ["--batch-tokens", str(max(64, *(sum(lengths) for lengths in lists)))]
    reports = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return reports if isinstance(reports, list) else [reports]


class Torch:
    """A BERT of plain operations, on `packed` tokens (N) with cu_seqlens, otherwise on (B, S) with a mask."""

    def __init__(self, args, model):
        import torch
        import torch.nn.functional as F
        layers, self.heads, hidden, wide = SIZES[model]
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[args.dtype]
        self.torch, self.mode = torch, args.mode
        make = lambda *shape: (torch.randn(*shape, device="cuda") * 0.02).to(dtype)
        one, zero = (torch.ones(hidden, device="cuda", dtype=dtype), torch.zeros(hidden, device="cuda", dtype=dtype))
        self.tables = make(VOCAB, hidden), make(POSITIONS, hidden), make(2, hidden)
        self.weights = [(make(3 * hidden, hidden), make(3 * hidden), make(hidden, hidden), make(hidden),
                         make(wide, hidden), make(wide), make(hidden, wide), make(hidden)) for _ in range(layers)]

        def norm(x):
            return F.layer_norm(x, (hidden,), one, zero, 1e-12)

        def begin(ids, positions, tables, w):
            x = norm(F.embedding(ids, tables[0]) + F.embedding(positions, tables[1]) + tables[2][0])
            return x, F.linear(x, w[0], w[1])

        def end(x, mixed, w):
            x = norm(x + F.linear(mixed, w[2], w[3]))
            return norm(x + F.linear(F.gelu(F.linear(x, w[4], w[5])), w[6], w[7]))

        def between(x, mixed, w, following):  # between one attention and the next
            x = end(x, mixed, w)
            return x, F.linear(x, following[0], following[1])

        self.parts = begin, between, end
        self.variable = None

    def compiled(self, variable):
        """Returns the compiled parts, for any number of tokens or only for the next call's."""
        if not (variable and self.variable):
            self.torch._dynamo.reset()  # otherwise it would reuse the code for another number
            self.variable = variable
            dynamic = None if variable else False
            self.now = [self.torch.compile(part, dynamic=dynamic, mode=self.mode) for part in self.parts]
        return self.now

    def prepare(self, lengths, form):
        """Captures the forward of a batch with these lengths."""
        torch, longest, variable = self.torch, max(lengths), form != "static"
        begin, between, end = self.compiled(variable)
        variable_rows = (lambda *tensors: [torch._dynamo.maybe_mark_dynamic(t, 0) for t in tensors]) if variable else \
            (lambda *tensors: None)
        if form == "padded":
            positions = torch.arange(longest, device="cuda").repeat(len(lengths))
            where = torch.arange(longest, device="cuda") < torch.tensor(lengths, device="cuda")[:, None]
            where = where[:, None, None]
        else:
            positions = torch.cat([torch.arange(length, device="cuda") for length in lengths])
            where = torch.tensor([0] + lengths, device="cuda").cumsum(0).int()
        ids = torch.randint(VOCAB, positions.shape, device="cuda")

        def attention(qkv):
            qkv = qkv.unflatten(-1, (3, self.heads, qkv.shape[-1] // 3 // self.heads))
            if form == "padded":
                q, k, v = qkv.unflatten(0, (len(lengths), longest)).permute(2, 0, 3, 1, 4).unbind(0)
                mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, where)
                return mixed.transpose(1, 2).flatten(2).flatten(0, 1)
            q, k, v = qkv.unbind(1)
            return torch.ops.aten._flash_attention_forward(q, k, v, where, where, longest, longest, 0.0, False,
                                                           False)[0].flatten(1)

        def forward():
            variable_rows(ids, positions)
            x, qkv = begin(ids, positions, self.tables, self.weights[0])
            for w, following in zip(self.weights, self.weights[1:]):
                mixed = attention(qkv)
                variable_rows(x, mixed)
                x, qkv = between(x, mixed, w, following)
            mixed = attention(qkv)
            variable_rows(x, mixed)
            return end(x, mixed, self.weights[-1])

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
    return statistics.median(replays(count) for _ in range(5))


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
    """Compiles for PyTorch in advance, in processes that share out models, rows and forms."""
    forms = args.forms.split(",")
    cases = [f"{model}:{row}:packed" for model in args.models.split(",") for row in FIRST_ROW.split(",")]
    cases += [f"{model}:{batch}x{longest}:static" for model in args.models.split(",") for batch, longest in rows
              if "static" in forms]
    processes = []
    for first in range(min(args.compile, len(cases))):
        command = [sys.executable, __file__, "--warpwright", args.warpwright, "--dtype", args.dtype]
        command += ["--only-compile", ",".join(cases[first::args.compile])]
        command += ["--mode", args.mode] if args.mode else []
        processes.append(subprocess.Popen(command, env=os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}))
    for process in processes:
        process.wait()


def only_compile(args):
    for case in args.only_compile.split(","):
        model, row, form = case.split(":")
        Torch(args, model).prepare(lengths_of(*map(int, row.split("x"))), form)


def measure(args, torch, model, rows, show):
    """Times ours, PyTorch's first form, ours again if there are more rounds, then the other forms. Calls show(result) after
    each figure, with the row's forms so far."""
    lists = [lengths_of(*row) for row in rows]
    forms = [form for form in args.forms.split(",") if form]
    reports = [ours(args, model, lists)]
    rival = Torch(args, model) if forms else None
    if rival:
        # Its kernels are tuned for this row.
        rival.prepare(lengths_of(*map(int, FIRST_ROW.split("x"))), "packed")
    times = [{} for _ in rows]

    def result_of(index):
        (batch, longest), lengths = rows[index], lists[index]
        mine = statistics.median(report[index]["ms_median"] for report in reports)
        ms = {"ours": mine} | {form: statistics.median(values) for form, values in times[index].items()}
        report = reports[-1][index]
        best = min((ms[form] for form in ms if form != "ours"), default=0)
        return {"model": model, "batch": batch, "seq": longest, "tokens": sum(lengths), "ms": ms,
                "ratio": best / mine, "tflops": report["flops"] / mine * 1e-9, "wasted_tokens": report["wasted_tokens"],
                "ops": report["ops"]}

    for form in forms or [None]:
        for index, lengths in enumerate(lists):
            if form:
                graph = rival.prepare(lengths, form)
                times[index][form] = [milliseconds(torch, graph) for _ in range(args.rounds)]
                assert torch.isfinite(rival.out).all()
                del graph
            show(result_of(index))
        if len(reports) == 1:
            reports += [ours(args, model, lists) for _ in range(args.rounds - 1)]
    return [result_of(index) for index in range(len(rows))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warpwright", required=True, type=os.path.abspath, help="the program")
    parser.add_argument("--models", default="bert-base", help="comma-separated, from: " + ", ".join(SIZES))
    parser.add_argument("--dtype", default="fp16", choices=["fp16", "bf16"])
    parser.add_argument("--rows", default=TABLE, help="BxS, comma-separated")
    parser.add_argument("--forms", default="packed,padded", help="PyTorch's forms to time: packed, padded, static")
    parser.add_argument("--mode", help="torch.compile's mode, such as max-autotune-no-cudagraphs")
    parser.add_argument("--compile", type=int, default=0, help="processes that compile in advance")
    parser.add_argument("--only-compile", help=argparse.SUPPRESS)
    parser.add_argument("--tokens", default="", help="numbers of packed tokens for which to measure tokens/s, comma-separated")
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
              f"{ms.get('static', 0):>10.3f}{result['ratio']:>8.2f}{result['tflops']:>9.0f}{result['wasted_tokens']:>8}",
              flush=True)
        same = [row for row in document["rows"] if all(row[key] == result[key] for key in ("model", "batch", "seq"))]
        for row in same:
            document["rows"].remove(row)
        document["rows"].append(result)
        save()

    print(f"{'model B, S (tokens)':<28}{'warpwright':>12}{'packed':>10}{'padded':>10}{'static':>10}{'ratio':>8}"
          f"{'TFLOP/s':>9}{'wasted':>8}", flush=True)
    for model in args.models.split(","):
        results = measure(args, torch, model, rows, show)
        print("all rounds and forms")
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
