#!/usr/bin/env python3
"""Times a training step of a GPT-2 or a Llama on one GPU next to PyTorch and, with --peer, llm.c, in one run.

    python3 bench/peers/gpu_step.py --warpwright build/release/warpwright [--model gpt2:124M] [--batch 64] [--seq 1024]
        [--dtype bf16] [--peer llm.c=PATH/train_gpt2cu] [--rounds 5] [--steps 10] [--json]

A step is forward, backward, clipping by the global norm and AdamW on random tokens. The programs take turns, round by round.
A program's figure is the median over all steps of all rounds, printed with the range of the rounds' medians. PyTorch runs the
model written in plain operations under torch.compile, with bf16 as autocast over fp32 weights, attention by
scaled_dot_product_attention (cuDNN in bf16) and fused AdamW. For more than 12 layers, one block is compiled for all.
llm.c runs `train_gpt2cu -e d12 …` with the flags of --peer-flags.
"""

import argparse
import array
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile

SIZES = {"gpt2:124M": (12, 12, 768), "gpt2:355M": (24, 16, 1024), "gpt2:774M": (36, 20, 1280), "gpt2:1558M": (48, 25, 1600)}
V, VP, CONTEXT = 50257, 50304, 1024
# Layers, heads, key heads, channels, hidden size, vocabulary, whether q, k and v have biases. The embeddings are tied.
LLAMAS = {"smollm2:135M": (30, 9, 3, 576, 1536, 49152, False), "qwen2.5:0.5B": (24, 14, 2, 896, 4864, 151936, True),
          "llama3.2:1B": (16, 32, 8, 2048, 8192, 128256, False)}


def ours(args):
    command = [args.warpwright, "bench", "step", "--device", "cuda", "--model", args.model, "--dtype", args.dtype]
    command += ["--batch", str(args.batch), "--seq", str(args.seq), "--steps", str(args.steps), "--json"]
    command += args.ours_flags.split()
    result = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return json.loads(result.stdout)


def build_torch_model(layers, heads, channels):
    import torch
    from torch import nn
    import torch.nn.functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList([nn.LayerNorm(channels), nn.LayerNorm(channels)])
            self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
            self.wide, self.narrow = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)

        def forward(self, x):
            batch, tokens, _ = x.shape
            parts = self.qkv(self.norms[0](x)).view(batch, tokens, 3, heads, channels // heads).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, channels))
            return x + self.narrow(F.gelu(self.wide(self.norms[1](x)), approximate="tanh"))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(VP, channels), nn.Embedding(CONTEXT, channels)
            self.blocks = nn.ModuleList([Block() for _ in range(layers)])
            self.norm = nn.LayerNorm(channels)
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)

        def forward(self, ids, targets):
            x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
            for block in self.blocks:
                x = block(x)
            return self.loss(x, targets)

        def loss(self, x, targets):
            logits = F.linear(self.norm(x), self.tokens.weight)
            return F.cross_entropy(logits.view(-1, VP), targets.view(-1))

    return Model()


def build_torch_llama(layers, heads, key_heads, channels, hidden, vocabulary, qkv_biases, tokens):
    import torch
    from torch import nn
    import torch.nn.functional as F

    size = channels // heads
    angles = torch.outer(torch.arange(tokens), 10000.0 ** (-torch.arange(0, size, 2) / size))

    def rotate(x, cosine, sine):
        first, second = x.chunk(2, -1)
        return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList([nn.RMSNorm(channels, eps=1e-6), nn.RMSNorm(channels, eps=1e-6)])
            self.qkv = nn.Linear(channels, (heads + 2 * key_heads) * size, bias=qkv_biases)
            self.out = nn.Linear(channels, channels, bias=False)
            self.gate_up, self.down = nn.Linear(channels, 2 * hidden, bias=False), nn.Linear(hidden, channels, bias=False)

        def forward(self, x, cosine, sine):
            batch, tokens, _ = x.shape
            qkv = self.qkv(self.norms[0](x)).view(batch, tokens, heads + 2 * key_heads, size).transpose(1, 2)
            q, k, v = qkv.split((heads, key_heads, key_heads), 1)
            q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, channels))
            gate, up = self.gate_up(self.norms[1](x)).chunk(2, -1)
            return x + self.down(F.silu(gate) * up)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, channels)
            self.blocks = nn.ModuleList([Block() for _ in range(layers)])
            self.norm = nn.RMSNorm(channels, eps=1e-6)
            self.register_buffer("cosine", angles.cos().bfloat16())
            self.register_buffer("sine", angles.sin().bfloat16())
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)

        def forward(self, ids, targets):
            x = self.tokens(ids)
            for block in self.blocks:
                x = block(x, self.cosine, self.sine)
            return self.loss(x, targets)

        def loss(self, x, targets):
            logits = F.linear(self.norm(x), self.tokens.weight)
            return F.cross_entropy(logits.view(-1, vocabulary), targets.view(-1))

    return Model()


