"""Dynamic section, symbols, symbol versions and relative relocations of ELF files.

Everything is found through PT_DYNAMIC, as the dynamic linker does it, so that a library without
section headers is read as any other. The version of each symbol that a file takes from elsewhere is
reported with the symbol (``dlopen``, ``GLIBC_2.34``, ``libc.so.6``): auditwheel reports only
versions, and a version doesn't tell a developer what to change.

Sources: System V gABI, chapter 4 ("Symbol Table") and chapter 5 (dynamic section, DT_RELR); LSB,
"Symbol Versioning"; the numbers of relocation types are in the x86-64 psABI and the AArch64
ELF ABI.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING

from archsplit.formats.elf import Machine, SegmentType
from archsplit.formats.reader import StringTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from archsplit.formats.elf import Elf, Section
    from archsplit.formats.reader import Window

__pure__ = True

SYMBOL = Struct("<IBBHQQ")
RELA = Struct("<QQq")
FUNCTION = 2  # STT_FUNC
_EXPORTED_BINDINGS = {1, 2, 10}  # STB_GLOBAL, STB_WEAK, STB_GNU_UNIQUE
_EXPORTED_VISIBILITIES = {0, 3}  # STV_DEFAULT, STV_PROTECTED
_ENTRY = Struct("<QQ")
_GNU_HASH = Struct("<IIII")
_WORD = Struct("<I")
_ADDRESS = Struct("<Q")
# R_X86_64_RELATIVE and R_AARCH64_RELATIVE; CUDA has no other host machines.
_RELATIVE: Mapping[int, int] = {Machine.X86_64: 8, Machine.AARCH64: 1027}
_POINTER_SIZE = 8
_EVERYWHERE = range(-(1 << 63), 1 << 64)
_BITMAP_BITS = 63
_INIT_FIRST = 0x20


class Tag(enum.IntEnum):
    """Tags of the dynamic section that archsplit reads."""

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
    VERSYM = 0x6FFFFFF0
    FLAGS_1 = 0x6FFFFFFB
    VERNEED = 0x6FFFFFFE
    VERNEEDNUM = 0x6FFFFFFF
    GNU_HASH = 0x6FFFFEF5


_TAGS = frozenset(int(tag) for tag in Tag)


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbol:
    """A symbol; the numbers are the gABI's.

    Attributes:
        section: index of the defining section, 0 for a symbol of another file.
        other: the visibility in the lowest two bits; the machine's ABI defines the rest.
    """

    name: str
    value: int
    size: int
    type: int
    binding: int
    other: int
    section: int

    @property
    def is_exported(self) -> bool:
        """True if other files can bind to the symbol of a dynamic table."""
        return (
            self.section != 0
            and self.binding in _EXPORTED_BINDINGS
            # The upper bits belong to the machine's ABI: on AArch64 they mark variant calling
            # conventions.
            and self.other & 3 in _EXPORTED_VISIBILITIES
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """A pointer that the dynamic linker relocates.

    Attributes:
        address: address of the pointer.
        value: the address in the pointer, before the load base is added.
        record: file offset of the Elf64_Rela with the value; None if the pointer's own bytes have
            the value (RELR).
    """

    address: int
    value: int
    record: int | None


class Dynamic:
    """Dynamic section of a library or program.

    Attributes:
        values: the values by tag, without `Tag.NEEDED`; empty in a static program.
        needed: the needed libraries in their order.
    """

    __slots__ = ("_elf", "_strings", "needed", "values")

    def __init__(self, elf: Elf) -> None:
        """Read the dynamic section.

        Raises:
            BinaryFormatError: the section or its names are damaged.
        """
        self._elf = elf
        # Other tags are skipped, not refused: each toolchain adds its own (DT_FLAGS_1,
        # DT_RELACOUNT, …).
        rows = [row for row in dynamic_entries(elf) if row[0] in _TAGS]
        # A second entry of the same tag replaces the first, as in the dynamic linker of glibc.
        self.values: Mapping[int, int] = {tag: value for tag, value in rows if tag != Tag.NEEDED}
        self._strings = self.table(Tag.STRTAB, Tag.STRSZ, "dynamic names")
        names = self.strings()
        needed = (value for tag, value in rows if tag == Tag.NEEDED)
        self.needed = tuple(names.text(value, "needed library") for value in needed)

    @property
    def soname(self) -> str | None:
        """DT_SONAME: the name under which other files need the library."""
        return self._text(Tag.SONAME)

    @property
    def rpath(self) -> str | None:
        """DT_RPATH: folders that are searched before LD_LIBRARY_PATH."""
        return self._text(Tag.RPATH)

    @property
    def runpath(self) -> str | None:
        """DT_RUNPATH: folders that are searched after LD_LIBRARY_PATH."""
        return self._text(Tag.RUNPATH)

    @property
    def is_initialized_first(self) -> bool:
        """True if the constructors run before all other libraries' (DF_1_INITFIRST)."""
        return bool(self.values.get(Tag.FLAGS_1, 0) & _INIT_FIRST)

    def table(self, address: Tag, size: Tag, what: str) -> Window:
        """Return the table that two entries locate; empty without these entries.

        Raises:
            BinaryFormatError: the table is not in the file.
        """
        # No DT_RELR, no RELR pointers: absence isn't a fault.
        if address not in self.values:
            return self._elf.window.part(0, 0, what)
        return self._elf.at_address(self.values[address], self.values.get(size, 0), what)

    def exported_symbols(self) -> Iterator[Symbol]:
        """Return the symbols that other files can bind to.

        Raises:
            BinaryFormatError: the symbols or their names are damaged.
        """
        return (symbol for symbol in self.symbols() if symbol.is_exported)

    def symbols(self) -> Iterator[Symbol]:
        """Return all symbols of the dynamic table; raises as `exported_symbols` does."""
        if Tag.SYMTAB not in self.values:
            return iter(())
        size = self._count_symbols() * SYMBOL.size
        table = self._elf.at_address(self.values[Tag.SYMTAB], size, "dynamic symbols")
        return _read_symbols(table, self._strings)

    def strings(self) -> StringTable:
        """Return the names of the dynamic section."""
        return StringTable(self._strings, limit=2 * len(self._elf.window))

    def _text(self, tag: Tag) -> str | None:
        if tag not in self.values:
            return None
        names = StringTable(self._strings, limit=len(self._strings))
        return names.text(self.values[tag], f"{tag.name} of the dynamic section")

    def _count_symbols(self) -> int:
        # No entry has the table's length; the hash tables, which loaders use, cover all of it.
        if Tag.GNU_HASH in self.values:
            return _count_gnu_hash(self._elf.from_address(self.values[Tag.GNU_HASH], "DT_GNU_HASH"))
        if Tag.HASH in self.values:
            return self._elf.from_address(self.values[Tag.HASH], "DT_HASH").u32(4, "DT_HASH")
        raise self._elf.window.fault(0, "dynamic symbols", "no hash table", "one")


