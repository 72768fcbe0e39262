#!/usr/bin/env python3
"""Compares the tokenizers of today's decoders with Hugging Face tokenizers 0.23.3, or writes their goldens.

    python3 src/text/tools/decoder_conformance.py --pipe build/release/src/text/text_pipe [--strings 100000] [--seed 1]
    python3 src/text/tools/decoder_conformance.py --write

For each family of decoder_families.py, src/text/golden/decoders holds
FAMILY/tokenizer.json   a vocabulary of 900 tokens, trained on golden/text.txt
FAMILY/ids.json         for each text: its ids with special tokens as text, recognized, and with the template
and texts.json the texts. Without --write, the ids of random strings are compared, and what they decode to; the pieces
of each pattern, and NFC, for every code point and for random strings. published_tokenizers.py makes folders for --folders.
"""

import argparse
import json
import pathlib
import random
import struct
import sys
import tempfile
import unicodedata

import conformance  # exits with a reason if tokenizers is missing or has another version
from decoder_families import DEEPSEEK, FAMILIES, LLAMA3, O200K, QWEN
from make_encoder_goldens import MORE
from make_goldens import STRINGS
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
FOLDER = GOLDEN / "decoders"
VOCABULARY = 900
MODES = ((False, False), (True, False), (True, True))  # special tokens in the text, the template
HOSTILE = [
    "1234567", " 12 345", "a1b22c333d4444", "\u0663\u0664\u0665\u0666", "\U00011de0\U00016ff4", "x\u00b2\u00b3\u00bd9",
    "!\n\n  b", "!\r\n\r\nb", "  \n  b", " \n \n \nb", "\n\n\n\n", "a \r\n b", "\u2028\nb", "\u3000\nb", "--\n\n--", "\t\tx\n\ty", " \t!",
    "'S 'LL 'Ve 'rE 'M 'D 'T", "a'\u017f b", "'\u017fx", "''ll", "IT'LL we'Re", "\u00a0word", "\u200bword", "\u0301word", "(word)", "\nword", "\rword",
    "re\u0301sume\u0301", "r\u00e9sum\u00e9", "cafe\u0301 au lait", "caf\u00e9 au", "A\u030a \u212b \u00c5", "\u1100\u1161\u11a8 \uac01", "\uac00\u11a8", "\u1100\u1161", "q\u0323\u0307 q\u0307\u0323",
    "\u0344\u0958\ufb1d\U0001d15e", "\u0f73\u0f75", "\u0340\u0341\u2126\u212a", "a\u0315\u0300\u05ae\u0062", "\u0300a", "\u2581", "\u2581a", " \u2581a", "a\u2581b", "\u2581\u2581 \u2581",
    "<s>", "</s>", "<s> a", "a <s> b</s>c", "<0x0A>", "<0x41>b", "<unk>", "a<unk>b", "<|begin_of_text|>hi<|eot_id|>", "<|im_start|>user\nhi<|im_end|>", "<tool_call>x",
    "in the beginning", " in the", "x in the", "in  the  ", "in the in the", "<|endoftext|> a", "   <|endoftext|>   ", "   a    b     c      d",
]  # fmt: skip


def texts(seed=7, count=200):
    """The texts of the goldens: the tricky ones, then short random ones."""
    rng = random.Random(seed)
    found = list(dict.fromkeys(STRINGS + MORE + HOSTILE))
    while len(found) < count + len(STRINGS):
        text = hostile_string(rng)
        if 0 < len(text) <= 60:
            found.append(text)
    return found


