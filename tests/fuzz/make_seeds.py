#!/usr/bin/env python3
"""Writes the fuzz targets' binary seeds into seeds/, with the standard library only. The result is committed."""

import gzip
import json
import struct
from pathlib import Path

SEEDS = Path(__file__).resolve().parent / "seeds"


def put(name: str, content: bytes) -> None:
    path = SEEDS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def header(*fields: int) -> bytes:
    return struct.pack("<256i", *fields, *[0] * (256 - len(fields)))


def shards() -> None:
    put("shard/uint16.bin", header(20240520, 1, 4) + struct.pack("<4H", 0, 1, 50256, 7))
    put("shard/uint32.bin", header(20240520, 2, 3) + struct.pack("<3I", 0, 50256, 7))
    put("shard/empty.bin", header(20240520, 1, 0))
    put("shard/beyond_vocabulary.bin", header(20240520, 2, 1) + struct.pack("<I", 0xFFFFFFFF))
    put("shard/negative_count.bin", header(20240520, 1, -1))
    put("shard/truncated.bin", header(20240520, 1, 0x7FFFFFFF) + b"\1\0")


def safetensors(name: str, header: str, data: bytes) -> None:
    text = header.encode()
    put(f"safetensors/{name}", struct.pack("<Q", len(text)) + text + data)


def safetensors_files() -> None:
    two = '{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},'
    safetensors("two", two + '"b":{"dtype":"BF16","shape":[],"data_offsets":[8,10]}}  ', bytes(10))
    safetensors("overlap", two + '"b":{"dtype":"BF16","shape":[],"data_offsets":[6,8]}}', bytes(8))
    safetensors("gap", two + '"b":{"dtype":"U8","shape":[0],"data_offsets":[9,9]}}', bytes(9))
    safetensors("overflow", '{"a":{"dtype":"F64","shape":[9223372036854775807,4],"data_offsets":[0,0]}}', b"")
    safetensors("foreign", '{"a":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}}', b"\1\0\1")
    safetensors("deep", "[" * 64, b"")
    safetensors("none", "{}", b"")


def safetensors_indexes() -> None:
    good = {"a.x": "a.safetensors", "a.y": "a.safetensors", "b.x": "b.safetensors", "b.y": "b.safetensors"}

    def index(name: str, weight_map: dict, metadata: dict | None = None) -> None:
        document = {"metadata": metadata} if metadata is not None else {}
        put(f"safetensors_index/{name}", json.dumps({**document, "weight_map": weight_map}).encode())

    index("good", good, {"total_size": 8})
    index("no_metadata", {k: v for k, v in good.items() if k[0] == "a"})
    index("wrong_size", good, {"total_size": 1e300})
    index("other_file", {**good, "a.y": "b.safetensors"})
    index("missing_tensor", {**good, "c": "b.safetensors"})
    index("missing_file", {**good, "c": "c.safetensors"})
    index("traversal", {**good, "c": "../../etc/passwd"})
    index("nul", {**good, "c": "a.safetensors\0"})
    put("safetensors_index/twice", b'{"weight_map":{"a.x":"a.safetensors","a.x":"b.safetensors"}}')
    put("safetensors_index/deep", b"[" * 64)
    put("safetensors_index/unknown", b'{"weight_map":{"a.x":"a.safetensors"},"x":{}}')


def compressed_texts() -> None:
    text = b"one two three\n" * 40
    put("text_stream/members", gzip.compress(text, mtime=0) + gzip.compress(b"", mtime=0) + b"\0" * 9)
    put("text_stream/rest", gzip.compress(text, mtime=0) + b"rest")
    put("text_stream/truncated", gzip.compress(text, mtime=0)[:-4])
    # zstd: magic, a header without a checksum for 3 bytes in a single segment, one raw block, then a
    # skippable frame
    frame = b"\x28\xb5\x2f\xfd\x20\x03\x19\x00\x00abc"
    put("text_stream/frames", frame + b"\x50\x2a\x4d\x18\x02\0\0\0xy" + frame)
    put("text_stream/window", b"\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00")
    put("text_stream/empty", b"")


