#!/usr/bin/env python3
"""Times the normalizations next to PyTorch (eager, torch.compile) and Apex, in one run on one GPU.

    python3 bench/peers/norms.py --library build/release/src/capi/libwarpwright.so [--columns 768,1024 …]
        [--dtypes bfloat16,float16,float32] [--norms layer,rms] [--no-compile] [--jobs N] [--rounds 15] [--json FILE]

Rows × columns are 2^26 random elements (or --rows). Implementations take turns, call by call. Before each call a buffer of
512 MiB is written to empty the L2, and the GPU waits until the host has enqueued the call. A figure is the median time
between two events. The forward calls cycle through ten tensors, because the marked loads of torch.compile keep part of a
tensor in the L2 in spite of that write. The ratio is the time of a device-to-device copy of as many bytes (2 passes over
the tensor forward, 3 backward), measured in the same run, over the time of the call.
Our forward writes the statistics that a backward needs; "nothing kept" does not. A compiled forward writes them if a
backward follows. The backward gives dx, dweight and dbias; the last two are fp32 for ours and have the parameters' dtype for
the others.
--jobs N starts N processes that fill PyTorch's compile cache first. The cache does not store which of a kernel's
configurations is fastest, so PyTorch finds it again during the measurement, while nothing else runs.
"""

import argparse
import ctypes
import functools
import itertools
import json
import statistics
import subprocess
import sys

import torch
import torch._inductor.config

DTYPES = {torch.float64: 0, torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}
EPS = 1e-5
INPUTS = 10  # tensors of a forward


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("device", ctypes.c_int32), ("device_index", ctypes.c_int32),
                ("threads", ctypes.c_int32), ("reserved", ctypes.c_int32), ("log", ctypes.c_void_p),
                ("log_data", ctypes.c_void_p)]


def structure(pointers, tail):
    fields = [("size", ctypes.c_size_t), ("rows", ctypes.c_int64), ("columns", ctypes.c_int64)]
    fields += [(name, ctypes.c_int64 if name == "kept_count" else ctypes.c_void_p) for name in pointers]
    return type("Arguments", (ctypes.Structure,), {"_fields_": fields + tail})


INT = ctypes.c_int32
Forward = structure(
    ["x", "weight", "bias", "out", "mean", "rstd", "kept_columns", "kept", "kept_count", "workspace"],
    [("workspace_bytes", ctypes.c_size_t), ("eps", ctypes.c_double), ("x_dtype", INT), ("parameter_dtype", INT),
     ("out_dtype", INT), ("reserved", INT)])
Backward = structure(
    ["dout", "x", "out", "weight", "bias", "mean", "rstd", "dsum", "kept_columns", "kept", "kept_count", "dx",
     "dweight", "dbias", "workspace"],
    [("workspace_bytes", ctypes.c_size_t), ("x_dtype", INT), ("parameter_dtype", INT), ("out_dtype", INT),
     ("gradient_dtype", INT), ("flags", INT), ("reserved", INT)])


class Ours:
    """Calls the C ABI on PyTorch's tensors and, on a GPU, on its current stream."""

    def __init__(self, path, device="cuda"):
        self.device = device
        self.functions = ctypes.CDLL(path)
        self.functions.warpwright_last_error.restype = ctypes.c_char_p
        self.context = ctypes.c_void_p()
        options = Options(size=ctypes.sizeof(Options), device=int(device == "cuda"))
        self.check(self.functions.warpwright_context_create(ctypes.byref(options), ctypes.byref(self.context)))
        if device == "cuda":
            stream = torch.cuda.current_stream().cuda_stream
            self.check(self.functions.warpwright_context_set_stream(self.context, ctypes.c_void_p(stream)))

    def check(self, status):
        if status:
            sys.exit(self.functions.warpwright_last_error().decode())

    def call(self, name, kind, rows, columns, tensors, **scalars):
        args = kind(size=ctypes.sizeof(kind), rows=rows, columns=columns, **scalars)
        for key, tensor in tensors.items():
            if tensor is not None:
                setattr(args, key, tensor.data_ptr())
        bytes_needed = ctypes.c_size_t()
        workspace = getattr(self.functions, f"warpwright_{name}_workspace")
        self.check(workspace(self.context, ctypes.byref(args), ctypes.byref(bytes_needed)))
        scratch = torch.empty(max(bytes_needed.value, 16), dtype=torch.uint8, device=self.device)
        args.workspace, args.workspace_bytes = scratch.data_ptr(), scratch.numel()
        function = getattr(self.functions, f"warpwright_{name}")

        def run(_keep=(tensors, scratch)):
            self.check(function(self.context, ctypes.byref(args)))

        return run


