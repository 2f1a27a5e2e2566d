"""Decompression of images, as nvcc and the driver do it.

In: the header of an image, and its payload: one zstd frame, one LZ4 block, or plain bytes. Out: a
cubin, or the text of PTX. Sizes in headers are limited before memory is allocated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import lz4.block  # type: ignore[import-untyped] # it ships no types

from archsplit.formats.fatbin import Compression, read_entry
from archsplit.formats.zstd import zstd

if TYPE_CHECKING:
    from archsplit.formats.fatbin import Container, FatbinEntry
    from archsplit.formats.reader import Window

MAX_OUTPUT = 1 << 30
"""Limit for one decompressed image; the largest real ones have some 100 MB."""

FREE_OUTPUT = 1 << 27
"""Bytes that any payload may decompress to; larger images are limited by `MAX_UNPACK_RATIO`."""

MAX_UNPACK_RATIO = 64
"""Limit of decompressed bytes per byte of payload.

A zstd frame of 33 KB can hold 1 GB of zeros, which no compiler writes.
"""

_LZ4_EXPANSION = 255
"""Format's own limit: an LZ4 length is a sum of bytes."""


def decompress(entry: FatbinEntry, payload: Window) -> bytes:
    """Return the image: a cubin, or the text of PTX.

    Args:
        entry: the header.
        payload: the bytes in the file.

    Raises:
        BinaryFormatError: the compression is unknown, the payload damaged, or of another size than
            the header declares.
    """
    if entry.compression is Compression.NONE:
        return payload.to_bytes()
    size = entry.uncompressed_size
    limit = min(MAX_OUTPUT, max(FREE_OUTPUT, MAX_UNPACK_RATIO * len(payload)))
    if not 0 < size <= limit:
        raise payload.fault(0, "unpacked size", str(size), f"1 to {limit}")
    if entry.compression is Compression.LZ4:
        content = _lz4(payload, size)
    elif entry.compression is Compression.ZSTD:
        # One byte more than declared, so that a longer frame is noticed.
        content = decompress_head(payload, size + 1)
    else:
        raise payload.fault(0, "compression", "unknown flags", "none, LZ4 or zstd")
    if len(content) != size:
        raise payload.fault(0, "size of the unpacked image", str(len(content)), str(size))
    return content


def _lz4(payload: Window, size: int) -> bytes:
    # The library allocates the declared size before it reads the block.
    if size > _LZ4_EXPANSION * len(payload):
        raise payload.fault(0, "unpacked size", str(size), f"up to {_LZ4_EXPANSION} times its own")
    try:
        content: bytes = lz4.block.decompress(payload.data, uncompressed_size=size)
    except lz4.block.LZ4BlockError as error:
        raise payload.fault(0, "LZ4 block", str(error), "undamaged data") from error
    return content


def image_content(container: Container, entry: FatbinEntry) -> bytes:
    """Return a decompressed image of a container, also of one in a frame of several.

    Raises:
        BinaryFormatError: as for `decompress`.
    """
    if not entry.frame:
        return decompress(entry, container.payload(entry))
    frame = read_entry(container.body, entry.frame - container.body.start)
    content = decompress(frame, container.payload(frame))
    return content[entry.frame_start : entry.frame_start + entry.padded_size]


def decompress_head(frame: Window, size: int) -> bytes:
    """Return the first bytes of a zstd frame's content; fewer if it is shorter.

    Raises:
        BinaryFormatError: the frame is damaged.
    """
    try:
        # The frame's own size is only a claim: memory is taken for what comes out.
        return zstd.ZstdDecompressor().decompress(frame.data, size)
    except zstd.ZstdError as error:
        raise frame.fault(0, "zstd frame", str(error), "undamaged data") from error
