#!/usr/bin/env python3
"""Checks every relative link and anchor of the Markdown files. Needs no network."""
import functools
import pathlib
import re
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)\s]+)\)")


def lines_of(page):
    """The lines that are not code, with no brackets inside backquotes."""
    fenced = False
    for line in page.read_text().splitlines():
        fenced ^= line.lstrip().startswith("```")
        if not fenced and not line.startswith(("    ", "\t")):
            yield re.sub(r"`[^`]*`", lambda code: re.sub(r"[\[\]()]", "", code[0]), line)


@functools.cache
def anchors_of(page):
    """The anchors that GitHub and the documentation site give its headings."""
    anchors = []
    for line in lines_of(page):
        if heading := re.match(r"#+ +(.*)", line):
            text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1]).strip().lower()
            anchors.append(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return anchors


def broken_links(page):
    for line in lines_of(page):
        for link in LINK.findall(line):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists():
                yield f"{page}: {link}: no such file"
            elif anchor and anchor not in anchors_of(target):
                yield f"{page}: {link}: no such heading"


def pages_of(root):
    """Markdown files, but not those of hidden folders, build trees and runs."""
    for page in root.rglob("*.md"):
        folders = page.relative_to(root).parts[:-1]
        if not any(folder.startswith(".") or folder in ("build", "run", "shared") for folder in folders):
            yield page


class Links(unittest.TestCase):
    def test_links_and_anchors_exist(self):
        pages = sorted(pages_of(ROOT))
        self.assertGreater(len(pages), 10)
        broken = [text for page in pages for text in broken_links(page)]
        self.assertEqual(broken, [], "\n" + "\n".join(broken))

    def test_broken_links_are_seen(self):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "page.md"
            page.write_text("# A `b` (c)\n\n[good](#a-b-c) [gone](none.md) [wrong](page.md#a-b)\n\n    [code](none.md)\n")
            broken = list(broken_links(page))
        self.assertEqual([text.split(": ")[1] for text in broken], ["none.md", "page.md#a-b"])


if __name__ == "__main__":
    unittest.main()
