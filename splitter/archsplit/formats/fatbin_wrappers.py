"""Read ``.nvFatBinSegment``: the wrappers through which a program registers its containers."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING

from archsplit.formats.elf import FileType, Machine, SectionType
from archsplit.formats.elf_dynamic import RELA, SYMBOL, Dynamic, read_pointers, relocation_type
from archsplit.formats.fatbin import Container, read_container

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from archsplit.formats.elf import Elf, Section
    from archsplit.formats.reader import Window

__pure__ = True

WRAPPER_SECTION = ".nvFatBinSegment"
_WRAPPER = Struct("<IIQQ")
_MAGIC = 0x466243B1
_VERSIONS = {1, 2}
_DATA_AT = 8
_RESERVED = 0xFF00  # SHN_LORESERVE: from here on it is not a section's index
_ABSOLUTE: Mapping[int, int] = {Machine.X86_64: 1, Machine.AARCH64: 257}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapper:
    """What is registered with the CUDA runtime: one container.

    Attributes:
        offset: where it is in the file.
        version: 1, or 2 for a device-linked program (``-rdc=true``).
        container: None when nothing in the file says where its pointer will point.
        record: file offset of the Elf64_Rela whose addend is the pointer, or None.
    """

    offset: int
    version: int
    container: Container | None
    record: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a wrapper's pointer points, and the relocation that says so."""

    window: Window
    record: int | None


def read_wrappers(elf: Elf) -> Iterator[Wrapper]:
    """All wrappers of a host library, program or object, each with its container.

    Raises:
        BinaryFormatError: a wrapper, or what it points at, is not what it should be.
    """
    section = _only(elf, (section for section in elf.sections() if section.name == WRAPPER_SECTION))
    if section is None:
        return
    content = elf.content(section)
    places = dict(_places(elf, section))
    for index, (magic, version, _, _) in enumerate(content.records(_WRAPPER, WRAPPER_SECTION)):
        offset = index * _WRAPPER.size
        _check(content, offset, magic, version)
        place = places.get(offset)
        yield Wrapper(
            offset=content.start + offset,
            version=version,
            container=None if place is None else read_container(place.window, 0),
            record=None if place is None else place.record,
        )


def _only(elf: Elf, sections: Iterator[Section]) -> Section | None:
    found = next(sections, None)
    if next(sections, None) is not None:
        raise elf.window.fault(0, f"sections for {WRAPPER_SECTION}", "several", "one")
    return found


def _check(content: Window, offset: int, magic: int, version: int) -> None:
    if magic != _MAGIC:
        raise content.fault(offset, "magic of a wrapper", f"{magic:#x}", f"{_MAGIC:#x}")
    if version not in _VERSIONS:
        raise content.fault(offset + 4, "version of a wrapper", str(version), "1 or 2")


def _places(elf: Elf, section: Section) -> Iterator[tuple[int, _Place]]:
    """Where the wrappers' pointers point, by the wrapper's offset in its section."""
    if elf.header.type == FileType.OBJECT:
        return _in_object(elf, section)
    if elf.header.type == FileType.EXECUTABLE:
        return _in_fixed(elf, section)
    return _in_library(elf, section)


def _in_library(elf: Elf, section: Section) -> Iterator[tuple[int, _Place]]:
    low, high = section.address, section.address + section.size
    for pointer in read_pointers(elf, Dynamic(elf), low, high):
        wrapper, field = divmod(pointer.address - low, _WRAPPER.size)
        if field == _DATA_AT:
            window = elf.from_address(pointer.value, "container of a wrapper")
            yield wrapper * _WRAPPER.size, _Place(window=window, record=pointer.record)


def _in_fixed(elf: Elf, section: Section) -> Iterator[tuple[int, _Place]]:
    # A program that is not position-independent has final addresses, and no relocations for them.
    for index, (_, _, data, _) in enumerate(
        elf.content(section).records(_WRAPPER, WRAPPER_SECTION)
    ):
        window = elf.from_address(data, "container of a wrapper")
        yield index * _WRAPPER.size, _Place(window=window, record=None)


def _in_object(elf: Elf, section: Section) -> Iterator[tuple[int, _Place]]:
    found = list(_absolute_relocations(elf, section))
    wanted = {index for _, index, _, _ in found if 0 < index < _RESERVED}
    targets = {other.index: other for other in elf.sections() if other.index in wanted}
    for wrapper, index, at, record in found:
        if index in targets:
            window = elf.content(targets[index])
            place = window.part(at, len(window) - at, "container of a wrapper")
            yield wrapper, _Place(window=place, record=record)


def _absolute_relocations(elf: Elf, section: Section) -> Iterator[tuple[int, int, int, int]]:
    """For each wrapper: its offset, the section and offset that it points at, and the record."""
    relocations = _only(elf, _relocations_of(elf, section))
    if relocations is None:
        return
    absolute = relocation_type(elf, _ABSOLUTE)
    symbols = elf.content(elf.section_at(relocations.link))
    table = elf.content(relocations)
    for number, (offset, info, addend) in enumerate(table.records(RELA, "relocations")):
        wrapper, field = divmod(offset, _WRAPPER.size)
        if field == _DATA_AT and info & 0xFFFF_FFFF == absolute:
            row = symbols.unpack(SYMBOL, (info >> 32) * SYMBOL.size, "symbol of a wrapper")
            record = table.start + number * RELA.size
            yield wrapper * _WRAPPER.size, row[3], row[4] + addend, record


def _relocations_of(elf: Elf, section: Section) -> Iterator[Section]:
    return (
        other
        for other in elf.sections()
        if other.type == SectionType.RELA and other.info == section.index
    )
