"""Blocks of mapped files, searched and read, and the memory of their pages given back.

In: the window of a mapped file. Out: its blocks, or the places of some bytes. After each block its
pages are released.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

from archsplit.system.parallel import find_bytes
from archsplit.system.units import BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.formats.reader import Window

SEARCH_BLOCK = 8 << 20
"""Bytes that are searched at once. After each search a thread waits for the interpreter lock, up to
5 ms if others run Python: with 1 MiB, most of the time."""


def release_pages(window: Window) -> None:
    """Release the memory of a mapped file's pages; later reads map them again.

    Each read of a mapped file brings in 64 KiB, so that reading a few bytes of every image would
    otherwise hold all of a library in memory.
    """
    mapping = window.data.obj
    if isinstance(mapping, mmap.mmap):
        mapping.madvise(mmap.MADV_DONTNEED)


def released_blocks(window: Window) -> Iterator[memoryview]:
    """Yield a mapped file in blocks, and release the pages of each block."""
    for start in range(0, len(window), SEARCH_BLOCK):
        yield window.data[start : start + SEARCH_BLOCK]
        release_pages(window)


def magic_offsets(magic: bytes, window: Window) -> Iterator[int]:
    """Yield the file offsets at which ``magic`` stands in a window, ascending."""
    for start in range(0, len(window), BLOCK):
        # What begins in this block may end in the next one.
        end = start + BLOCK + len(magic) - 1
        at = find_bytes(window.data, magic, start, end)
        while at >= 0:
            yield window.start + at
            at = find_bytes(window.data, magic, at + 1, end)
        release_pages(window)
