#!/usr/bin/env python3
"""Compares the tokenizer with Hugging Face tokenizers 0.23.3 id for id, or lists the texts on which tiktoken differs.

    python3 src/text/tools/conformance.py --pipe build/release/src/text/text_pipe \\
        [--gpt2 DIR] [--text FILE] [--strings 100000] [--seed 1]

Needs `tokenizers` 0.23.3 (--tiktoken also needs `tiktoken`). Needs GPT-2's vocab.json and merges.txt in DIR, in
$WARPWRIGHT_GPT2_TOKENIZER, or in ../shared/data/gpt2 next to the checkout. If one is missing, the test is skipped.
The checks are:
classes    every code point against the regular expressions inside Hugging Face tokenizers
strings    random strings of every kind below, with GPT-2's vocabulary
options    add_prefix_space, use_regex, ignore_merges, added tokens with every flag, merges in both spellings
text       a whole file, and tokenizers trained on it at several sizes, file for file
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

PINNED = "0.23.3"
SKIPPED = 77  # the exit status that ctest takes for a skipped test


def skip(reason):
    print(f"conformance: Skipped\n{reason}")
    sys.exit(SKIPPED)


try:
    import tokenizers
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
except ImportError:
    skip(f"needs the Python package tokenizers {PINNED}")
if tokenizers.__version__ != PINNED:
    skip(f"needs the Python package tokenizers {PINNED}, this is {tokenizers.__version__}")


class Pipe:
    """A running `text_pipe encode`."""

    def __init__(self, program, directory, special=False):
        command = [program, "encode", str(directory)] + (["special"] if special else [])
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def encode(self, texts):
        """Returns the ids of each text. Works in batches, so that neither pipe fills up while the other side waits."""
        ids = []
        for text in texts:
            data = text if isinstance(text, bytes) else text.encode("utf-8")
            self.process.stdin.write(struct.pack("<I", len(data)) + data)
            self.process.stdin.flush()
            head = self.process.stdout.read(4)
            if len(head) < 4:
                sys.exit(f"text_pipe died on {text!r}")
            count = struct.unpack("<I", head)[0]
            ids.append(list(struct.unpack(f"<{count}I", self.process.stdout.read(4 * count))))
        return ids

    def close(self):
        self.process.stdin.close()
        if self.process.wait() != 0:
            sys.exit("text_pipe failed")


def run_pipe(program, *arguments):
    subprocess.run([program, *map(str, arguments)], check=True)


def answers(program, arguments, frames):
    """Sends frames to a text_pipe and returns its frames. A frame is its number of elements and its bytes."""
    data = b"".join(struct.pack("<I", count) + content for count, content in frames)
    command = [program, *map(str, arguments)]
    return subprocess.run(command, input=data, stdout=subprocess.PIPE, check=True).stdout


def frames_in(data, size):
    """The contents of the frames in the data, whose elements have this many bytes."""
    at = 0
    while at < len(data):
        end = at + 4 + size * struct.unpack_from("<I", data, at)[0]
        yield data[at + 4 : end]
        at = end


def text_frames(texts):
    return [(len(data), data) for data in (text.encode("utf-8") for text in texts)]


def decode(program, directory, rows):
    """Returns the bytes that each row of ids decodes to."""
    frames = [(len(row), struct.pack(f"<{len(row)}I", *row)) for row in rows]
    return list(frames_in(answers(program, ["decode", directory], frames), 1))


def assigned(rng):
    """A random code point, often from the crowded parts of the Basic Multilingual Plane, never a surrogate."""
    limit = rng.choice([0x80, 0x250, 0x600, 0x3000, 0xD800, 0x10000, 0x1F000, 0x20000, 0x110000])
    while True:
        code = rng.randrange(limit)
        if not 0xD800 <= code < 0xE000:
            return chr(code)


SPACES = " \t\n\r\v\f\u0085\u00a0\u1680\u2000\u2003\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
NOT_SPACES = "\u180e\u200b\u200c\u200d\u2060\ufeff\u001c\u001d\u001e\u001f"
MARKS = "\u0300\u0301\u0308\u0345\u0902\u093f\u0bcd\u20dd\u20e3\ufe0f\ufe0e\U000e0100"
EMOJI = ["👍", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "❤️", "🧑🏿‍🚀", "1️⃣", "🫱🏻‍🫲🏿", "☎", "™"]
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'RE", "'l", "'r", "'v", "’s", "''s", "'", "' s"]
WORDS = "the of and In beginning God created heaven earth naïve Übermut Привет мир 你好 世界 こんにちは مرحبا नमस्ते ไทย".split()
NUMBERS = ["0", "7", "42", "1234567890", "३४", "Ⅷ", "½", "²", "๑๒", "𝟘𝟙", "①", "〇", "1,000.5", "3.14e-10"]
PUNCTUATION = list("!\"#$%&()*+,-./:;<=>?@[\\]^_`{|}~¡§«»…—“”€£©") + ["...", "----", "====", "<|endoftext|>", "->"]
CONTROLS = [chr(c) for c in list(range(32)) + list(range(0x7F, 0xA0))]
UNASSIGNED = ["\u0378", "\u0ff0", "\U0001fffe", "\U000e0fff", "\uffff", "\ufdd0", "\U0010ffff", "\ue000", "\U000323b0"]


def random_string(rng):
    kinds = [
        lambda: assigned(rng),
        lambda: rng.choice(SPACES) * rng.choice([1, 1, 1, 2, 3, 17, 64]),
        lambda: " " * rng.randrange(1, 300),
        lambda: rng.choice(["\n", "\r\n", "\r", "\n\n", "\n \n", "\u2028"]) * rng.randrange(1, 5),
        lambda: "".join(rng.choice(SPACES) for _ in range(rng.randrange(1, 9))),
        lambda: rng.choice(NOT_SPACES),
        lambda: rng.choice(MARKS),
        lambda: rng.choice(EMOJI),
        lambda: rng.choice(CONTRACTIONS),
        lambda: rng.choice(WORDS),
        lambda: " " + rng.choice(WORDS),
        lambda: rng.choice(NUMBERS),
        lambda: rng.choice("0123456789") * rng.randrange(1, 40),
        lambda: rng.choice(PUNCTUATION),
        lambda: rng.choice(CONTROLS),
        lambda: rng.choice(UNASSIGNED),
        lambda: rng.choice("abcxyzABC") * rng.choice([1, 2, 5, 60, 200]),
        lambda: "".join(chr(rng.randrange(0x20, 0x7F)) for _ in range(rng.randrange(1, 30))),
    ]
    # Half of the strings mix few kinds, so that each kind meets the others at many boundaries.
    chosen = rng.sample(kinds, rng.choice([1, 2, 3, len(kinds)]))
    return "".join(rng.choice(chosen)() for _ in range(rng.randrange(0, 24)))


def byte_level(model, add_prefix_space=False, use_regex=True):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=use_regex)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def gpt2_oracle(directory, **options):
    files = [str(pathlib.Path(directory) / name) for name in ("vocab.json", "merges.txt")]
    tokenizer = byte_level(models.BPE.from_file(*files), **options)
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    return tokenizer


def compare(name, oracle, pipe, texts, special=False):
    oracle.encode_special_tokens = not special
    ours = pipe.encode(texts)
    theirs = [e.ids for e in oracle.encode_batch(texts, add_special_tokens=False)]
    wrong = [(t, a, b) for t, a, b in zip(texts, ours, theirs) if a != b]
    for text, a, b in wrong[:5]:
        print(f"  {text!r}\n    ours   {a}\n    theirs {b}")
    print(f"{name}: {len(texts)} texts, {sum(map(len, ours))} ids, {len(wrong)} differ")
    return not wrong


def check_classes(program):
    ours = subprocess.run([program, "classes"], stdout=subprocess.PIPE, check=True).stdout
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    words.add_tokens([AddedToken("QQ", single_word=True)])
    wrong = 0
    for code in range(0x110000):
        if 0xD800 <= code < 0xE000:
            continue
        char = chr(code)
        joins = [len(split.pre_tokenize_str(before + char)) == 1 for before in ("a", "1", "\t")]
        is_word = 1 not in words.encode(char + "QQ").ids
        theirs = joins[0] | joins[1] << 1 | joins[2] << 2 | is_word << 3
        if theirs != ours[code]:
            wrong += 1
            print(f"  U+{code:04X}: ours {ours[code]:04b}, theirs {theirs:04b}")
    print(f"classes: {0x110000 - 0x800} code points, {wrong} differ")
    return wrong == 0


def check_options(program, directory, strings, rng):
    added = [
        AddedToken("<|pad|>", special=True, normalized=False),
        AddedToken("<|left|>", special=True, lstrip=True, normalized=False),
        AddedToken("<|right|>", special=True, rstrip=True, normalized=False),
        AddedToken("<|both|>", special=False, lstrip=True, rstrip=True, normalized=True),
        AddedToken("<|both|>more", special=False, normalized=True),
        AddedToken("ing", special=False, single_word=True, normalized=False),
        AddedToken("    ", special=False, normalized=False),
        AddedToken("  ", special=False, rstrip=True, normalized=True),
        AddedToken("über", special=False, single_word=True, normalized=True),
        AddedToken("\u00a0x", special=False, normalized=True),
        AddedToken("ooo", special=False, normalized=False),
        AddedToken("<|end", special=False, normalized=False),
    ]
    contents = [t.content for t in added] + ["<|endoftext|>"]
    mixed = []
    for text in strings:
        parts = [text[i : i + 7] for i in range(0, len(text), 7)] + [""]
        mixed.append("".join(p + rng.choice(contents + ["", " ", "\n ", "a", "_"]) for p in parts))
    fine = True
    with tempfile.TemporaryDirectory() as folder:
        for prefix, regex, ignore, legacy in [(0, 1, 0, 0), (1, 1, 0, 1), (0, 0, 0, 0), (1, 0, 1, 0), (0, 1, 1, 1)]:
            oracle = gpt2_oracle(directory, add_prefix_space=bool(prefix), use_regex=bool(regex))
            oracle.add_tokens(added)
            document = json.loads(oracle.to_str())
            document["model"]["ignore_merges"] = bool(ignore)
            if legacy:
                document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]
            path = pathlib.Path(folder) / "tokenizer.json"
            path.write_text(json.dumps(document), encoding="utf-8")
            oracle = Tokenizer.from_file(str(path))
            for special in (False, True):
                pipe = Pipe(program, folder, special)
                name = f"options prefix={prefix} regex={regex} ignore_merges={ignore} special={int(special)}"
                fine &= compare(name, oracle, pipe, mixed, special)
                pipe.close()
    return fine


def training_agrees(program, documents, size):
    """Returns True if both trainers make the same tokenizer from the documents, and the number of merges."""
    oracle = byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    oracle.train_from_iterator(documents, trainer)
    with tempfile.TemporaryDirectory() as folder:
        files = [pathlib.Path(folder) / f"{i}.txt" for i in range(len(documents))]
        for file, document in zip(files, documents):
            file.write_bytes(document.encode("utf-8"))
        subprocess.run([program, "train", str(size), folder, *map(str, files)], check=True)
        saved = pathlib.Path(folder) / "tokenizer.json"
        ours = json.loads(saved.read_text(encoding="utf-8"))["model"]
        reloaded = Tokenizer.from_file(str(saved))
    theirs = json.loads(oracle.to_str())["model"]
    same = ours["vocab"] == theirs["vocab"] and ours["merges"] == theirs["merges"]
    same &= reloaded.encode(documents[0][:100000]).ids == oracle.encode(documents[0][:100000]).ids
    return same, len(theirs["merges"])


def check_training(program, path, sizes):
    text = pathlib.Path(path).read_text(encoding="utf-8")
    fine = True
    for size in sizes:
        same, merges = training_agrees(program, [text], size)
        print(f"training to {size}: {merges} merges, {'identical' if same else 'DIFFERENT'}")
        fine &= same
    return fine


def check_training_on_noise(program, rng, rounds):
    """Trains on few letters and long words, which give ties, overlapping pairs, and tokens that two pairs spell."""
    wrong = 0
    for _ in range(rounds):
        letters = "".join(rng.sample("ab-é ", rng.randrange(2, 6)))
        documents = [
            "".join(rng.choice(letters) * rng.choice([1, 1, 2, 3, 9]) for _ in range(rng.randrange(1, 400)))
            for _ in range(rng.randrange(1, 4))
        ]
        wrong += not training_agrees(program, documents, rng.randrange(257, 700))[0]
    print(f"training on noise: {rounds} rounds, {wrong} differ")
    return wrong == 0


def list_tiktoken_differences(oracle, rng, strings):
    """tiktoken merges any two tokens that join to a third, and prefers whole pieces. So this tries every token."""
    import tiktoken
    from tiktoken_ext.openai_public import r50k_pat_str

    ranks = mergeable_ranks(oracle)
    eos = oracle.token_to_id("<|endoftext|>")
    encoding = tiktoken.Encoding(
        "ours", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": eos}
    )
    oracle.encode_special_tokens = True
    tokens = list(ranks)
    joined = [b"".join(rng.choice(tokens) for _ in range(rng.randrange(1, 4))) for _ in range(200000)]
    chars = [b + chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000 for b in ("a", "1", "\t", "!")]
    groups = {
        "every code point after a letter, a digit, a tab and a mark": chars,
        "every token": [t for t in map(decode_or_none, tokens) if t],
        "tokens joined": [t for t in map(decode_or_none, joined) if t],
        "random strings": strings,
        "runs": [c * n + end for c in " \na-\u00a0" for n in (1000, 100000) for end in ("", "x")],
    }
    print(f"tiktoken {tiktoken.__version__} against Hugging Face tokenizers {tokenizers.__version__}")
    for name, texts in groups.items():
        theirs = [e.ids for e in oracle.encode_batch_fast(texts, add_special_tokens=False)]
        differing = [(t, encoding.encode_ordinary(t), h) for t, h in zip(texts, theirs) if encoding.encode_ordinary(t) != h]
        print(f"{name}: {len(differing)} of {len(texts)} differ")
        for text, a, b in differing[:5]:
            print(f"  {text!r}\n    tiktoken {a}\n    HF       {b}")


def decode_or_none(data):
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def mergeable_ranks(oracle):
    printable = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    byte_of = {chr(b): b for b in printable}
    byte_of.update({chr(0x100 + i): b for i, b in enumerate(b for b in range(256) if b not in printable)})
    vocab = oracle.get_vocab()
    del vocab["<|endoftext|>"]
    return {bytes(byte_of[c] for c in token): rank for token, rank in vocab.items()}


def find_gpt2():
    places = [os.environ.get("WARPWRIGHT_GPT2_TOKENIZER")]
    places += [checkout.parent / "shared/data/gpt2" for checkout in pathlib.Path(__file__).resolve().parents]
    for place in places:
        if place and (pathlib.Path(place) / "vocab.json").exists():
            return place
    skip("needs GPT-2's vocabulary: set WARPWRIGHT_GPT2_TOKENIZER to its folder")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipe", required=True)
    parser.add_argument("--gpt2")
    parser.add_argument("--text")
    parser.add_argument("--strings", type=int, default=100000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tiktoken", action="store_true", help="list the texts on which tiktoken differs, and stop")
    args = parser.parse_args()
    args.gpt2 = args.gpt2 or find_gpt2()
    rng = random.Random(args.seed)
    strings = [random_string(rng) for _ in range(args.strings)]
    oracle = gpt2_oracle(args.gpt2)
    if args.tiktoken:
        list_tiktoken_differences(oracle, rng, strings)
        return 0

    fine = check_classes(args.pipe)
    pipe = Pipe(args.pipe, args.gpt2)
    fine &= compare("strings", oracle, pipe, strings)
    if args.text:
        fine &= compare("text", oracle, pipe, [pathlib.Path(args.text).read_text(encoding="utf-8")])
    pipe.close()
    fine &= check_options(args.pipe, args.gpt2, strings[: args.strings // 10], rng)
    fine &= check_training_on_noise(args.pipe, rng, 300)
    if args.text:
        fine &= check_training(args.pipe, args.text, [257, 300, 1000, 4096, 32000])
    print("all identical" if fine else "DIFFERENCES FOUND")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
