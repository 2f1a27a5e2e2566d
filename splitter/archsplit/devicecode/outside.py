"""Device code outside of the fatbin sections, and that of libraries without section headers.

Nothing but its first bytes tells where it is, so each suspicion is checked by reading all headers
of what would be there.
"""

from __future__ import annotations

import heapq
import struct
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from archsplit.devicecode.model import Place
from archsplit.devicecode.read import container_unit, cubin_unit
from archsplit.devicecode.scan import CONTAINER_MAGIC, CUBIN, WRAPPER, magic_offsets
from archsplit.errors import BinaryFormatError
from archsplit.formats.elf import Elf
from archsplit.formats.elf_dynamic import Dynamic
from archsplit.formats.elf_header import Machine, SegmentType
from archsplit.formats.elf_sections import SectionType
from archsplit.formats.fatbin import EXECUTABLE, RELOCATABLE, read_container
from archsplit.formats.relocations import pointers_between

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.devicecode.model import Unit
    from archsplit.devicecode.read import Share
    from archsplit.formats.elf_sections import Section
    from archsplit.formats.reader import Window

REGISTERED, UNREGISTERED = "(registered)", "(not registered)"
"""What stands for the section's name where the section headers are gone."""

MOST_UNREADABLE = 64
"""After so many suspicions that were none no more are followed, so that no file takes for ever."""

_PROGBITS, _EXECUTABLE_FLAG = 1, 4
_MACHINE = struct.pack("<H", Machine.CUDA)
_ELF_MACHINE_AT, _VERSION_AT, _POINTER_AT = 18, 4, 8
_WRAPPER_SIZE = 24
_WRAPPER_VERSIONS = {1, 2}
_SECTION_HEADER_SIZE, _SEGMENT_HEADER_SIZE = 64, 56


@dataclass(slots=True)
class ContainerSearch:
    """A search through one file.

    Attributes:
        share: what its images cost of the download.
        left: bytes that may still be looked at. A file of 64 KiB can have a thousand sections that
            are all the same bytes; a real one has no byte in more than two.
        unreadable: where something began as device code does, and was none, up to now.
    """

    share: Share
    left: int
    unreadable: list[int] = field(default_factory=list)

    def outside(self, elf: Elf) -> Iterator[Unit]:
        """What the data sections of a host file hold beside the fatbin sections."""
        for section in elf.sections():
            if _may_hold_data(section):
                content = elf.content(section)
                yield from (unit for unit, _ in self.found_in(content, section.name))

    def stripped(self, elf: Elf) -> Iterator[Unit]:
        """The device code of a library without section headers.

        The wrappers are found by their magic. The containers that they point at are those that the
        CUDA runtime will be given: `REGISTERED`. The others may be anything: `UNREGISTERED`.

        Raises:
            BinaryFormatError: the dynamic section or the relocations are damaged.
        """
        registered = set(self._registered(elf))
        for segment in elf.segments:
            if segment.type == SegmentType.LOAD:
                content = elf.window.at(segment.offset, segment.file_size, "segment")
                for unit, offset in self.found_in(content, UNREGISTERED):
                    if offset in registered:
                        yield replace(unit, section=REGISTERED, place=Place.EXECUTABLE)
                    else:
                        yield unit

    def found_in(self, window: Window, section: str) -> Iterator[tuple[Unit, int]]:
        """What begins in a window, each with its offset in the file.

        Raises:
            BinaryFormatError: the windows searched are together far more than the file.
        """
        self._spend(window)
        end = window.start
        for offset in heapq.merge(
            magic_offsets(CONTAINER_MAGIC, window), magic_offsets(CUBIN, window)
        ):
            if offset < end or len(self.unreadable) >= MOST_UNREADABLE:
                continue
            rest = window.at(offset, window.start + len(window) - offset, "device code")
            try:
                found = self._read(rest, section)
            except BinaryFormatError:
                self.unreadable.append(offset)
            else:
                if found is not None:
                    end = offset + found[1]
                    yield found[0], offset

    def _read(self, window: Window, section: str) -> tuple[Unit, int] | None:
        """What stands at a window's start, and its size; None where it is no device code."""
        if window.data[: len(CONTAINER_MAGIC)] == CONTAINER_MAGIC:
            container = read_container(window, 0)
            unit = container_unit(container, self.share, section=section, place=Place.OUTSIDE)
            return unit, container.size
        if window.data[_ELF_MACHINE_AT : _ELF_MACHINE_AT + len(_MACHINE)] != _MACHINE:
            return None
        size = _elf_size(Elf(window))
        cubin = window.part(0, size, "cubin")
        return cubin_unit(cubin, self.share, section=section, place=Place.OUTSIDE), size

    def _registered(self, elf: Elf) -> Iterator[int]:
        """File offsets of the containers that wrappers point at, by the library's relocations."""
        addresses = {address + _POINTER_AT for address in self._wrapper_addresses(elf)}
        if not addresses:
            return
        between = pointers_between(elf, Dynamic(elf), min(addresses), max(addresses) + 1)
        values = {pointer.address: pointer.value for pointer in between}
        for address in addresses & values.keys():
            yield elf.from_address(values[address], "container of a wrapper").start

    def _wrapper_addresses(self, elf: Elf) -> Iterator[int]:
        for segment in elf.segments:
            if segment.type != SegmentType.LOAD:
                continue
            content = elf.window.at(segment.offset, segment.file_size, "segment")
            self._spend(content)
            for offset in magic_offsets(WRAPPER, content):
                ahead = offset - segment.offset
                fits = ahead + _WRAPPER_SIZE <= len(content)
                if fits and content.u32(ahead + _VERSION_AT, "wrapper") in _WRAPPER_VERSIONS:
                    yield segment.address + ahead

    def _spend(self, window: Window) -> None:
        self.left -= len(window)
        if self.left < 0:
            raise window.fault(0, "parts of the file", "more than the file", "no overlaps")


def _may_hold_data(section: Section) -> bool:
    return (
        section.type == _PROGBITS
        and not section.flags & _EXECUTABLE_FLAG
        and section.name not in {EXECUTABLE, RELOCATABLE}
        and not section.name.startswith(".debug")
    )


def _elf_size(elf: Elf) -> int:
    """Where the last part of an ELF file ends that lies in a larger one."""
    header, start = elf.header, elf.window.start
    return max(
        header.sections_offset + elf.section_count * _SECTION_HEADER_SIZE,
        header.segments_offset + header.segment_count * _SEGMENT_HEADER_SIZE,
        *(
            section.offset - start + section.size
            for section in elf.sections()
            if section.type != SectionType.NOBITS
        ),
    )
