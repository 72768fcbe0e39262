#!/usr/bin/env python3
"""Times a training step of GPT-2 124M or SmolLM2-135M next to llm.c and PyTorch, in one run.

    python3 bench/peers/step.py --warpwright build/release/warpwright [--llmc CLONE] [--torch] [--rounds 3] [--json]
    python3 bench/peers/step.py --warpwright build/release/warpwright --model smollm2:135M --torch

B=4 and T=64, which llm.c's train_gpt2.c fixes. Weights and tokens are random; the speed does not depend on them. A step is
forward, zeroing, backward and AdamW. The programs take turns, round by round, on the same threads. A program's figures are
the fastest step of all rounds, which other programs on the machine disturb least, and the median. CLONE is a checkout of
https://github.com/karpathy/llm.c. It is copied and built as its Makefile does (-Ofast, OpenMP, -march=native). PyTorch runs
Hugging Face's model with fused AdamW, bf16 as autocast over fp32 weights.
"""

import argparse
import array
import json
import os
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

B, T = 4, 64
V, VP, L, C, CONTEXT = 50257, 50304, 12, 768, 1024  # GPT-2 124M
SMOLLM2 = dict(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
               num_key_value_heads=3, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True,
               rope_theta=100000.0)
LLMC_STEPS = 10  # it then stops to validate


def ours(args, dtype):
    command = [args.warpwright, "bench", "step", "--model", args.model, "--batch", str(B), "--seq", str(T)]
    command += ["--dtype", dtype, "--steps", str(args.steps), "--threads", str(args.threads), "--json"]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    used = sorted({f"{op['op']}={op['variant']}" for op in report["ops"]})
    return [report["ms_min"], report["ms_median"]], used


def prepare_llmc(clone, folder):
    """Builds train_gpt2 with random weights (its version 3, fp32) and with tokens where it looks for them."""
    shutil.copytree(clone, folder, ignore=shutil.ignore_patterns(".git"), dirs_exist_ok=True)
    subprocess.run(["make", "-C", folder, "train_gpt2", "NO_MULTI_GPU=1"], check=True, stdout=subprocess.DEVNULL)
    generator = random.Random(1)
    noise = array.array("f", (generator.gauss(0, 0.02) for _ in range(1 << 20)))
    sizes = [VP * C, CONTEXT * C, L * C, L * C, L * 3 * C * C, L * 3 * C, L * C * C, L * C, L * C, L * C]
    sizes += [L * 4 * C * C, L * 4 * C, L * 4 * C * C, L * C, C, C]
    layernorm_weights = {2, 8, 14}
    with open(folder / "gpt2_124M.bin", "wb") as out:
        array.array("i", [20240326, 3, CONTEXT, V, L, 12, C, VP] + [0] * 248).tofile(out)
        for index, size in enumerate(sizes):
            if index in layernorm_weights:
                array.array("f", [1.0] * size).tofile(out)
                continue
            for start in range(0, size, len(noise)):
                noise[: size - start].tofile(out)
    data = folder / "dev/data/tinyshakespeare"
    data.mkdir(parents=True, exist_ok=True)
    tokens = array.array("H", (generator.randrange(V) for _ in range(1 << 16)))
    for split in ("train", "val"):
        with open(data / f"tiny_shakespeare_{split}.bin", "wb") as out:
            array.array("i", [20240520, 1, len(tokens)] + [0] * 253).tofile(out)
            tokens.tofile(out)


def llmc(folder, threads):
    """Returns the milliseconds of its first steps. Without a stop it would go on to validate and to write text."""
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    command = ["stdbuf", "-oL", "./train_gpt2"]
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    times = []
    for line in process.stdout:
        if found := re.match(r"step \d+: .*took ([\d.]+) ms", line):
            times.append(float(found[1]))
        if len(times) == LLMC_STEPS:
            break
    process.terminate()
    process.wait()
    if len(times) < LLMC_STEPS:
        sys.exit(f"{folder}: train_gpt2 stopped after {len(times)} steps")
    return [min(times), statistics.median(times)]


class Torch:
    def __init__(self, model, threads):
        import torch
        import transformers

        torch.set_num_threads(threads)
        torch.manual_seed(1)
        self.torch = torch
        gpt2 = model == "gpt2:124M"
        config = transformers.GPT2Config() if gpt2 else transformers.LlamaConfig(**SMOLLM2)
        self.model = transformers.AutoModelForCausalLM.from_config(config).train()
        self.model.config.use_cache = False
        for module in self.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.tokens = torch.randint(0, config.vocab_size, (B, T))

    def step(self, dtype):
        start = time.perf_counter()
        with self.torch.autocast("cpu", self.torch.bfloat16, enabled=dtype == "bf16"):
            loss = self.model(self.tokens, labels=self.tokens).loss
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return (time.perf_counter() - start) * 1e3

    def run(self, dtype, steps):
        self.step(dtype)
        times = [self.step(dtype) for _ in range(steps)]
        return [min(times), statistics.median(times)]


def report(model, rows, variants, as_json):
    best = {name: (min(r[0] for r in runs), statistics.median(r[1] for r in runs)) for name, runs in rows.items()}
    if as_json:
        names = {name: {"ms_min": low, "ms_median": median} for name, (low, median) in best.items()}
        print(json.dumps({"model": model, "batch": B, "seq": T, "steps": names, "variants": variants}, indent=2))
        return
    for dtype, used in variants.items():
        print(f"variants of warpwright {dtype}: {' '.join(used)}")
    print(f"{f'step of {model}, B={B} T={T}':<32}{'fastest ms':>12}{'median ms':>12}{'tokens/s':>10}")
    for name, (low, median) in best.items():
        print(f"{name:<32}{low:>12.1f}{median:>12.1f}{B * T / low * 1e3:>10.0f}")
    for dtype in variants:
        for peer in [name for name in best if not name.startswith("warpwright")]:
            if peer == "llm.c fp32" or peer.endswith(dtype):
                ratio = best[peer][0] / best[f"warpwright {dtype}"][0]
                print(f"warpwright {dtype} is {ratio:.2f} times as fast as {peer}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warpwright", required=True, type=os.path.abspath, help="the program")
    parser.add_argument("--model", default="gpt2:124M", choices=["gpt2:124M", "smollm2:135M"])
    parser.add_argument("--dtype", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    parser.add_argument("--llmc", type=pathlib.Path, help="a checkout of llm.c")
    parser.add_argument("--torch", action="store_true", help="time PyTorch (needs torch and transformers)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="steps of each program in a round")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.llmc and args.model != "gpt2:124M":
        parser.error("llm.c trains GPT-2 only: leave out --llmc or --model")

    rows, variants = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        if args.llmc:
            prepare_llmc(args.llmc, folder)
        torch = Torch(args.model, args.threads) if args.torch else None
        for _ in range(args.rounds):
            for dtype in args.dtype:
                times, variants[dtype] = ours(args, dtype)
                rows.setdefault(f"warpwright {dtype}", []).append(times)
            if args.llmc:
                rows.setdefault("llm.c fp32", []).append(llmc(folder, args.threads))
            for dtype in args.dtype if torch else ():
                rows.setdefault(f"PyTorch {dtype}", []).append(torch.run(dtype, args.steps))
    report(args.model, rows, variants, args.json)


if __name__ == "__main__":
    main()
