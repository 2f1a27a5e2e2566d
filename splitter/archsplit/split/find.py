"""Search of a fat wheel for libraries to split, and its facts for the core.

In: an open wheel. Out: the libraries with movable device code, unpacked into a folder, and a record
of all device code that stays; then the libraries without their images. The core takes its name, its
import package and the license files from the fat wheel. All members are read to their end, because
that is the check of RECORD.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import posixpath
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from archsplit import __version__
from archsplit.devicecode.registered import unmovable_reason
from archsplit.devicecode.scan import HEAD_SIZE, Form, detect_form
from archsplit.errors import (
    BinaryFormatError,
    InputError,
    NothingToDoError,
    ToolFailedError,
    WheelError,
)
from archsplit.formats.device_pack import PACK_FILE
from archsplit.formats.elf import MACHINE_NAMES, Elf, ElfMachine, FileType
from archsplit.formats.reader import open_file
from archsplit.release.identity import IDENTITY_FILE, LOADER_PACKAGE
from archsplit.split.stub import stub_name
from archsplit.split.take_apart import left_whole, strip_library
from archsplit.system.units import BLOCK
from archsplit.wheels.filename import distribution_name
from archsplit.wheels.installed import installed_path
from archsplit.wheels.offsets import read_head
from archsplit.wheels.reader import extract_member
from archsplit.wheels.record import RecordRow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from archsplit.release.report import UnmovedCode
    from archsplit.split.model import SplitRequest
    from archsplit.split.stub import Patcher
    from archsplit.split.take_apart import StrippedLibrary
    from archsplit.wheels.filename import WheelName
    from archsplit.wheels.reader import Wheel

_INTERPRETER = 3
"""PT_INTERP: only programs have it, position-independent ones too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplittableLibrary:
    """A library with movable device code.

    Attributes:
        name: its name in the wheel.
        place: its path in site-packages after the installation.
        path: the unpacked file.
    """

    name: str
    place: str
    path: Path
    machine: ElfMachine


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanResult:
    """The libraries of a wheel to split, and the device code that stays."""

    fat: tuple[SplittableLibrary, ...]
    stays: tuple[UnmovedCode, ...] = field(repr=False)


def find_splittable(wheel: Wheel, folder: Path) -> ScanResult:
    """Find and unpack the libraries that can be split; check all members against RECORD.

    Raises:
        WheelError: a member is damaged, or differs from RECORD.
        InputError: the wheel was split before.
        NothingToDoError: there is nothing to split.
    """
    _refuse_split(wheel)
    fat: list[SplittableLibrary] = []
    stays: list[UnmovedCode] = []
    for number, name in enumerate(wheel.names):
        form = detect_form(read_head(wheel.archive, wheel.archive.members[name], HEAD_SIZE))
        if form is None:
            _read_through(wheel, name)
            continue
        path = folder / f"{number}.fat"
        extract_member(wheel.archive, wheel.record.get(name, RecordRow(path=name)), path)
        obstacle = _obstacle(wheel, name, path) if form is Form.ELF else "-"
        if obstacle:
            stays += left_whole(name, path, form, obstacle)
            path.unlink()
        else:
            place = installed_path(wheel, name)
            assert place is not None, "what lies elsewhere has an obstacle"
            machine = MACHINE_NAMES[Elf(open_file(path)).header.machine]
            fat.append(SplittableLibrary(name=name, place=place, path=path, machine=machine))
    _check(wheel, fat, stays)
    return ScanResult(fat=tuple(fat), stays=tuple(stays))


def strip_libraries(
    libraries: tuple[SplittableLibrary, ...], *, key: str, face: str, patcher: Patcher
) -> tuple[StrippedLibrary, ...]:
    """Strip the libraries, in their order.

    Args:
        key: of the core, for the names of the stubs.
        face: the path of the loader's folder in site-packages.

    Raises:
        ArchsplitError: as `strip_library` and `Patcher.patched`.
    """
    parts = []
    for fat in libraries:
        stub = stub_name(key, fat.place)
        patched = fat.path.with_suffix(".patched")
        folder = posixpath.relpath(face, posixpath.dirname(fat.place))
        with _named(fat):
            patcher.patched(fat.path, patched, stub=stub, folder=folder)
            parts.append(strip_library(fat.place, stub, fat.path, patched, member=fat.name))
    return tuple(parts)


@contextlib.contextmanager
def _named(fat: SplittableLibrary) -> Iterator[None]:
    """Replace the unpacked copy's path in error messages by the name in the wheel."""
    try:
        yield
    except (BinaryFormatError, ToolFailedError) as error:
        text = str(error).replace(str(fat.path.with_suffix("")), fat.name)
        raise type(error)(f"{fat.name} can't be split: {text}") from error


