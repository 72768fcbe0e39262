#!/usr/bin/env python3
"""Compares how a Split cuts texts by regular expressions with Hugging Face tokenizers 0.23.3.

    python3 src/text/tools/expression_conformance.py --pipe build/release/src/text/text_pipe \\
        [--strings 10000] [--expressions 10000] [--seed 1]

The listed expressions, with all syntax that src/text/split_syntax.hpp reads, cut random strings. Random expressions cut
short texts of few characters. One that the library refuses is only counted, unless the refusal is not one line.
"""

import argparse
import random
import struct
import subprocess
import sys

import conformance  # exits with a reason if tokenizers is missing or has another version
from decoder_conformance import compare_pieces, ends_of, hostile_string
from decoder_families import DEEPSEEK, O200K
from tokenizers import Regex, pre_tokenizers

HAN_APART = O200K.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]")  # as Kimi K2's
EXPRESSIONS = [
    O200K, *DEEPSEEK, r"\p{Han}+|" + HAN_APART,
    # cl100k as tiktoken 0.7 and later have it
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    r"\p{N}{1,2}|[^\s\p{N}]+|\s+", r"(?i:'s|'t)|[a-z]+|\d|\s+(?!\S)|\s+|.", "", r"x*", r"a|", r".", r"\w+", r"\W+|\h", r"\H\D\S",
    r"^", r"$", r"^.", r".$", r"^\s*$", r"\A.", r".\z", r"\Z", r".\Z", r"\b", r"\B", r"\b\w{2}\B",
    r"(?<=\n|ab).", r"(?<!\s)\S", r"(?<=[^\n])$", r"\S+?(?=\p{Po}|$)", r"(?!ing)\w+", r"(?>a+|ab)c?", r"(a|b|)c", r"(?:ab?|c)+?d?",
    r"a??b", r"o{2}|l{,2}", r"\P{L}{2,}?", r"[ \t]*+\n?", r"(?:\p{L}\p{M}*){1,4}+", r"[^\d\s]{2,5}", r"\d{1,3}+",
    r"(?i)[^a-r]+|ing", r"(?i:[s]t)", r"(?i:[^s]+)", r"(?i:k+)", r"(?i:s)+", r"(?i:ab|c(?-i:d)?)e", r"((?i)the|and) ", r"(?i:\s\d|\D)",
    r"[\p{L}&&[^\p{Latin}]]+", r"[^a-z[0-9]&&\w]", r"[\s&&[^\n]]+", r"[a-c[x-z]\d_]+", r"[-a]+", r"[^-\]\[a]+", r"[a\-z]", r"[:;!]",
    r"\p{^Ll}+", r"[^\P{Lu}]", r"\p{Cn}|\p{Co}|\p{Cf}|\p{Cc}", r"\p{C}", r"\p{Z}+", r"\p{S}|\p{Mn}|\p{Pd}",
    r"\x{4e00}|\u4e16|\x41|\t|\n|\r|\f|\v|\a|\e", r"\.|\||\(|\)|\[|\{|\*|\?|\^|\$|\/|\'|\-|\ ", r"]|}", "\U0001f44d|é",
]  # fmt: skip
LIGATURES = ["\ufb06 st \u00df ss \u017ft \ufb05 \ufb00 ff \ufb01", "ing \u0130ng \u0131nG Kk\u212aK \u017fsS", "a\u0301bc\nab x\n", "oolllll"]
CHARACTERS = [*"abcsSkKtf1 .-'\n", "\u00e9", "\u4f60", "\u00df", "\u017f"]
ESCAPED = {"\n": r"\n", ".": r"\.", "-": r"\-"}
SETS = [r"\s", r"\d", r"\w", r"\S", r"\D", r"\W", r"\h", r"\p{L}", r"\p{Lu}", r"\P{Ll}", r"\p{^N}"]
PLACES = ["^", "$", r"\b", r"\B", r"\A", r"\z", r"\Z"]
GROUPS = ["(", "(?:", "(?>", "(?=", "(?!", "(?i:", "(?<=", "(?<!", "(?:(?i)"]
REPEATS = ["*", "+", "?", "*?", "+?", "??", "*+", "++", "?+", "{2}", "{1,2}", "{,2}", "{2,}", "{1,3}?", "{1,2}+"]


