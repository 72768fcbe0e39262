#!/usr/bin/env python3
"""Times the matrix products of GPT-2 124M on the CPU next to oneDNN and OpenBLAS, in one run.

    python3 bench/peers/gemm.py --warpwright build/release/warpwright [--rounds 3] [--json FILE] [--run-with "taskset -c 0,1"]

The cases are forward, dx and dw of the four layers of a block at M tokens, and of the LM head at the smallest M. oneDNN is
the variant cpu.onednn of a build that found oneDNN. It takes plain matrices, so the time includes packing the weights, as in
training. OpenBLAS is sgemm of libopenblas.so.0 (fp32 only). A round runs every case once: our variants take turns within
it, then OpenBLAS runs. Data is random and comes from outside L2. A figure is the median over the rounds of a round's median.
The ratio is the faster rival's time over the time of the variant that warpwright chooses.
"""

import argparse
import array
import ctypes
import json
import os
import pathlib
import random
import shlex
import statistics
import subprocess
import sys
import time

LAYERS = {"qkv": (2304, 768), "attproj": (768, 768), "fc": (3072, 768), "fcproj": (768, 3072)}  # N, K
HEAD = (50304, 768)
DIRECTIONS = ("forward", "dx", "dw")
SECONDS = 0.25  # of OpenBLAS, per direction of a case
FOOTPRINT = 32 << 20  # at least, so that arguments come from outside the L2 caches


def cases(tokens, only):
    named = [(name, M, *LAYERS[name]) for M in tokens for name in LAYERS] + [("head", min(tokens), *HEAD)]
    return [case for case in named if not only or case[0] in only]


def ours(args, M, N, K, dtype):
    """Seconds of each direction by variant, the chosen variants, and the machine's name."""
    command = args.run_with + [args.warpwright, "bench", "ops", "matmul", "--threads", str(args.threads), "--json"]
    command += ["--filter", f"M={M} N={N} K={K} {dtype}"]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    seconds, chosen = {}, {}
    for row in report["rows"]:
        direction = row["op"].removeprefix("matmul.")
        variant = row["variant"].split("[")[0]  # without its configuration
        seconds[direction, variant] = row["median_seconds"]
        if row["chosen"]:
            chosen[direction] = variant
    return seconds, chosen, report["device"]


def openblas_in_another_process(args, M, N, K):
    """Runs OpenBLAS in its own process, which sets its number of threads and ends them."""
    command = args.run_with + [sys.executable, os.path.abspath(__file__), "--openblas-case", f"{M},{N},{K}"]
    environment = dict(os.environ, OPENBLAS_NUM_THREADS=str(args.threads))
    run = subprocess.run(command, stdout=subprocess.PIPE, env=environment)
    return json.loads(run.stdout) if run.returncode == 0 else {}


class Matrices:
    """Copies of one matrix of random floats, enough that they come from outside the caches."""

    def __init__(self, elements, noise, copies):
        self.data = (ctypes.c_float * (elements * copies))()
        for start in range(0, elements * copies, len(noise)):
            count = min(len(noise), elements * copies - start)
            ctypes.memmove(ctypes.addressof(self.data) + 4 * start, noise.buffer_info()[0], 4 * count)
        self.elements, self.copies = elements, copies

    def at(self, turn):
        return ctypes.c_void_p(ctypes.addressof(self.data) + 4 * self.elements * (turn % self.copies))


def load_openblas():
    """Loads OpenBLAS. It identifies processors by model and takes an unknown one for a Prescott, so this names the kind."""
    library = ctypes.CDLL("libopenblas.so.0")
    library.openblas_get_corename.restype = ctypes.c_char_p
    if library.openblas_get_corename() == b"Prescott" and "OPENBLAS_CORETYPE" not in os.environ:
        flags = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
        os.environ["OPENBLAS_CORETYPE"] = "SkylakeX" if "avx512f" in flags else "Haswell"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    return library


