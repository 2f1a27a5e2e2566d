"""Compress and decompress the payload of fatbin entries, as nvcc and the driver do.

In go entries and payloads; out come bytes. The flags that nvcc sets in an entry's header were read
off objects that it made with and without ``--compress-mode``; the payload is one zstd frame or one
LZ4 block. Sizes in headers are limited before memory is allocated.
"""

from __future__ import annotations

import enum
from struct import Struct
from typing import TYPE_CHECKING

import lz4.block  # type: ignore[import-untyped] # it ships no types
import zstandard

from archsplit.devicecode.edits import CopiedBytes, NewBytes, ZeroBytes, copy_entry
from archsplit.formats.fatbin import Compression, EntryFlag, EntryKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archsplit.devicecode.edits import EditPiece, ImageEncoder
    from archsplit.formats.fatbin import Container, FatbinEntry
    from archsplit.formats.reader import Window

# High levels: an image is compressed once and downloaded many times, and decompression takes no
# longer.
_ZSTD_LEVEL = 19
_LZ4_LEVEL = 12
_ALIGNMENT = 8
# Offsets of fields in the entry's header: padded and compressed size, flags, uncompressed size.
_SIZES = Struct("<QI")
_SIZES_AT = 8
_FLAGS = Struct("<Q")
_FLAGS_AT, _UNPACKED_AT = 40, 56

MAX_OUTPUT = 1 << 30
"""The limit for one decompressed image; the largest real ones have some 100 MB."""

FREE_OUTPUT = 1 << 27
"""Bytes that any payload may decompress to; larger images are limited by `MAX_UNPACK_RATIO`."""

MAX_UNPACK_RATIO = 64
"""The limit of decompressed bytes per byte of payload.

A zstd frame of 33 KB can hold 1 GB of zeros, which no compiler writes.
"""

_LZ4_EXPANSION = 255
"""The format's own limit: an LZ4 length is a sum of bytes."""


class CompressMode(enum.Enum):
    """The compression of machine code."""

    LZ4 = "lz4"
    ZSTD = "zstd"


MIN_DRIVERS: Mapping[CompressMode, str] = {
    CompressMode.LZ4: "any driver of CUDA 11 or later",
    CompressMode.ZSTD: "driver 550.54.14 (CUDA 12.4) or later",
}
"""The first driver that decompresses a mode.

Source: nvcc's documentation of ``--compress-mode``, and of the same option in
https://docs.rapids.ai/api/rapids-cmake/stable/command/rapids_cuda_enable_fatbin_compression
"""


_FLAG = {CompressMode.LZ4: EntryFlag.LZ4, CompressMode.ZSTD: EntryFlag.ZSTD}


def compress_images(mode: CompressMode) -> ImageEncoder:
    """Return an encoder that compresses machine code where the result is smaller.

    Entries that are compressed already stay as they are.
    """

    def encode(container: Container, entry: FatbinEntry) -> tuple[EditPiece, ...]:
        # The header's flags were observed for machine code alone.
        if entry.kind is not EntryKind.CUBIN or entry.compression is not Compression.NONE:
            return copy_entry(container, entry)
        content = _compress(container.payload(entry).to_bytes(), mode)
        padding = -len(content) % _ALIGNMENT
        # Small cubins grow: a frame has a header, and entries end at multiples of 8.
        if len(content) + padding >= entry.padded_size:
            return copy_entry(container, entry)
        return (
            *_header(entry, len(content), padding, mode),
            NewBytes(content=content),
            ZeroBytes(size=padding),
        )

    return encode


def _compress(content: bytes, mode: CompressMode) -> bytes:
    if mode is CompressMode.ZSTD:
        return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(content)
    block: bytes = lz4.block.compress(
        content, mode="high_compression", compression=_LZ4_LEVEL, store_size=False
    )
    return block


def _header(
    entry: FatbinEntry, size: int, padding: int, mode: CompressMode
) -> tuple[EditPiece, ...]:
    """Return the entry's header with the sizes and the flag of the compressed payload."""
    start = entry.offset
    after_sizes, after_flags = _SIZES_AT + _SIZES.size, _FLAGS_AT + _FLAGS.size
    return (
        CopiedBytes(offset=start, size=_SIZES_AT),
        NewBytes(content=_SIZES.pack(size + padding, size)),
        CopiedBytes(offset=start + after_sizes, size=_FLAGS_AT - after_sizes),
        NewBytes(content=_FLAGS.pack(entry.flags | _FLAG[mode])),
        CopiedBytes(offset=start + after_flags, size=_UNPACKED_AT - after_flags),
        # The header of an uncompressed entry has no true size, so its padding is compressed too.
        NewBytes(content=_FLAGS.pack(entry.padded_size)),
        CopiedBytes(
            offset=start + _UNPACKED_AT + _FLAGS.size, size=entry.header_size - _UNPACKED_AT - 8
        ),
    )


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
        content = _zstd(payload, size)
    else:
        raise payload.fault(0, "compression", "unknown flags", "none, LZ4 or zstd")
    if len(content) != size:
        raise payload.fault(0, "unpacked image", f"{len(content)} bytes", str(size))
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


def decompress_head(frame: Window, size: int) -> bytes:
    """Return the first bytes of a zstd frame's content; fewer if it is shorter.

    Raises:
        BinaryFormatError: the frame is damaged.
    """
    try:
        with zstandard.ZstdDecompressor().stream_reader(frame.data) as stream:
            content: bytes = stream.read(size)
    except zstandard.ZstdError as error:
        raise frame.fault(0, "zstd frame", str(error), "undamaged data") from error
    return content


def _zstd(payload: Window, size: int) -> bytes:
    """Decompress up to one byte more than the declared size."""
    try:
        # A stream reader stops at the limit; the one-shot API trusts the frame's own size.
        with zstandard.ZstdDecompressor().stream_reader(payload.data) as stream:
            content: bytes = stream.read(size + 1)
    except zstandard.ZstdError as error:
        raise payload.fault(0, "zstd frame", str(error), "undamaged data") from error
    return content