def llmc_models() -> None:
    # T=2, V=3, L=1, one head, C=1, Vp=4: wte 4, wpe 2, and 2 + 3 + 3 + 1 + 1 + 2 + 4 + 4 + 4 + 1 + 2 more
    count = 4 + 2 + 27
    put("llmc/fp32.bin", header(20240326, 3, 2, 3, 1, 1, 1, 4) + bytes(4 * count))
    put("llmc/bf16.bin", header(20240326, 5, 2, 3, 1, 1, 1, 4) + bytes(2 * count))
    put("llmc/huge.bin", header(20240326, 3, 0x7FFFFFFF, 0x7FFFFFFF, 65536, 1, 1 << 20, 0x7FFFFFFF))
    put("llmc/negative.bin", header(20240326, 3, -1, -1, -1, -1, -1, -1))


def byte_alphabet() -> list[str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(b) for b in printable] + [chr(0x100 + i) for i in range(256 - len(printable))]


def of_split(document: dict) -> dict:
    """Llama 3's steps around the vocabulary of a byte-level tokenizer, with Qwen's NFC."""
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    eos = document["added_tokens"][0]
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "bos", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"bos": {"id": "bos", "ids": [eos["id"]], "tokens": [eos["content"]]}},
    }
    return {
        **document,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, step]},
        "post_processor": {"type": "Sequence", "processors": [step, template]},
    }


