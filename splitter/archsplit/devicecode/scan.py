"""Read the headers of all device code in one file; nothing is decompressed.

In goes a file of any form: ELF, PE, static library, fatbin, cubin or device pack. Out come its
units. Two ways lead to device code: the tables of the file (sections, archive members, pack tables)
and, without a table, a search for the magic numbers of containers and cubins. A match of
the search is only a candidate: a unit is reported after all of its headers were read.

Memory stays flat: files are mapped, searched in blocks, and their pages given back.
"""

from __future__ import annotations

import enum
import mmap
import os
import struct
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.arch.target import CodeKind, Target
from archsplit.devicecode.model import FatContainer, Image, Place, Unit
from archsplit.devicecode.unregistered import framed_cubin
from archsplit.errors import BinaryFormatError
from archsplit.formats import device_pack
from archsplit.formats.cubin import ZSTD_MAGIC, Cubin
from archsplit.formats.descriptor import Shape
from archsplit.formats.elf import ELF_MAGIC, Elf, FileType, Machine, SegmentType
from archsplit.formats.elf_dynamic import Dynamic, read_pointers
from archsplit.formats.fatbin import (
    EXECUTABLE,
    FATBIN_MAGIC,
    LINKED,
    RELOCATABLE,
    WRAPPER_VERSIONS,
    Compression,
    EntryKind,
    host_containers,
    read_container,
    read_containers,
    read_wrappers,
)
from archsplit.formats.libraries import AR_MAGIC, PE_MAGIC, read_members, read_pe_sections
from archsplit.system.parallel import SHORT_SEARCH, find_bytes
from archsplit.system.units import BLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from archsplit.formats.elf import Section
    from archsplit.formats.fatbin import Container, FatbinEntry, Wrapper
    from archsplit.formats.reader import Window

    WheelShare = Callable[[int, int], int] | None
    """A function from a range of the file to bytes of the download; None without a download."""

CONTAINER_MAGIC = struct.pack("<IH", FATBIN_MAGIC, 1)
"""First bytes of a fatbin container: its magic number and version."""

CUBIN_MAGIC = b"\x7fELF\x02\x01\x01"
"""First bytes of a cubin: a little-endian ELF file of 64 bits."""

_FIRST_BYTES = (CONTAINER_MAGIC[:4], CUBIN_MAGIC, ZSTD_MAGIC)

WRAPPER_MAGIC = struct.pack("<I", 0x466243B1)
"""First bytes of a wrapper, the record through which a container is registered."""

_SEARCH_BLOCK = 8 << 20
"""Bytes that are searched at once. After each search a thread waits for the interpreter lock, up to
5 ms if others run Python: with 1 MiB, most of the time."""

HEAD_SIZE = 20
"""Number of bytes of a file that `detect_form` needs."""

PE_PLACES = {
    EXECUTABLE[:8]: Place.EXECUTABLE,
    RELOCATABLE[:8]: Place.RELOCATABLE,
}
"""Fatbin sections by their names in Windows libraries, which have eight bytes."""

REGISTERED, UNREGISTERED = "(registered)", "(not registered)"
"""Names in place of the section's, for files without section headers."""

MAX_UNREADABLE = 64
"""Number of false candidates after which a search ends.

No file can make a search run without end.
"""

_PROGBITS, _EXECUTABLE_FLAG = 1, 4
_MACHINE_AT, _MACHINE = 18, struct.pack("<H", Machine.CUDA)
_VERSION_AT, _POINTER_AT = 4, 8
_WRAPPER_SIZE = 24
_EMPTIED_HEAD = 64
"""No image begins with so many zeros: cubins and compressed ones have a magic number."""
_SECTION_HEADER_SIZE, _SEGMENT_HEADER_SIZE = 64, 56


class Form(enum.Enum):
    """Forms of files that can hold device code."""

    ELF = enum.auto()
    PE = enum.auto()
    CUBIN = enum.auto()
    STATIC_LIBRARY = enum.auto()
    FATBIN = enum.auto()
    DEVICE_PACK = enum.auto()


