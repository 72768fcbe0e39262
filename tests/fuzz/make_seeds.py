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


if __name__ == "__main__":
    shards()
