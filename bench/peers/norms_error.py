#!/usr/bin/env python3
"""Compares the normalizations' error against fp64 with PyTorch's error, on difficult inputs.

    python3 bench/peers/norms_error.py --library build/release/src/capi/libwarpwright.so [--device cpu|cuda]
        [--shapes 12] [--seed 1] [--verbose]

For each kind of input, norm, dtype and random shape both programs get the same tensors. The reference is PyTorch in fp64 on
the same values. The results are out and, for an upstream gradient of normal deviates, dx, dweight and dbias, all in x's
dtype. An error is the largest |result − reference| in units of the terms that make up the result: for out, |weight|·(the
row's largest |x̂|) + |bias|; for dx, its row's largest element; for dweight and dbias, the largest column's sum of the terms'
absolute values. Our error may be twice PyTorch's plus one unit in the last place. Where PyTorch has NaN or an infinity, ours
must have the same, element by element. On a GPU it may also match PyTorch's CPU, since PyTorch's devices disagree about
rms_norm of an infinity. The exit status is 1 if anything fails.
"""

import argparse
import math
import sys

import torch

from norms import DTYPES, EPS, Backward, Forward, Ours

SIZES = [1, 2, 3, 7, 8, 31, 64, 65, 200, 768, 769, 1024, 1600, 2048, 4096, 5000, 8192, 12288, 16384, 20000]


