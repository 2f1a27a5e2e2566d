"""Move containers inside of a library: everything that points at them has to follow.

What is changed is what the loader fills pointers from (the wrappers' and any other), and the
symbols of the containers. A pointer that can't be followed is an obstacle, never left behind.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING

from archsplit.devicecode.edits import Edit, overwrite
from archsplit.errors import BinaryFormatError
from archsplit.formats.elf_dynamic import Dynamic
from archsplit.formats.elf_sections import SectionType
from archsplit.formats.relocations import pointers_between
from archsplit.formats.symbols import SYMBOL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from archsplit.devicecode.rewrite import FilteredContainer
    from archsplit.formats.elf import Elf
    from archsplit.formats.elf_sections import Section

_WORD = Struct("<Q")
_ADDEND_AT = 16
_VALUE_AT = 8
_EVERYWHERE = 1 << 64
_DYNAMIC_SYMBOLS = 11  # SHT_DYNSYM
_SYMBOL_TABLES = {SectionType.SYMBOLS, _DYNAMIC_SYMBOLS}


class ObstacleError(BinaryFormatError):
    """A sound library that can't be made shorter; its images can still be taken out in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """All containers of a section, pushed together at its front.

    Attributes:
        addresses: the containers' new addresses by their old ones.
        size: bytes that the section has afterwards.
    """

    section: Section
    containers: tuple[FilteredContainer, ...] = field(repr=False)
    addresses: Mapping[int, int] = field(repr=False)
    size: int

    def holds(self, address: int) -> bool:
        """Whether an address lies in the section as it was."""
        return self.section.address <= address < self.section.address + self.section.size


def compact(section: Section, containers: tuple[FilteredContainer, ...]) -> Compaction:
    """Push a section's containers together."""
    addresses, size = {}, 0
    for one in containers:
        addresses[section.address + one.start - section.offset] = section.address + size
        size += one.size
    return Compaction(section=section, containers=containers, addresses=addresses, size=size)


def relocate_section(elf: Elf, compaction: Compaction) -> Iterator[Edit]:
    """Set everything that points into a section anew.

    Raises:
        ObstacleError: a pointer into the middle of a container, or one that moves and that no
            pointer leads to; code could have its address in a way that nobody can see.
        BinaryFormatError: the tables of pointers or symbols are damaged.
    """
    reached = set()
    for pointer in pointers_between(elf, Dynamic(elf), 0, _EVERYWHERE):
        if compaction.holds(pointer.value):
            new = _followed(elf, compaction, pointer.value, "a pointer")
            reached.add(pointer.value)
            yield from _pointer_edits(elf, pointer.address, pointer.record, pointer.value, new)
    for old, new in compaction.addresses.items():
        if old != new and old not in reached:
            raise ObstacleError(f"{elf.window.source}: no pointer leads to container {old:#x}")
    for table in elf.sections():
        if table.type in _SYMBOL_TABLES:
            yield from _symbol_edits(elf, compaction, table)


def _followed(elf: Elf, compaction: Compaction, address: int, what: str) -> int:
    if address not in compaction.addresses:
        raise ObstacleError(f"{elf.window.source}: {what} leads into a container")
    return compaction.addresses[address]


def _pointer_edits(
    elf: Elf, address: int, record: int | None, old: int, new: int
) -> Iterator[Edit]:
    if record is not None:
        yield overwrite(record + _ADDEND_AT, _WORD.pack(new))
    copy = elf.at_address(address, _WORD.size, "pointer")
    # Where a record says what the pointer will be, its own bytes mean nothing, but most linkers
    # set them to the same address.
    if copy.u64(0, "pointer") == old:
        yield overwrite(copy.start, _WORD.pack(new))


def _symbol_edits(elf: Elf, compaction: Compaction, table: Section) -> Iterator[Edit]:
    content = elf.content(table)
    for number, row in enumerate(content.records(SYMBOL, "symbols")):
        value = row[4]
        if row[3] == compaction.section.index and compaction.holds(value):
            if table.type == _DYNAMIC_SYMBOLS:
                _followed(elf, compaction, value, "an exported symbol")
            new = compaction.addresses.get(value, value)
            offset = content.start + number * SYMBOL.size + _VALUE_AT
            yield overwrite(offset, _WORD.pack(new))
