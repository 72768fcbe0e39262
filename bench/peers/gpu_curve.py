#!/usr/bin/env python3
"""Trains the same GPT-2 twice on one GPU, with warpwright and with PyTorch, to compare the losses step by step.

    python3 bench/peers/gpu_curve.py run --warpwright build/release/warpwright --data DATA --record curve.json
        [--model gpt2:124M] [--dtype bf16] [--batch 64] [--seq 1024] [--steps 300] [--lr 5e-5] [--warmup 100] [--seed 1]
        [--no-yardsticks]
    tools/plot.py curve curve.json --out docs/figures/loss-curve.svg

DATA is a folder from `warpwright data build`. Both programs start with the same random weights, which this script writes as
a Hugging Face folder. Both see the same samples in the same order, because the script computes the loader's order
(src/data/loader.cpp). PyTorch runs eagerly, in bf16 as autocast over fp32 weights, with clipping at 1 and AdamW (decay 0.1
on matrices). In bf16 two more runs show the meaning of a difference; --no-yardsticks omits them. PyTorch with cuDNN's
attention instead of FlashAttention-2 shows how far PyTorch is from itself. warpwright in tf32 shows how far both are from
more precision. At a high learning rate the smallest rounding difference grows, even between two runs of PyTorch. A low
learning rate shows differences between programs.
"""

import argparse
import copy
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import gpu_step

PURPOSE = {"order": 0x6F726472, "offset": 0x6F666673}
MASK32 = 0xFFFFFFFF


def philox(index, purpose, step, seed):
    """Philox4x32-10 (Salmon et al., SC 2011), keyed as in src/runtime/philox.hpp."""
    c = [index & MASK32, index >> 32, purpose, step]
    k = [seed & MASK32, seed >> 32]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & MASK32, (p0 >> 32) ^ c[3] ^ k[1], p0 & MASK32]
        k = [(k[0] + 0x9E3779B9) & MASK32, (k[1] + 0xBB67AE85) & MASK32]
    return c


class Order:
    """The start of each training sample in the stream of tokens."""

    def __init__(self, tokens, seq, seed):
        self.tokens, self.seq, self.seed = tokens, seq, seed
        self.per_epoch = max(1, (tokens - seq) // seq)
        self.half_bits = ((self.per_epoch - 1).bit_length() + 1) // 2

    def permuted(self, index, epoch):
        mask = (1 << self.half_bits) - 1
        while True:
            left, right = index >> self.half_bits, index & mask
            for turn in range(8):
                left, right = right, left ^ (philox(turn << 32 | right, PURPOSE["order"], epoch, self.seed)[0] & mask)
            index = left << self.half_bits | right
            if index < self.per_epoch:
                return index

    def first_token(self, sample):
        epoch, index = divmod(sample, self.per_epoch)
        spare = self.tokens - 1 - self.per_epoch * self.seq
        bits = philox(0, PURPOSE["offset"], epoch, self.seed)
        uniform = (((bits[0] << 21) ^ (bits[1] >> 11)) & ((1 << 53) - 1)) * 2.0**-53
        return int(uniform * min(spare + 1, self.seq)) + self.permuted(index, epoch) * self.seq


def read_tokens(data, split):
    import numpy

    shards = json.loads((data / "data.json").read_text())["splits"][split]["shards"]
    parts = []
    for name in shards:
        header = numpy.fromfile(data / name, dtype=numpy.int32, count=3)
        if list(header[:2]) != [20240520, 1]:
            sys.exit(f"{data / name}: not a shard of 16-bit ids")
        parts.append(numpy.fromfile(data / name, dtype=numpy.uint16, offset=1024, count=header[2]))
    return numpy.concatenate(parts).astype(numpy.int64)


def write_weights(model, layers, heads, channels, folder):
    """Writes the PyTorch model as a Hugging Face GPT-2 folder, whose Conv1D stores weights as (in, out)."""
    def name(key):
        parts = key.split(".")
        if parts[0] != "blocks":
            return {"tokens": "wte", "positions": "wpe", "norm": "ln_f"}[parts[0]] + "." + parts[1]
        block = {"norms.0": "ln_1", "norms.1": "ln_2", "qkv": "attn.c_attn", "out": "attn.c_proj", "wide": "mlp.c_fc",
                 "narrow": "mlp.c_proj"}[".".join(parts[2:-1])]
        return f"h.{parts[1]}.{block}.{parts[-1]}"

    header, blobs, offset = {}, [], 0
    for key, tensor in model.state_dict().items():
        tensor = tensor.float()
        if ".".join(key.split(".")[2:]) in ("qkv.weight", "out.weight", "wide.weight", "narrow.weight"):
            tensor = tensor.t()
        blob = tensor.contiguous().cpu().numpy().tobytes()
        header[name(key)] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder.mkdir(parents=True)
    with open(folder / "model.safetensors", "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for blob in blobs:
            out.write(blob)
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": layers, "n_head": heads, "n_embd": channels,
              "vocab_size": gpu_step.V, "n_positions": gpu_step.CONTEXT, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
    (folder / "config.json").write_text(json.dumps(config))


def learning_rate(step, args):
    """The cosine of src/train/schedule.cpp."""
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    progress = (step - args.warmup + 1) / max(args.steps - args.warmup, 1)
    return args.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))


