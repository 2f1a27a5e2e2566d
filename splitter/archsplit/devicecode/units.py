"""Units of device code: containers, cubins and device packs, by their headers.

In: a container, a cubin, a pack, or a library with section headers. Out: units with an image for
each entry. Nothing is decompressed.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from archsplit.arch.target import CodeKind, Target
from archsplit.devicecode.model import FatContainer, Image, Place, Unit
from archsplit.errors import BinaryFormatError
from archsplit.formats import device_pack
from archsplit.formats.cubin import Cubin
from archsplit.formats.descriptor import Shape
from archsplit.formats.elf import FileType
from archsplit.formats.fatbin import (
    EXECUTABLE,
    LINKED,
    Compression,
    EntryKind,
    host_containers,
    read_container,
    read_wrappers,
)
from archsplit.formats.mapped import release_pages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from archsplit.formats.elf import Elf
    from archsplit.formats.fatbin import Container, FatbinEntry, Wrapper
    from archsplit.formats.reader import Window

    WheelShare = Callable[[int, int], int] | None
    """A function from a range of the file to bytes of the download; None without a download."""


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


def pack_units(window: Window, wheel_share: WheelShare) -> Iterator[Unit]:
    """Yield the containers of a device pack; containers of a core's table have no images.

    Raises:
        DevicePackError: it is damaged.
    """
    is_table = device_pack.is_core_table(window)
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
    image = bare_image(target, window, len(window), wheel_share)
    return Unit(section=section, place=place, images=(image,))


def bare_image(
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
