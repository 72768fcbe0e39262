#!/usr/bin/env python3
"""Compares the Python package's Encoder with Hugging Face's module on the same padded batches.

    python3 bench/peers/python_encoder.py [--device cuda|cpu] [--dtype float16] [--model bert-base|minilm] [--rows 16x256 …]
                                          [--rounds 5] [--json]

Weights and token ids are random. Lengths are uniform on [0.2, 1.0]·S, with padding at the end. Three programs go from (B, S)
ids and a 0/1 mask to the last hidden states: the module as transformers runs it (its default attention), the same module
with its layers replaced by Encoder(...).as_layers(), and Encoder itself, whose ids come from the host. Figures are
milliseconds, the median of the rounds, in turns. A round is the time of several successive calls until the device is done,
divided by their number. Needs transformers.
"""

import argparse
import json
import statistics
import time

import torch
import transformers

import warpwright

SIZES = {
    "bert-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
}


def measure(run, device, calls):
    def wait():
        if device == "cuda":
            torch.cuda.synchronize()

    wait()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    wait()
    return (time.perf_counter() - start) / calls * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default=None, help="default: float16 on a GPU, float32 on a CPU")
    parser.add_argument("--model", choices=SIZES, default="bert-base")
    parser.add_argument("--rows", nargs="+", default=["1x64", "16x256", "64x256"], help="batches, BxS")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    dtype = getattr(torch, args.dtype or ("float16" if args.device == "cuda" else "float32"))
    config = transformers.BertConfig(vocab_size=30522, **SIZES[args.model])
    torch.manual_seed(1)
    with torch.device(args.device):
        model = transformers.BertModel(config, add_pooling_layer=False).eval().to(dtype)
        twin = transformers.BertModel(config, add_pooling_layer=False).eval().to(dtype)
    twin.load_state_dict(model.state_dict())
    encoder = warpwright.Encoder(model, batch_tokens=65536 if args.device == "cuda" else 16384)
    layers = warpwright.Encoder(model.encoder, config=config, batch_tokens=65536 if args.device == "cuda" else 16384)
    twin.encoder = layers.as_layers()
    report = {"torch": torch.__version__, "transformers": transformers.__version__, "device": args.device, "dtype": str(dtype),
              "model": args.model, "rows": []}  # fmt: skip
    for row in args.rows:
        B, S = map(int, row.split("x"))
        host_ids = torch.randint(5, 30000, (B, S))
        lengths = (torch.rand(B) * 0.8 + 0.2).mul(S).round().long()
        host_mask = (torch.arange(S) < lengths[:, None]).long()
        ids, mask = host_ids.to(args.device), host_mask.to(args.device)
        ways = {
            "transformers": lambda: model(ids, attention_mask=mask).last_hidden_state,
            "transformers with our layers": lambda: twin(ids, attention_mask=mask).last_hidden_state,
            "Encoder": lambda: encoder(host_ids, host_mask),
        }
        with torch.inference_mode():
            valid = mask == 1
            wanted = ways["transformers"]().float()[valid]
            errors = {}
            for name, run in ways.items():
                for _ in range(3):
                    got = run().float()[valid]
                errors[name] = ((got - wanted).norm() / wanted.norm()).item()
            calls = max(1, min(20, int(200 / measure(ways["transformers"], args.device, 1))))
            times = {name: [] for name in ways}
            for _ in range(args.rounds):
                for name, run in ways.items():
                    times[name].append(measure(run, args.device, calls))
        entry = {"row": row, "tokens": int(lengths.sum()), "ms": {n: statistics.median(t) for n, t in times.items()}, "error": errors}
        report["rows"].append(entry)
        if not args.json:
            base = entry["ms"]["transformers"]
            shown = ", ".join(f"{n} {t:.3f} ms ({base / t:.2f}x)" for n, t in entry["ms"].items())
            worst = max(errors.values())
            print(f"{row} ({entry['tokens']} of {B * S} tokens): {shown}; apart by {worst:.1e}", flush=True)
    if args.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