class Torch:
    def __init__(self, args):
        import torch

        torch.manual_seed(1)
        torch.set_float32_matmul_precision("high" if args.dtype == "tf32" else "highest")
        self.torch, self.args = torch, args
        llama = args.model in LLAMAS
        self.model = (build_torch_llama(*LLAMAS[args.model], args.seq) if llama else build_torch_model(*SIZES[args.model])).cuda()
        self.compiled = self.compile()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
        self.ids = torch.randint(0, self.model.tokens.num_embeddings - (0 if llama else VP - V), (args.batch, args.seq), device="cuda")
        for _ in range(3):
            self.step()
        torch.cuda.synchronize()

    def compile(self):
        if len(self.model.blocks) <= 12:
            return self.torch.compile(self.model)
        for block in self.model.blocks:
            block.compile()
        self.model.loss = self.torch.compile(self.model.loss)
        return self.model

    def step(self):
        torch = self.torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        half = self.args.dtype == "bf16"
        backends = [SDPBackend.CUDNN_ATTENTION] if half else [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
        with sdpa_kernel(backends), torch.autocast("cuda", torch.bfloat16, enabled=half):
            loss = self.compiled(self.ids, self.ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def run(self, steps):
        torch = self.torch
        events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
        self.step()
        for event in events[:-1]:
            event.record()
            self.step()
        events[-1].record()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) for a, b in zip(events, events[1:])]

    def peak_gib(self):
        return self.torch.cuda.max_memory_allocated() / 2**30


def write_llmc_tokens(folder, count):
    generator = random.Random(1)
    paths = []
    for split in ("train", "val"):
        path = folder / f"random_{split}_000000.bin"
        tokens = array.array("H", (generator.randrange(V) for _ in range(count)))
        with open(path, "wb") as out:
            array.array("i", [20240520, 1, len(tokens)] + [0] * 253).tofile(out)
            tokens.tofile(out)
        paths.append(path)
    return paths


def write_llmc_weights(folder):
    """Writes a GPT-2 124M with random weights where llm.c's fp32 trainer looks for it."""
    sizes = [VP * 768, CONTEXT * 768]
    sizes += [12 * n for n in (768, 768, 3 * 768 * 768, 3 * 768, 768 * 768, 768, 768, 768)]
    sizes += [12 * n for n in (4 * 768 * 768, 4 * 768, 4 * 768 * 768, 768)] + [768, 768]
    generator = random.Random(1)
    noise = array.array("f", (generator.gauss(0, 0.02) for _ in range(1 << 20)))
    with open(folder / "gpt2_124M.bin", "wb") as out:
        array.array("i", [20240326, 3, CONTEXT, V, 12, 12, 768, VP] + [0] * 248).tofile(out)
        for size in sizes:
            for start in range(0, size, len(noise)):
                noise[: size - start].tofile(out)