def openblas(M, N, K):
    """Seconds of each direction by cblas_sgemm: row-major x (M, K), weight (N, K) and dout (M, N)."""
    sgemm = load_openblas().cblas_sgemm
    sgemm.restype = None
    sgemm.argtypes = [ctypes.c_int] * 6 + [ctypes.c_float] + [ctypes.c_void_p, ctypes.c_int] * 2
    sgemm.argtypes += [ctypes.c_float, ctypes.c_void_p, ctypes.c_int]
    row_major, as_it_lies, transposed = 101, 111, 112
    generator = random.Random(1)
    noise = array.array("f", (generator.gauss(0, 0.02) for _ in range(1 << 18)))
    copies = FOOTPRINT // (4 * (M * K + N * K + M * N)) + 1
    x, weight, out = (Matrices(size, noise, copies) for size in (M * K, N * K, M * N))

    def call(direction, turn):
        a, w, c = x.at(turn), weight.at(turn), out.at(turn)
        if direction == "forward":
            sgemm(row_major, as_it_lies, transposed, M, N, K, 1, a, K, w, K, 0, c, N)
        elif direction == "dx":
            sgemm(row_major, as_it_lies, as_it_lies, M, K, N, 1, c, N, w, K, 0, a, K)
        else:
            sgemm(row_major, transposed, as_it_lies, N, K, M, 1, c, N, a, K, 1, w, K)

    seconds = {}
    for direction in DIRECTIONS:
        times, turn = [], 0
        begin = time.perf_counter()
        while len(times) < 5 or time.perf_counter() - begin < SECONDS:
            start = time.perf_counter()
            call(direction, turn)
            times.append(time.perf_counter() - start)
            turn += 1
        seconds[direction] = statistics.median(times[1:])
    return seconds


def measure(args):
    rows, machine = [], None
    for dtype in args.dtype:
        for name, M, N, K in cases(args.tokens, args.only):
            rows.append({"layer": name, "M": M, "N": N, "K": K, "dtype": dtype, "times": {}, "chosen": {}})
    for _ in range(args.rounds):
        for row in rows:
            seconds, row["chosen"], machine = ours(args, row["M"], row["N"], row["K"], row["dtype"])
            if row["dtype"] == "fp32":
                for direction, value in openblas_in_another_process(args, row["M"], row["N"], row["K"]).items():
                    seconds[direction, "OpenBLAS"] = value
            for key, value in seconds.items():
                row["times"].setdefault(key, []).append(value)
    results = []
    for row in rows:
        for direction in DIRECTIONS:
            of = {who: statistics.median(t) for (way, who), t in row["times"].items() if way == direction}
            chosen = row["chosen"][direction]
            rivals = [of[who] for who in ("cpu.onednn", "OpenBLAS") if who in of]
            results.append({key: row[key] for key in ("layer", "M", "N", "K", "dtype")})
            results[-1] |= {"direction": direction, "chosen": chosen, "seconds": of}
            results[-1]["ratio"] = min(rivals) / of[chosen] if rivals else None
    return {"bench": "gemm", "machine": machine, "threads": args.threads, "rounds": args.rounds, "results": results}


def print_table(report):
    print(f"{report['machine']}, {report['threads']} threads, {report['rounds']} rounds; GFLOP/s")
    print("| dtype | layer | M×N×K | direction | warpwright | variant | oneDNN | OpenBLAS | of the better |")
    print("|---|---|---|---|---|---|---|---|---|")
    by_dtype = {}
    for r in report["results"]:
        flops = 2e-9 * r["M"] * r["N"] * r["K"]
        cells = [f"{flops / r['seconds'][who]:.0f}" if who in r["seconds"] else "–" for who in ("cpu.onednn", "OpenBLAS")]
        ratio = f"{r['ratio']:.2f}" if r["ratio"] else "–"
        shape = f"{r['M']}×{r['N']}×{r['K']}"
        ours_cell = f"{flops / r['seconds'][r['chosen']]:.0f}"
        print("| " + " | ".join([r["dtype"], r["layer"], shape, r["direction"], ours_cell, r["chosen"], *cells, ratio]) + " |")
        if r["ratio"]:
            by_dtype.setdefault(r["dtype"], []).append(r["ratio"])
    for dtype, ratios in by_dtype.items():
        mean = statistics.geometric_mean(ratios)
        print(f"{dtype}: {mean:.2f} times the better rival (geometric mean), least {min(ratios):.2f}, most {max(ratios):.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warpwright", type=os.path.abspath, help="the program, from a build that found oneDNN")
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 1024, 4096], help="M: 256, 1024, 4096")
    parser.add_argument("--only", nargs="+", choices=[*LAYERS, "head"], help="only these layers")
    parser.add_argument("--dtype", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--run-with", type=shlex.split, default=[], help="a command that starts the timed programs")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--openblas-case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.openblas_case:
        print(json.dumps(openblas(*map(int, args.openblas_case.split(",")))))
        return
    if not args.warpwright:
        parser.error("--warpwright is missing")
    report = measure(args)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump(report, out, indent=1)
            out.write("\n")
    print_table(report)


if __name__ == "__main__":
    main()
