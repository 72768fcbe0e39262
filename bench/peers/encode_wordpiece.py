#!/usr/bin/env python3
"""Times an encoder's tokenizer next to Hugging Face tokenizers, in one run, each on one thread.

    python3 bench/peers/encode_wordpiece.py --bench build/release/src/text/text_bench --model DIR --text FILE... [--rounds 5]
        [--pipe build/release/src/text/text_pipe --strings 100000]

DIR holds tokenizer.json, such as all-MiniLM-L6-v2's (scripts/fetch-minilm). The programs take turns, round by round. The
table shows the best and median CPU time of each, which other programs on the machine disturb least. Each file is encoded as
one text, and line by line. Both programs must find the same number of tokens. With --strings, their ids are then compared
on this many random Unicode strings, as in src/text/tools/encoder_conformance.py.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import tokenizers  # noqa: E402

CONFORMANCE = pathlib.Path(__file__).resolve().parents[2] / "src" / "text" / "tools" / "encoder_conformance.py"
ROWS = {  # a measurement's name in text_bench's output and in the table
    "encode, cold cache": "encode, first time",
    "encode, warm cache": "encode",
    "encode, line by line": "encode, line by line",
}


def ours(args, path):
    command = [args.bench, "--encoder", args.model, "--input", path, "--repeat", "1"]
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    seconds = {
        row: float(re.search(re.escape(name) + r".*?best +([0-9.]+) ms", output).group(1)) / 1e3 for name, row in ROWS.items()
    }
    return seconds, int(output.split()[0])


def timed(work):
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def hugging_face(args, path):
    document = json.loads((pathlib.Path(args.model) / "tokenizer.json").read_text(encoding="utf-8"))
    document["truncation"] = document["padding"] = None
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(document))
    text = path.read_bytes().decode("utf-8")
    lines = text.splitlines(keepends=True)
    seconds = {}
    seconds["encode, first time"], encoding = timed(lambda: tokenizer.encode(text))
    seconds["encode"], encoding = timed(lambda: tokenizer.encode(text))
    count = len(encoding.ids)
    del encoding
    seconds["encode, line by line"], _ = timed(lambda: tokenizer.encode_batch_fast(lines))
    return seconds, count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True, nargs="+", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--strings", type=int, default=0)
    parser.add_argument("--pipe", help="text_pipe, for --strings")
    args = parser.parse_args()
    if args.strings and not args.pipe:
        parser.error("--strings needs --pipe")
    programs = {"warpwright": ours, f"tokenizers {tokenizers.__version__}": hugging_face}
    for path in args.text:
        results, counts = {}, set()
        for _ in range(args.rounds):
            for program, run in programs.items():
                seconds, count = run(args, path)
                counts.add(count)
                for row, value in seconds.items():
                    results.setdefault((row, program), []).append(value)
        if len(counts) != 1:
            sys.exit(f"{path}: the programs found {counts} tokens")
        megabytes = path.stat().st_size / 1e6
        print(f"\n{path.name}: {megabytes:.3f} MB, {counts.pop()} tokens, one thread, {args.rounds} rounds:")
        print("MB per second of CPU time, best (median)\n")
        print("| work | " + " | ".join(programs) + " |\n|---" + "|---" * len(programs) + "|")
        for row in ROWS.values():
            cells = [
                f"{megabytes / min(results[row, program]):.1f} ({megabytes / statistics.median(results[row, program]):.1f})"
                for program in programs
            ]
            print(f"| {row} | " + " | ".join(cells) + " |")
    if args.strings:
        print(flush=True)
        command = [sys.executable, CONFORMANCE, "--pipe", args.pipe, "--minilm", args.model, "--strings", str(args.strings)]
        sys.exit(subprocess.run(command).returncode)


if __name__ == "__main__":
    main()