def timed(calls, flush, rounds):
    """Returns the median microseconds of each call."""
    samples = {name: [] for name in calls}
    for _ in range(3):
        for call in calls.values():
            call()
    for _ in range(rounds):
        for name, call in calls.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            flush.zero_()
            torch.cuda._sleep(1_000_000)  # lets the host run ahead, so that no figure includes its time
            start.record()
            call()
            end.record()
            end.synchronize()
            samples[name].append(start.elapsed_time(end) * 1e3)
    return {name: statistics.median(values) for name, values in samples.items()}


def rivals(rms, columns, weight, bias, compiled):
    """Functions of x by name. Their backward comes from autograd."""
    functional = torch.nn.functional
    if rms:
        def plain(x, w, b):
            return functional.rms_norm(x, (columns,), w, EPS)
    else:
        def plain(x, w, b):
            return functional.layer_norm(x, (columns,), w, b, EPS)
    found = {"eager": plain}
    if compiled:
        found["compile"] = torch.compile(plain, dynamic=False)
    try:
        from apex.normalization import fused_layer_norm as apex

        if rms:
            found["apex"] = lambda x, w, b: apex.fused_rms_norm_affine(x, w, (columns,), EPS)
        else:
            found["apex"] = lambda x, w, b: apex.fused_layer_norm_affine(x, w, b, (columns,), EPS)
    except ImportError:
        pass
    return found


def parameters(rms, dtype, columns):
    weight = torch.randn(columns, device="cuda", dtype=dtype) * 0.5 + 1
    return weight, None if rms else torch.randn(columns, device="cuda", dtype=dtype)


def rival_calls(rms, xs, weight, bias, dout, compiled, turns):
    """Returns {who: call} for the forward, which cycles through `xs` by `turns`, and for the backward."""
    forward, backward = {}, {}
    for rival, function in rivals(rms, xs[0].shape[1], weight, bias, compiled).items():
        leaves = [t.detach().requires_grad_() for t in (xs[0], weight, bias) if t is not None]
        parameters = leaves[1:] if not rms else [*leaves[1:], None]
        inputs = [x.detach().requires_grad_() for x in xs]

        def run(function=function, inputs=xs, parameters=(weight, bias)):
            return function(inputs[next(turns)], *parameters)

        result = function(leaves[0], *parameters)
        forward[rival] = run
        if rival == "compile":
            forward["compile, for a backward"] = functools.partial(run, function, inputs, parameters)
        backward[rival] = lambda result=result, leaves=leaves: torch.autograd.grad(
            result, leaves, dout, retain_graph=True)
    return forward, backward


def compile_share(shapes):
    """Fills torch.compile's cache for these shapes."""
    for rms, dtype, rows, columns in shapes:
        x = torch.randn(rows, columns, device="cuda", dtype=dtype)
        for calls in rival_calls(rms, [x], *parameters(rms, dtype, columns), x, True, itertools.repeat(0)):
            for call in calls.values():
                call()
        torch._dynamo.reset()


def compile_first(jobs):
    commands = [[sys.executable, *sys.argv, "--compile-share", f"{job}/{jobs}"] for job in range(jobs)]
    for process in [subprocess.Popen(command) for command in commands]:
        if process.wait():
            print("norms.py: a process that compiles in advance failed", file=sys.stderr)