def of_digits(document: dict) -> dict:
    """SmolLM2's steps around the vocabulary of a byte-level tokenizer."""
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    steps = [{"type": "Digits", "individual_digits": True}, step]
    return {**document, "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}


def of_expressions(document: dict) -> dict:
    """Two Splits by other expressions, with the behaviors that are supported, around the same vocabulary."""
    splits = [(r"\p{N}{1,3}|(?i:'s)", "Isolated", False), (r"[\p{Lu}\p{M}]*\p{Ll}+|\s+(?!\S)|[^a-z]", "Removed", True)]
    steps = [
        {"type": "Split", "pattern": {"Regex": expression}, "behavior": behavior, "invert": inverted}
        for expression, behavior, inverted in splits
    ]
    steps.append({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True})
    return {**document, "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}


def of_characters(model: dict, flags: dict, metaspace: dict | None) -> dict:
    """A tokenizer of characters and bytes: Llama 2's if there is no Metaspace, otherwise Mistral's."""
    mark = "\u2581"
    merges = [[mark, mark], [mark, "a"], ["a", "b"], [mark + "a", "b"]]
    tokens = ["<unk>", "<s>", *[f"<0x{byte:02X}>" for byte in range(256)], mark, "a", "b", "\u00e9"]
    vocab = {token: i for i, token in enumerate(tokens + ["".join(merge) for merge in merges])}
    added = [{"id": i, "content": tokens[i], **flags, "special": True} for i in (0, 1)]
    added.append({"id": len(vocab), "content": "b a", **flags, "normalized": True})
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": mark}
    normalizer = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": mark}, replace]}
    spaces = {"type": "Replace", "pattern": {"String": mark}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    steps = [spaces, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]
    pre_tokenizer = None if metaspace is None else {"type": "Metaspace", "replacement": mark, **metaspace}
    if metaspace == {}:
        steps = [pre_tokenizer, {"type": "ByteFallback"}, {"type": "Fuse"}]
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": normalizer if metaspace is None else None,
        "pre_tokenizer": pre_tokenizer,
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": {**model, "byte_fallback": True, "unk_token": "<unk>", "vocab": vocab, "merges": merges},
    }


def tokenizers() -> None:
    merges = [["a", "b"], ["ab", "c"], ["\u0120", "a"], ["\u0120", "\u0120"]]
    vocab = {c: i for i, c in enumerate(byte_alphabet() + ["".join(m) for m in merges])}
    flags = {name: False for name in ("single_word", "lstrip", "rstrip", "normalized", "special")}
    eos = {"id": len(vocab), "content": "<|endoftext|>", **flags, "special": True}
    word = {"id": len(vocab) + 1, "content": "one w\u00f6rd", **flags, "single_word": True, "normalized": True}
    strip = {"id": len(vocab) + 2, "content": "<|strip|>", **flags, "lstrip": True, "rstrip": True}
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "fuse_unk": False}
    document = {
        "version": "1.0",
        "truncation": None,
        "added_tokens": [eos, word],
        "normalizer": None,
        "pre_tokenizer": step,
        "post_processor": step,
        "decoder": step,
        "model": {**model, "ignore_merges": False, "vocab": vocab, "merges": merges},
    }
    put("tokenizer_json/pairs", json.dumps(document, ensure_ascii=False).encode())
    document["model"] = {**document["model"], "ignore_merges": True, "merges": [" ".join(m) for m in merges]}
    document["added_tokens"].append(strip)
    document["pre_tokenizer"] = {**step, "add_prefix_space": True, "use_regex": False}
    put("tokenizer_json/words", json.dumps(document).encode())
    put("tokenizer_json/split", json.dumps(of_split(document)).encode())
    put("tokenizer_json/expressions", json.dumps(of_expressions(document)).encode())
    put("tokenizer_json/digits", json.dumps(of_digits(document)).encode())
    for name, metaspace in (("prepend", None), ("metaspace", {"prepend_scheme": "first", "split": False}), ("cuts", {})):
        put(f"tokenizer_json/{name}", json.dumps(of_characters(model, flags, metaspace)).encode())
    put("tokenizer_json/deep", b"[" * 64)
    put("tokenizer_json/empty", b'{"version":"1.0","model":{"vocab":{},"merges":[]}}')

    lines = "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges)
    vocab["<|endoftext|>"] = len(vocab)
    put("vocab_merges/both", json.dumps(vocab, ensure_ascii=False).encode() + b"\0" + lines.encode())
    put("vocab_merges/escaped", json.dumps(vocab).encode() + b"\0" + lines.replace("\n", "\r\n").encode())
    put("vocab_merges/empty", b"{}\0")

    text = b"It'S 12 345ab\n\n  \xff\xc3(\xe4\xbd\xa0) Ab"
    for name, expression in {
        "repeats": r"(?:[a-z]{1,3}+|\d*?\s)+?|(?>a+b?)++|.{2,}",
        "classes": r"[^\p{Lu}\-\]a-f&&[\w[^\s]]]|\P{^Nd}|\x{4f60}|\u00e9|\t",
        "places": r"^(?<=\n|ab).$|\b\A(?!\d)|(?=\z)|(?<!x)\B",
        "cases": r"(?i)'s|[a-k]+(?-i:K)|",
        "explodes": r"(a+)+$|(?:.|\n)*x",
    }.items():
        put(f"split_expression/{name}", expression.encode() + b"\0" + text + b"a" * 30)

    put("encode/spaces", "a  b \t\n\n c\u00a0\u2003 d\r\n  ".encode())
    put("encode/words", "It's 'twas we'll <|endoftext|> <|pad|>x 日本語 123 \u0663 --- e\u0301".encode())
    put("encode/invalid", b"a\xff\xc3 \xed\xa0\x80b\xf0\x9f\x91 \x80")
    put("encode/runs", b"a" * 100 + b" " * 100 + b"-" * 100)


def encoder_tokenizers() -> None:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = special + ["a", "##b", "##bc", "de", "\u4f60", "caf\u00e9", "##\u0301", "!", "\u1112\u1161", "["]
    vocab = {token: i for i, token in enumerate(tokens)}
    flags = {name: False for name in ("single_word", "lstrip", "rstrip", "normalized", "special")}
    added = [{"id": i, "content": token, **flags, "special": True} for i, token in enumerate(special)]
    word = {"id": len(vocab), "content": "Two W\u00f6rds", **flags, "single_word": True, "normalized": True}
    strip = {"id": len(vocab) + 1, "content": "<|>", **flags, "lstrip": True, "rstrip": True}
    pieces = [("SpecialToken", "[CLS]", 0), ("Sequence", "A", 0), ("SpecialToken", "[SEP]", 0)]
    pair = pieces + [("Sequence", "B", 1), ("SpecialToken", "[SEP]", 1)]
    document = {
        "version": "1.0",
        "truncation": {"max_length": 128, "strategy": "LongestFirst", "stride": 0},
        "padding": None,
        "added_tokens": added + [word, strip],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{kind: {"id": token, "type_id": t}} for kind, token, t in pieces],
            "pair": [{kind: {"id": token, "type_id": t}} for kind, token, t in pair],
            "special_tokens": {t: {"id": t, "ids": [vocab[t]], "tokens": [t]} for t in ("[CLS]", "[SEP]")},
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 9, "vocab": vocab},
    }
    put("encoder_json/template", json.dumps(document, ensure_ascii=False).encode())
    document["post_processor"] = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    document["normalizer"] = None
    document["pre_tokenizer"] = None
    document["model"] = {**document["model"], "continuing_subword_prefix": "", "max_input_chars_per_word": 1 << 63}
    put("encoder_json/bare", json.dumps(document).encode())
    document["model"]["max_input_chars_per_word"] = 1000
    put("encoder_json/long_words", json.dumps(document).encode())
    many = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}] * 60
    document["post_processor"] = {
        "type": "TemplateProcessing",
        "single": many + [{"Sequence": {"id": "A", "type_id": 0}}],
        "pair": many + [{"Sequence": {"id": t, "type_id": 0}} for t in "AB"],
        "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2] * 64, "tokens": ["[CLS]"] * 64}},
    }
    put("encoder_json/large_template", json.dumps(document).encode())
    document["post_processor"]["single"] *= 2
    put("encoder_json/template_too_large", json.dumps(document).encode())
    alphabet = {c: i for i, c in enumerate(byte_alphabet() + ["ab"])}
    step = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    roberta = {"type": "RobertaProcessing", "sep": ["</s>", 258], "cls": ["<s>", 257], "trim_offsets": True, "add_prefix_space": False}
    document["added_tokens"] = [{"id": 257 + i, "content": t, **flags, "special": True} for i, t in enumerate(("<s>", "</s>"))]
    document["pre_tokenizer"] = document["decoder"] = step
    document["post_processor"] = {"type": "Sequence", "processors": [step, roberta]}
    document["model"] = {"type": "BPE", "vocab": alphabet, "merges": [["a", "b"]]}
    put("encoder_json/roberta", json.dumps(document).encode())
    put("encoder_json/deep", b"[" * 64)

    lines = "".join(f"{token}\n" for token in tokens).encode()
    text = "Caf\u00e9! \u4f60a\u0301b abc [SEP] \ud558 \u302e\U0001d165 abcabcabcabc".encode() + b"\xff\xe4\xbd [MASK]"
    config = {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False, "mask_token": {"content": "[MASK]"}}
    put("bert_vocab/plain", lines + b"\0\0" + text)
    put("bert_vocab/config", lines.replace(b"\n", b"\r\n") + b"\0" + json.dumps(config).encode() + b"\0" + text)
    config["added_tokens_decoder"] = {"20": {"content": "CAF", "normalized": True}, "21": {"content": " ", "normalized": True}}
    put("bert_vocab/added", lines + b"\0" + json.dumps(config).encode() + b"\0" + text)
    put("bert_vocab/empty", b"\0{}\0")
    put("bert_vocab/twice", lines * 3 + b"\0\0" + text)
    put("bert_vocab/long_token", lines + b"a" * 300 + b"\n##" + b"b" * 300 + b"\n\0\0" + b"a" * 99 + b" a" + b"b" * 98)


