#!/usr/bin/env python3
"""Times greedy generation next to Hugging Face transformers, in one run.

    python3 bench/peers/generate.py --warpwright build/release/warpwright --model FOLDER [--sequences 1 64] [--tokens 256]
        [--dtype bf16] [--device cuda] [--rounds 2] [--json]

FOLDER is a GPT-2 with its tokenizer, such as RUN/model. On a GPU, transformers has a static cache, for which it compiles the
forward; on a CPU it has neither. The prompts have 1 to 12 words. Tokens per second count the tokens of all
sequences over the time from the first prompt to the last token. The programs take turns; the best round counts.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time

WORDS = "the sea was calm and the men in the boat began to".split()


def prompts(count):
    return [" ".join(WORDS[: 1 + i % len(WORDS)]) for i in range(count)]


class Ours:
    name = "warpwright"

    def __init__(self, args):
        self.args = args

    def run(self, sequences):
        a = self.args
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("\n".join(prompts(sequences)) + "\n")
            file.flush()
            command = [a.warpwright, "generate", "--model", a.model, "--input", file.name, "--max-tokens", str(a.tokens),
                       "--temperature", "0", "--dtype", a.dtype, "--device", a.device, "--batch", str(sequences)]
            result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            sys.exit(result.stderr)
        samples = [json.loads(line) for line in result.stdout.splitlines()]
        return sum(s["tokens"] for s in samples) / max(s["seconds"] for s in samples)


class Transformers:
    name = "transformers"

    def __init__(self, args):
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        self.torch, self.args = torch, args
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(args.model, padding_side="left")
        self.tokenizer.pad_token = self.tokenizer.eos_token
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[args.dtype]
        self.model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype).to(args.device).eval()
        if args.device != "cpu":
            self.model.generation_config.cache_implementation = "static"  # transformers then compiles the forward by itself

    def run(self, sequences):
        inputs = self.tokenizer(prompts(sequences), return_tensors="pt", padding=True).to(self.args.device)
        tokens = self.args.tokens

        def generate():
            start = time.perf_counter()
            with self.torch.inference_mode():
                self.model.generate(**inputs, do_sample=False, min_new_tokens=tokens, max_new_tokens=tokens,
                                    pad_token_id=self.tokenizer.pad_token_id)
            if self.args.device != "cpu":
                self.torch.cuda.synchronize()
            return time.perf_counter() - start

        generate()  # compiles
        return sequences * tokens / min(generate(), generate())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warpwright", required=True, help="the program")
    parser.add_argument("--model", required=True, help="folder of a GPT-2 with its tokenizer")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 64], help="at once (default: 1 64)")
    parser.add_argument("--tokens", type=int, default=256, help="of each sequence (default: 256)")
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "fp16", "fp32"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    programs = [Ours(args), Transformers(args)]
    rows = []
    for sequences in args.sequences:
        rates = {program.name: 0.0 for program in programs}
        for _ in range(args.rounds):
            for program in programs:
                rates[program.name] = max(rates[program.name], program.run(sequences))
        rows.append({"sequences": sequences, "tokens_per_second": rates, "ratio": rates["warpwright"] / rates["transformers"]})
    if args.json:
        print(json.dumps({"tokens": args.tokens, "dtype": args.dtype, "device": args.device, "rows": rows}, indent=1))
        return
    for row in rows:
        cells = ", ".join(f"{name} {rate:.0f}" for name, rate in row["tokens_per_second"].items())
        print(f"{row['sequences']} sequences of {args.tokens} tokens, {args.dtype}: {cells} tokens/s, ratio {row['ratio']:.2f}")


if __name__ == "__main__":
    main()
