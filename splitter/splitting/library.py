"""Take one library apart: give it a stub, take its images out, and list where they belong."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from splitter.binfmt.device_pack import PackContainer, PackImage, PackLibrary
from splitter.binfmt.elf import Elf
from splitter.binfmt.mapped import open_file
from splitter.devicecode.edits import applied
from splitter.devicecode.fileplan import FilePlan
from splitter.devicecode.moving import ObstacleError
from splitter.devicecode.read import Form
from splitter.devicecode.rewrite import in_place, trimmed
from splitter.devicecode.scan import release
from splitter.devicecode.shrink import shrunk
from splitter.errors import VerifyError
from splitter.splitting.movable import places_of, stays_of, wrapper_address
from splitter.splitting.restore import Restore, restored_by
from splitter.splitting.staying import outside_of
from splitter.stages.slim import check_plan, write_plan

if TYPE_CHECKING:
    from pathlib import Path

    from splitter.binfmt.cursor import Window
    from splitter.devicecode.edits import Edit
    from splitter.devicecode.rewrite import Trimmed
    from splitter.split_report import Stay
    from splitter.splitting.movable import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A library that was taken apart.

    Attributes:
        path: without the images that moved.
        table: every image that moved.
        moved: the containers that it had, in the table's order.
        window: the library with its stub and all images.
        notes: what was done differently than usual, and why.
        stays: the device code that is still in it.
        restore: how to make the original of it again.
        member: its name in the wheel, which is another than the table's for what is in ``.data``.
    """

    path: Path
    table: PackLibrary
    moved: tuple[Place, ...] = field(repr=False)
    window: Window = field(repr=False)
    notes: tuple[str, ...]
    stays: tuple[Stay, ...]
    restore: Restore = field(repr=False)
    sizes: tuple[int, int]
    member: str


def taken_apart(name: str, stub: str, original: Path, patched: Path, *, member: str) -> Parts:
    """Take the images out of a library.

    Args:
        name: where it is once it is installed, in site-packages.
        stub: what its stub is called.
        original: as it came.
        patched: the same, needing the stub.
        member: its name in the wheel.

    Raises:
        BinaryFormatError: it is damaged.
        VerifyError: the result is not what was planned.
    """
    window = open_file(patched)
    elf = Elf(window)
    places = places_of(elf)
    plan = _plan(window, elf, places)
    path = patched.with_suffix(".core")
    write_plan(patched, plan, path)
    check_plan(plan, path)
    moved = tuple(place for place in places if place.wrapper is not None)
    table = _table(name, stub, places, path)
    return Parts(
        path=path,
        table=table,
        moved=moved,
        window=window,
        notes=(plan.note,) if plan.note else (),
        stays=(*stays_of(member, places), *outside_of(member, path)),
        restore=restored_by(open_file(original), window, plan.pieces, moved),
        member=member,
        sizes=(original.stat().st_size, plan.size),
    )


def _plan(window: Window, elf: Elf, places: tuple[Place, ...]) -> FilePlan:
    containers = tuple(_emptied(place) for place in places)
    note = None
    edits: tuple[Edit, ...] = ()
    try:
        edits = shrunk(elf, containers)
    except ObstacleError as obstacle:
        note = str(obstacle).removeprefix(f"{window.source}: ")
    edits = edits or in_place(containers)
    return FilePlan(
        window=window,
        form=Form.ELF,
        containers=containers,
        pieces=applied(edits, len(window)),
        note=note,
    )


def _emptied(place: Place) -> Trimmed:
    kept = place.entries if place.wrapper is None else ()
    return trimmed(place.container, place.entries, kept, section=place.section)


def _table(name: str, stub: str, places: tuple[Place, ...], path: Path) -> PackLibrary:
    """Where everything is now is read from the file, not taken from the plan."""
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
                images=images_of(place),
                is_spare=place.is_spare,
            )
            for place, address in zip(places, now, strict=True)
            if place.wrapper is not None
        ),
    )


def places_of_empty(elf: Elf) -> tuple[int, ...]:
    """The addresses of all containers, empty or not."""
    return tuple(
        place.section.address + place.container.offset - place.section.offset
        for place in places_of(elf)
    )


def images_of(place: Place) -> tuple[PackImage, ...]:
    """What a container had, with the digests of its images."""
    images = []
    for number, entry in enumerate(place.entries):
        content = place.container.body.at(entry.offset, entry.size, "image")
        assert entry.target is not None, "what is no code does not move"
        images.append(
            PackImage(
                number=number,
                target=entry.target,
                size=entry.size,
                digest=hashlib.sha256(content.data).digest(),
            )
        )
    release(place.container.body)
    return tuple(images)