def json_lines() -> None:
    good = [{"text": "one"}, {"id": 7, "text": "caf\u00e9 \u4f60"}, {"a": [1, -2.5e3, None, {"text": "x"}], "text": ""}, {"id": {"b": []}}]
    put("jsonl/lines", "\r\n\n".join(json.dumps(line, ensure_ascii=False) for line in good).encode())
    put("jsonl/document", json.dumps(good[2]).encode())
    put("jsonl/objects", b'{"a":[' + b"{}," * 1000 + b'0],"text":"t"}')
    put("jsonl/deep_array", b"[" * 4000)
    put("jsonl/deep_member", b'{"a":' + b"[" * 15 + b"]" * 15 + b',"text":"t"}\n' + b'{"a":' * 100)
    put("jsonl/nul", b'{"text":"a"}\0{"text":"b"}')
    put("jsonl/twice", b'{"text":"a","text":"b"}\n[{"k":1,"k":2}]')
    put("jsonl/long_key", b'{"' + b"k" * 4000 + b'":1,"' + b"k" * 4000 + b'":1}')
    put("jsonl/long_number", b'{"text":' + b"9" * 4000 + b"}\n" + b"1e999")
    put("jsonl/broken", b'{"text":"\xff"}\n{"text":"\\ud800"}\n{"text":5}\n{"text"\n"text"\n')

    put("lines/text", b"one\r\n\ntwo\0three\nlast")
    put("lines/ids", b"15496 995\n\t0  50256 \r\n50257\n-1\n1x\n99999999999999999999\n")
    put("lines/endless", b"x" * 70000)
    put("lines/utf16", "one\ntwo".encode("utf-16"))


if __name__ == "__main__":
    tokenizers()
    encoder_tokenizers()
    json_lines()
    shards()
    safetensors_files()
    safetensors_indexes()
    compressed_texts()
    llmc_models()