def random_character(rng):
    character = rng.choice(CHARACTERS)
    return ESCAPED.get(character, character)


def random_class(rng, depth):
    members = ""
    for _ in range(rng.randrange(1, 4)):
        kind = rng.random()
        if kind < 0.5:
            members += random_character(rng)
        elif kind < 0.65:
            members += rng.choice(["a-c", "s-t", "0-9", "A-Z", "a-z", "\u0430-\u044f"])
        elif kind < 0.7:
            members += rng.choice(["-", "&", "!-"])
        elif kind < 0.9 or depth == 2:
            members += rng.choice(SETS)
        else:
            members += random_class(rng, depth + 1)
    if rng.random() < 0.12:
        members += "&&" + rng.choice(["a-z", r"\w", "[^a]", r"\S"])
    return f"[{rng.choice(['', '', '^'])}{members}]"


def random_atom(rng, depth):
    kind = rng.random()
    if kind < 0.4 or depth == 3:
        return random_character(rng)
    if kind < 0.5:
        return rng.choice([*SETS, ".", "."])
    if kind < 0.65:
        return random_class(rng, 0)
    if kind < 0.75:
        return rng.choice(PLACES)
    return rng.choice(GROUPS) + random_expression(rng, depth + 1) + ")"


def random_sequence(rng, depth):
    sequence = ""
    for _ in range(rng.randrange(0 if rng.random() < 0.1 else 1, 4)):
        sequence += random_atom(rng, depth)
        if rng.random() < 0.4:
            sequence += rng.choice(REPEATS)
    return sequence


def random_expression(rng, depth=0):
    return "|".join(random_sequence(rng, depth) for _ in range(rng.choice([1, 1, 2, 3])))


def short_texts(rng, count):
    parts = [*CHARACTERS, "ab", "st", "\ufb06", "SS", "  ", "\n\n", "Aa", "\u0663", "\u212a"]
    return ["".join(rng.choice(parts) for _ in range(rng.randrange(1, 30))) for _ in range(count)]


def check_listed(program, rng, count):
    fine = True
    for expression in EXPRESSIONS:
        strings = LIGATURES + [hostile_string(rng) for _ in range(count)]
        cutter = pre_tokenizers.Split(Regex(expression), "isolated")
        fine &= compare_pieces(expression, program, expression, cutter, strings)
    return fine


def cutter_of(expression):
    """The reference's Split, or None if it refuses the expression."""
    try:
        return pre_tokenizers.Split(Regex(expression), "isolated")
    except Exception:
        return None


def check_random(program, rng, count):
    compared = refused = wrong = 0
    for _ in range(count):
        expression, texts = random_expression(rng), short_texts(rng, 20)
        cutter = cutter_of(expression)
        if cutter is None:
            continue
        frames = b"".join(struct.pack("<I", size) + data for size, data in conformance.text_frames(texts))
        ours = subprocess.run([program, "pieces", expression], input=frames, capture_output=True)
        if ours.returncode == 1 and ours.stderr.count(b"\n") == 1:
            refused += 1
            continue
        theirs = [struct.pack(f"<{len(ends)}I", *ends) for ends in (ends_of(cutter, text) for text in texts)]
        compared += 1
        if ours.returncode != 0 or list(conformance.frames_in(ours.stdout, 4)) != theirs:
            wrong += 1
            print(f"  {expression!r} differs")
    print(f"random expressions: {compared} compared on 20 texts each, {refused} refused here, {wrong} differ")
    return wrong == 0 and compared * 4 >= count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipe", required=True)
    parser.add_argument("--strings", type=int, default=10000)
    parser.add_argument("--expressions", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    fine = check_listed(args.pipe, rng, args.strings)
    fine &= check_random(args.pipe, rng, args.expressions)
    print("all identical" if fine else "DIFFERENCES FOUND")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
