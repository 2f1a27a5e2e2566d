"""Search for device code in bytes without a table of it, by first bytes.

A match is only a candidate: a unit is reported after all of its headers were read. Memory stays
flat: files are mapped, searched in blocks, and their pages given back.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.arch.target import CodeKind, Target
from archsplit.devicecode.file_forms import CUDA_MACHINE, HEAD_SIZE, MACHINE_AT
from archsplit.devicecode.model import Place, Unit
from archsplit.devicecode.units import bare_image, cubin_unit, entry_image
from archsplit.devicecode.unregistered import framed_cubin
from archsplit.errors import BinaryFormatError
from archsplit.formats.cubin import ZSTD_MAGIC
from archsplit.formats.elf import Elf, SegmentType
from archsplit.formats.elf_dynamic import Dynamic, read_pointers
from archsplit.formats.fatbin import (
    EXECUTABLE,
    FATBIN_MAGIC,
    RELOCATABLE,
    WRAPPER_VERSIONS,
    Compression,
    read_container,
)
from archsplit.formats.mapped import SEARCH_BLOCK, magic_offsets, release_pages
from archsplit.system.parallel import SHORT_SEARCH, find_bytes
from archsplit.system.units import BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.devicecode.units import WheelShare
    from archsplit.formats.elf import Section
    from archsplit.formats.fatbin import Container, FatbinEntry
    from archsplit.formats.reader import Window

CONTAINER_MAGIC = struct.pack("<IH", FATBIN_MAGIC, 1)
"""First bytes of a fatbin container: its magic number and version."""

CUBIN_MAGIC = b"\x7fELF\x02\x01\x01"
"""First bytes of a cubin: a little-endian ELF file of 64 bits."""

WRAPPER_MAGIC = struct.pack("<I", 0x466243B1)
"""First bytes of a wrapper, the record through which a container is registered."""

REGISTERED, UNREGISTERED = "(registered)", "(not registered)"
"""Names in place of the section's, for files without section headers."""

MAX_UNREADABLE = 64
"""Number of false candidates after which a search ends.

No file can make a search run without end.
"""

_FIRST_BYTES = (CONTAINER_MAGIC[:4], CUBIN_MAGIC, ZSTD_MAGIC)
_PROGBITS, _EXECUTABLE_FLAG = 1, 4
_VERSION_AT, _POINTER_AT = 4, 8
_WRAPPER_SIZE = 24
_EMPTIED_HEAD = 64
"""No image begins with so many zeros: cubins and compressed ones have a magic number."""
_SECTION_HEADER_SIZE, _SEGMENT_HEADER_SIZE = 64, 56


class MagicSearch:
    """A search for device code in the blocks of a host file, by first bytes.

    Attributes:
        found: True if they are there; what follows may be something else.
    """

    def __init__(self) -> None:
        self.found = False
        self._last, self._is_start = b"", True

    def feed(self, block: bytes) -> None:
        """Search the next block."""
        view = memoryview(self._last + block)
        # The file itself begins like a cubin.
        start = int(self._is_start)
        self.found |= any(find_bytes(view, magic, start, len(view)) >= 0 for magic in _FIRST_BYTES)
        self._last = bytes(view[-(HEAD_SIZE - 1) :])
        self._is_start &= len(view) < HEAD_SIZE