def detect_form(head: bytes) -> Form | None:
    """Return the form of a file by its first bytes; None for other files."""
    # Host files and cubins differ only by the machine.
    if head.startswith(ELF_MAGIC):
        is_cubin = head[_MACHINE_AT:HEAD_SIZE] == _MACHINE
        return Form.CUBIN if is_cubin else Form.ELF
    if head.startswith(PE_MAGIC):
        return Form.PE
    if head.startswith(AR_MAGIC):
        return Form.STATIC_LIBRARY
    if head.startswith(struct.pack("<I", FATBIN_MAGIC)):
        return Form.FATBIN
    if head.startswith(device_pack.PACK_MAGIC):
        return Form.DEVICE_PACK
    return None


def window_form(window: Window) -> Form | None:
    """Return the form of a mapped file by its first bytes; None for other files."""
    return detect_form(window.data[:HEAD_SIZE].tobytes())


def file_form(path: str) -> Form | None:
    """Return the form of a file by its first bytes.

    Raises:
        OSError: the file can't be read.
    """
    # Neither `Path` nor a file object: an environment has a hundred thousand files, and most are
    # read no further.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return detect_form(os.read(descriptor, HEAD_SIZE))
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContents:
    """Units of a file, and the reason why they may be incomplete, or None."""

    units: tuple[Unit, ...] = field(default=(), repr=False)
    problem: str | None = None


def read_contents(window: Window, wheel_share: WheelShare = None) -> FileContents:
    """Read all headers of device code in a file; files of other forms have none.

    Args:
        window: the whole file.
        wheel_share: the part of the download that a range of the file takes.

    Raises:
        BinaryFormatError: the file is damaged.
    """
    form, contents = window_form(window), FileContents()
    if form is Form.ELF:
        contents = _read_host_file(window, wheel_share)
    elif form is Form.CUBIN:
        contents = FileContents(units=(cubin_unit(window, wheel_share),))
    elif form is Form.FATBIN:
        containers = read_containers(window)
        units = tuple(container_unit(container, wheel_share) for container in containers)
        contents = FileContents(units=units)
    elif form is Form.DEVICE_PACK:
        contents = FileContents(units=tuple(pack_units(window, wheel_share)))
    elif form is Form.PE:
        contents = _read_pe(window, wheel_share)
    elif form is Form.STATIC_LIBRARY:
        contents = _read_static_library(window, wheel_share)
    release_pages(window)
    return contents


def _read_host_file(
    window: Window, wheel_share: WheelShare, member: str | None = None
) -> FileContents:
    elf, search = Elf(window), _file_search(window, wheel_share)
    # The search goes over everything else too: cuBLASLt and cuDNN have most of their newest code
    # outside of the fatbin sections.
    if elf.section_count:
        units = (*section_units(elf, wheel_share, member=member), *search.search_data_sections(elf))
        problem = None
    else:
        units = tuple(search.search_segments(elf))
        problem = "it has no section headers: its device code was searched for"
    return FileContents(units=units, problem=problem or _unreadable_problem(search.unreadable))


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


def search_unregistered(window: Window) -> tuple[Unit, ...]:
    """Return the device code of a library outside of its fatbin sections.

    Raises:
        BinaryFormatError: the file is damaged.
    """
    return tuple(_file_search(window).search_data_sections(Elf(window)))


def _file_search(window: Window, wheel_share: WheelShare = None) -> ContainerSearch:
    # A byte lies in two sections or segments at most, and is searched for wrappers and for units.
    return ContainerSearch(wheel_share, 4 * len(window))


def _read_pe(window: Window, wheel_share: WheelShare) -> FileContents:
    search = _file_search(window, wheel_share)
    units: list[Unit] = []
    for section in read_pe_sections(window):
        place = PE_PLACES.get(section.name)
        if place is not None:
            containers = read_containers(section.content)
            units += (
                container_unit(one, wheel_share, section=section.name, place=place)
                for one in containers
            )
        # Machine code is skipped: constants in it look like magic numbers.
        elif not section.is_code:
            units += (unit for unit, _ in search.search_window(section.content, section.name))
    return FileContents(units=tuple(units), problem=_unreadable_problem(search.unreadable))


