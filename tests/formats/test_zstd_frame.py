"""The size of zstd frames, compared with frames that the library writes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archsplit.errors import BinaryFormatError
from archsplit.formats.cubin import ZSTD_MAGIC, frame_size
from archsplit.formats.reader import Window
from archsplit.formats.zstd import zstd


def window(content: bytes) -> Window:
    return Window(content, source="a test")


def contents() -> st.SearchStrategy[bytes]:
    """Short texts, runs of one byte, and bytes of several blocks that don't compress."""
    runs = st.integers(0, 400_000).map(bytes)
    noise = st.integers(0, 300_000).map(lambda size: random.Random(size).randbytes(size))
    return st.binary(max_size=300) | runs | noise


@given(contents(), st.integers(-5, 9), st.booleans(), st.booleans(), st.binary(max_size=20))
def test_size_matches_the_written_frame(
    content: bytes, level: int, checksum: bool, sized: bool, rest: bytes
) -> None:
    options: dict[int, int] = {
        zstd.CompressionParameter.checksum_flag: checksum,
        zstd.CompressionParameter.content_size_flag: sized,
        zstd.CompressionParameter.compression_level: level,
    }
    frame = zstd.compress(content, options=options)
    assert frame_size(window(frame + rest)) == len(frame)


@given(st.integers(0, 300))
def test_a_cut_frame_is_refused(cut: int) -> None:
    frame = zstd.compress(
        random.Random(1).randbytes(300), options={zstd.CompressionParameter.checksum_flag: 1}
    )
    with pytest.raises(BinaryFormatError):
        frame_size(window(frame[:cut]))


def test_a_frame_with_a_dictionary_has_its_number() -> None:
    words = zstd.ZstdDict(b"some words of a dictionary " * 20, is_raw=True)
    frame = zstd.compress(b"some words", zstd_dict=words)
    # The writer leaves out the number of a raw dictionary; one byte of it is put in by hand.
    numbered = frame[:4] + bytes([frame[4] | 1]) + frame[5:]
    head = 4 + 1 + (0 if frame[4] & 0x20 else 1)
    numbered = numbered[:head] + b"\x07" + numbered[head:]
    assert frame_size(window(numbered)) == len(frame) + 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04 and more",
        ZSTD_MAGIC,
    ],
)
def test_other_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(BinaryFormatError):
        frame_size(window(content))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x28", "reserved bit of a zstd frame at offset 0x4"),
        (b"\x20\x00\x07\0\0", "type of a zstd block at offset 0x6"),
        # A frame that was emptied.
        (b"\x20\x00" + bytes(99), "zstd block at offset 0x6: found an empty one"),
    ],
)
def test_invalid_frame_is_refused_at_its_first_fault(content: bytes, words: str) -> None:
    with pytest.raises(BinaryFormatError, match=words):
        frame_size(window(ZSTD_MAGIC + content))
