"""The size of a zstd frame, from its headers: nothing is decompressed.

The library that decompresses has no function for it, and a frame in the data of a library has no
length beside it. Source: RFC 8878, section 3.1.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from archsplit.formats.reader import Window

__pure__ = True

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

_MAGIC_SIZE, _BLOCK_HEADER, _CHECKSUM = 4, 3, 4
_SINGLE_SEGMENT, _RESERVED_BIT, _HAS_CHECKSUM = 0x20, 0x08, 0x04
_DICTIONARY_SIZES = (0, 1, 2, 4)
_CONTENT_SIZES = (0, 2, 4, 8)
_RUN, _RESERVED = 1, 3


def frame_size(window: Window) -> int:
    """Return the bytes of the frame at the start of a window.

    Raises:
        BinaryFormatError: there is no frame, or it is longer than the window.
    """
    magic = window.part(0, _MAGIC_SIZE, "zstd frame").to_bytes()
    if magic != ZSTD_MAGIC:
        raise window.fault(0, "zstd frame", magic.hex(), ZSTD_MAGIC.hex())
    descriptor = window.part(_MAGIC_SIZE, 1, "zstd frame").to_bytes()[0]
    if descriptor & _RESERVED_BIT:
        raise window.fault(_MAGIC_SIZE, "reserved bit of a zstd frame", "1", "0")
    is_single = bool(descriptor & _SINGLE_SEGMENT)
    # A frame of one segment has a size of one byte where others have none, and no window size.
    content = _CONTENT_SIZES[descriptor >> 6] or int(is_single)
    dictionary = _DICTIONARY_SIZES[descriptor & 3]
    position = _MAGIC_SIZE + 1 + int(not is_single) + dictionary + content
    is_last = False
    while not is_last:
        header = window.part(position, _BLOCK_HEADER, "block of a zstd frame").to_bytes()
        number = int.from_bytes(header, "little")
        is_last, kind, size = bool(number & 1), number >> 1 & 3, number >> 3
        if kind == _RESERVED:
            raise window.fault(position, "type of a zstd block", "3", "0 to 2")
        # Writers end a frame with an empty block at most. Zeros would be empty blocks without end.
        if size == 0 and not is_last:
            raise window.fault(position, "zstd block", "an empty one", "bytes, or the last block")
        # A run has one byte, whatever its length.
        position += _BLOCK_HEADER + (1 if kind == _RUN else size)
    position += _CHECKSUM if descriptor & _HAS_CHECKSUM else 0
    return len(window.part(0, position, "zstd frame"))