def _read_symbols(table: Window, names: Window) -> Iterator[Symbol]:
    """Return the symbols of a table in its order.

    Raises:
        BinaryFormatError: the table is truncated, or a name lies outside the table of names.
    """
    strings = StringTable(names, limit=2 * (len(names) + len(table)))
    for name, info, other, section, value, size in table.records(SYMBOL, "symbols"):
        yield Symbol(
            name=strings.text(name, "name of a symbol"),
            value=value,
            size=size,
            type=info & 0xF,
            binding=info >> 4,
            other=other,
            section=section,
        )


def section_symbols(elf: Elf, section: Section) -> Iterator[Symbol]:
    """Return the symbols of a SYMTAB or DYNSYM section; raises as `_read_symbols` does."""
    return _read_symbols(elf.content(section), elf.content(elf.section_at(section.link)))


def dynamic_entries(elf: Elf) -> Iterator[tuple[int, int]]:
    """Return tag and value of each entry of the dynamic section.

    Raises:
        BinaryFormatError: the section is damaged.
    """
    for segment in elf.segments:
        if segment.type == SegmentType.DYNAMIC:
            table = elf.window.at(segment.offset, segment.file_size, "dynamic section")
            for tag, value in table.records(_ENTRY, "dynamic section"):
                # DT_NULL ends the table; linkers leave spare entries after it.
                if tag == 0:
                    return
                yield tag, value
            # Only the first PT_DYNAMIC counts.
            return


