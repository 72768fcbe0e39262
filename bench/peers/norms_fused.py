#!/usr/bin/env python3
"""Times the fused forms of a transformer's normalization next to the same work in separate kernels, in one run on one GPU.

    python3 bench/peers/norms_fused.py --library build/release/src/capi/libwarpwright.so [--columns 768,1024 …]
        [--rows N] [--dtype bfloat16] [--no-compile] [--rounds 15] [--json FILE]

The separate kernels are the library's normalization and PyTorch's additions, one kernel each. The other rivals do all of it
in PyTorch, eager and compiled. Rows × columns are 2^26 random elements (or --rows). Timing is as in bench/peers/norms.py: calls
take turns, and the L2 holds nothing of the tensors. --graph times 20 calls in a graph instead, one after the other as in a
model. Tensors of few rows are then in the L2.
"""

import argparse
import ctypes
import json

import norms
import torch

Residual = norms.structure(
    ["x", "x_bias", "residual", "weight", "bias", "sum", "out", "mean", "rstd", "kept_columns", "kept", "kept_count",
     "workspace"],
    [("workspace_bytes", ctypes.c_size_t), ("eps", ctypes.c_double), ("dtype", ctypes.c_int32), ("rms", ctypes.c_int32)])
CALLS = 20  # in one graph


def chain(*calls):
    def run():
        for call in calls:
            call()

    return run


def forms(ours, rows, columns, dtype, compiled):
    """{form: (passes over the tensor fused, passes apart, {who: call})}"""
    x, residual, total, out, dout, dsum, dx, between = (torch.randn(rows, columns, device="cuda", dtype=dtype)
                                                        for _ in range(8))
    weight, bias, x_bias = (torch.randn(columns, device="cuda", dtype=dtype) * 0.5 + 1 for _ in range(3))
    mean, rstd = torch.empty(rows, device="cuda"), torch.empty(rows, device="cuda")
    dweight, dbias = torch.empty(columns, device="cuda"), torch.empty(columns, device="cuda")
    number = norms.DTYPES[dtype]
    dtypes = {"x_dtype": number, "parameter_dtype": number, "out_dtype": number}
    parameters = {"weight": weight, "bias": bias}
    statistics = {"mean": mean, "rstd": rstd}

    def fused(**tensors):
        return ours.call("residual_norm_forward", Residual, rows, columns,
                         {"x": x, "residual": residual, "out": out, **parameters, **tensors}, eps=norms.EPS, dtype=number)

    def backward(**tensors):
        return ours.call("layernorm_backward", norms.Backward, rows, columns,
                         {"dout": dout, "x": total, "weight": weight, "dx": dx, "dweight": dweight, "dbias": dbias,
                          **statistics, **tensors}, gradient_dtype=1, **dtypes)

    norm = ours.call("layernorm_forward", norms.Forward, rows, columns,
                     {"x": total, "out": out, **parameters, **statistics}, eps=norms.EPS, **dtypes)

    def add(a, b, to):
        return lambda: torch.add(a, b, out=to)

    def plain(x, residual, weight, bias):
        h = x + residual
        return h, torch.nn.functional.layer_norm(h, (columns,), weight, bias, norms.EPS)

    def with_bias(x, x_bias, residual, weight, bias):
        return plain(x + x_bias, residual, weight, bias)

    leaves = [t.detach().clone().requires_grad_() for t in (x, residual, weight, bias)]
    rivals = {"eager": lambda f: f}
    if compiled:
        rivals["compile"] = lambda f: torch.compile(f, dynamic=False)
    found = {
        "residual, norm": (4, 5, {"ours": fused(sum=total, **statistics),
                                  "apart": chain(add(x, residual, total), norm)}),
        "bias, residual, norm": (4, 7, {"ours": fused(x_bias=x_bias, sum=total, **statistics),
                                        "apart": chain(add(x, x_bias, between), add(between, residual, total), norm)}),
        "bias, residual, norm, sum not kept": (3, 7, {"ours": fused(x_bias=x_bias), "apart": chain(
            add(x, x_bias, between), add(between, residual, total), norm)}),
        "backward, the sum's gradient added": (4, 6, {"ours": backward(dsum=dsum),
                                                      "apart": chain(backward(), add(dx, dsum, dx))}),
        "residual, norm, and backward": (8, 11, {
            "ours": chain(fused(sum=total, **statistics), backward(dsum=dsum)),
            "apart": chain(add(x, residual, total), norm, backward(), add(dx, dsum, dx))})}
    for who, make in rivals.items():
        f, g, h = make(plain), make(with_bias), make(lambda x, b, r, w, c: with_bias(x, b, r, w, c)[1])

        def forward(f=f):
            with torch.no_grad():
                return f(x, residual, weight, bias)

        def biased(g=g):
            with torch.no_grad():
                return g(x, x_bias, residual, weight, bias)

        def alone(h=h):
            with torch.no_grad():
                return h(x, x_bias, residual, weight, bias)

        kept = f(*leaves)

        def gradients(results):
            return torch.autograd.grad(results, leaves, (dsum, dout), retain_graph=True)

        for form, call in (("residual, norm", forward), ("bias, residual, norm", biased),
                           ("bias, residual, norm, sum not kept", alone),
                           ("backward, the sum's gradient added", lambda kept=kept: gradients(kept)),
                           ("residual, norm, and backward", lambda f=f: gradients(f(*leaves)))):
            found[form][2][who] = call
    return found


def graphs(calls, stream):
    def capture(call):
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(CALLS):
                call()
        return graph.replay

    return {who: capture(call) for who, call in calls.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", dest="shared_library", required=True)
    parser.add_argument("--columns", default="768")
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--graph", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json")
    options = parser.parse_args()
    stream = torch.cuda.Stream()
    reports = []
    with torch.cuda.stream(stream):
        ours = norms.Ours(options.shared_library)
        flush = torch.empty(1 << 29, dtype=torch.uint8, device="cuda")
        for columns in map(int, options.columns.split(",")):
            rows = options.rows or (1 << 26) // columns
            found = forms(ours, rows, columns, getattr(torch, options.dtype), not options.no_compile)
            for form, (fused, apart, calls) in found.items():
                if options.graph:
                    calls = graphs(calls, stream)
                times = {who: us / (CALLS if options.graph else 1)
                         for who, us in norms.timed(calls, flush, options.rounds).items()}
                reports.append({"form": form, "rows": rows, "columns": columns, "dtype": options.dtype,
                                "passes": fused, "passes apart": apart,
                                "us": {who: round(us, 2) for who, us in times.items()}})
                print(f"{rows}x{columns} {form}: " + " | ".join(
                    f"{who} {us:.1f} us ({us / times['ours']:.2f})" for who, us in times.items()), flush=True)
    if options.json:
        document = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "graph": options.graph,
                    "rows": reports}
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(document, out, indent=1)


if __name__ == "__main__":
    main()
