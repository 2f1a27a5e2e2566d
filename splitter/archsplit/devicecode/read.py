"""Find the device code in a library, object, fatbin, cubin or device pack; none is unpacked."""

from __future__ import annotations

import enum
import struct
from dataclasses import replace
from typing import TYPE_CHECKING

from archsplit.arch.target import CodeKind, Target
from archsplit.devicecode.model import FatContainer, Image, Place, Unit
from archsplit.devicecode.scan import release_pages
from archsplit.formats import ar, device_pack, pe
from archsplit.formats.cubin import Cubin
from archsplit.formats.elf_header import ELF_MAGIC, Machine
from archsplit.formats.entry import Compression, EntryKind
from archsplit.formats.fatbin import (
    EXECUTABLE,
    FATBIN_MAGIC,
    RELOCATABLE,
    containers_of,
    read_container,
    read_containers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from archsplit.formats.elf import Elf
    from archsplit.formats.fatbin import Container
    from archsplit.formats.pe import PeSection
    from archsplit.formats.reader import Window

    Share = Callable[[int, int], int] | None
    """Bytes of the download that a range of the file takes; None where there is no download."""

HEAD_SIZE = 20
"""As many bytes of a file as `form_of` looks at."""

_MACHINE_AT = 18


WINDOWS_PLACES = {
    EXECUTABLE[:8]: Place.EXECUTABLE,
    RELOCATABLE[:8]: Place.RELOCATABLE,
}
"""The fatbin sections by their names in Windows libraries, which have eight bytes."""


class Form(enum.Enum):
    """The forms of files that can hold device code."""

    ELF = enum.auto()
    PE = enum.auto()
    CUBIN = enum.auto()
    STATIC_LIBRARY = enum.auto()
    FATBIN = enum.auto()
    DEVICE_PACK = enum.auto()


def form_of(head: bytes) -> Form | None:
    """What a file is, by its first bytes; None for what can't hold device code."""
    if head.startswith(ELF_MAGIC):
        is_cubin = head[_MACHINE_AT:HEAD_SIZE] == struct.pack("<H", Machine.CUDA)
        return Form.CUBIN if is_cubin else Form.ELF
    if head.startswith(pe.PE_MAGIC):
        return Form.PE
    if head.startswith(ar.AR_MAGIC):
        return Form.STATIC_LIBRARY
    if head.startswith(struct.pack("<I", FATBIN_MAGIC)):
        return Form.FATBIN
    if head.startswith(device_pack.PACK_MAGIC):
        return Form.DEVICE_PACK
    return None


def fatbin_units(window: Window, share: Share) -> Iterator[Unit]:
    """The containers of a ``.fatbin`` file.

    Raises:
        BinaryFormatError: it is damaged.
    """
    for container in read_containers(window):
        yield container_unit(container, share)


def pack_units(window: Window, share: Share) -> Iterator[Unit]:
    """The containers of a device pack; those of a core's table have no images.

    Raises:
        DevicePackError: it is damaged.
    """
    is_table = device_pack.is_table(window)
    pack = device_pack.read_pack(window, is_table=is_table)
    for i, library in enumerate(pack.libraries):
        for j, row in enumerate(library.containers):
            fat = FatContainer(build=pack.descriptor.build_id, library=i, container=j)
            if is_table:
                place = Place.EXECUTABLE
                yield Unit(section=None, place=place, images=(), member=library.name, fat=fat)
            elif row.images:
                unit = container_unit(read_container(window, row.offset), share)
                yield replace(unit, member=library.name, fat=fat)
        release_pages(window)


def cubin_unit(window: Window, share: Share, *, section: str | None, place: Place) -> Unit:
    """A cubin by itself; an ``a`` or ``f`` is told only where ptxas noted it (since CUDA 13).

    Raises:
        BinaryFormatError: it is damaged.
    """
    cubin = Cubin(window)
    target = cubin.noted_target() or Target(kind=CodeKind.SASS, capability=cubin.capability)
    image = Image(
        kind=EntryKind.CUBIN,
        kind_number=EntryKind.CUBIN,
        target=target,
        arch=target.capability.sm_number,
        suffix=target.suffix,
        compression=Compression.NONE,
        offset=window.start,
        file_bytes=len(window),
        wheel_bytes=None if share is None else share(window.start, window.start + len(window)),
        is_bare=True,
    )
    return Unit(section=section, place=place, images=(image,))


def section_units(elf: Elf, share: Share, *, member: str | None = None) -> Iterator[Unit]:
    """The containers in the fatbin sections of a host file that has section headers.

    Raises:
        BinaryFormatError: it is damaged.
    """
    for section, container in containers_of(elf):
        place = Place.EXECUTABLE if section.name == EXECUTABLE else Place.RELOCATABLE
        yield container_unit(container, share, section=section.name, place=place, member=member)
        release_pages(elf.window)


def pe_section_units(section: PeSection, share: Share) -> Iterator[Unit]:
    """The containers in one of the `WINDOWS_PLACES`.

    Raises:
        BinaryFormatError: it is damaged.
    """
    place = WINDOWS_PLACES[section.name]
    for container in read_containers(section.content):
        yield container_unit(container, share, section=section.name, place=place)


def container_unit(
    container: Container,
    share: Share,
    *,
    section: str | None = None,
    place: Place = Place.EXECUTABLE,
    member: str | None = None,
) -> Unit:
    """A container's images.

    Raises:
        BinaryFormatError: an entry is damaged.
    """
    images = tuple(
        Image(
            kind=entry.kind,
            kind_number=entry.kind_number,
            target=entry.target,
            arch=entry.arch,
            suffix=entry.suffix,
            compression=entry.compression,
            offset=entry.offset,
            file_bytes=entry.size,
            wheel_bytes=None if share is None else share(entry.offset, entry.offset + entry.size),
        )
        for entry in container.entries()
    )
    return Unit(section=section, place=place, images=images, member=member)
