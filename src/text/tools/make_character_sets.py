#!/usr/bin/env python3
"""Writes src/text/character_sets.inc: the sets of characters that an expression of a Split can name.

The members are those of the regular expressions inside Hugging Face tokenizers 0.23.3, which are asked about every code
point: general categories, some scripts, and Word and Space, which are \\w and \\s.

    python3 src/text/tools/make_character_sets.py
"""

import sys
import textwrap

import conformance  # exits with a reason if tokenizers is missing or has another version
import inc_file
from tokenizers import Regex, pre_tokenizers

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn".split()
SCRIPTS = "Arabic Armenian Bengali Cyrillic Devanagari Georgian Greek Han Hangul Hebrew Hiragana Katakana Latin Tamil Thai".split()
CHARACTERS = "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)


def ranges_of(expression):
    """The ranges of code points that the expression, which matches one character, matches."""
    runs = pre_tokenizers.Split(Regex(f"(?:{expression})+"), "removed", invert=True).pre_tokenize_str(CHARACTERS)
    ranges = []
    for _, (begin, end) in runs:
        first, last = ord(CHARACTERS[begin]), ord(CHARACTERS[end - 1])
        if first < 0xD800 and last > 0xDFFF:  # the run only seems to go on over the surrogates
            ranges += [(first, 0xD7FF), (0xE000, last)]
        else:
            ranges.append((first, last))
    return ranges


def main():
    if ranges_of(r"\d") != ranges_of(r"\p{Nd}"):
        sys.exit(r"\d is not \p{Nd}: split_syntax.cpp takes them for the same")
    sets = {name: rf"\p{{{name}}}" for name in CATEGORIES + SCRIPTS} | {"Word": r"\w", "Space": r"\s"}
    lines = []
    for name, expression in sets.items():
        ranges = ", ".join(f"{{0x{a:x}, 0x{b:x}}}" for a, b in ranges_of(expression))
        lines += textwrap.wrap(f"constexpr Range k{name}[] = {{{ranges}}};", 110)
    members = ", ".join(f'{{"{name}", k{name}}}' for name in sets)
    lines += textwrap.wrap(f"constexpr NamedSet kSets[] = {{{members}}};", 110)
    inc_file.write("character_sets.inc", f"Hugging Face tokenizers {conformance.PINNED}.", lines)


if __name__ == "__main__":
    main()
