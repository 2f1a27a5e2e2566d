"""Symbol versions that an ELF file needs of other libraries.

In: a file with a dynamic section. Out: each symbol that it takes from elsewhere, with the version
and the library, as in ``dlopen``, ``GLIBC_2.34``, ``libc.so.6``. auditwheel reports versions alone,
and a version doesn't tell a developer what to change. Source: LSB, "Symbol Versioning".
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING

from archsplit.formats.elf_dynamic import Dynamic, Tag

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from archsplit.formats.elf import Elf
    from archsplit.formats.reader import Strings, Window

__pure__ = True

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
    table: Window, at: int, count: int, names: Strings, library: str
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