def llmc_fp32(program, tokens, args):
    """Runs llm.c's fp32 trainer, which enables TF32. It passes over the tokens once."""
    command = [os.path.abspath(program), "-i", tokens[0], "-j", tokens[1], "-b", args.batch, "-t", args.seq]
    command += ["-v", 1000000, "-m", 1, "-s", 1000000]
    result = subprocess.run([str(word) for word in command], cwd=tokens[0].parent, stdout=subprocess.PIPE, text=True)
    times = [float(found[1]) for found in re.finditer(r"\(([\d.]+) ms", result.stdout)]
    if len(times) < 4:
        print(f"llm.c gave no times (exit code {result.returncode}): {result.stdout[-300:]}", file=sys.stderr)
        return []
    return times[3:]


def llmc(program, tokens, args):
    if args.dtype != "bf16":
        return llmc_fp32(program, tokens, args)
    layers = SIZES[args.model][0]
    command = [program, "-i", tokens[0], "-j", tokens[1], "-e", f"d{layers}", "-b", args.batch, "-t", args.seq]
    command += ["-d", args.batch * args.seq, "-x", args.steps + 3, "-v", 1000000, "-m", 1, "-s", 0, "-h", 0]
    command += args.peer_flags.split()
    result = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True)
    times = [float(found[1]) for found in re.finditer(r"\|\s+([\d.]+) ms", result.stdout)]
    if result.returncode or len(times) < 4:
        print(f"llm.c gave no times (exit code {result.returncode}): {result.stdout[-300:]}", file=sys.stderr)
        return []
    return times[3:]


def summary(runs):
    steps = [ms for run in runs for ms in run]
    medians = [statistics.median(run) for run in runs]
    return {"ms_median": statistics.median(steps), "ms_of_rounds": [min(medians), max(medians)]}


def report(args, rows, records):
    tokens = args.batch * args.seq
    names = {name: dict(summary(runs), tokens_per_second=tokens / statistics.median(sum(runs, [])) * 1e3) for name, runs in rows.items()}
    result = {"model": args.model, "dtype": args.dtype, "batch": args.batch, "seq": args.seq, "programs": names, **records}
    if args.json:
        print(json.dumps(result, indent=1))
        return
    print(f"{args.model} {args.dtype} B={args.batch} T={args.seq} on {records['machine']}")
    for name, row in names.items():
        low, high = row["ms_of_rounds"]
        print(f"{name:<14}{row['ms_median']:>9.2f} ms ({low:.2f} to {high:.2f}){row['tokens_per_second']:>12.0f} tokens/s"
              f"{row['ms_median'] / names['warpwright']['ms_median']:>7.3f} × ours")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warpwright", required=True, type=os.path.abspath, help="the program")
    parser.add_argument("--model", default="gpt2:124M", choices=[*SIZES, *LLAMAS])
    parser.add_argument("--dtype", default="bf16", choices=("fp32", "tf32", "bf16"))
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PATH", help="llm.c=PATH of train_gpt2cu, or of train_gpt2fp32cu for fp32 and tf32")
    parser.add_argument("--peer-flags", default="-r 0 -ge 2", help="more flags for llm.c")
    parser.add_argument("--ours-flags", default="", help="more flags for our `bench step`")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10, help="steps of each program in a round")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    peers = dict(peer.split("=", 1) for peer in args.peer)
    rows, records = {}, {"not_run": [name for name in ("llm.c",) if name not in peers]}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        tokens = write_llmc_tokens(folder, (args.steps + 4) * args.batch * args.seq + 1) if "llm.c" in peers else None
        if tokens and args.dtype != "bf16":
            write_llmc_weights(folder)
        torch = None if args.no_torch else Torch(args)
        for _ in range(args.rounds):
            mine = ours(args)
            records.update(machine=mine["machine"], planned_gib=mine.get("planned_bytes", 0) / 2**30)
            rows.setdefault("warpwright", []).append(mine["ms"])
            if torch:
                rows.setdefault("PyTorch", []).append(torch.run(args.steps))
                records["torch_peak_gib"] = torch.peak_gib()
            if tokens and (times := llmc(peers["llm.c"], tokens, args)):
                rows.setdefault("llm.c", []).append(times)
    report(args, rows, records)


if __name__ == "__main__":
    main()
