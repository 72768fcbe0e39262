#!/usr/bin/env python3
"""Compares the encoders' tokenizer with Hugging Face tokenizers 0.23.3, id for id and type for type.

    python3 src/text/tools/encoder_conformance.py --pipe build/release/src/text/text_pipe \\
        [--minilm DIR] [--roberta DIR] [--strings 100000] [--seed 1]

Needs `tokenizers` 0.23.3. If it is missing, the test is skipped. The checks are:
repair      random bytes: invalid UTF-8 is replaced as Python's decoder replaces it
normalizer  every code point alone and between two letters, and the strings, with every combination of options
words       the same texts through the pre-tokenizer
golden      the strings, alone and in pairs, with the small tokenizers in src/text/golden, cased and uncased, from
            tokenizer.json and from vocab.txt, with added tokens of every kind, every truncation and several lengths
minilm      the same with all-MiniLM-L6-v2's vocabulary of 30,522 tokens, in DIR or in $WARPWRIGHT_MINILM
roberta     the same with byte-level BPE: RoBERTa's template around the small BPE tokenizer, or a folder's files
"""

import argparse
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import threading

import conformance  # exits with a reason if tokenizers is missing or has another version
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
STRATEGIES = ["longest_first", "only_first", "only_second"]
# Characters that decomposition moves and stripping keeps, then characters that only decomposition
# distinguishes.
MOVED = "\u302e\u302f\U0001d165\U0001d166\U0001d16d\U00016ff0\U00016ff1\U0001e4ec\U0001e4ed\u0897\u1acf\U0001d15e\U0001d1c0\u0f73"
LETTERS = "İıßſẞΣςᾂΐ\u212a\u212b\u2126ǅŉǰ가각힣\uf900\ufa6d\u0958\u0cca\u0344\u0390ΌάЙйЁёҐÅåÇé\u037e\u1fef\u2000\ufb1d\ufdfa\uff21"
CHINESE = "你好世界㐀䶿一鿿\U00020000\U0002a6df\U0002a700\U0002b73f\U0002b820\U0002b91f\U0002b920\U0002ceaf\U00030000豈\U0002f800かカ한"


def random_string(rng):
    text = conformance.random_string(rng)
    if rng.random() < 0.5:
        return text
    kinds = [
        lambda: rng.choice(MOVED),
        lambda: rng.choice(conformance.MARKS),
        lambda: rng.choice(LETTERS),
        lambda: rng.choice(CHINESE),
        lambda: rng.choice(["[CLS]", "[SEP]", "[UNK]", "[MASK]", "[PAD]", "[cls]", "<s>", "</s>", "<mask>", "[CL", "S]"]),
        lambda: rng.choice([" ", "  ", "\t", "\u3000", "\u00ad", "\u200d", "\0", "\ufffd", "-", "##", "'"]),
        lambda: rng.choice(["unaffable", "Embeddings", "beginning", "WATERS", "x" * rng.randrange(98, 103), "é" * 101]),
        lambda: text[: rng.randrange(8)],
    ]
    return "".join(rng.choice(kinds)() for _ in range(rng.randrange(1, 40)))