def _count_gnu_hash(table: Window) -> int:
    """Return the number of symbols of a DT_GNU_HASH table: the end of its last chain.

    Source of the layout: glibc, elf/dl-lookup.c.
    """
    bucket_count, first_hashed, bloom_count, _ = table.unpack(_GNU_HASH, 0, "DT_GNU_HASH")
    # The bloom filter's words have 8 bytes in files of 64 bits.
    buckets_at = _GNU_HASH.size + 8 * bloom_count
    buckets = table.part(buckets_at, bucket_count * _WORD.size, "buckets of DT_GNU_HASH")
    # The chains lie in the order of the symbol table, so the last chain ends with its last symbol.
    last = max((start for (start,) in buckets.records(_WORD, "buckets")), default=0)
    if last < first_hashed:
        # All buckets are empty: no symbol is exported.
        return first_hashed
    chains_at = buckets_at + len(buckets)
    # The lowest bit of a hash marks the end of its chain.
    while not table.u32(chains_at + _WORD.size * (last - first_hashed), "chain of DT_GNU_HASH") & 1:
        last += 1
    return last + 1


def read_pointers(
    elf: Elf, dynamic: Dynamic, addresses: range = _EVERYWHERE, *, values: range = _EVERYWHERE
) -> Iterator[Pointer]:
    """Return the RELATIVE and RELR pointers at some addresses.

    Args:
        elf: the file.
        dynamic: its dynamic section.
        addresses: the addresses of the pointers.
        values: the addresses that they lead to.

    Raises:
        BinaryFormatError: the tables are damaged, or the machine is not one of `Machine`'s hosts.
    """
    # Both tables may be there. All 7,287 wrappers of the public wheels that were measured have
    # RELA; RELR comes with the linker's option `-z pack-relative-relocs`.
    yield from _rela_pointers(elf, dynamic, addresses, values)
    table = dynamic.table(Tag.RELR, Tag.RELRSZ, "DT_RELR")
    words = (word for (word,) in table.records(_ADDRESS, "DT_RELR"))
    for address in _relr_addresses(words):
        if address in addresses:
            # RELR has no addend: the value is where the pointer lies.
            value = elf.at_address(address, _POINTER_SIZE, "pointer").u64(0, "pointer")
            if value in values:
                yield Pointer(address=address, value=value, record=None)


def _rela_pointers(
    elf: Elf, dynamic: Dynamic, addresses: range, values: range
) -> Iterator[Pointer]:
    relative = relocation_type(elf, _RELATIVE)
    table = dynamic.table(Tag.RELA, Tag.RELASZ, "DT_RELA")
    # Plain numbers: a library has a million relocations, and few of them are asked for.
    low, high, first, end = addresses.start, addresses.stop, values.start, values.stop
    for index, (address, info, addend) in enumerate(table.records(RELA, "DT_RELA")):
        # A RELATIVE relocation has no symbol, so the upper half of `info` is 0 and the whole field
        # can be compared.
        if low <= address < high and first <= addend < end and info == relative:
            record = table.start + index * RELA.size
            yield Pointer(address=address, value=addend, record=record)


