#!/usr/bin/env python3
"""Times the backward from the output, and the forward before it, when columns are lost and kept: weights of 0 and subnormal ones.

    python3 bench/peers/norms_kept.py --library build/release/src/capi/libwarpwright.so [--library OTHER …]
        [--cases 768:4:16,4096:22:64 …] [--rows N] [--norms layer,rms] [--dtype bfloat16] [--rounds 11] [--json FILE]

A case is columns:lost columns:places to keep them. Rows × columns are 2^26 elements (or --rows). The libraries take turns, like
the calls in bench/peers/norms.py. Each time is printed with the relative error against fp64 (norm of the difference over norm)
of dx, of dweight, and of the lost columns' dweight.
"""

import argparse
import json

import norms
import torch


def relative(got, wanted):
    return ((got.double() - wanted).norm() / wanted.norm()).item()


def measure(libraries, rms, dtype, rows, columns, lost, places, flush, rounds):
    x, dout = (torch.randn(rows, columns, device="cuda", dtype=dtype) for _ in range(2))
    weight, bias = (torch.rand(columns, device="cuda").to(dtype) + 0.5 for _ in range(2))
    bias = None if rms else bias
    at = torch.randperm(columns, device="cuda")[:lost]
    weight[at] = torch.where(torch.arange(lost, device="cuda") % 2 == 0, 0.0, 1e-39).to(dtype)
    name, number = ("rmsnorm" if rms else "layernorm"), norms.DTYPES[dtype]
    dtypes = {"x_dtype": number, "parameter_dtype": number, "out_dtype": number}
    forward, backward, made = {}, {}, {}
    for path, library in libraries.items():
        mean = None if rms else torch.empty(rows, device="cuda")
        out, rstd = torch.empty_like(x), torch.empty(rows, device="cuda")
        kept = {"kept_columns": torch.empty(1 + places, dtype=torch.int32, device="cuda"),
                "kept": torch.empty(rows, max(places, 1), device="cuda", dtype=dtype)}
        common = {"weight": weight, "bias": bias, "out": out, "mean": mean, "rstd": rstd, **kept}
        forward[path] = library.call(f"{name}_forward", norms.Forward, rows, columns, {"x": x, **common},
                                     eps=norms.EPS, kept_count=places, **dtypes)
        forward[path]()
        dx = torch.full_like(x, float("nan"))
        dweight, dbias = (torch.full((columns,), float("nan"), device="cuda") for _ in range(2))
        backward[path] = library.call(
            f"{name}_backward", norms.Backward, rows, columns,
            {"dout": dout, "dx": dx, "dweight": dweight, "dbias": None if rms else dbias, **common},
            gradient_dtype=1, kept_count=places, **dtypes)
        backward[path]()
        made[path] = dx, dweight
    wide, grad = x.double(), dout.double() * weight.double()
    centered = wide if rms else wide - wide.mean(dim=1, keepdim=True)
    scale = (centered.square().mean(dim=1, keepdim=True) + norms.EPS).rsqrt()
    normalized = centered * scale
    mean_grad = 0 if rms else grad.mean(dim=1, keepdim=True)
    wanted_dx = scale * (grad - mean_grad - normalized * (grad * normalized).mean(dim=1, keepdim=True))
    wanted_dweight = (dout.double() * normalized).sum(dim=0)
    errors = {path: [relative(dx, wanted_dx), relative(dweight, wanted_dweight)] +
              ([relative(dweight[at], wanted_dweight[at])] if lost else []) for path, (dx, dweight) in made.items()}
    del wide, grad, centered, normalized, wanted_dx
    times = [norms.timed(calls, flush, rounds) for calls in (forward, backward)]
    return {"norm": name, "dtype": str(dtype).split(".")[1], "rows": rows, "columns": columns, "lost": lost,
            "places": places, "libraries": {path: {"forward us": round(times[0][path], 2),
                                                   "backward us": round(times[1][path], 2),
                                                   "errors": [float(f"{e:.1e}") for e in errors[path]]}
                                            for path in libraries}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", dest="shared_libraries", action="append", required=True)
    parser.add_argument("--cases", default="768:0:16,768:1:16,768:4:16,768:16:16,768:64:64,1600:8:16,2048:8:16,4096:0:64,"
                        "4096:22:64,8192:44:64,16384:88:128")
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--norms", default="layer,rms")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json")
    options = parser.parse_args()
    libraries = {path: norms.Ours(path) for path in options.shared_libraries}
    flush = torch.empty(1 << 29, dtype=torch.uint8, device="cuda")
    document = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": []}
    for norm in options.norms.split(","):
        for case in options.cases.split(","):
            columns, lost, places = map(int, case.split(":"))
            rows = options.rows or (1 << 26) // columns
            report = measure(libraries, norm == "rms", getattr(torch, options.dtype), rows, columns, lost, places, flush,
                             options.rounds)
            document["rows"].append(report)
            print(f"{report['norm']} {options.dtype} {rows}x{columns}, {lost} lost, {places} places: " + " | ".join(
                f"forward {r['forward us']:.1f} us, backward {r['backward us']:.1f} us, errors " +
                " ".join(f"{e:.1e}" for e in r["errors"]) for r in report["libraries"].values()), flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(document, out, indent=1)


if __name__ == "__main__":
    main()
