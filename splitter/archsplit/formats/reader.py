"""Bounds-checked little-endian reads of files that are mapped into memory.

In: a path or bytes; out: a `Window`, through which every format reads. A read outside of the bounds
is a `BinaryFormatError` with the file, the offset, and the value found against the value expected.
"""

from __future__ import annotations

import mmap
from struct import Struct
from typing import TYPE_CHECKING

from archsplit.errors import BinaryFormatError
from archsplit.system.fs import input_errors, open_input

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__pure__ = True

_U32 = Struct("<I")
_U64 = Struct("<Q")
_FIRST_BLOCK = 256
_SMALL_TABLE, _LARGE_TABLE = 1 << 16, 1 << 24
"""Bytes of a table of names that is copied as a whole: for one name, and for many."""
_MANY_NAMES = 16


def align_up(offset: int, alignment: int) -> int:
    """Return the first multiple of an alignment from an offset on."""
    return -(-offset // alignment) * alignment


class Window:
    """A range of a file's bytes that can't be read outside of its bounds.

    Nothing is copied except by `to_bytes`. Offsets given to a window count from its own start; the
    offsets in messages and in the records of the readers count from the start of the file.

    Attributes:
        source: the file, for messages: a path, ``libx.a(y.o)``.
        start: the file offset of the window's first byte.
    """

    __slots__ = ("_bytes", "source", "start")

    def __init__(self, data: bytes | memoryview, *, source: str, start: int = 0) -> None:
        # A view, not a copy: windows nest, and a library has gigabytes.
        self._bytes = memoryview(data)
        self.source = source
        self.start = start

    def __len__(self) -> int:
        return len(self._bytes)

    @property
    def data(self) -> memoryview:
        """Bytes, not copied."""
        return self._bytes

    def to_bytes(self) -> bytes:
        """Return a copy of the bytes."""
        return self._bytes.tobytes()

    def part(self, offset: int, size: int, what: str) -> Window:
        """Return the window of ``size`` bytes at ``offset``; errors name it ``what``.

        Raises:
            BinaryFormatError: the part reaches past the end of this window.
        """
        self.check_range(offset, size, what)
        part = self._bytes[offset : offset + size]
        return Window(part, source=self.source, start=self.start + offset)

    def at(self, file_offset: int, size: int, what: str) -> Window:
        """Return the part at an offset of the file, as records have it."""
        # An offset before the window gives a negative one here, which `part` refuses.
        return self.part(file_offset - self.start, size, what)

    def unpack(self, layout: Struct, offset: int, what: str) -> tuple[int, ...]:
        """Return the integers of one record.

        Raises:
            BinaryFormatError: the record reaches past the end.
        """
        self.check_range(offset, layout.size, what)
        return layout.unpack_from(self._bytes, offset)

    def records(self, layout: Struct, what: str) -> Iterator[tuple[int, ...]]:
        """Return the records of a table that fills the window, in their order.

        Raises:
            BinaryFormatError: the window is not a whole number of records.
        """
        # `iter_unpack` would raise struct.error, which names neither the file nor the offset.
        if len(self) % layout.size:
            raise self.fault(0, what, f"{len(self)} bytes", f"a multiple of {layout.size}")
        return layout.iter_unpack(self._bytes)

    def u32(self, offset: int, what: str) -> int:
        """Return the unsigned 32-bit integer at ``offset``; raises as `unpack` does."""
        return self.unpack(_U32, offset, what)[0]

    def u64(self, offset: int, what: str) -> int:
        """Return the unsigned 64-bit integer at ``offset``; raises as `unpack` does."""
        return self.unpack(_U64, offset, what)[0]

    def fault(self, offset: int, what: str, found: str, expected: str) -> BinaryFormatError:
        """Return the error about a value at ``offset``, for the caller to raise."""
        place = f"offset {self.start + offset:#x}"
        return BinaryFormatError(
            f"{self.source}: {what} at {place}: found {found}, expected {expected}"
        )

    def check_range(self, offset: int, size: int, what: str) -> None:
        """Refuse a range that reaches past the end; raises as `part` does."""
        # `offset <= offset + size` refuses a negative size; Python's integers don't overflow, so a
        # size near 2^64 is refused here too.
        if not 0 <= offset <= offset + size <= len(self._bytes):
            first, last = self.start + offset, self.start + offset + size
            expected = f"a range in {self.start:#x} to {self.start + len(self._bytes):#x}"
            raise self.fault(offset, what, f"{first:#x} to {last:#x}", expected)


class StringTable:
    """A string table: NUL-terminated names, with a limit on the text that is read.

    Any number of records may point at one long name, so a small file could lead to gigabytes of
    text. Real tables give each name about once; this one refuses after ``limit`` bytes.
    """

    __slots__ = ("_copy", "_reads", "_remaining", "_table")

    def __init__(self, table: Window, *, limit: int) -> None:
        self._table = table
        self._remaining = limit
        self._copy = b""
        self._reads = 0

    def text(self, offset: int, what: str) -> str:
        """Return the name at ``offset``, bytes that are not UTF-8 as surrogate escapes.

        Raises:
            BinaryFormatError: the name starts outside the table, has no end, or exceeds the limit.
        """
        # Most tables are small, and most of their names are read: one copy for all.
        end = self._copy.find(b"\0", offset) if offset >= 0 else -1
        raw = self._copy[offset:end] if end >= 0 else self._read_raw(offset, what)
        self._remaining -= len(raw)
        if self._remaining < 0:
            raise self._table.fault(
                offset, what, "names that repeat without end", "each about once"
            )
        # Mangled names may hold any byte; the escapes bring back the same bytes when a name is
        # written.
        return raw.decode("utf-8", "surrogateescape")

    def _read_raw(self, offset: int, what: str) -> bytes:
        self._reads += 1
        if len(self._table) <= (_SMALL_TABLE if self._reads < _MANY_NAMES else _LARGE_TABLE):
            self._copy = self._table.to_bytes()
        # The table may be huge and the name short: copy little, then more.
        size = _FIRST_BLOCK
        while True:
            remaining = max(0, len(self._table) - offset)
            block = self._table.part(offset, min(size, remaining), what).to_bytes()
            name, nul, _ = block.partition(b"\0")
            if nul:
                return name
            if size >= remaining:
                raise self._table.fault(offset, what, "no NUL byte", "one before the table's end")
            size *= 16


def open_file(path: Path, *, source: str = "") -> Window:
    """Map a whole file; only the pages that are used are read from the disk.

    The mapping ends with the last window of it. If another program shortens the file meanwhile,
    SIGBUS ends this process, as with every mapping.

    Args:
        source: its name in messages, if not the path.

    Raises:
        InputError: the file is missing, not readable, or not a regular file.
    """
    with input_errors(path), open_input(path) as file:
        # An empty file can't be mapped.
        if file.seek(0, 2) == 0:
            return Window(b"", source=source or str(path))
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return Window(memoryview(mapping), source=source or str(path))
