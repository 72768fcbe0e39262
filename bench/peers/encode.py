#!/usr/bin/env python3
"""Times encoding and training next to tiktoken and Hugging Face tokenizers, in one run, each on one thread.

    python3 bench/peers/encode.py --bench build/release/src/text/text_bench --gpt2 DIR --text FILE [--rounds 5]

DIR holds GPT-2's vocab.json and merges.txt. The programs take turns, round by round. The table shows the best and median
CPU time of each, which other programs on the machine disturb least. The file is encoded as one text, and line by line.
"""

import argparse
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

# The folder of conformance.py.
sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2] / "src/text/tools")

import conformance  # noqa: E402
import tiktoken  # noqa: E402
import tokenizers  # noqa: E402
from tiktoken_ext.openai_public import r50k_pat_str  # noqa: E402
from tokenizers import models, pre_tokenizers, trainers  # noqa: E402

ROWS = {  # a measurement's name in text_bench's output and in the table
    "encode, cold cache": "encode, first time",
    "encode, warm cache": "encode",
    "encode, line by line": "encode, line by line",
    "train, 4096 tokens": "train to 4096",
}


def ours(args):
    command = [args.bench, "--tokenizer", args.gpt2, "--input", args.text, "--repeat", "1"]
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    seconds = {}
    for name, row in ROWS.items():
        seconds[row] = float(re.search(re.escape(name) + r".*?best +([0-9.]+) ms", output).group(1)) / 1e3
    return seconds


def timed(work):
    start = time.process_time()
    work()
    return time.process_time() - start


def hugging_face(args, text):
    tokenizer = conformance.gpt2_oracle(args.gpt2)
    lines = text.splitlines(keepends=True)
    seconds = {
        "encode, first time": timed(lambda: tokenizer.encode(text)),
        "encode": timed(lambda: tokenizer.encode(text)),
        "encode, line by line": timed(lambda: tokenizer.encode_batch_fast(lines)),
    }
    fresh = conformance.byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    seconds["train to 4096"] = timed(lambda: fresh.train_from_iterator([text], trainer))
    return seconds


def tiktoken_encoding(args, text):
    ranks = conformance.mergeable_ranks(conformance.gpt2_oracle(args.gpt2))
    encoding = tiktoken.Encoding(
        "gpt2", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256}
    )
    lines = text.splitlines(keepends=True)
    return {
        "encode, first time": timed(lambda: encoding.encode_ordinary(text)),
        "encode": timed(lambda: encoding.encode_ordinary(text)),
        "encode, line by line": timed(lambda: [encoding.encode_ordinary(line) for line in lines]),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--gpt2", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    text = pathlib.Path(args.text).read_text(encoding="utf-8")
    programs = {
        "warpwright": lambda: ours(args),
        f"tiktoken {tiktoken.__version__}": lambda: tiktoken_encoding(args, text),
        f"tokenizers {tokenizers.__version__}": lambda: hugging_face(args, text),
    }
    results = {}
    for _ in range(args.rounds):
        for program, run in programs.items():
            for row, seconds in run().items():
                results.setdefault((row, program), []).append(seconds)
    megabytes = len(text.encode("utf-8")) / 1e6
    print(f"{megabytes:.3f} MB, one thread, {args.rounds} rounds: MB per second of CPU time, best (median)")
    print("| work | " + " | ".join(programs) + " |\n|---" + "|---" * len(programs) + "|")
    for row in ROWS.values():
        cells = []
        for program in programs:
            seconds = results.get((row, program))
            cells.append(
                f"{megabytes / min(seconds):.1f} ({megabytes / statistics.median(seconds):.1f})" if seconds else "–"
            )
        print(f"| {row} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
