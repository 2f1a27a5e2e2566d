"""Read what the dynamic linker reads: names, needs, exported symbols (gABI, chapter 5).

All of it is found through PT_DYNAMIC, so a library without section headers is read as any other.
"""

from __future__ import annotations

import enum
from struct import Struct
from typing import TYPE_CHECKING

from archsplit.formats.elf_header import SegmentType
from archsplit.formats.reader import Strings
from archsplit.formats.symbols import SYMBOL, symbols_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from archsplit.formats.elf import Elf
    from archsplit.formats.reader import Window
    from archsplit.formats.symbols import Symbol

__pure__ = True

_ROW = Struct("<QQ")
_GNU_HASH = Struct("<IIII")
_WORD = Struct("<I")


class Tag(enum.IntEnum):
    """The entries of the dynamic section that archsplit looks at."""

    NEEDED = 1
    HASH = 4
    STRTAB = 5
    SYMTAB = 6
    RELA = 7
    RELASZ = 8
    STRSZ = 10
    SONAME = 14
    RPATH = 15
    RUNPATH = 29
    RELRSZ = 35
    RELR = 36
    GNU_HASH = 0x6FFFFEF5


_TAGS = frozenset(int(tag) for tag in Tag)


class Dynamic:
    """The dynamic section of a library or program.

    Attributes:
        values: what the entries say, by tag, without `Tag.NEEDED`; empty in a static program.
        needed: the libraries that it needs, in their order.
    """

    __slots__ = ("_elf", "_strings", "needed", "values")

    def __init__(self, elf: Elf) -> None:
        """Read the dynamic section.

        Raises:
            BinaryFormatError: it or its names are damaged.
        """
        self._elf = elf
        rows = list(_rows(elf))
        self.values: Mapping[int, int] = {tag: value for tag, value in rows if tag != Tag.NEEDED}
        self._strings = self.table(Tag.STRTAB, Tag.STRSZ, "dynamic names")
        names = Strings(self._strings, limit=2 * len(elf.window))
        needed = (value for tag, value in rows if tag == Tag.NEEDED)
        self.needed = tuple(names.text(value, "needed library") for value in needed)

    @property
    def soname(self) -> str | None:
        """The name under which other files need it."""
        return self._text(Tag.SONAME)

    @property
    def rpath(self) -> str | None:
        """DT_RPATH: where needed libraries are looked for before LD_LIBRARY_PATH."""
        return self._text(Tag.RPATH)

    @property
    def runpath(self) -> str | None:
        """DT_RUNPATH: where needed libraries are looked for after LD_LIBRARY_PATH."""
        return self._text(Tag.RUNPATH)

    def table(self, address: Tag, size: Tag, what: str) -> Window:
        """The table that two entries locate; empty when they are missing.

        Raises:
            BinaryFormatError: it is not in the file.
        """
        if address not in self.values:
            return self._elf.window.part(0, 0, what)
        return self._elf.at_address(self.values[address], self.values.get(size, 0), what)

    def exported_symbols(self) -> Iterator[Symbol]:
        """The symbols that other files can bind to.

        Raises:
            BinaryFormatError: the symbols or their names are damaged.
        """
        if Tag.SYMTAB not in self.values:
            return iter(())
        size = self._symbol_count() * SYMBOL.size
        table = self._elf.at_address(self.values[Tag.SYMTAB], size, "dynamic symbols")
        return (symbol for symbol in symbols_in(table, self._strings) if symbol.is_exported)

    def _text(self, tag: Tag) -> str | None:
        if tag not in self.values:
            return None
        names = Strings(self._strings, limit=len(self._strings))
        return names.text(self.values[tag], f"{tag.name} of the dynamic section")

    def _symbol_count(self) -> int:
        # Nothing says how long the table is; the hash tables, which loaders use, cover all of it.
        if Tag.GNU_HASH in self.values:
            return _gnu_count(self._elf.from_address(self.values[Tag.GNU_HASH], "DT_GNU_HASH"))
        if Tag.HASH in self.values:
            return self._elf.from_address(self.values[Tag.HASH], "DT_HASH").u32(4, "DT_HASH")
        raise self._elf.window.fault(0, "dynamic symbols", "no hash table", "one")


def _rows(elf: Elf) -> Iterator[tuple[int, int]]:
    for segment in elf.segments:
        if segment.type == SegmentType.DYNAMIC:
            table = elf.window.at(segment.offset, segment.file_size, "dynamic section")
            for tag, value in table.records(_ROW, "dynamic section"):
                if tag == 0:
                    return
                if tag in _TAGS:
                    yield tag, value
            return


def _gnu_count(table: Window) -> int:
    """How many symbols a DT_GNU_HASH table covers: up to the end of its last chain.

    Source of the layout: glibc, elf/dl-lookup.c.
    """
    bucket_count, first_hashed, bloom_count, _ = table.unpack(_GNU_HASH, 0, "DT_GNU_HASH")
    buckets_at = _GNU_HASH.size + 8 * bloom_count
    buckets = table.part(buckets_at, bucket_count * _WORD.size, "buckets of DT_GNU_HASH")
    last = max((start for (start,) in buckets.records(_WORD, "buckets")), default=0)
    if last < first_hashed:
        return first_hashed
    chains_at = buckets_at + len(buckets)
    while not table.u32(chains_at + _WORD.size * (last - first_hashed), "chain of DT_GNU_HASH") & 1:
        last += 1
    return last + 1
