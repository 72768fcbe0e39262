#!/usr/bin/env python3
"""Writes src/text/nfc_pairs.inc: the pairs of code points that NFC composes.

The source is Hugging Face tokenizers 0.23.3, queried for every code point, because its NFC has tables of its own
version of Unicode. Decompositions and combining classes are in bert_unicode.inc, which comes from the same tables.

    python3 -m venv /tmp/tokenizers && /tmp/tokenizers/bin/pip install tokenizers==0.23.3
    /tmp/tokenizers/bin/python src/text/tools/make_nfc_pairs.py
"""

import sys

import inc_file
import tokenizers
from tokenizers.normalizers import NFC, NFD

PINNED = "0.23.3"
HANGUL = range(0xAC00, 0xAC00 + 11172)  # composed arithmetically


def pairs():
    compose, decompose = NFC().normalize_str, NFD().normalize_str
    for code in range(0x110000):
        if 0xD800 <= code < 0xE000 or code in HANGUL:
            continue
        parts = decompose(chr(code))
        if len(parts) < 2 or compose(chr(code)) != chr(code):
            continue  # does not decompose into several, or is excluded from composition
        first = compose(parts[:-1])
        if len(first) != 1 or compose(first + parts[-1]) != chr(code):
            sys.exit(f"U+{code:04X} is not composed of two code points")
        yield ord(first), ord(parts[-1]), code


def main():
    if tokenizers.__version__ != PINNED:
        sys.exit(f"needs tokenizers {PINNED}, this is {tokenizers.__version__}")
    lines = [f"{{0x{a:05x}, 0x{b:05x}, 0x{c:05x}}}," for a, b, c in sorted(pairs())]
    inc_file.write("nfc_pairs.inc", f"Hugging Face tokenizers {PINNED}. Sorted.", lines)


if __name__ == "__main__":
    main()
