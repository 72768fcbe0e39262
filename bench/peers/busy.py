#!/usr/bin/env python3
"""Measures how much a busy program slows down `warpwright generate`. It generates 100 tokens with a model of the quickstart's
size (940,800 parameters), on an idle machine and next to a program with two OpenMP threads that wait for each other as
PyTorch's do.

    python3 bench/peers/busy.py [--warpwright build/release/warpwright] [--runs 50] [--json] [-- OPTIONS OF generate]

Needs g++ for the busy program. Needs an otherwise idle machine and warns if it is busy. Idle and busy runs take turns in
blocks of ten.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUSY = """
#include <vector>
int main() {
  std::vector<float> a(1 << 18, 1.0f), b(1 << 18, 2.0f);
  for (;;) {
#pragma omp parallel for num_threads(2)
    for (int i = 0; i < (1 << 18); ++i) a[i] = a[i] * 0.999f + b[i];
    asm volatile("" ::: "memory");
  }
}
"""


def make_model(warpwright, folder):
    """Makes the quickstart's tokenizer and network, trained on this project's documentation for five steps."""
    texts = [str(path) for path in sorted((ROOT / "docs").glob("*.md"))]
    for words in (["tokenizer", "train", "--input", *texts, "--vocab-size", "1024", "--out", folder / "tokenizer"],
                  ["data", "build", "--tokenizer", folder / "tokenizer", "--input", *texts, "--out", folder / "data"],
                  ["train", "--data", folder / "data", "--out", folder / "run", "--layers", "4", "--heads", "4", "--channels", "128",
                   "--context", "128", "--batch", "4", "--steps", "5", "--lr", "1e-3"]):
        done = subprocess.run([warpwright, *words], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"busy.py: {' '.join(str(word) for word in words[:2])}: {done.stderr.strip()}")
    return folder / "run" / "model"


def generate(warpwright, model, options):
    """Returns the milliseconds for 100 tokens."""
    done = subprocess.run([warpwright, "generate", "--model", model, "--prompt", "The", "--max-tokens", "100",
                           "--temperature", "0.8", "--json", *options], capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    if result["tokens"] != 100:
        sys.exit(f"busy.py: generate made {result['tokens']} tokens, not 100")
    return 1e3 * result["seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warpwright", type=pathlib.Path, default=ROOT / "build/release/warpwright")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("options", nargs="*", help="options of generate, after --")
    args = parser.parse_args()
    program = args.warpwright.resolve()
    if os.getloadavg()[0] > 0.5:
        print(f"busy.py: the machine is not idle (load {os.getloadavg()[0]:.1f}), so the idle times are too long", file=sys.stderr)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = make_model(program, folder)
        (folder / "busy.cpp").write_text(BUSY)
        subprocess.run(["g++", "-O2", "-fopenmp", folder / "busy.cpp", "-o", folder / "busy"], check=True)
        times = {"idle": [], "busy": []}
        while len(times["busy"]) < args.runs:
            block = min(10, args.runs - len(times["busy"]))
            times["idle"] += [generate(program, model, args.options) for _ in range(block)]
            load = subprocess.Popen([folder / "busy"])
            try:
                time.sleep(0.3)
                times["busy"] += [generate(program, model, args.options) for _ in range(block)]
            finally:
                load.kill()
                load.wait()
    idle = statistics.median(times["idle"])
    result = {state: {"runs": len(ms), "median_ms": statistics.median(ms), "max_ms": max(ms), "median_over_idle": statistics.median(ms) / idle,
                      "max_over_idle": max(ms) / idle} for state, ms in times.items()}
    if args.json:
        print(json.dumps(result, indent=1))
        return
    for state, row in result.items():
        print(f"{state}: {row['runs']} runs, median {row['median_ms']:.1f} ms ({row['median_over_idle']:.2f} x idle), "
              f"slowest {row['max_ms']:.1f} ms ({row['max_over_idle']:.2f} x idle)")


if __name__ == "__main__":
    main()
