"""Unpack the payload of a fatbin entry; what it claims about its size is not believed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import lz4.block  # type: ignore[import-untyped] # it ships no types
import zstandard

from archsplit.formats.entry import Compression

if TYPE_CHECKING:
    from archsplit.formats.entry import FatbinEntry
    from archsplit.formats.reader import Window

MAX_OUTPUT = 1 << 30
"""Bytes of one unpacked image that are believed; the largest one seen has some 100 MB."""

FREE = 1 << 27
"""Bytes that any payload may unpack to; more than that has to be in proportion to it."""

EXPANSION = 64
"""The proportion: a zstd frame of 33 KB can hold 1 GB of zeros, which no compiler writes."""

_LZ4_EXPANSION = 255
"""LZ4 can't make more of a byte: a length is a sum of bytes."""


def decompress(entry: FatbinEntry, payload: Window) -> bytes:
    """The image itself: a cubin, or the text of PTX.

    Args:
        entry: the header.
        payload: as it lies in the file.

    Raises:
        BinaryFormatError: it is packed in an unknown way, damaged, or of another size than the
            header says.
    """
    if entry.compression is Compression.NONE:
        return payload.to_bytes()
    size = entry.uncompressed_size
    most = min(MAX_OUTPUT, max(FREE, EXPANSION * len(payload)))
    if not 0 < size <= most:
        raise payload.fault(0, "unpacked size", str(size), f"1 to {most}")
    if entry.compression is Compression.LZ4:
        content = _lz4(payload, size)
    elif entry.compression is Compression.ZSTD:
        content = _zstd(payload, size)
    else:
        raise payload.fault(0, "compression", "flags that are not known", "none, LZ4 or zstd")
    if len(content) != size:
        raise payload.fault(0, "unpacked image", f"{len(content)} bytes", str(size))
    return content


def _lz4(payload: Window, size: int) -> bytes:
    if size > _LZ4_EXPANSION * len(payload):
        raise payload.fault(0, "unpacked size", str(size), f"up to {_LZ4_EXPANSION} times its own")
    try:
        content: bytes = lz4.block.decompress(payload.data, uncompressed_size=size)
    except lz4.block.LZ4BlockError as error:
        raise payload.fault(0, "LZ4 block", str(error), "a sound one") from error
    return content


def _zstd(payload: Window, size: int) -> bytes:
    """Unpacked up to the claimed size and one byte more, in one piece of memory."""
    try:
        with zstandard.ZstdDecompressor().stream_reader(payload.data) as stream:
            content: bytes = stream.read(size + 1)
    except zstandard.ZstdError as error:
        raise payload.fault(0, "zstd frame", str(error), "a sound one") from error
    return content
