#!/usr/bin/env python3
"""Writes src/text/golden/: the pieces and ids that Hugging Face tokenizers 0.23.3 gives tricky strings.

    python3 src/text/tools/make_goldens.py --gpt2 DIR    (DIR holds GPT-2's vocab.json and merges.txt)

text.txt         an input, written by hand
tokenizer.json   a BPE tokenizer of 700 tokens, trained on text.txt as one document, as the library saves it
strings.json     for each string: its pieces (bytes), its ids with that tokenizer, its ids with GPT-2's vocabulary
"""

import argparse
import json
import pathlib

import conformance  # exits with a reason if tokenizers is missing or has another version
from tokenizers import models, pre_tokenizers, trainers

STRINGS = [
    "", " ", "  ", "   ", "a", " a", "  a", "   a", "a ", "a  ", "a  b", "a\nb", "a\n\nb", "a \n b", "a\r\n\r\nb", "\n", "\n\n\n",
    "\t\tx", " \tx", "\t x", "x\t", "x\u00a0y", "x\u00a0\u00a0y", " \u00a0 y", "\u3000y", "a\u2028b", "a\u0085b", "\u180e\u200b\ufeff",
    "\x1c\x1d\x1e\x1f", "\x00\x01\x7f", "it's we're I'd you'll they've I'm don't", "IT'S We'Re i'D", "''s '' s' 's", " 's", "'", "'l", "'re're",
    "’s", "a'sb", "1's", "\u0149s", "12345 67890", "１２３ Ⅷ ½ ² ①", "3.14e-10, 1,000", "a1b2", "a_b-c", "foo(bar)[0]{};", "!!! ???", " !!! ???",
    "é", "e\u0301", "\u0301\u0301", "n\u0303o\u0308", "नमस्ते", "ไทยแลนด์", "مرحبا بك", "Привет, мир", "你好，世界。", "こんにちは", "𝒳𝟘𐍈", "\U00010d4a\u1c89",
    "👍🏽", "👨‍👩‍👧‍👦 family", "🏳️‍🌈🇩🇪", "1️⃣", "☎️ 5", "\u0378\U000e0fff\U0010ffff\ufdd0", "<|endoftext|>", "a<|endoftext|>b", "<|endoftext", "----", "-------",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", " " * 70, " " * 70 + "x", "In the beginning God created the heaven and the earth.",
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpt2", required=True)
    args = parser.parse_args()
    folder = pathlib.Path(__file__).resolve().parent.parent / "golden"
    small = conformance.byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<|endoftext|>", "<|pad|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    small.train_from_iterator([(folder / "text.txt").read_text(encoding="utf-8")], trainer)
    small.save(str(folder / "tokenizer.json"), pretty=False)
    small.encode_special_tokens = True
    gpt2 = conformance.gpt2_oracle(args.gpt2)
    gpt2.encode_special_tokens = True
    cutter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    cases = [
        {
            "text": text,
            "pieces": [text[a:b] for _, (a, b) in cutter.pre_tokenize_str(text)],
            "ids": small.encode(text).ids,
            "gpt2_ids": gpt2.encode(text).ids,
        }
        for text in STRINGS
    ]
    lines = ",\n".join(json.dumps(case) for case in cases)
    (folder / "strings.json").write_text(f"[\n{lines}\n]\n", encoding="ascii")
    print(f"{len(cases)} strings")


if __name__ == "__main__":
    main()
