"""Split of one library.

In: a library, and the same library patched to need a stub. Out: a `StrippedLibrary` with a file
without the movable images, a table of the containers that they belong to, and a record to restore
the original. Device code that stays is listed with the reason. After the file is written, the table
is made from the file itself, and not from the plan.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.devicecode.apply import check_plan, write_plan
from archsplit.devicecode.edits import apply_edits, filter_container, zero_in_place
from archsplit.devicecode.elf_shrink import NotShrinkableError, shrink_elf
from archsplit.devicecode.file_plan import FilePlan
from archsplit.devicecode.model import Place
from archsplit.devicecode.registered import container_images, registered_containers, wrapper_address
from archsplit.devicecode.scan import Form, read_contents
from archsplit.errors import BinaryFormatError, VerifyError
from archsplit.formats.device_pack import PackContainer, PackLibrary, container_key
from archsplit.formats.elf import Elf
from archsplit.formats.reader import open_file
from archsplit.release.report import UnmovedCode
from archsplit.split.restore import Restore, restored_by

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from archsplit.devicecode.edits import Edit, FilteredContainer
    from archsplit.devicecode.model import Unit
    from archsplit.devicecode.registered import RegisteredContainer
    from archsplit.formats.reader import Window


def unmoved_images(name: str, places: tuple[RegisteredContainer, ...]) -> Iterator[UnmovedCode]:
    """Yield the images of a library that stay in its containers, grouped by reason."""
    by_obstacle: defaultdict[str, list[RegisteredContainer]] = defaultdict(list)
    for place in places:
        if place.obstacle:
            by_obstacle[place.obstacle].append(place)
    for why, found in sorted(by_obstacle.items()):
        entries = [entry for place in found for entry in place.entries]
        size = sum(entry.size for entry in entries)
        yield UnmovedCode(name=name, images=len(entries), size=size, why=why)


_OUTSIDE = "it is outside of the fatbin sections, in {section}, where only the library finds it"
_WHOLE = {
    Form.STATIC_LIBRARY: "a static library is for others' linkers",
    Form.FATBIN: "a fatbin is read by a program, not registered by a library",
    Form.CUBIN: "a cubin is read by a program, not registered by a library",
    Form.PE: "it is a library for Windows",
    Form.DEVICE_PACK: "a device pack is served by the loader of its core",
}


def outside_of(name: str, path: Path) -> Iterator[UnmovedCode]:
    """Yield the device code outside of a library's fatbin sections.

    Raises:
        BinaryFormatError: the library is damaged.
    """
    by_section: defaultdict[str | None, list[Unit]] = defaultdict(list)
    for unit in read_contents(open_file(path)).units:
        if unit.images and unit.place is Place.OUTSIDE:
            by_section[unit.section].append(unit)
    for section, units in by_section.items():
        yield _stay(name, units, _OUTSIDE.format(section=section))


def left_whole(name: str, path: Path, form: Form, why: str) -> Iterator[UnmovedCode]:
    """Yield the device code of a member that is not split.

    Args:
        why: the reason for an ELF file; other forms have a reason of their own.
    """
    try:
        units = [unit for unit in read_contents(open_file(path)).units if unit.images]
    except BinaryFormatError as error:
        reason = str(error).partition("\n")[0].replace(f"{path}", name)
        yield UnmovedCode(name=name, images=0, size=0, why=f"it doesn't read: {reason}")
        return
    if units:
        yield _stay(name, units, _WHOLE.get(form, why))


def _stay(name: str, units: list[Unit], why: str) -> UnmovedCode:
    images = [image for unit in units for image in unit.images]
    return UnmovedCode(
        name=name,
        images=len(images),
        size=sum(image.file_bytes for image in images),
        why=why,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StrippedLibrary:
    """A library without its movable images.

    Attributes:
        path: the file of the stripped library.
        table: the containers and images that moved.
        moved: the original containers, in the order of the table.
        window: the library with its stub and all images.
        notes: messages about a library that could not be shrunk.
        stays: the device code that is still in the library.
        restore: the record to restore the original.
        sizes: bytes before and after.
        member: its name in the wheel, which differs from the table's for files in ``.data``.
    """

    path: Path
    table: PackLibrary
    moved: tuple[RegisteredContainer, ...] = field(repr=False)
    window: Window = field(repr=False)
    notes: tuple[str, ...]
    stays: tuple[UnmovedCode, ...]
    restore: Restore = field(repr=False)
    sizes: tuple[int, int]
    member: str


def strip_library(
    name: str, stub: str, original: Path, patched: Path, *, member: str
) -> StrippedLibrary:
    """Take the images out of a library.

    Args:
        name: its path in site-packages after the installation.
        stub: the name of its stub.
        original: the unchanged library.
        patched: the library with the stub as a needed library.
        member: its name in the wheel.

    Raises:
        BinaryFormatError: the library is damaged.
        VerifyError: the result differs from the plan.
    """
    window = open_file(patched)
    elf = Elf(window)
    places = registered_containers(elf)
    plan = _plan(window, elf, places)
    path = patched.with_suffix(".core")
    write_plan(patched, plan, path)
    check_plan(plan, path)
    moved = tuple(place for place in places if place.wrapper is not None)
    table = _table(name, stub, places, path)
    return StrippedLibrary(
        path=path,
        table=table,
        moved=moved,
        window=window,
        notes=(plan.note,) if plan.note else (),
        stays=(*unmoved_images(member, places), *outside_of(member, path)),
        restore=restored_by(open_file(original), window, plan.pieces, moved),
        member=member,
        sizes=(original.stat().st_size, plan.size),
    )


def _plan(window: Window, elf: Elf, places: tuple[RegisteredContainer, ...]) -> FilePlan:
    containers = tuple(_emptied(place) for place in places)
    note = None
    edits: tuple[Edit, ...] = ()
    try:
        edits = shrink_elf(elf, containers)
    except NotShrinkableError as obstacle:
        note = str(obstacle).removeprefix(f"{window.source}: ")
    edits = edits or zero_in_place(containers)
    return FilePlan(
        window=window,
        form=Form.ELF,
        containers=containers,
        pieces=apply_edits(edits, len(window)),
        note=note,
    )


def _emptied(place: RegisteredContainer) -> FilteredContainer:
    kept = place.entries if place.wrapper is None else ()
    return filter_container(place.container, place.entries, kept, section=place.section)


def _table(
    name: str, stub: str, places: tuple[RegisteredContainer, ...], path: Path
) -> PackLibrary:
    """Return the table of a stripped library, with the addresses in the written file."""
    elf = Elf(open_file(path))
    now = places_of_empty(elf)
    if len(now) != len(places):
        raise VerifyError(f"{path} has {len(now)} containers, expected {len(places)}")
    return PackLibrary(
        name=name,
        stub=stub,
        containers=tuple(
            PackContainer(
                wrapper=wrapper_address(elf, place.wrapper),
                address=address,
                images=images,
                is_unused=place.is_unused,
                key=container_key(images),
            )
            for place, address in zip(places, now, strict=True)
            if place.wrapper is not None
            for images in (container_images(place),)
        ),
    )


def places_of_empty(elf: Elf) -> tuple[int, ...]:
    """Return the addresses of all registered containers, empty ones too."""
    return tuple(
        place.section.address + place.container.offset - place.section.offset
        for place in registered_containers(elf)
    )
