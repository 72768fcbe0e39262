#!/usr/bin/env python3
"""Writes the binary seeds of the fuzz targets into seeds/ (standard library only; the result is committed)."""

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


def llmc_models() -> None:
    # T=2, V=3, L=1, one head, C=1, Vp=4: wte 4, wpe 2, and 2 + 3 + 3 + 1 + 1 + 2 + 4 + 4 + 4 + 1 + 2 more
    count = 4 + 2 + 27
    put("llmc/fp32.bin", header(20240326, 3, 2, 3, 1, 1, 1, 4) + bytes(4 * count))
    put("llmc/bf16.bin", header(20240326, 5, 2, 3, 1, 1, 1, 4) + bytes(2 * count))
    put("llmc/huge.bin", header(20240326, 3, 0x7FFFFFFF, 0x7FFFFFFF, 65536, 1, 1 << 20, 0x7FFFFFFF))
    put("llmc/negative.bin", header(20240326, 3, -1, -1, -1, -1, -1, -1))


if __name__ == "__main__":
    shards()
    safetensors_files()
    llmc_models()