def measure(ours, rms, dtype, rows, columns, options, flush):
    dout, out, dx, *xs = (torch.randn(rows, columns, device="cuda", dtype=dtype) for _ in range(3 + INPUTS))
    x, turns = xs[0], itertools.cycle(range(INPUTS))
    weight, bias = parameters(rms, dtype, columns)
    rstd = torch.empty(rows, device="cuda")
    mean = None if rms else torch.empty(rows, device="cuda")
    dweight = torch.empty(columns, device="cuda")
    dbias = None if rms else torch.empty(columns, device="cuda")
    number = DTYPES[dtype]
    name = "rmsnorm" if rms else "layernorm"
    dtypes = {"x_dtype": number, "parameter_dtype": number, "out_dtype": number}

    def forward_of(inputs, **written):
        calls = [ours.call(f"{name}_forward", Forward, rows, columns,
                           {"x": x, "weight": weight, "bias": bias, "out": out, **written}, eps=EPS, **dtypes)
                 for x in inputs]
        return lambda: calls[next(turns) % len(calls)]()

    kept = {"mean": mean, "rstd": rstd}
    forward = {"ours": forward_of(xs, **kept), "ours, nothing kept": forward_of(xs)}
    forward_of_x = forward_of([x], **kept)
    common = {"dout": dout, "weight": weight, "rstd": rstd, "dx": dx, "dweight": dweight, "dbias": dbias}
    backward = {
        "ours": ours.call(f"{name}_backward", Backward, rows, columns, {**common, "x": x, "mean": mean},
                          gradient_dtype=1, **dtypes),
        "ours, from out": ours.call(f"{name}_backward", Backward, rows, columns,
                                    {**common, "out": out, "bias": bias}, gradient_dtype=1, **dtypes)}
    theirs = rival_calls(rms, xs, weight, bias, dout, not options.no_compile, turns)
    forward |= theirs[0]
    backward |= theirs[1]
    size = x.element_size() * x.numel()
    report = {"norm": name, "dtype": str(dtype).split(".")[1], "rows": rows, "columns": columns}
    for direction, calls, passes in (("forward", forward, 2), ("backward", backward, 3)):
        source = torch.empty(size * passes // 2, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        forward_of_x()  # makes the tensors that the backward reads
        times = timed({**calls, "copy": lambda: target.copy_(source)}, flush, options.rounds)
        report[direction] = {who: {"us": round(us, 2), "of_copy": round(times["copy"] / us, 3),
                                   "TB/s": round(passes * size / us * 1e-6, 2)} for who, us in times.items()}
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", dest="shared_library", required=True)
    parser.add_argument("--columns", default="768,1024,1280,1600,2048,4096,5120,8192,12288,16384")
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--dtypes", default="bfloat16")
    parser.add_argument("--norms", default="layer,rms")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--compile-share", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json")
    options = parser.parse_args()
    shapes = [(norm == "rms", getattr(torch, dtype), options.rows or (1 << 26) // columns, columns)
              for norm in options.norms.split(",") for dtype in options.dtypes.split(",")
              for columns in map(int, options.columns.split(","))]
    if options.jobs or options.compile_share:
        torch._inductor.config.autotune_local_cache = False
    if options.compile_share:
        share, jobs = map(int, options.compile_share.split("/"))
        return compile_share(shapes[share::jobs])
    if options.jobs:
        compile_first(options.jobs)
    ours = Ours(options.shared_library)
    flush = torch.empty(1 << 29, dtype=torch.uint8, device="cuda")
    document = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": []}
    for rms, dtype, rows, columns in shapes:
        report = measure(ours, rms, dtype, rows, columns, options, flush)
        document["rows"].append(report)
        for direction in ("forward", "backward"):
            figures = " | ".join(f"{who} {r['us']:.1f} us {r['of_copy']:.2f}"
                                 for who, r in report[direction].items())
            print(f"{report['norm']} {report['dtype']} {rows}x{columns} {direction}: {figures}", flush=True)
        torch._dynamo.reset()
        if options.json:  # also writes incomplete results
            with open(options.json, "w", encoding="utf-8") as out:
                json.dump(document, out, indent=1)


if __name__ == "__main__":
    main()
