from __future__ import annotations

import struct

import lz4.block  # type: ignore[import-untyped] # it ships no types
import pytest
import zstandard

from splitter.binfmt.cursor import Window
from splitter.binfmt.entry import Flag, read_entry
from splitter.devicecode import decompress
from splitter.errors import BinaryFormatError

TEXT = b".version 9.0\n.target sm_90\n" * 400


def unpacked(payload: bytes, flag: int, *, claimed: int = len(TEXT), size: int = -1) -> bytes:
    """What comes of a payload under a header that claims so much."""
    padded = payload + bytes(-len(payload) % 8)
    packed = len(payload) if size < 0 else size
    header = (1, 0x0101, 64, len(padded), packed, 0, 0, 9, 90, 0, 0, flag, 0, claimed)
    data = struct.pack("<HHIQIIHHIIIQQQ", *header) + padded
    window = Window(data, source="image")
    entry = read_entry(window, 0)
    part = window.at(entry.payload_offset, entry.payload_size, "payload")
    return decompress.decompressed(entry, part)


LZ4 = lz4.block.compress(TEXT, store_size=False)
ZSTD = zstandard.compress(TEXT)


def test_what_was_packed_comes_back() -> None:
    assert unpacked(LZ4, Flag.LZ4) == TEXT
    assert unpacked(ZSTD, Flag.ZSTD) == TEXT
    assert unpacked(TEXT, 0, size=0) == TEXT + bytes(-len(TEXT) % 8)


@pytest.mark.parametrize(
    ("payload", "flag", "claimed", "words"),
    [
        (LZ4, Flag.LZ4, len(TEXT) + 1, "unpacked image"),
        (LZ4, Flag.LZ4, len(TEXT) - 1, "LZ4 block"),
        (LZ4, Flag.LZ4, 0, "unpacked size"),
        (LZ4, Flag.LZ4, 2**40, "unpacked size"),
        (LZ4, Flag.LZ4, 2**29, "up to 255 times its own"),
        (b"\xff" * 64, Flag.LZ4, len(TEXT), "LZ4 block"),
        (ZSTD, Flag.ZSTD, len(TEXT) + 1, "unpacked image"),
        (ZSTD, Flag.ZSTD, len(TEXT) - 1, "unpacked image"),
        (ZSTD[:20], Flag.ZSTD, len(TEXT), "unpacked image"),
        (b"\xff" * 64, Flag.ZSTD, len(TEXT), "zstd frame"),
        (ZSTD, Flag.ZSTD | Flag.LZ4, len(TEXT), "compression"),
    ],
)
def test_what_lies_is_refused(payload: bytes, flag: int, claimed: int, words: str) -> None:
    with pytest.raises(BinaryFormatError, match=words):
        unpacked(payload, flag, claimed=claimed)


def test_a_bomb_is_not_unpacked_further_than_claimed() -> None:
    bomb = zstandard.compress(bytes(1 << 28))
    with pytest.raises(BinaryFormatError, match="unpacked image"):
        unpacked(bomb, Flag.ZSTD, claimed=1000)