ADDED = ["<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<tool_call>", "in the", "  ", "cafe\u0301 au", "caf\u00e9 au", "<0x0A>", "\u2581"]
PAIRS = ["e\u0301", "\u0065\u0323\u0307", "\u1100\u1161", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u212b", "\u0958", "\u0344", "\u0301", "\u0f71\u0f72", "\U0001d15e"]


def hostile_string(rng):
    """A random string, into which added tokens and pairs that NFC composes may be mixed."""
    text = conformance.random_string(rng)
    if rng.random() < 0.5:
        return text
    parts = [text[i : i + 6] for i in range(0, len(text), 6)] + [""]
    return "".join(part + rng.choice(ADDED + PAIRS + ["", "", " ", "a"]) for part in parts)


def ids_of(tokenizer, strings, special=False, template=False):
    tokenizer.encode_special_tokens = not special
    return [encoding.ids for encoding in tokenizer.encode_batch(strings, add_special_tokens=template)]


def write():
    FOLDER.mkdir(exist_ok=True)
    strings = texts()
    lines = ",\n".join(json.dumps(text) for text in strings)
    (FOLDER / "texts.json").write_text(f"[\n{lines}\n]\n", encoding="ascii")
    for name, make in FAMILIES.items():
        folder = FOLDER / name
        folder.mkdir(exist_ok=True)
        tokenizer = make([(GOLDEN / "text.txt").read_text(encoding="utf-8")], VOCABULARY)
        tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
        columns = [ids_of(tokenizer, strings, *flags) for flags in MODES]
        rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in zip(*columns))
        (folder / "ids.json").write_text(f"[\n{rows}\n]\n", encoding="ascii")
        print(f"{folder}: {tokenizer.get_vocab_size()} tokens, {len(strings)} texts")


def chunks(strings, size=4000):
    return (strings[begin : begin + size] for begin in range(0, len(strings), size))


def compare_ids(name, tokenizer, program, folder, strings, special):
    """Compares the ids of all strings, some thousands at a time, since the reference's encodings are large."""
    command = ["encode", folder] + (["special"] if special else [])
    wrong, total = [], 0
    for some in chunks(strings):
        ours = conformance.frames_in(conformance.answers(program, command, conformance.text_frames(some)), 4)
        for text, row, ids in zip(some, ours, ids_of(tokenizer, some, special)):
            total += len(ids)
            if row != struct.pack(f"<{len(ids)}I", *ids):
                wrong.append((text, struct.unpack(f"<{len(row) // 4}I", row), ids))
    for text, ours, theirs in wrong[:5]:
        print(f"  {text!r}\n    ours   {ours}\n    theirs {theirs}")
    print(f"{name}, special={int(special)}: {len(strings)} texts, {total} ids, {len(wrong)} differ", flush=True)
    return not wrong


def compare_decoding(name, tokenizer, program, folder, strings):
    """Compares decode() of what each string encodes to. Without ids of single bytes that are no characters."""
    wrong = []
    for some in chunks(strings):
        ids = ids_of(tokenizer, some)
        theirs = tokenizer.decode_batch(ids, skip_special_tokens=False)
        ours = conformance.decode(program, folder, ids)
        wrong += [(t, a, b) for t, a, b in zip(some, ours, theirs) if a.decode("utf-8", "replace") != b]
    for text, a, b in wrong[:5]:
        print(f"  {text!r}\n    ours   {a!r}\n    theirs {b!r}")
    print(f"{name}, decoded: {len(strings)} texts, {len(wrong)} differ", flush=True)
    return not wrong


