"""Pack machine code that ships as it is, as ``nvcc --compress-mode`` would have.

What nvcc sets in an entry's header was read off objects that it made with and without; the payload
is one zstd frame or one LZ4 block.
"""

from __future__ import annotations

import enum
from struct import Struct
from typing import TYPE_CHECKING

import lz4.block  # type: ignore[import-untyped] # it ships no types
import zstandard

from archsplit.devicecode.edits import Copy, Text, Zeros
from archsplit.devicecode.rewrite import unchanged_container
from archsplit.formats.entry import Compression, EntryFlag, EntryKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archsplit.devicecode.edits import EditPiece
    from archsplit.devicecode.rewrite import Images
    from archsplit.formats.entry import FatbinEntry
    from archsplit.formats.fatbin import Container

_ZSTD_LEVEL = 19
_LZ4_LEVEL = 12
_ALIGNMENT = 8
_SIZES = Struct("<QI")
_SIZES_AT = 8
_FLAGS = Struct("<Q")
_FLAGS_AT, _UNPACKED_AT = 40, 56


class Packing(enum.Enum):
    """How machine code is packed."""

    LZ4 = "lz4"
    ZSTD = "zstd"


DRIVER_FLOORS: Mapping[Packing, str] = {
    Packing.LZ4: "any driver of CUDA 11 or later",
    Packing.ZSTD: "driver 550.54.14 (CUDA 12.4) or later",
}
"""What unpacks it. Source: nvcc's documentation of ``--compress-mode``, and of the same option in
https://docs.rapids.ai/api/rapids-cmake/stable/command/rapids_cuda_enable_fatbin_compression"""

_FLAG = {Packing.LZ4: EntryFlag.LZ4, Packing.ZSTD: EntryFlag.ZSTD}


def packed_by(packing: Packing) -> Images:
    """Give the bytes of entries, machine code that isn't packed yet packed where that is less."""

    def images(container: Container, entry: FatbinEntry) -> tuple[EditPiece, ...]:
        if entry.kind is not EntryKind.CUBIN or entry.compression is not Compression.NONE:
            return unchanged_container(container, entry)
        content = _packed(container.payload(entry).to_bytes(), packing)
        padding = -len(content) % _ALIGNMENT
        if len(content) + padding >= entry.padded_size:
            return unchanged_container(container, entry)
        return (
            *_header(entry, len(content), padding, packing),
            Text(content=content),
            Zeros(size=padding),
        )

    return images


def _packed(content: bytes, packing: Packing) -> bytes:
    if packing is Packing.ZSTD:
        return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(content)
    block: bytes = lz4.block.compress(
        content, mode="high_compression", compression=_LZ4_LEVEL, store_size=False
    )
    return block


def _header(entry: FatbinEntry, size: int, padding: int, packing: Packing) -> tuple[EditPiece, ...]:
    """The entry's header with the sizes and the flag of what is packed now."""
    start = entry.offset
    after_sizes, after_flags = _SIZES_AT + _SIZES.size, _FLAGS_AT + _FLAGS.size
    return (
        Copy(offset=start, size=_SIZES_AT),
        Text(content=_SIZES.pack(size + padding, size)),
        Copy(offset=start + after_sizes, size=_FLAGS_AT - after_sizes),
        Text(content=_FLAGS.pack(entry.flags | _FLAG[packing])),
        Copy(offset=start + after_flags, size=_UNPACKED_AT - after_flags),
        Text(content=_FLAGS.pack(entry.padded_size)),
        Copy(offset=start + _UNPACKED_AT + _FLAGS.size, size=entry.header_size - _UNPACKED_AT - 8),
    )