@dataclass(slots=True)
class ContainerSearch:
    """A search through one file.

    Attributes:
        wheel_share: the part of the download that a range of the file takes.
        budget: bytes that may still be searched. A file of 64 KiB can have a thousand sections over
            the same bytes; a real one has no byte in more than two.
        unreadable: offsets of false candidates, so far.
    """

    wheel_share: WheelShare
    budget: int
    unreadable: list[int] = field(default_factory=list)

    def search_data_sections(self, elf: Elf) -> Iterator[Unit]:
        """Yield the units in the other data sections of a host file."""
        for section in elf.sections():
            if _may_hold_data(section):
                content = elf.content(section)
                yield from (unit for unit, _ in self.search_window(content, section.name))

    def search_segments(self, elf: Elf) -> Iterator[Unit]:
        """Yield the device code of a library without section headers.

        Wrappers are located by their magic number. The containers that they point at are registered
        with the CUDA runtime: `REGISTERED`. The use of others is unknown: `UNREGISTERED`.

        Raises:
            BinaryFormatError: the dynamic section or the relocations are damaged.
        """
        registered = set(self._registered_offsets(elf))
        for segment in elf.segments:
            if segment.type == SegmentType.LOAD:
                content = elf.window.at(segment.offset, segment.file_size, "segment")
                for unit, offset in self.search_window(content, UNREGISTERED):
                    # The runtime is given these; other containers may be data of the library.
                    if offset in registered:
                        yield unit._replace(section=REGISTERED, place=Place.EXECUTABLE)
                    else:
                        yield unit

    def search_window(self, window: Window, section: str) -> Iterator[tuple[Unit, int]]:
        """Yield the units in a window, each with its offset in the file.

        Raises:
            BinaryFormatError: the windows searched are together far more than the file.
        """
        self._charge(window)
        # Objects have thousands of small sections: one copy of each, and nothing to release.
        if len(window) < SHORT_SEARCH and not _has_magic(window.to_bytes()):
            return
        position = 0
        for start in range(0, len(window), SEARCH_BLOCK):
            end = start + SEARCH_BLOCK
            # Nothing is searched for inside of a unit: its headers were read.
            candidates = _Candidates(window=window, end=end)
            while (position := candidates.next(max(position, start))) < end:
                if len(self.unreadable) >= MAX_UNREADABLE:
                    return
                # To the end: the candidate's own header has its size.
                rest = window.part(position, len(window) - position, "device code")
                size = 1
                try:
                    unit_and_size = self._read(rest, section)
                except BinaryFormatError:
                    self.unreadable.append(rest.start)
                else:
                    if unit_and_size is not None:
                        unit, size = unit_and_size
                        yield unit, rest.start
                position += max(size, 1)
            # Not for each small section: it takes longer than the search.
            if len(window) >= BLOCK:
                release_pages(window)

    def _read(self, window: Window, section: str) -> tuple[Unit, int] | None:
        """Read a candidate; return its unit and size, or None for other data."""
        if window.data[: len(CONTAINER_MAGIC)] == CONTAINER_MAGIC:
            container = read_container(window, 0)
            images = tuple(
                entry_image(entry, self.wheel_share)
                for entry in container.entries()
                if not _is_emptied(container, entry)
            )
            return Unit(section=section, place=Place.OUTSIDE, images=images), container.size
        if window.data[: len(ZSTD_MAGIC)] == ZSTD_MAGIC:
            return self._read_frame(window, section)
        if window.data[MACHINE_AT:HEAD_SIZE] != CUDA_MACHINE:
            return None
        size = _elf_size(Elf(window))
        cubin = window.part(0, size, "cubin")
        return cubin_unit(cubin, self.wheel_share, section=section, place=Place.OUTSIDE), size

    def _read_frame(self, window: Window, section: str) -> tuple[Unit, int] | None:
        """Read a cubin in a zstd frame, as cuBLASLt has them in its data."""
        found = framed_cubin(window)
        if found is None:
            return None
        capability, size = found
        # The suffix is in the note of ptxas, behind all of the code.
        target = Target(kind=CodeKind.SASS, capability=capability)
        image = bare_image(target, window, size, self.wheel_share, Compression.ZSTD)
        return Unit(section=section, place=Place.OUTSIDE, images=(image,)), size

    def _registered_offsets(self, elf: Elf) -> Iterator[int]:
        """Yield the file offsets of registered containers, by the library's relocations."""
        # Only the pointers of wrappers are looked up; a library may have a million relocations.
        addresses = {address + _POINTER_AT for address in self._wrapper_addresses(elf)}
        if not addresses:
            return
        pointers = read_pointers(elf, Dynamic(elf), range(min(addresses), max(addresses) + 1))
        # The pointer in the file may be 0: the loader writes it by the relocation.
        values = {pointer.address: pointer.value for pointer in pointers}
        for address in addresses & values.keys():
            yield elf.from_address(values[address], "container of a wrapper").start

    def _wrapper_addresses(self, elf: Elf) -> Iterator[int]:
        for segment in elf.segments:
            if segment.type != SegmentType.LOAD:
                continue
            content = elf.window.at(segment.offset, segment.file_size, "segment")
            self._charge(content)
            for offset in magic_offsets(WRAPPER_MAGIC, content):
                position = offset - segment.offset
                fits = position + _WRAPPER_SIZE <= len(content)
                if fits and content.u32(position + _VERSION_AT, "wrapper") in WRAPPER_VERSIONS:
                    yield segment.address + position

    def _charge(self, window: Window) -> None:
        self.budget -= len(window)
        if self.budget < 0:
            raise window.fault(0, "parts of the file", "more than the file", "no overlaps")


@dataclass(slots=True)
class _Candidates:
    """Places in one block at which device code may begin.

    Attributes:
        end: the end of the block; what begins before it may end after it.
        hits: the next place of each magic number; ``end`` for none.
    """

    window: Window
    end: int
    hits: dict[bytes, int] = field(default_factory=dict)

    def next(self, position: int) -> int:
        """Return the first place from a position on; the end of the block, or later, for none."""
        if position >= self.end:
            return position
        # Most containers follow another one: three searches for each would take longer than all.
        if self.window.data[position : position + len(CONTAINER_MAGIC)] == CONTAINER_MAGIC:
            return position
        for magic in (CONTAINER_MAGIC, CUBIN_MAGIC, ZSTD_MAGIC):
            # A later place is still the next one.
            if self.hits.get(magic, -1) < position:
                last = self.end + len(magic) - 1
                at = find_bytes(self.window.data, magic, position, last)
                self.hits[magic] = self.end if at < 0 else at
        return min(self.hits.values())


def _is_emptied(container: Container, entry: FatbinEntry) -> bool:
    """Return True for an image whose payload was overwritten with zeros: the header stays."""
    head = container.payload(entry).data[:_EMPTIED_HEAD]
    return len(head) == _EMPTIED_HEAD and not any(head)


def _has_magic(content: bytes) -> bool:
    return any(magic in content for magic in (CONTAINER_MAGIC, CUBIN_MAGIC, ZSTD_MAGIC))


def _may_hold_data(section: Section) -> bool:
    return (
        # Machine code is skipped: constants in it look like magic numbers.
        section.type == _PROGBITS
        and not section.flags & _EXECUTABLE_FLAG
        and section.name not in {EXECUTABLE, RELOCATABLE}
        # The debug sections are the largest of a file, and never loaded.
        and not section.name.startswith(".debug")
    )


def _elf_size(elf: Elf) -> int:
    """Return the size of an ELF file that lies in a larger one: the end of its last part."""
    header = elf.header
    # A cubin has no field for its size, and what follows it in the section is unknown.
    return max(
        header.sections_offset + elf.section_count * _SECTION_HEADER_SIZE,
        header.segments_offset + header.segment_count * _SEGMENT_HEADER_SIZE,
        elf.sections_end(),
    )