def check(program, rng, count, folders):
    fine = True
    for folder in folders:
        name = folder.name
        strings = [hostile_string(rng) for _ in range(count)]
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        for special in (False, True):
            fine &= compare_ids(name, tokenizer, program, folder, strings, special)
        fine &= compare_decoding(name, tokenizer, program, folder, strings)
        fine &= check_saving(name, program, folder, tokenizer, strings[: count // 10 + 1])
    return fine


def ends_of(cutter, text):
    """The places, in bytes, at which the reference cuts the text."""
    return [len(text[:end].encode("utf-8")) for _, (_, end) in cutter.pre_tokenize_str(text)]


def compare_pieces(name, program, pattern, cutter, strings):
    cuts = conformance.frames_in(conformance.answers(program, ["pieces", pattern], conformance.text_frames(strings)), 4)
    wrong = 0
    for text, cut in zip(strings, cuts):
        ours, theirs = list(struct.unpack(f"<{len(cut) // 4}I", cut)), ends_of(cutter, text)
        if ours != theirs:
            wrong += 1
            print(f"  {text!r}: ours {ours}, theirs {theirs}") if wrong < 5 else None
    print(f"pieces of {name}: {len(strings)} texts, {wrong} differ", flush=True)
    return wrong == 0


def check_pieces(program, rng, count):
    """Cuts every code point between others, and random strings, by each pattern."""
    around = [("", ""), ("a", "b"), ("1", "2"), (" ", "x"), ("!", "\n"), ("'", "s"), ("\n", " ")]
    chars = [a + chr(c) + b for c in range(0x110000) if not 0xD800 <= c < 0xE000 for a, b in (rng.choice(around), ("a", "1"))]
    strings = chars + [hostile_string(rng) for _ in range(count)]
    patterns = {
        "gpt2": pre_tokenizers.ByteLevel(add_prefix_space=False),
        "cl100k": pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
        "qwen": pre_tokenizers.Split(Regex(QWEN), "removed", True),
        "digits": pre_tokenizers.Digits(individual_digits=False),
        "each_digit": pre_tokenizers.Digits(individual_digits=True),
        O200K: pre_tokenizers.Split(Regex(O200K), "isolated"),
        DEEPSEEK[-1]: pre_tokenizers.Split(Regex(DEEPSEEK[-1]), "isolated"),
    }
    fine = True
    for name, cutter in patterns.items():
        fine &= compare_pieces(name, program, name, cutter, strings)
    return fine


def check_nfc(program, rng, count):
    """Normalizes every code point alone, after and before others, and random runs of marks and parts of pairs."""
    parts = [c for c in range(0x110000) if unicodedata.combining(chr(c)) or unicodedata.decomposition(chr(c))]
    around = ["", "a", "e\u0301", "\u0301", "\u1100", "\uac00", "\u11a8"]
    strings = [b + chr(c) + a for c in range(0x110000) if not 0xD800 <= c < 0xE000 for b, a in ((rng.choice(around), rng.choice(around)),)]
    for _ in range(count):
        codes = [rng.choice(parts) if rng.random() < 0.8 else rng.randrange(0x1100, 0x1200) for _ in range(rng.randrange(1, 12))]
        text = "".join(map(chr, codes))
        strings.append(unicodedata.normalize("NFD", text) if rng.random() < 0.5 else text)
    ours = conformance.frames_in(conformance.answers(program, ["nfc"], conformance.text_frames(strings)), 1)
    theirs = normalizers.NFC()
    wrong = [text for text, nfc in zip(strings, ours) if nfc.decode("utf-8") != theirs.normalize_str(text)]
    for text in wrong[:5]:
        print(f"  {ascii(text)}")
    print(f"NFC: {len(strings)} texts, {len(wrong)} differ")
    return not wrong


def check_saving(name, program, folder, tokenizer, strings):
    """Lets the library read what Tokenizer::save() writes."""
    with tempfile.TemporaryDirectory() as saved:
        conformance.run_pipe(program, "save", folder, saved)
        again = Tokenizer.from_file(str(pathlib.Path(saved) / "tokenizer.json"))
        same = all(ids_of(again, strings, *flags) == ids_of(tokenizer, strings, *flags) for flags in MODES)
        ids = ids_of(tokenizer, strings)
        same &= [again.decode(row) for row in ids] == [tokenizer.decode(row) for row in ids]
    print(f"{name}, saved: {len(strings)} texts, {'identical' if same else 'DIFFERENT'}")
    return same


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipe")
    parser.add_argument("--strings", type=int, default=100000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--folders", nargs="+", type=pathlib.Path, default=[], help="check the tokenizer.json of these instead, and no patterns")
    parser.add_argument("--short", action="store_true", help="leave out every code point's pieces and NFC")
    parser.add_argument("--write", action="store_true", help="write the goldens, and stop")
    args = parser.parse_args()
    if args.write:
        write()
        return 0
    rng = random.Random(args.seed)
    short = args.short or bool(args.folders)
    fine = short or check_pieces(args.pipe, rng, args.strings)
    fine &= short or check_nfc(args.pipe, rng, args.strings)
    fine &= check(args.pipe, rng, args.strings, args.folders or [FOLDER / name for name in args.families])
    print("all identical" if fine else "DIFFERENCES FOUND")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
