#!/usr/bin/env python3
"""Fits the predicted costs of matmul's kernels on a GPU to their measured times.

    warpwright bench products random:1300 gpt2 bert --table TIMES
    tools/fit_matmul.py --program build/release/src/ops/matmul_fit --table TIMES --out src/ops/matmul/costs_h200.inc

Fits every number of src/ops/matmul/costs.hpp except those that single products do not show (a model's step, the sums of a
bias gradient). Then reports the time that the resulting choices lose, for these products and for those of --check. The
H200's numbers are fitted to bench/results/nvidia-h200-matmul.jsonl. Needs NumPy and SciPy.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from scipy.optimize import least_squares

FIXED = re.compile(r"multiprocessor|^row_sums|step|added_matrix|: row_sums")
LIBRARY = "cuda.cublaslt"


class Program:
    """A running `matmul_fit predict`: numbers in, predicted seconds out."""

    def __init__(self, program, table, count):
        self.process = subprocess.Popen([program, "predict", table], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.count = count

    def predict(self, numbers):
        self.process.stdin.write((" ".join(f"{n:.9g}" for n in numbers) + "\n").encode())
        self.process.stdin.flush()
        answer = self.process.stdout.read(8 * self.count)
        if len(answer) != 8 * self.count:
            sys.exit("fit_matmul.py: matmul_fit ended early")
        return np.frombuffer(answer)


class Times:
    """The measured times of a table. Each kernel of each product has an entry, with the product's number."""

    def __init__(self, table):
        self.product, self.seconds, self.library = [], [], []
        for number, line in enumerate(open(table)):
            for kernel, seconds in sorted(json.loads(line)["seconds"].items()):
                self.product.append(number)
                self.seconds.append(seconds)
                self.library.append(kernel.startswith(LIBRARY))
        self.product, self.seconds = np.array(self.product), np.array(self.seconds)
        self.library = np.array(self.library)

    def best(self, seconds=None, only=None):
        """For each product, the measured time of the kernel with the least `seconds`, among those in `only`."""
        order = self.seconds if seconds is None else seconds
        order = order if only is None else np.where(only, order, np.inf)
        rank = np.lexsort((order, self.product))
        first = np.r_[True, self.product[rank][1:] != self.product[rank][:-1]]
        return self.seconds[rank][first]


def report(name, times, predicted):
    """Reports the time that choices lose, as the ratio of cuBLASLt's best proposal to the choice."""
    library = times.best(only=times.library)
    ours = times.best(only=~times.library)
    rows = {
        "chosen": times.best(predicted),
        "best of all": times.best(),
        "chosen of ours": times.best(predicted, ~times.library),
        "best of ours": ours,
        "chosen of cuBLASLt's": times.best(predicted, times.library),
        "chosen of cuBLASLt's, or our best": np.minimum(times.best(predicted, times.library), ours),
    }
    print(f"{name}: {len(library)} products; cuBLASLt's best over")
    for row, seconds in rows.items():
        ratios = library / seconds
        quantiles = ", ".join(f"{q:.3f}" for q in np.quantile(ratios, [0, 0.003, 0.01, 0.05]))
        print(f"  {row:<36}{np.exp(np.log(ratios).mean()):.4f}   least, 0.3 %, 1 %, 5 %: {quantiles}")
    error = np.log(predicted / times.seconds)
    near = times.seconds < 1.3 * times.best()[times.product]
    for row, which in (("ours", ~times.library), ("cuBLASLt's", times.library)):
        print(f"  predicted over measured, near the best, {row}: {np.std(error[which & near]):.3f} rms")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help="matmul_fit, as built")
    parser.add_argument("--table", required=True, help="the measured times for the fit")
    parser.add_argument("--check", nargs="*", default=[], help="tables of other products, for the report")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="parallel predictors (default: one per processor)")
    parser.add_argument("--out", help="write the costs here; default: only report")
    parser.add_argument("--rounds", type=int, default=15,
                        help="rounds of the fit; 0: report on the current costs (default: 15)")
    parser.add_argument("--near", type=float, default=0.2,
                        help="a kernel slower than the best one by this fraction has 1/e of its weight (default: 0.2)")
    args = parser.parse_args()

    fitted = Times(args.table)
    answer = subprocess.run([args.program, "parameters"], check=True, capture_output=True, text=True).stdout
    names = [line.split("\t")[1] for line in answer.splitlines()]
    start = np.array([float(line.split("\t")[0]) for line in answer.splitlines()])
    free = np.array([value > 0 and not FIXED.search(name) for name, value in zip(names, start)])

    def numbers(x):
        values = start.copy()
        values[free] = np.exp(x)
        return values

    workers = [Program(args.program, args.table, len(fitted.seconds)) for _ in range(args.processes)]
    slower = fitted.seconds / fitted.best()[fitted.product] - 1
    # A kernel far from the best one needs no good prediction.
    weight = np.sqrt(np.exp(-np.minimum(slower, 1.5) / args.near))

    # A weak penalty for leaving the starting values, so that numbers that the measurements do not show stay
    # the same.
    def residuals(x, worker=0):
        error = weight * np.log(workers[worker].predict(numbers(x)) / fitted.seconds)
        return np.r_[error, 0.3 * (x - np.log(start[free]))]

    def jacobian(x):
        step = 1e-4
        at = residuals(x)
        columns = np.empty((len(at), len(x)))

        def some(worker):
            for i in range(worker, len(x), len(workers)):
                moved = x.copy()
                moved[i] += step
                columns[:, i] = (residuals(moved, worker) - at) / step

        with ThreadPoolExecutor() as pool:
            list(pool.map(some, range(len(workers))))
        return columns

    values = start
    if args.rounds > 0:
        fit = least_squares(residuals, np.log(start[free]), jac=jacobian, loss="soft_l1", f_scale=0.1,
                            max_nfev=args.rounds, verbose=2)
        values = numbers(fit.x)
    report(args.table, fitted, workers[0].predict(values))
    for table in args.check:
        times = Times(table)
        report(table, times, Program(args.program, table, len(times.seconds)).predict(values))
    if args.out:
        text = " ".join(f"{n:.9g}" for n in values)
        written = subprocess.run([args.program, "write"], input=text + "\n", check=True, capture_output=True, text=True)
        with open(args.out, "w") as file:
            file.write(written.stdout)


if __name__ == "__main__":
    main()
