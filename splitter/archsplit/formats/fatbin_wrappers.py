"""Wrappers in ``.nvFatBinSegment``, through which a program registers its containers.

In: a host file; out: each wrapper with the container that its pointer leads to. The pointer's value
depends on the kind of file: relocations in an object, RELATIVE or RELR pointers in a library, final
addresses in a program that is not position-independent.
"""

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
# In version 2 the last field points to an array that the start-up code of the device link fills.
LINKED = 2
"""The version of a wrapper that a device link wrote."""
WRAPPER_VERSIONS = {1, LINKED}
# The field that leads to the container; the other pointer of the record isn't device code.
_DATA_AT = 8
_SHN_LORESERVE = 0xFF00  # from here on it is not a section's index
# R_X86_64_64 and R_AARCH64_ABS64.
_ABSOLUTE: Mapping[int, int] = {Machine.X86_64: 1, Machine.AARCH64: 257}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapper:
    """The record by which a program registers one container with the CUDA runtime.

    Attributes:
        offset: file offset of the wrapper.
        version: 1, or 2 for a device-linked program (``-rdc=true``).
        container: the container, or None if the file has no value for the pointer.
        record: file offset of the Elf64_Rela whose addend is the pointer, or None.
    """

    offset: int
    version: int
    container: Container | None
    record: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _PointerTarget:
    """The target of a wrapper's pointer, and the relocation of the pointer."""

    window: Window
    record: int | None


def read_wrappers(elf: Elf) -> Iterator[Wrapper]:
    """Return all wrappers of a host library, program or object.

    Raises:
        BinaryFormatError: a wrapper or its container is damaged.
    """
    section = _single_section(
        elf, (section for section in elf.sections() if section.name == WRAPPER_SECTION)
    )
    if section is None:
        return
    content = elf.content(section)
    # The pointer's own bytes don't always have its value: in objects and in most libraries, the
    # addend of a relocation has it.
    targets = dict(_pointer_targets(elf, section))
    for index, (magic, version, _, _) in enumerate(content.records(_WRAPPER, WRAPPER_SECTION)):
        offset = index * _WRAPPER.size
        _check(content, offset, magic, version)
        target = targets.get(offset)
        yield Wrapper(
            offset=content.start + offset,
            version=version,
            container=None if target is None else read_container(target.window, 0),
            record=None if target is None else target.record,
        )


def _single_section(elf: Elf, sections: Iterator[Section]) -> Section | None:
    section = next(sections, None)
    # A linker merges them; of two, it isn't known which one the constructors register.
    if next(sections, None) is not None:
        raise elf.window.fault(0, f"sections for {WRAPPER_SECTION}", "several", "one")
    return section


def _check(content: Window, offset: int, magic: int, version: int) -> None:
    if magic != _MAGIC:
        raise content.fault(offset, "magic of a wrapper", f"{magic:#x}", f"{_MAGIC:#x}")
    if version not in WRAPPER_VERSIONS:
        raise content.fault(offset + 4, "version of a wrapper", str(version), "1 or 2")


def _pointer_targets(elf: Elf, section: Section) -> Iterator[tuple[int, _PointerTarget]]:
    """Return the pointers' targets by the wrapper's offset in its section."""
    # The type decides which of the tables below exist.
    if elf.header.type == FileType.OBJECT:
        return _targets_in_object(elf, section)
    if elf.header.type == FileType.EXECUTABLE:
        return _targets_in_program(elf, section)
    return _targets_in_library(elf, section)


def _targets_in_library(elf: Elf, section: Section) -> Iterator[tuple[int, _PointerTarget]]:
    low, high = section.address, section.address + section.size
    for pointer in read_pointers(elf, Dynamic(elf), low, high):
        wrapper, field = divmod(pointer.address - low, _WRAPPER.size)
        if field == _DATA_AT:
            # To the end of the segment: the container's own header has its size.
            window = elf.from_address(pointer.value, "container of a wrapper")
            yield wrapper * _WRAPPER.size, _PointerTarget(window=window, record=pointer.record)


def _targets_in_program(elf: Elf, section: Section) -> Iterator[tuple[int, _PointerTarget]]:
    # A program that is not position-independent has final addresses, and no relocations for them.
    for index, (_, _, data, _) in enumerate(
        elf.content(section).records(_WRAPPER, WRAPPER_SECTION)
    ):
        window = elf.from_address(data, "container of a wrapper")
        yield index * _WRAPPER.size, _PointerTarget(window=window, record=None)


def _targets_in_object(elf: Elf, section: Section) -> Iterator[tuple[int, _PointerTarget]]:
    relocations = list(_absolute_relocations(elf, section))
    # An undefined or absolute symbol has no section: the linker decides about its value.
    indexes = {index for _, index, _, _ in relocations if 0 < index < _SHN_LORESERVE}
    sections = {other.index: other for other in elf.sections() if other.index in indexes}
    for wrapper, index, at, record in relocations:
        if index in sections:
            window = elf.content(sections[index])
            container = window.part(at, len(window) - at, "container of a wrapper")
            yield wrapper, _PointerTarget(window=container, record=record)


def _absolute_relocations(elf: Elf, section: Section) -> Iterator[tuple[int, int, int, int]]:
    """Return each wrapper's offset, its target's section and offset, and the record."""
    relocations = _single_section(elf, _relocation_sections(elf, section))
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


def _relocation_sections(elf: Elf, section: Section) -> Iterator[Section]:
    return (
        other
        for other in elf.sections()
        if other.type == SectionType.RELA and other.info == section.index
    )