def relocation_type(elf: Elf, numbers: Mapping[int, int]) -> int:
    """Return the number of a relocation type on the file's machine.

    Args:
        elf: the file.
        numbers: the numbers by machine.

    Raises:
        BinaryFormatError: the machine is another one.
    """
    machine = elf.header.machine
    if machine not in numbers:
        raise elf.window.fault(18, "ELF machine", str(machine), " or ".join(map(str, numbers)))
    return numbers[machine]


def _relr_addresses(words: Iterator[int]) -> Iterator[int]:
    following = 0
    for word in words:
        # An odd word is a bitmap of the 63 words that follow the last address.
        if word & 1:
            bits = (bit for bit in range(_BITMAP_BITS) if word >> (bit + 1) & 1)
            yield from (following + _POINTER_SIZE * bit for bit in bits)
            following += _POINTER_SIZE * _BITMAP_BITS
        else:
            yield word
            following = word + _POINTER_SIZE


_NEED = Struct("<HHIII")  # vn_version, vn_cnt, vn_file, vn_aux, vn_next
_AUX = Struct("<IHHII")  # vna_hash, vna_flags, vna_other, vna_name, vna_next
_INDEX = Struct("<H")
_HIDDEN = 0x8000


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededSymbol:
    """A symbol that a file takes from a version of another library."""

    name: str
    version: str
    library: str


def needed_symbols(elf: Elf) -> Iterator[NeededSymbol]:
    """Return the versioned symbols that a file needs, in its symbol table's order.

    Raises:
        BinaryFormatError: the tables are damaged.
    """
    dynamic = Dynamic(elf)
    if Tag.VERNEED not in dynamic.values or Tag.VERSYM not in dynamic.values:
        return
    symbols = list(dynamic.symbols())
    versions = dict(_versions(elf, dynamic))
    size = len(symbols) * _INDEX.size
    table = elf.at_address(dynamic.values[Tag.VERSYM], size, "versions of symbols")
    for symbol, (index,) in zip(symbols, table.records(_INDEX, "versions of symbols"), strict=True):
        # The file's own versions are in another table, and numbered with these.
        if symbol.section == 0 and index & ~_HIDDEN in versions:
            version, library = versions[index & ~_HIDDEN]
            yield NeededSymbol(name=symbol.name, version=version, library=library)


def _versions(elf: Elf, dynamic: Dynamic) -> Iterator[tuple[int, tuple[str, str]]]:
    """Return version and library by the number that symbols have."""
    names = dynamic.strings()
    table = elf.from_address(dynamic.values[Tag.VERNEED], "needed versions")
    at = 0
    # The number of entries ends the list: a damaged vn_next can't make a circle of it.
    for _ in range(dynamic.values.get(Tag.VERNEEDNUM, 0)):
        _, count, file, aux, following = table.unpack(_NEED, at, "needed library")
        library = names.text(file, "library of a version")
        yield from _library_versions(table, at + aux, count, names, library)
        at += following


def _library_versions(
    table: Window, at: int, count: int, names: StringTable, library: str
) -> Iterator[tuple[int, tuple[str, str]]]:
    for _ in range(count):
        _, _, number, name, following = table.unpack(_AUX, at, "needed version")
        yield number, (names.text(name, "name of a version"), library)
        at += following


def newer_symbols(
    symbols: Iterator[NeededSymbol], glibc: tuple[int, int]
) -> Mapping[str, tuple[str, ...]]:
    """Return the symbols that need a later glibc, by the version's name."""
    found: dict[str, set[str]] = {}
    for symbol in symbols:
        prefix, _, number = symbol.version.partition("_")
        # GLIBC_PRIVATE and GLIBC_ABI_DT_RELR have no number.
        parts = number.split(".")
        is_numbered = prefix == "GLIBC" and all(part.isdecimal() for part in parts)
        if is_numbered and tuple(map(int, parts)) > glibc:
            found.setdefault(symbol.version, set()).add(symbol.name)
    return {version: tuple(sorted(names)) for version, names in sorted(found.items())}
