#!/usr/bin/env python3
"""Writes src/text/golden/{uncased,cased}/: small WordPiece tokenizers, and the ids that Hugging Face tokenizers 0.23.3
gives tricky strings with them.

    python3 src/text/tools/make_encoder_goldens.py [--minilm DIR]

tokenizer.json  trained on golden/text.txt and the strings: a vocabulary of 600, BERT's normalizer, template and flags
vocab.txt       its vocabulary, one token per line
strings.json    the ids of each string, and of each string paired with the next one, whole and cut to 12 tokens

With --minilm also golden/minilm.json: the same with all-MiniLM-L6-v2's vocabulary (scripts/fetch-minilm).
"""

import argparse
import json
import pathlib

import conformance  # exits with a reason if tokenizers is missing or has another version
from make_goldens import STRINGS
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MORE = [
    "Café CAFÉ cafe\u0301", "ÀÉÎÕÜ àéîõü ÿŸ", "İstanbul ISTANBUL ıI", "Straße STRASSE ẞ", "ΑΣ ΟΔΟΣ ὈΔΥΣΣΕΎΣ", "Ёлка ЙОД", "한국어 각",
    "漢字かな交じり文。ABC漢字", "\u302e\u302fa\u302f\u302e\u0301", "\U0001d15e\U0001d165\U0001d16d", "a\u00adb\u200dc\u0000d\ufffde", "a\u0300\u0345\u0301",
    "[CLS] hello [SEP] [MASK]", "[cls] [UNK]", "x" * 100, "x" * 101, "é" * 100, "é" * 101, "don't stop-believing (ever)!", "##ing in##g ##", "①Ⅷ½ ⅷ",
    "\uf900\ufa0e豈", "\U0002a6df\U0002b81f\U0002b820\U0002b920", "the waters were gathered together unto one place", "\u2028\u2029\u0085a\u000bb",
]


def build(lowercase):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    text = (GOLDEN / "text.txt").read_text(encoding="utf-8")
    trainer = trainers.WordPieceTrainer(vocab_size=600, special_tokens=SPECIAL, limit_alphabet=300, show_progress=False)
    tokenizer.train_from_iterator([text] + STRINGS + MORE, trainer)
    ids = {name: tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]")}
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=list(ids.items())
    )
    return tokenizer


def write_cases(tokenizer, path):
    texts = STRINGS + MORE
    cases = []
    for text, second in zip(texts, texts[1:] + texts[:1]):
        tokenizer.no_truncation()
        case = {"text": text, "ids": tokenizer.encode(text).ids, "pair_ids": tokenizer.encode(text, second).ids}
        tokenizer.enable_truncation(12)
        case["cut_ids"] = tokenizer.encode(text, second).ids
        cases.append(case)
    lines = ",\n".join(json.dumps(case) for case in cases)
    path.write_text(f"[\n{lines}\n]\n", encoding="ascii")
    print(f"{path}: {len(cases)} strings")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minilm")
    args = parser.parse_args()
    for name, lowercase in (("uncased", True), ("cased", False)):
        folder = GOLDEN / name
        folder.mkdir(exist_ok=True)
        tokenizer = build(lowercase)
        tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
        vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.token_to_id)
        (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in vocabulary), encoding="utf-8")
        (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lowercase}) + "\n")
        write_cases(Tokenizer.from_file(str(folder / "tokenizer.json")), folder / "strings.json")
    if args.minilm:
        tokenizer = Tokenizer.from_file(str(pathlib.Path(args.minilm) / "tokenizer.json"))
        tokenizer.no_padding()
        write_cases(tokenizer, GOLDEN / "minilm.json")


if __name__ == "__main__":
    main()
