"""Payloads of every compression, and payloads that declare wrong sizes."""

from __future__ import annotations

import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import lz4.block  # type: ignore[import-untyped] # it ships no types
import pytest

from archsplit.devicecode.decompression import decompress
from archsplit.devicecode.kernels import FREE_IMAGE
from archsplit.errors import BinaryFormatError
from archsplit.formats.fatbin import EntryFlag, read_entry
from archsplit.formats.reader import Window
from archsplit.formats.zstd import zstd

if TYPE_CHECKING:
    from pathlib import Path

TEXT = b".version 9.0\n.target sm_90\n" * 400


def decompressed(payload: bytes, flag: int, *, declared: int = len(TEXT), size: int = -1) -> bytes:
    """Return the image of a payload under a header that declares ``declared`` bytes."""
    padded = payload + bytes(-len(payload) % 8)
    packed = len(payload) if size < 0 else size
    header = (1, 0x0101, 64, len(padded), packed, 0, 0, 9, 90, 0, 0, flag, 0, declared)
    data = struct.pack("<HHIQIIHHIIIQQQ", *header) + padded
    window = Window(data, source="image")
    entry = read_entry(window, 0)
    part = window.at(entry.payload_offset, entry.payload_size, "payload")
    return decompress(entry, part)


LZ4 = lz4.block.compress(TEXT, store_size=False)
ZSTD = zstd.compress(TEXT)


def test_compressed_image_decompresses_to_its_content() -> None:
    assert decompressed(LZ4, EntryFlag.LZ4) == TEXT
    assert decompressed(ZSTD, EntryFlag.ZSTD) == TEXT
    assert decompressed(TEXT, 0, size=0) == TEXT + bytes(-len(TEXT) % 8)


@pytest.mark.parametrize(
    ("payload", "flag", "declared", "words"),
    [
        (LZ4, EntryFlag.LZ4, len(TEXT) + 1, "unpacked image"),
        (LZ4, EntryFlag.LZ4, len(TEXT) - 1, "LZ4 block"),
        (LZ4, EntryFlag.LZ4, 0, "unpacked size"),
        (LZ4, EntryFlag.LZ4, 2**40, "unpacked size"),
        (LZ4, EntryFlag.LZ4, 2**26, "up to 255 times its own"),
        (b"\xff" * 64, EntryFlag.LZ4, len(TEXT), "LZ4 block at offset 0x40:"),
        (ZSTD, EntryFlag.ZSTD, len(TEXT) + 1, "unpacked image"),
        (ZSTD, EntryFlag.ZSTD, len(TEXT) - 1, "unpacked image"),
        (ZSTD[:20], EntryFlag.ZSTD, len(TEXT), "unpacked image"),
        (b"\xff" * 64, EntryFlag.ZSTD, len(TEXT), "zstd frame"),
        (ZSTD, EntryFlag.ZSTD | EntryFlag.LZ4, len(TEXT), "compression"),
    ],
)
def test_image_with_a_wrong_size_is_refused(
    payload: bytes, flag: int, declared: int, words: str
) -> None:
    with pytest.raises(BinaryFormatError, match=words):
        decompressed(payload, flag, declared=declared)


def test_image_over_a_gibibyte_is_refused() -> None:
    with pytest.raises(BinaryFormatError, match="expected 1 to 1073741824"):
        decompressed(bytes(17 << 20), EntryFlag.LZ4, declared=(1 << 30) + 1)


def test_the_largest_image_of_open3d_is_read() -> None:
    # Its zstd frame is less than a sixty-fourth of it.
    size = 49_151_704
    assert len(decompressed(zstd.compress(bytes(size)), EntryFlag.ZSTD, declared=size)) == size


def test_a_bomb_is_not_unpacked_further_than_claimed() -> None:
    bomb = zstd.compress(bytes(1 << 28))
    with pytest.raises(BinaryFormatError, match="unpacked image"):
        decompressed(bomb, EntryFlag.ZSTD, declared=1000)


def zeros_entry(size: int) -> bytes:
    zeros = zstd.compress(bytes(size))
    padded = zeros + bytes(-len(zeros) % 8)
    header = (2, 0x0101, 64, len(padded), len(zeros), 0, 0, 9, 90, 0, 0, 0x11 | EntryFlag.ZSTD, 0)
    return struct.pack("<HHIQIIHHIIIQQQ", *header, size) + padded


def test_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    # No single one of the 40 small images is too large.
    entries = zeros_entry(1 << 28) + 40 * zeros_entry(FREE_IMAGE)
    path = tmp_path / "bomb.fatbin"
    path.write_bytes(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries)
    # Not ru_maxrss: a child begins with what the process had that started it.
    command = "import re, sys, time; from archsplit.cli.main import main; main(sys.argv[1:]); "
    command += "print(time.process_time()); status = open('/proc/self/status').read(); "
    command += "print(re.search(r'VmHWM:\\s*(\\d+)', status)[1])"
    words = ["inspect", "--kernels", str(path)]
    done = subprocess.run(
        [sys.executable, "-c", command, *words], capture_output=True, text=True, check=True
    )
    seconds, memory = done.stdout.split()[-2:]
    assert int(memory) < 300_000, "kilobytes"
    # With all imports; unpacking 1.5 GB would take as long again.
    assert float(seconds) < 2
    assert "images not read for kernels: 41" in done.stderr
    assert "unpacked size" in done.stderr
