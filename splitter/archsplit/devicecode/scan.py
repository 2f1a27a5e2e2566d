"""Search bytes for places where device code may begin, in memory that doesn't grow.

Libraries keep some of it outside of the fatbin sections, where only their private code finds it. A
place is no more than a suspicion: whether something is there, its reader says.
"""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING

from archsplit.formats.fatbin import FATBIN_MAGIC
from archsplit.system.units import BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.formats.reader import Window

CONTAINER_MAGIC = struct.pack("<IH", FATBIN_MAGIC, 1)
CUBIN = b"\x7fELF\x02\x01\x01"
WRAPPER = struct.pack("<I", 0x466243B1)


def magic_offsets(magic: bytes, window: Window) -> Iterator[int]:
    """The file offsets in a window at which ``magic`` stands, ascending."""
    for start in range(0, len(window), BLOCK):
        # What begins in this block may end in the next one.
        block = window.data[start : start + BLOCK + len(magic) - 1].tobytes()
        at = block.find(magic)
        while at >= 0:
            yield window.start + start + at
            at = block.find(magic, at + 1)
        release_pages(window)


def release_pages(window: Window) -> None:
    """Give back the memory of a mapped file's pages; whoever looks at them again gets them again.

    Each look at a mapped file brings in 64 KiB, so that reading a few bytes of every image would
    otherwise hold all of a library in memory.
    """
    mapping = window.data.obj
    if isinstance(mapping, mmap.mmap):
        mapping.madvise(mmap.MADV_DONTNEED)