def torch_losses(model, tokens, backends, args):
    import torch
    from torch.nn.attention import sdpa_kernel

    half = args.dtype == "bf16"
    torch.set_float32_matmul_precision("high" if args.dtype == "tf32" else "highest")
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                                  lr=args.lr, betas=(0.9, 0.95), eps=1e-8, fused=True)
    order, losses, norms, start = Order(len(tokens), args.seq, args.seed), [], [], time.time()
    for step in range(args.steps):
        starts = [order.first_token(step * args.batch + row) for row in range(args.batch)]
        rows = torch.stack([torch.from_numpy(tokens[s : s + args.seq + 1]) for s in starts]).cuda()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args)
        with sdpa_kernel(backends), torch.autocast("cuda", torch.bfloat16, enabled=half):
            loss = model(rows[:, :-1], rows[:, 1:].contiguous())
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).detach())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    losses, norms = [float(x) for x in losses], [float(x) for x in norms]
    return losses, norms, time.time() - start


def our_losses(folder, dtype, args):
    out = folder / f"run-{dtype}"
    command = [args.warpwright, "train", "--model", folder / "weights", "--data", args.data, "--out", out, "--device", "cuda"]
    command += ["--dtype", dtype, "--batch", args.batch, "--seq", args.seq, "--steps", args.steps, "--seed", args.seed]
    command += ["--lr", args.lr, "--warmup", args.warmup, "--schedule", "cosine", "--final-lr-fraction", 0.1]
    command += ["--weight-decay", 0.1, "--beta1", 0.9, "--beta2", 0.95, "--eps", 1e-8, "--clip", 1]
    command += ["--val-every", 0, "--checkpoint-every", 0]
    start = time.time()
    subprocess.run([str(word) for word in command], check=True, stdout=sys.stderr)
    seconds = time.time() - start
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines], [line["norm"] for line in lines], seconds


def run(args):
    import torch
    from torch.nn.attention import SDPBackend

    torch.manual_seed(args.seed)
    layers, heads, channels = gpu_step.SIZES[args.model]
    gpu_step.VP = gpu_step.V  # the loss is over the real vocabulary
    model = gpu_step.build_torch_model(layers, heads, channels)
    # GPT-2's initialization: smaller residual projections, zero biases.
    for key, parameter in model.named_parameters():
        if key.endswith(("out.weight", "narrow.weight")):
            torch.nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers))
        elif key.endswith("bias"):
            torch.nn.init.zeros_(parameter)
    backends = {"PyTorch": [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]}
    if args.dtype == "bf16":
        backends = {"PyTorch": [SDPBackend.FLASH_ATTENTION]}
    yardsticks = args.dtype == "bf16" and args.yardsticks
    if yardsticks:
        backends["PyTorch, cuDNN"] = [SDPBackend.CUDNN_ATTENTION]
    tokens, results = read_tokens(args.data, "train"), {}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        write_weights(model, layers, heads, channels, folder / "weights")
        results["warpwright"] = our_losses(folder, args.dtype, args)
        if yardsticks:
            results["warpwright, tf32"] = our_losses(folder, "tf32", args)
    for name, backend in backends.items():
        results[name] = torch_losses(copy.deepcopy(model).cuda(), tokens, backend, args)
    record = {key: getattr(args, key) for key in ("model", "dtype", "batch", "seq", "steps", "lr", "warmup", "seed")}
    record["machine"] = torch.cuda.get_device_name()
    for index, key in enumerate(("loss", "gradient_norm", "seconds")):
        record[key] = {name: result[index] for name, result in results.items()}
    args.record.write_text(json.dumps(record) + "\n")
    print_differences(record)


def print_differences(record):
    for other in ("PyTorch", "warpwright, tf32"):
        for name in record["loss"]:
            if name != other and other in record["loss"]:
                row = differences(record["loss"][name], record["loss"][other])
                print(f"{name} from {other}: " + ", ".join(f"{key} {value:.4g}" for key, value in row.items()))


def differences(ours, theirs):
    each = [abs(a - b) for a, b in zip(ours, theirs)]
    return {"mean": sum(each) / len(each), "largest": max(each), "at step": 1 + each.index(max(each)),
            "largest of the last 150": max(each[-150:]), "largest of the last 50": max(each[-50:])}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    training = commands.add_parser("run", help="train both")
    training.add_argument("--warpwright", required=True, type=os.path.abspath, help="the program")
    training.add_argument("--data", required=True, type=pathlib.Path, help="a folder of shards in GPT-2's vocabulary")
    training.add_argument("--record", required=True, type=pathlib.Path, help="JSON to write")
    training.add_argument("--model", default="gpt2:124M", choices=gpu_step.SIZES)
    training.add_argument("--dtype", default="bf16", choices=("fp32", "tf32", "bf16"))
    for name, value in (("batch", 64), ("seq", 1024), ("steps", 300), ("warmup", 100), ("seed", 1)):
        training.add_argument(f"--{name}", type=int, default=value, help=f"default: {value}")
    training.add_argument("--lr", type=float, default=5e-5, help="default: 5e-5")
    training.add_argument("--yardsticks", action=argparse.BooleanOptionalAction, default=True, help="for bf16, also run PyTorch with cuDNN's attention and warpwright in tf32")
    training.set_defaults(work=run)
    args = parser.parse_args()
    args.work(args)


if __name__ == "__main__":
    main()