def tagged_machine(platforms: tuple[str, ...]) -> ElfMachine | None:
    """Return the machine of all platform tags; None if they differ or are unknown."""
    for machine in MACHINE_NAMES.values():
        if all(platform.endswith(f"_{machine}") for platform in platforms):
            return machine
    return None


def _obstacle(wheel: Wheel, name: str, path: Path) -> str:
    """Return the reason why an ELF file can't be split, or ""."""
    try:
        elf = Elf(open_file(path))
        reasons = (
            (elf.header.machine not in MACHINE_NAMES, "it is for a processor that has no CUDA"),
            (elf.header.type != FileType.LIBRARY, "it is no shared library"),
            (any(one.type == _INTERPRETER for one in elf.segments), "it is a program"),
            (not elf.section_count, "it was stripped of its section headers"),
            (installed_path(wheel, name) is None, "where it will be is up to the installer"),
        )
        return next((why for holds, why in reasons if holds), "") or unmovable_reason(elf)
    except BinaryFormatError:
        return "it is damaged"


def _refuse_split(wheel: Wheel) -> None:
    """Refuse the wheel of a split: a loader serves a single table."""
    ends = (f"/{LOADER_PACKAGE}/{IDENTITY_FILE}", f"/{PACK_FILE}")
    for name in wheel.names:
        if name.endswith(ends):
            raise InputError(
                f"{wheel.path} was split before: it has {name}",
                hint="split the fat wheel; `archsplit join` makes the fat libraries again",
            )


def _check(wheel: Wheel, fat: list[SplittableLibrary], stays: list[UnmovedCode]) -> None:
    if not fat:
        lines = [
            f"{one.name}: {one.images} images, {one.size / 1e6:.2f} MB, stay: {one.why}"
            for one in stays
        ]
        nothing = f"{wheel.path} has no library with device code that can be moved"
        raise NothingToDoError(
            "\n  ".join((nothing, *(lines or ["it has no device code"]))),
            hint="--copy writes the wheel as it is; `archsplit inspect` says what is in it",
        )
    if len({one.machine for one in fat}) > 1:
        raise WheelError(f"{wheel.path} has libraries for several processors")


def _read_through(wheel: Wheel, name: str) -> None:
    with wheel.open(name) as stream:
        while stream.read(BLOCK):
            pass


_LICENSES = ("LICENSE", "LICENCE", "COPYING", "NOTICE")


BUILD_TAG = "split"
"""The build tag of a core; the one of a slimmed wheel begins with ``slim``."""


def core_name(request: SplitRequest, fat: WheelName) -> WheelName:
    """Return the name of the core's wheel.

    A core with the name and version of the fat wheel gets a build tag, unless it is published in
    place of the fat wheel: without the tag, pip prefers the index's wheel, which is the fat one.
    """
    name = replace(fat, project=distribution_name(request.name or fat.project))
    return name if request.release or name != fat else name.add_build_tag(BUILD_TAG)


def core_key(request: SplitRequest, source: str, name: WheelName) -> str:
    """Return a hash over the source of a core and all options.

    The build id is the same for cores with the same images; their stubs must not have one name.
    """
    targets = None if request.targets is None else sorted(map(str, request.targets))
    facts = [source, name.project, name.build, request.by.value, targets, __version__]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def import_package(wheel: Wheel) -> str:
    """Return the import package for the loader's folder: the one with the project's name.

    If the wheel has none, the core gets a new one: another package may belong to several projects,
    as ``nvidia`` does.

    Raises:
        WheelError: the folder of that name is not a package.
    """
    own = wheel.name.project.replace("-", "_")
    places = {place for name in wheel.names if (place := installed_path(wheel, name))}
    there = any(place.startswith(f"{own}/") for place in places)
    if there and f"{own}/__init__.py" not in places:
        raise WheelError(f"{own}/ in {wheel.path} is no package, so the loader has no place in it")
    return own


def fat_wheel_licenses(wheel: Wheel) -> dict[str, bytes]:
    """Return the license files of a wheel by name: in dist-info, or in its folder ``licenses``."""
    own, found = f"{wheel.dist_info}/", {}
    for name in wheel.names:
        inner = name.removeprefix(own).removeprefix("licenses/")
        is_one = name.startswith(f"{own}licenses/") or (
            name.startswith(own) and inner.upper().startswith(_LICENSES)
        )
        if is_one:
            found[inner] = wheel.read(name)
    return found
