"""Read symbol tables of ELF files (System V gABI, chapter 4, "Symbol Table")."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING

from archsplit.formats.reader import Strings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.formats.elf import Elf
    from archsplit.formats.elf_sections import Section
    from archsplit.formats.reader import Window

__pure__ = True

SYMBOL = Struct("<IBBHQQ")
FUNCTION = 2  # STT_FUNC
_EXPORTED_BINDINGS = {1, 2, 10}  # STB_GLOBAL, STB_WEAK, STB_GNU_UNIQUE
_EXPORTED_VISIBILITIES = {0, 3}  # STV_DEFAULT, STV_PROTECTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbol:
    """A symbol; the numbers are the gABI's.

    Attributes:
        section: index of the section that defines it, 0 when another file does.
        other: the visibility in the lowest two bits, the rest is the machine's to define.
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
        """Whether other files can bind to it, if it stands in the dynamic table."""
        return (
            self.section != 0
            and self.binding in _EXPORTED_BINDINGS
            and self.other & 3 in _EXPORTED_VISIBILITIES
        )


def symbols_in(table: Window, names: Window) -> Iterator[Symbol]:
    """The symbols of a table, in its order.

    Raises:
        BinaryFormatError: the table is not whole, or a name lies outside the table of names.
    """
    strings = Strings(names, limit=2 * (len(names) + len(table)))
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
    """The symbols of a section of type SYMTAB or DYNSYM; raises as `symbols_in` does."""
    return symbols_in(elf.content(section), elf.content(elf.section_at(section.link)))
