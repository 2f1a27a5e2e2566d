"""Make the fat libraries again, of a core and its packs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from archsplit.errors import InputError, VerifyError
from archsplit.formats.mapped import open_file
from archsplit.release.split_read import read_split
from archsplit.split.core_wheel import RESTORE
from archsplit.split.restore import Restore
from archsplit.system.fs import output_dir, output_errors, replacing, temporary_dir
from archsplit.system.moving import replace_all
from archsplit.wheels.member_place import installed_place
from archsplit.wheels.reader import open_wheel
from archsplit.wheels.record import RecordRow
from archsplit.wheels.unpacking import unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from archsplit.release.split_read import SplitCore, SplitPack
    from archsplit.wheels.reader import Wheel

_Key = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A fat library that was made again."""

    name: str
    path: Path
    size: int
    sha256: str


def join(folder: Path, out: Path) -> tuple[Joined, ...]:
    """Write the libraries of a split as they were, each at its place below ``out``, or none.

    Raises:
        InputError: there is not one core, or a pack is missing.
        BinaryFormatError: the record that says how to join is damaged.
        VerifyError: wheels are damaged, or an image is not what the core's table says.
        OutputError: ``out`` can't be written.
    """
    with temporary_dir() as scratch, output_dir(out) as place, temporary_dir(place) as made:
        core, packs = read_split(folder, scratch)
        images = _images(core, packs)
        with open_wheel(core.path, same_tags=False) as wheel:
            joined = tuple(
                _joined(wheel, core, number, images, scratch, made)
                for number in range(len(core.table.libraries))
            )
        for one in joined:
            with output_errors(place / one.name):
                (place / one.name).parent.mkdir(parents=True, exist_ok=True)
        replace_all([one.name for one in joined], source=made, target=place)
        return tuple(replace(one, path=place / one.name) for one in joined)


def _images(core: SplitCore, packs: tuple[SplitPack, ...]) -> Mapping[_Key, memoryview]:
    """Every image out of a pack that has it."""
    build, listed = core.table.descriptor.build_id, dict(core.table.images())
    found = {
        key: each.pack.content(image).data
        for each in packs
        if each.pack.descriptor.build_id == build
        for key, image in each.pack.images()
    }
    missing = len(listed) - len(found)
    if missing:
        raise InputError(
            f"{missing} of {len(listed)} images are in no pack here",
            hint="put all wheels that split wrote into one folder",
        )
    for key, row in listed.items():
        if hashlib.sha256(found[key]).digest() != row.digest:
            raise VerifyError(f"image {key} is not the one that was split")
    return found


def _joined(
    wheel: Wheel,
    core: SplitCore,
    number: int,
    images: Mapping[_Key, memoryview],
    scratch: Path,
    out: Path,
) -> Joined:
    row = core.table.libraries[number]
    record = f"{core.face}/{row.stub}.{RESTORE}"
    restore = Restore.decode(wheel.read(record), source=record)
    library = scratch / f"{number}.core"
    name = _member(wheel, row.name)
    unpack(wheel.archive, wheel.record.get(name, RecordRow(path=name)), library)
    path = out / row.name
    with output_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    size, digest = 0, hashlib.sha256()
    with replacing(path, mode=0o755) as new, new.open("wb") as file:
        for block in restore.blocks(open_file(library).data, _of(images, number)):
            file.write(block)
            digest.update(block)
            size += len(block)
    return Joined(name=row.name, path=path, size=size, sha256=digest.hexdigest())


def _member(wheel: Wheel, place: str) -> str:
    """The member that is at a place once it is installed."""
    found = next((name for name in wheel.names if installed_place(wheel, name) == place), None)
    if found is None:
        raise VerifyError(f"{wheel.path.name} has no {place}, which its table speaks of")
    return found


def _of(images: Mapping[_Key, memoryview], library: int) -> Callable[[int, int], memoryview]:
    return lambda container, number: images[library, container, number]
