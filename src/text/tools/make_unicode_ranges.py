#!/usr/bin/env python3
"""Writes src/text/unicode_ranges.inc: the classes of every code point, from one pinned Unicode version.

The source is the PyPI package `regex` 2024.11.6, which carries Unicode 16.0. The regular expressions inside Hugging
Face tokenizers 0.23.3 use the same version; conformance.py checks that they agree on every code point.

    python3 -m venv /tmp/unicode && /tmp/unicode/bin/pip install regex==2024.11.6
    /tmp/unicode/bin/python src/text/tools/make_unicode_ranges.py
"""

import importlib.metadata
import sys

import inc_file
import regex

PACKAGE = "2024.11.6"
CLASSES = {
    "kLetter": regex.compile(r"\p{L}"),
    "kNumber": regex.compile(r"\p{N}"),
    "kSpace": regex.compile(r"\p{White_Space}"),
    # \w as Unicode Technical Standard 18, annex C, defines it. Only single_word added tokens need it.
    "kWord": regex.compile(r"[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]"),
}


def classes_of(code):
    if 0xD800 <= code < 0xE000:
        return ()
    return tuple(name for name, pattern in CLASSES.items() if pattern.match(chr(code)))


def main():
    version = importlib.metadata.version("regex")
    if version != PACKAGE:
        sys.exit(f"regex {version} carries another Unicode version; install regex=={PACKAGE}")
    ranges = []
    for code in range(0x110000):
        classes = classes_of(code)
        if ranges and ranges[-1][1] == code - 1 and ranges[-1][2] == classes:
            ranges[-1][1] = code
        else:
            ranges.append([code, code, classes])
    lines = [f"{{0x{a:05x}, 0x{b:05x}, {' | '.join(c)}}}," for a, b, c in ranges if c]
    inc_file.write("unicode_ranges.inc", "Unicode 16.0. Code points that are not listed have no class.", lines)


if __name__ == "__main__":
    main()