def normal(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def magnitudes(generator, columns, dtype):
    """Weights of all magnitudes of the dtype, of both signs, some of them 0."""
    info = torch.finfo(dtype)
    low, high = math.log2(info.tiny), math.log2(info.max) / 4
    exponents = torch.rand(columns, generator=generator, dtype=torch.float64) * (high - low) + low
    signs = torch.where(torch.rand(columns, generator=generator) < 0.5, -1.0, 1.0).double()
    weight = signs * torch.exp2(exponents)
    weight[torch.rand(columns, generator=generator) < 0.05] = 0
    return weight


def large_mean(x, dtype):
    return x + 1e4


def constant_rows(x, dtype):
    x[::2] = x[::2, :1]
    return x


def one_huge(x, dtype):
    x[:, x.shape[1] // 2] = 6e4 if dtype == torch.float16 else 1e15
    return x


def subnormal(x, dtype):
    return x * torch.finfo(dtype).tiny / 4


def small(x, dtype):
    return x * 1e-3


def not_finite(value):
    def put(x, dtype):
        x[::3, -1] = value
        return x

    return put


KINDS = {
    "normal": lambda x, dtype: x,
    "weights of all magnitudes": lambda x, dtype: x,
    "mean 1e4": large_mean,
    "constant rows": constant_rows,
    "one huge element": one_huge,
    "deviation 1e-3": small,
    "subnormal numbers": subnormal,
    "+inf": not_finite(math.inf),
    "-inf": not_finite(-math.inf),
    "NaN": not_finite(math.nan),
}


def plain(x, weight, bias, rms):
    functional = torch.nn.functional
    shape = (x.shape[1],)
    return functional.rms_norm(x, shape, weight, EPS) if rms else functional.layer_norm(x, shape, weight, bias, EPS)


def pytorch(x, weight, bias, dout, rms):
    leaves = [t.detach().clone().requires_grad_() for t in (x, weight, bias) if t is not None]
    out = plain(*leaves, *([None] if rms else []), rms)
    return dict(zip(("out", "dx", "dweight", "dbias"), (out.detach(), *torch.autograd.grad(out, leaves, dout))))


def ours(library, x, weight, bias, dout, rms):
    rows, columns = x.shape
    name, number = ("rmsnorm" if rms else "layernorm"), DTYPES[x.dtype]
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    result = {"out": torch.empty_like(x), "dx": torch.empty_like(x), "dweight": torch.empty_like(weight)}
    if not rms:
        result["dbias"] = torch.empty_like(bias)
    mean = None if rms else torch.empty(rows, dtype=wide, device=x.device)
    rstd = torch.empty(rows, dtype=wide, device=x.device)
    dtypes = {"x_dtype": number, "parameter_dtype": number, "out_dtype": number}
    library.call(f"{name}_forward", Forward, rows, columns,
                 {"x": x, "weight": weight, "bias": bias, "out": result["out"], "mean": mean, "rstd": rstd}, eps=EPS,
                 **dtypes)()
    library.call(f"{name}_backward", Backward, rows, columns,
                 {"dout": dout, "x": x, "weight": weight, "mean": mean, "rstd": rstd, "dx": result["dx"],
                  "dweight": result["dweight"], "dbias": result.get("dbias")}, gradient_dtype=number, **dtypes)()
    return result


def largest(t, dim=-1):
    """The largest finite absolute value."""
    return torch.where(torch.isfinite(t), t.abs(), 0.0).amax(dim=dim, keepdim=True)


def units(x, weight, bias, dout, dx, rms):
    """The units in which errors of each result are measured, in fp64."""
    centered = x if rms else x - x.mean(dim=1, keepdim=True)
    normalized = centered / (centered.square().mean(dim=1, keepdim=True) + EPS).sqrt()
    return {"out": weight.abs() * largest(normalized) + (0 if rms else bias.abs()), "dx": largest(dx),
            "dweight": largest((dout * normalized).abs().sum(dim=0)), "dbias": largest(dout.abs().sum(dim=0))}


def error(got, wanted, unit):
    got, wanted = got.double(), wanted.double()
    both = torch.isfinite(wanted) & torch.isfinite(got)
    difference = torch.where(both, (got - wanted).abs(), 0.0)
    return torch.where(difference == 0, 0.0, difference / torch.where(unit == 0, 1.0, unit)).max().item()


def same_not_finite(a, b):
    return bool((torch.isnan(a) == torch.isnan(b)).all() and
                (torch.isposinf(a) == torch.isposinf(b)).all() and (torch.isneginf(a) == torch.isneginf(b)).all())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", dest="shared_library", required=True)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--shapes", type=int, default=12, help="random shapes of each kind, norm and dtype")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="print a line per tensor instead of per kind")
    options = parser.parse_args()
    library = Ours(options.shared_library, options.device)
    failures = 0
    for kind, prepare in KINDS.items():
        for rms in (False, True):
            worst, checked = {}, 0
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                generator = torch.Generator().manual_seed(options.seed)
                for _ in range(options.shapes):
                    columns = SIZES[int(torch.randint(len(SIZES), (1,), generator=generator))]
                    rows = int(torch.randint(1, 70, (1,), generator=generator))
                    x = prepare(normal(generator, rows, columns), dtype)
                    all_sizes = kind == "weights of all magnitudes"
                    weight = magnitudes(generator, columns, dtype) if all_sizes else 1 + normal(generator, columns) / 2
                    bias = None if rms else normal(generator, columns).to(dtype).to(options.device)
                    dout = normal(generator, rows, columns)
                    x, weight, dout = (t.to(dtype).to(options.device) for t in (x, weight, dout))
                    wide = [t if t is None else t.double() for t in (x, weight, bias, dout)]
                    wanted, theirs = pytorch(*wide, rms), pytorch(x, weight, bias, dout, rms)
                    mine = ours(library, x, weight, bias, dout, rms)
                    unit = units(*wide, wanted["dx"], rms)
                    for name, reference in wanted.items():
                        us, them = (error(result[name], reference, unit[name]) for result in (mine, theirs))
                        bound = 2 * them + torch.finfo(dtype).eps
                        same = same_not_finite(mine[name], theirs[name])
                        if not same and options.device == "cuda":
                            on_cpu = pytorch(*(t if t is None else t.cpu() for t in (x, weight, bias, dout)), rms)
                            same = same_not_finite(mine[name].cpu(), on_cpu[name])
                        failed = us > bound or not same
                        failures += failed
                        checked += 1
                        previous = worst.get(name, (0, 0, 0))
                        worst[name] = max(previous, (us / bound, us, them))
                        if failed or options.verbose:
                            print(f"{'FAILED ' if failed else ''}{kind}: {'rmsnorm' if rms else 'layernorm'} "
                                  f"{str(dtype)[6:]} {rows}x{columns} {name}: ours {us:.2e}, PyTorch {them:.2e}"
                                  f"{'' if same else ', not finite elsewhere'}", flush=True)
            figures = ", ".join(f"{name} {ratio:.2f} ({us:.1e} compared with {them:.1e})"
                                for name, (ratio, us, them) in worst.items())
            print(f"{kind}, {'rmsnorm' if rms else 'layernorm'}: {checked} tensors; largest share of the bound: {figures}",
                  flush=True)
    print(f"{failures} failed")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