def _read_static_library(window: Window, wheel_share: WheelShare) -> FileContents:
    members, mapped = [], 0
    for member in read_members(window):
        # Other members are LLVM bitcode, or the index of another tool.
        if window_form(member.content) is Form.ELF:
            members.append(_read_host_file(member.content, wheel_share, member.name))
        mapped += len(member.content)
        if mapped >= BLOCK:
            release_pages(window)
            mapped = 0
    return FileContents(
        units=tuple(unit for contents in members for unit in contents.units),
        problem=next((contents.problem for contents in members if contents.problem), None),
    )


def _unreadable_problem(places: list[int]) -> str | None:
    if not places:
        return None
    or_more = " or more" if len(places) == MAX_UNREADABLE else ""
    return (
        "places outside of its fatbin sections that look like device code and can't be read:"
        f" {len(places)}{or_more}; the first is at offset {places[0]:#x}"
    )


def magic_offsets(magic: bytes, window: Window) -> Iterator[int]:
    """Yield the file offsets at which ``magic`` stands in a window, ascending."""
    for start in range(0, len(window), BLOCK):
        # What begins in this block may end in the next one.
        end = start + BLOCK + len(magic) - 1
        at = find_bytes(window.data, magic, start, end)
        while at >= 0:
            yield window.start + at
            at = find_bytes(window.data, magic, at + 1, end)
        release_pages(window)


def release_pages(window: Window) -> None:
    """Release the memory of a mapped file's pages; later reads map them again.

    Each read of a mapped file brings in 64 KiB, so that reading a few bytes of every image would
    otherwise hold all of a library in memory.
    """
    mapping = window.data.obj
    if isinstance(mapping, mmap.mmap):
        mapping.madvise(mmap.MADV_DONTNEED)


def released_blocks(window: Window) -> Iterator[memoryview]:
    """Yield a mapped file in blocks, and release the pages of each block."""
    for start in range(0, len(window), _SEARCH_BLOCK):
        yield window.data[start : start + _SEARCH_BLOCK]
        release_pages(window)


def pack_units(window: Window, wheel_share: WheelShare) -> Iterator[Unit]:
    """Yield the containers of a device pack; containers of a core's table have no images.

    Raises:
        DevicePackError: it is damaged.
    """
    is_table = device_pack.is_table(window)
    pack = device_pack.read_pack(window, is_table=is_table)
    # A table of library plugins has no containers of a library.
    for library in pack.libraries if pack.descriptor.shape is Shape.DEVICE else ():
        for row in library.containers:
            fat = FatContainer(build=pack.descriptor.build_id, key=row.key)
            if is_table:
                place = Place.EXECUTABLE
                yield Unit(section=None, place=place, images=(), member=library.name, fat=fat)
            # A pack has a row for each container of the library, with or without images.
            elif row.images:
                unit = container_unit(read_container(window, row.offset), wheel_share)
                # The number of the fat container joins the parts of several packs (`join_units`).
                yield unit._replace(member=library.name, fat=fat)
        release_pages(window)


def cubin_unit(
    window: Window,
    wheel_share: WheelShare = None,
    *,
    section: str | None = None,
    place: Place = Place.EXECUTABLE,
) -> Unit:
    """Return the unit of a bare cubin.

    The suffix ``a`` or ``f`` is known only if ptxas noted it (since CUDA 13).

    Raises:
        BinaryFormatError: it is damaged.
    """
    cubin = Cubin(window)
    target = cubin.noted_target() or Target(kind=CodeKind.SASS, capability=cubin.capability)
    image = _bare_image(target, window, len(window), wheel_share)
    return Unit(section=section, place=place, images=(image,))


