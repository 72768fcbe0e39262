#!/usr/bin/env python3
"""Compares greedy tokens: with those of Hugging Face transformers in fp32, and of sequences alone with the same together.

    python3 bench/peers/same_tokens.py --library build/release/src/capi/libwarpwright.so --model FOLDER [--tokens 1000]
        [--device cuda] [--prompts 4] [--together 64]

FOLDER is a decoder with its tokenizer, such as RUN/model. For each prompt the first part prints how many tokens are equal and, if one
differs, the distance between transformers' two largest logits there. Above 1e-4 it is a failure.
The second part counts the sequences whose tokens change if others are generated with them, in fp32 and bf16, without and with
batch_invariant. With it, a change is a failure.
"""

import argparse
import os
import pathlib
import sys

import torch

WORDS = "the sea was calm and the men in the boat began to sing while the night came over them and".split()
CLOSE = 1e-4  # logits this close may change their order by rounding


def prompts_of(tokenizer, count):
    return [tokenizer.encode(" ".join(WORDS[i % 5 : i % 5 + 1 + i % 13])).ids for i in range(count)]


def greedy(decoder, prompts, tokens):
    results = decoder.generate(prompts, temperature=0, max_tokens=tokens, ignore_end_of_text=True)
    return [result.ids for result in results]


def compare_with_transformers(args, tokenizer, warpwright):
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).to(args.device).eval()
    prompts = prompts_of(tokenizer, args.prompts)
    with warpwright.Decoder(args.model, device=args.device, dtype=torch.float32, sequences=len(prompts)) as decoder:
        ours = greedy(decoder, prompts, args.tokens)
    fine = True
    for prompt, mine in zip(prompts, ours):
        with torch.inference_mode():
            output = model.generate(torch.tensor([prompt], device=args.device), do_sample=False, min_new_tokens=args.tokens,
                                    max_new_tokens=args.tokens, output_logits=True, return_dict_in_generate=True)  # fmt: skip
        theirs = output.sequences[0, len(prompt) :].tolist()
        if mine == theirs:
            print(f"prompt of {len(prompt)}: {len(theirs)} tokens, all equal")
            continue
        equal = next(i for i, (a, b) in enumerate(zip(mine, theirs)) if a != b)
        top = output.logits[equal][0].topk(2).values
        gap = float(top[0] - top[1])
        fine &= gap < CLOSE
        print(f"prompt of {len(prompt)}: {equal} tokens equal; then transformers' two largest logits differ by {gap:.1e}")
    return fine


def compare_together(args, tokenizer, warpwright):
    fine = True
    prompts = prompts_of(tokenizer, args.together)
    tokens = min(args.tokens, 256)
    for dtype in (torch.float32, torch.bfloat16):
        for invariant in (False, True):
            options = {"device": args.device, "dtype": dtype, "sequences": len(prompts), "batch_invariant": invariant}
            with warpwright.Decoder(args.model, **options) as decoder:
                together = greedy(decoder, prompts, tokens)
                alone = [greedy(decoder, [prompt], tokens)[0] for prompt in prompts]
            changed = sum(a != b for a, b in zip(alone, together))
            fine &= changed == 0 or not invariant
            name = "batch-invariant" if invariant else "not batch-invariant"
            print(f"{str(dtype)[6:]}, {name}: {changed} of {len(prompts)} sequences of {tokens} tokens differ from the same sequence alone")
    return fine


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--prompts", type=int, default=4, help="compared with transformers (default: 4)")
    parser.add_argument("--together", type=int, default=64, help="sequences at once (default: 64)")
    args = parser.parse_args()
    os.environ["WARPWRIGHT_LIBRARY"] = str(pathlib.Path(args.library).resolve())
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
    import warpwright
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(pathlib.Path(args.model) / "tokenizer.json"))
    fine = compare_with_transformers(args, tokenizer, warpwright)
    fine &= compare_together(args, tokenizer, warpwright)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
