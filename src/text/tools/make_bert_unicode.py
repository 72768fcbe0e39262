#!/usr/bin/env python3
"""Writes src/text/bert_unicode.inc: the classes that BERT's normalizer and pre-tokenizer give each code point.

The source is Hugging Face tokenizers 0.23.3, queried for every code point. Its classes, its decompositions and its
lowercase letters come from three versions of Unicode. So no single version of Unicode's tables gives its ids.

    python3 -m venv /tmp/tokenizers && /tmp/tokenizers/bin/pip install tokenizers==0.23.3
    /tmp/tokenizers/bin/python src/text/tools/make_bert_unicode.py
"""

import sys
import unicodedata

import inc_file
import tokenizers
from tokenizers.normalizers import NFD, BertNormalizer, Lowercase
from tokenizers.pre_tokenizers import BertPreTokenizer

PINNED = "0.23.3"
CODES = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
HANGUL = range(0xAC00, 0xAC00 + 11172)  # decomposed arithmetically


def normalizer(clean=False, chinese=False, accents=False):
    return BertNormalizer(clean_text=clean, handle_chinese_chars=chinese, strip_accents=accents, lowercase=False)


def classes(decompositions):
    clean, chinese, accents, cut = normalizer(clean=True), normalizer(chinese=True), normalizer(accents=True), BertPreTokenizer()
    found = {}
    for code in CODES:
        char = chr(code)
        pieces = [piece for piece, _ in cut.pre_tokenize_str(f"a{char}b")]
        names = []
        if clean.normalize_str(f"a{char}b") == "ab":
            names.append("kControl")
        if pieces == ["a", "b"]:
            names.append("kWhite")
        if pieces == ["a", char, "b"]:
            names.append("kPunctuation")
        if chinese.normalize_str(char) == f" {char} ":
            names.append("kChinese")
        if code not in decompositions and accents.normalize_str(char) == "":
            names.append("kMark")
        found[code] = " | ".join(names)
        assert (clean.normalize_str(f"a{char}b") == "a b") == ("kWhite" in names and "kControl" not in names), hex(code)
    return found


def combining_classes(nfd):
    """Infers the classes from the normalizer's order: a character goes before one of a higher class."""
    top = "\u0345"  # the only character of the highest class, 240

    def before_top(char):
        return nfd.normalize_str(f"a{top}{char}") != f"a{top}{char}"

    atoms = [chr(code) for code in CODES if nfd.normalize_str(chr(code)) == chr(code)]
    probes = {unicodedata.combining(char): char for char in reversed(atoms) if before_top(char)}
    probes[unicodedata.combining(top)] = top
    found = {}
    for char in atoms:
        if not before_top(char) and char != top:
            continue
        same = [
            value
            for value, probe in probes.items()
            if nfd.normalize_str(f"a{probe}{char}") == f"a{probe}{char}" and nfd.normalize_str(f"a{char}{probe}") == f"a{char}{probe}"
        ]
        assert len(same) == 1, (char, same)
        found[ord(char)] = same[0]
    return found


def ranges(values):
    rows = []
    for code, value in values:
        if rows and rows[-1][1] == code - 1 and rows[-1][2] == value:
            rows[-1][1] = code
        else:
            rows.append([code, code, value])
    return rows


def lowercase_rows(lower):
    """Rows of equal distance: a row is every code point, or every second one, of a range."""
    rows = []
    for code in sorted(lower):
        delta = lower[code] - code
        if rows:
            first, last, step, known = rows[-1]
            gap = code - last
            if known == delta and gap in (1, 2) and (first == last or gap == step):
                rows[-1] = [first, code, gap, known]
                continue
        rows.append([code, code, 1, delta])
    return rows


def packed(rows, width=110):
    lines = [""]
    for row in rows:
        if len(lines[-1]) + len(row) + 1 > width:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + row
    return "\n".join(lines)


def main():
    if tokenizers.__version__ != PINNED:
        sys.exit(f"needs tokenizers {PINNED}, this is {tokenizers.__version__}")
    nfd, lowercase = NFD(), Lowercase()
    decompositions = {c: nfd.normalize_str(chr(c)) for c in CODES if c not in HANGUL and nfd.normalize_str(chr(c)) != chr(c)}
    assert all(nfd.normalize_str(chr(c)) == unicodedata.normalize("NFD", chr(c)) for c in HANGUL)
    lower = {c: lowercase.normalize_str(chr(c)) for c in CODES if lowercase.normalize_str(chr(c)) != chr(c)}
    assert [hex(c) for c in lower if len(lower[c]) > 1] == ["0x130"] and lower.pop(0x130) == "i\u0307"
    tables = {
        "ClassRange kClasses": [
            f"{{0x{a:x}, 0x{b:x}, {names}}}," for a, b, names in ranges(sorted(classes(decompositions).items())) if names
        ],
        "CombiningRange kCombiningClasses": [
            f"{{0x{a:x}, 0x{b:x}, {value}}}," for a, b, value in ranges(sorted(combining_classes(nfd).items()))
        ],
        "Decomposition kDecompositions": [
            f"{{0x{code:x}, {{{', '.join(hex(ord(c)) for c in text)}}}}}," for code, text in sorted(decompositions.items())
        ],
        "LowercaseRange kLowercase": [
            f"{{0x{a:x}, 0x{b:x}, {step}, {delta}}},"
            for a, b, step, delta in lowercase_rows({c: ord(text) for c, text in lower.items()})
        ],
    }
    lines = [f"constexpr {name}[] = {{\n{packed(rows)}\n}};" for name, rows in tables.items()]
    inc_file.write("bert_unicode.inc", f"Hugging Face tokenizers {PINNED}.", lines)
    print(", ".join(f"{name.split()[1]}: {len(rows)}" for name, rows in tables.items()))


if __name__ == "__main__":
    main()