def _bare_image(
    target: Target,
    window: Window,
    size: int,
    wheel_share: WheelShare,
    compression: Compression = Compression.NONE,
) -> Image:
    """Return a cubin outside of containers, with which a window begins."""
    return Image(
        kind=EntryKind.CUBIN,
        kind_number=EntryKind.CUBIN,
        target=target,
        arch=target.capability.sm_number,
        suffix=target.suffix,
        compression=compression,
        offset=window.start,
        file_bytes=size,
        wheel_bytes=_wheel_bytes(wheel_share, window.start, size),
        is_bare=True,
    )


def _wheel_bytes(wheel_share: WheelShare, start: int, size: int) -> int | None:
    return None if wheel_share is None else wheel_share(start, start + size)


def section_units(
    elf: Elf, wheel_share: WheelShare, *, member: str | None = None
) -> Iterator[Unit]:
    """Yield the containers in the fatbin sections of a host file with section headers.

    Raises:
        BinaryFormatError: it is damaged.
    """
    wrappers = known_wrappers(elf)
    linked = {container.offset for container in linked_containers(wrappers)}
    found = Counter(one.container.offset for one in wrappers or () if one.container is not None)
    for section, container in host_containers(elf):
        # Code for a device link runs nowhere by itself, so the two are counted apart.
        place = Place.EXECUTABLE if section.name == EXECUTABLE else Place.RELOCATABLE
        unit = container_unit(
            container, wheel_share, section=section.name, place=place, member=member
        )
        if linked and (place is Place.RELOCATABLE or container.offset in linked):
            unit = unit._replace(is_device_linked=True)
        yield unit._replace(is_registered=found[container.offset] == 1)
        release_pages(elf.window)


def known_wrappers(elf: Elf) -> tuple[Wrapper, ...] | None:
    """Return the wrappers of a library or program; None for an object, or if they are damaged."""
    if elf.header.type != FileType.OBJECT:
        # The containers can be read without their wrappers.
        with suppress(BinaryFormatError):
            return tuple(read_wrappers(elf))
    return None


def linked_containers(wrappers: Iterable[Wrapper] | None) -> tuple[Container, ...]:
    """Return the containers that a device link wrote."""
    linked = (wrapper.container for wrapper in wrappers or () if wrapper.version == LINKED)
    return tuple(container for container in linked if container is not None)


def container_unit(
    container: Container,
    wheel_share: WheelShare,
    *,
    section: str | None = None,
    place: Place = Place.EXECUTABLE,
    member: str | None = None,
) -> Unit:
    """Return the images of a container as a unit.

    Raises:
        BinaryFormatError: an entry is damaged.
    """
    images = tuple(
        image
        for entry in container.entries()
        for image in _entry_images(container, entry, wheel_share)
    )
    return Unit(section=section, place=place, images=images, member=member)


def _entry_images(
    container: Container, entry: FatbinEntry, wheel_share: WheelShare
) -> Iterator[Image]:
    """Yield an entry's images: several, with shares of its bytes, for a frame of kind 256."""
    whole, inner = entry_image(entry, wheel_share), container.inner_entries(entry)
    if not inner:
        yield whole
    end = 0
    for one in inner:
        start, end = end, end + one.size
        part = whole.wheel_bytes
        if part is not None:
            part = end * part // entry.size - start * part // entry.size
        yield entry_image(one, None)._replace(wheel_bytes=part, frame=entry.offset)


def entry_image(entry: FatbinEntry, wheel_share: WheelShare) -> Image:
    """Return an entry of a container as an image."""
    return Image(
        kind=entry.kind,
        kind_number=entry.kind_number,
        target=entry.target,
        arch=entry.arch,
        suffix=entry.suffix,
        compression=entry.compression,
        offset=entry.offset,
        file_bytes=entry.size,
        wheel_bytes=_wheel_bytes(wheel_share, entry.offset, entry.size),
    )


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
        for start in range(0, len(window), _SEARCH_BLOCK):
            end = start + _SEARCH_BLOCK
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
        if window.data[_MACHINE_AT:HEAD_SIZE] != _MACHINE:
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
        image = _bare_image(target, window, size, self.wheel_share, Compression.ZSTD)
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