class Pipe:
    """A running text_pipe."""

    def __init__(self, program, *arguments):
        self.process = subprocess.Popen([program, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def send(self, inputs, counted):
        for texts in inputs:
            frames = [text if isinstance(text, bytes) else text.encode("utf-8") for text in texts]
            head = struct.pack("<I", len(frames)) if counted else b""
            self.process.stdin.write(head + b"".join(struct.pack("<I", len(f)) + f for f in frames))
        self.process.stdin.flush()

    def receive(self, size):
        head = self.process.stdout.read(4)
        if len(head) < 4:
            sys.exit("text_pipe died")
        return self.process.stdout.read(size * struct.unpack("<I", head)[0])

    def texts(self, inputs):
        """Yields the program's answer to each text."""
        sender = threading.Thread(target=self.send, args=([(text,) for text in inputs], False))
        sender.start()
        for _ in inputs:
            yield self.receive(1).decode("utf-8")
        sender.join()

    def encodings(self, inputs):
        """The ids and types of each tuple of one or two texts."""
        sender = threading.Thread(target=self.send, args=(inputs, True))
        sender.start()
        for _ in inputs:
            yield tuple([number for (number,) in struct.iter_unpack("<I", self.receive(4))] for _ in range(2))
        sender.join()

    def close(self):
        self.process.stdin.close()
        if self.process.wait() != 0:
            sys.exit("text_pipe failed")


class Report:
    def __init__(self):
        self.fine = True

    def compare(self, name, cases):
        """cases: (input, ours, theirs)."""
        count, wrong = 0, []
        for text, ours, theirs in cases:
            count += 1
            if ours != theirs:
                wrong.append((text, ours, theirs))
        for text, ours, theirs in wrong[:5]:
            print(f"  {text!r}\n    ours   {ours}\n    theirs {theirs}")
        print(f"{name}: {count} compared, {len(wrong)} differ", flush=True)
        self.fine &= not wrong


def check_repair(report, program, rng, count):
    pipe = Pipe(program, "repair")
    awkward = bytes([0x7F, 0x80, 0xBF, 0xC0, 0xC2, 0xE0, 0xA0, 0x9F, 0xED, 0xEF, 0xF0, 0x90, 0x8F, 0xF4, 0xF5, 0xFF, 0x41])
    texts = [bytes(rng.choice(awkward) for _ in range(rng.randrange(12))) for _ in range(count)]
    report.compare("repair", ((t, our, t.decode("utf-8", "replace")) for t, our in zip(texts, pipe.texts(texts))))
    pipe.close()


def check_normalizer(report, program, texts, every):
    for choice in range(16):
        clean, chinese, accents, lower = (bool(choice >> bit & 1) for bit in range(4))
        oracle = normalizers.BertNormalizer(
            clean_text=clean, handle_chinese_chars=chinese, strip_accents=accents, lowercase=lower
        )
        pipe = Pipe(program, "normalize", int(clean), int(chinese), int(accents), int(lower))
        name = f"normalizer clean={clean:d} chinese={chinese:d} accents={accents:d} lower={lower:d}"
        chosen = texts + every if choice in (0, 13, 15, 3, 7) else texts[:20000] + every[::7]
        report.compare(name, ((t, our, oracle.normalize_str(t)) for t, our in zip(chosen, pipe.texts(chosen))))
        pipe.close()


def check_words(report, program, texts, every):
    pipe, oracle = Pipe(program, "words"), pre_tokenizers.BertPreTokenizer()
    chosen = [text.replace("\n", "\t") for text in texts + every]
    theirs = ("".join(f"{word}\n" for word, _ in oracle.pre_tokenize_str(text)) for text in chosen)
    report.compare("words", zip(chosen, pipe.texts(chosen), theirs))
    pipe.close()


def encode_or_nothing(oracle, texts):
    try:
        encoding = oracle.encode(*texts)
    except Exception:  # the strategy cannot shorten these texts
        return [], []
    return encoding.ids, encoding.type_ids


def check_tokenizer(report, name, program, folder, oracle, texts, rng):
    """Compares single texts, then pairs with every strategy and several lengths."""
    for special in ("recognize", "as_text"):
        oracle.encode_special_tokens = special == "as_text"
        oracle.no_truncation()
        pipe = Pipe(program, "encoder", folder, special, 0, "longest_first")
        theirs = [(e.ids, e.type_ids) for e in oracle.encode_batch(texts)]
        report.compare(f"{name} {special}", zip(texts, pipe.encodings([(text,) for text in texts]), theirs))
        pairs = list(zip(texts[::4], texts[1::4]))
        theirs = [(e.ids, e.type_ids) for e in oracle.encode_batch(pairs)]
        report.compare(f"{name} pairs {special}", zip(pairs, pipe.encodings(pairs), theirs))
        pipe.close()
    oracle.encode_special_tokens = False
    some = [(t,) for t in rng.sample(texts, min(1000, len(texts) // 5))] + rng.sample(pairs, min(2000, len(pairs) // 2))
    cases = []
    for strategy in STRATEGIES:
        for length in (4, 5, 8, 17, 64):
            oracle.enable_truncation(length, strategy=strategy)
            pipe = Pipe(program, "encoder", folder, "recognize", length, strategy)
            theirs = [encode_or_nothing(oracle, texts_of_one) for texts_of_one in some]
            cases += zip([(strategy, length, *texts_of_one) for texts_of_one in some], pipe.encodings(some), theirs)
            pipe.close()
    report.compare(f"{name} truncated", cases)
    oracle.no_truncation()


def with_added_tokens(oracle):
    oracle.add_tokens(
        [
            AddedToken("<left>", lstrip=True, normalized=False),
            AddedToken("<right>", rstrip=True, normalized=False),
            AddedToken("God Said", normalized=True),
            AddedToken("ÉDEN", normalized=True, single_word=True),
            AddedToken("ing", normalized=False, single_word=True),
            AddedToken("好", normalized=True),
        ]
    )
    return oracle


def sprinkle(texts, rng):
    contents = ["<left>", "<right>", "God Said", "god said", "éden", "Eden", "ing", " ing ", "好", " ", "a"]
    return ["".join(part + rng.choice(contents) for part in (t[i : i + 7] for i in range(0, len(t), 7))) for t in texts]


def unlimited(path):
    """The tokenizer of a file without its truncation and padding."""
    document = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    document["truncation"] = document["padding"] = None
    return Tokenizer.from_str(json.dumps(document))


def bert_from_vocab(vocab, lowercase, strip_accents=None, chinese=True):
    """The tokenizer that vocab.txt describes, built as Hugging Face's BertWordPieceTokenizer."""
    oracle = Tokenizer(models.WordPiece.from_file(str(vocab), unk_token="[UNK]"))
    oracle.add_special_tokens([t for t in ("[UNK]", "[SEP]", "[CLS]", "[PAD]", "[MASK]") if oracle.token_to_id(t) is not None])
    oracle.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=strip_accents, handle_chinese_chars=chinese
    )
    oracle.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    oracle.post_processor = processors.BertProcessing(
        ("[SEP]", oracle.token_to_id("[SEP]")), ("[CLS]", oracle.token_to_id("[CLS]"))
    )
    return oracle


def check_bert(report, name, program, folder, texts, rng):
    """Checks a folder's tokenizer.json, its vocab.txt with other flags, and added tokens."""
    source = pathlib.Path(folder)
    check_tokenizer(report, name, program, folder, unlimited(source / "tokenizer.json"), texts, rng)
    with tempfile.TemporaryDirectory() as made:
        target = pathlib.Path(made)
        few = texts[: len(texts) // 10]
        with_added_tokens(unlimited(source / "tokenizer.json")).save(str(target / "tokenizer.json"))
        oracle = Tokenizer.from_file(str(target / "tokenizer.json"))
        check_tokenizer(report, f"{name} added tokens", program, made, oracle, sprinkle(few, rng), rng)
        (target / "tokenizer.json").unlink()
        (target / "vocab.txt").write_bytes((source / "vocab.txt").read_bytes())
        for lowercase, accents, chinese in [(True, None, True), (False, None, True), (True, False, False), (False, True, True)]:
            config = {"do_lower_case": lowercase, "strip_accents": accents, "tokenize_chinese_chars": chinese}
            (target / "tokenizer_config.json").write_text(json.dumps(config))
            oracle = bert_from_vocab(target / "vocab.txt", lowercase, accents, chinese)
            flags = f"{name} vocab.txt lower={lowercase} accents={accents} chinese={chinese}"
            check_tokenizer(report, flags, program, made, oracle, few, rng)


def check_roberta(report, program, folder, texts, rng):
    if folder:
        return check_tokenizer(
            report, "roberta", program, folder, unlimited(pathlib.Path(folder) / "tokenizer.json"), texts, rng
        )
    with tempfile.TemporaryDirectory() as made:
        path = pathlib.Path(made) / "tokenizer.json"
        document = json.loads((GOLDEN / "tokenizer.json").read_text(encoding="utf-8"))
        base = Tokenizer.from_str(json.dumps(document))
        base.add_special_tokens(["<s>", "</s>", "<unk>", "<pad>", AddedToken("<mask>", lstrip=True, special=True)])
        base.post_processor = processors.RobertaProcessing(
            ("</s>", base.token_to_id("</s>")), ("<s>", base.token_to_id("<s>")), add_prefix_space=False
        )
        base.save(str(path))
        oracle = Tokenizer.from_file(str(path))
        check_tokenizer(report, "roberta", program, made, oracle, texts, rng)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipe", required=True)
    parser.add_argument("--minilm", default=os.environ.get("WARPWRIGHT_MINILM"))
    parser.add_argument("--roberta")
    parser.add_argument("--strings", type=int, default=100000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    texts = [random_string(rng) for _ in range(args.strings)]
    codes = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    if args.strings < 100000:
        codes = codes[0x20:0x3000:1] + codes[0x3000::61]
    every = [f"a{char}b" for char in codes]
    report = Report()
    check_repair(report, args.pipe, rng, args.strings)
    check_normalizer(report, args.pipe, texts, every)
    check_words(report, args.pipe, texts, every)
    for name in ("uncased", "cased"):
        check_bert(report, f"golden {name}", args.pipe, GOLDEN / name, texts[: max(3000, args.strings // 10)], rng)
    if args.minilm:
        check_bert(report, "minilm", args.pipe, args.minilm, texts, rng)
    else:
        print("minilm: skipped; set WARPWRIGHT_MINILM to its folder (scripts/fetch-minilm)")
    check_roberta(report, args.pipe, args.roberta, texts[: max(3000, args.strings // 10)], rng)
    print("all identical" if report.fine else "DIFFERENCES FOUND")
    return 0 if report.fine else 1


if __name__ == "__main__":
    sys.exit(main())
