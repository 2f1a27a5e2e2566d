"""Unpack the payload of a fatbin entry; what it claims about its size is not believed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import lz4.block  # type: ignore[import-untyped] # it ships no types
import zstandard

from splitter.binfmt.entry import Compression
from splitter.system.units import BLOCK

if TYPE_CHECKING:
    from splitter.binfmt.cursor import Window
    from splitter.binfmt.entry import Entry

MOST = 1 << 30
"""Bytes of one unpacked image that are believed; the largest one seen has some 100 MB."""

_LZ4_EXPANSION = 255
"""LZ4 can't make more of a byte: a length is a sum of bytes."""


def decompressed(entry: Entry, payload: Window) -> bytes:
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
    if not 0 < size <= MOST:
        raise payload.fault(0, "unpacked size", str(size), f"1 to {MOST}")
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
    """Unpacked piece by piece, so that memory grows with what is there and not with a claim."""
    content = bytearray()
    try:
        with zstandard.ZstdDecompressor().stream_reader(payload.data) as stream:
            while len(content) <= size and (piece := stream.read(BLOCK)):
                content += piece
    except zstandard.ZstdError as error:
        raise payload.fault(0, "zstd frame", str(error), "a sound one") from error
    return bytes(content)
