"""Search of a fat wheel for libraries to split, and its facts for the core.

In: an open wheel. Out: the libraries with movable device code, unpacked into a folder, and a record
of all device code that stays; then the libraries without their images. The core takes its name, its
import package and the license files from the fat wheel. All members are read to their end, because
that is the check of RECORD.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from archsplit import __version__
from archsplit.devicecode.code_files import bitcode_target
from archsplit.devicecode.container_search import MagicSearch
from archsplit.devicecode.file_forms import HEAD_SIZE, Form, detect_form
from archsplit.devicecode.registered import registered_containers, unmovable_reason
from archsplit.errors import BinaryFormatError, InputError, NothingToDoError, WheelError
from archsplit.formats.device_pack import PACK_FILE
from archsplit.formats.elf import MACHINE_NAMES, Elf, ElfMachine, FileType
from archsplit.formats.elf_dynamic import Dynamic
from archsplit.formats.reader import open_file
from archsplit.release.identity import IDENTITY_FILE, LOADER_PACKAGE
from archsplit.release.report import UnmovedCode
from archsplit.split.stub import Stub, stub_name
from archsplit.split.take_apart import SplittableLibrary, strip_library, unsplit_images
from archsplit.system.parallel import map_on_cores
from archsplit.system.units import count_text, short_size
from archsplit.wheels.filename import distribution_name
from archsplit.wheels.reader import extract_member, read_member
from archsplit.wheels.zip_reader import read_head

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from archsplit.split.model import SplitRequest
    from archsplit.split.take_apart import StrippedLibrary, StripTools
    from archsplit.system.scratch import ScratchFiles
    from archsplit.wheels.filename import WheelName
    from archsplit.wheels.reader import Wheel

_INTERPRETER = 3
"""PT_INTERP: only programs have it, position-independent ones too."""

LARGE_LIBRARY = 32 << 20
"""Bytes of a library that is searched for device code before it is unpacked."""

_BITCODE = "LLVM bitcode is read by a compiler; `archsplit slim` empties it for other GPUs"
_LICENSES = ("LICENSE", "LICENCE", "COPYING", "NOTICE")

BUILD_TAG = "split"
"""Build tag of a core; the one of a slimmed wheel begins with ``slim``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanResult:
    """Libraries of a wheel to split, and the device code that stays."""

    libraries: tuple[SplittableLibrary, ...]
    unmoved: tuple[UnmovedCode, ...] = field(repr=False)


def find_splittable(wheel: Wheel, scratch: ScratchFiles, *, prefix: str = "") -> ScanResult:
    """Find and unpack the libraries that can be split; check all members against RECORD.

    Args:
        prefix: of the scratch files' names, which several wheels share.

    Raises:
        WheelError: a member is damaged, or differs from RECORD.
        InputError: the wheel was split before.
        NothingToDoError: there is nothing to split.
    """
    _refuse_split(wheel)
    # By number: members of several folders may have the same file name.
    numbers = {name: number for number, name in enumerate(wheel.names)}

    def search(names: tuple[str, ...]) -> list[tuple[str, SplittableLibrary | UnmovedCode]]:
        return [
            (name, one)
            for name in names
            for one in _search_member(wheel, name, scratch, f"{prefix}{numbers[name]}.fat")
        ]

    found = [one for group in wheel.map_members(search, wheel.names) for one in group]
    # In the order of the wheel: any thread may have been faster.
    found.sort(key=lambda one: numbers[one[0]])
    libraries = [one for _, one in found if isinstance(one, SplittableLibrary)]
    others = [one for _, one in found if not isinstance(one, SplittableLibrary)]
    unmoved = list(_by_folder(others))
    _check_machines(wheel, libraries, unmoved)
    return ScanResult(libraries=tuple(libraries), unmoved=tuple(unmoved))


def _search_member(
    wheel: Wheel, name: str, scratch: ScratchFiles, file: str
) -> Iterator[SplittableLibrary | UnmovedCode]:
    """Yield a member as a library to split, or its code that stays; compare it with RECORD."""
    info = wheel.archive.members[name]
    form = detect_form(read_head(wheel.archive, info, HEAD_SIZE))
    # Read too: the core takes this member over, so RECORD must hold for it.
    if form is None:
        wheel.check(name)
        # `slim` may have emptied it.
        if bitcode_target(name) and info.file_size:
            yield UnmovedCode(name=name, images=1, size=info.file_size, why=_BITCODE)
        return
    # The host code of a framework has hundreds of megabytes, which need not be unpacked.
    if form is Form.ELF and info.file_size >= LARGE_LIBRARY and not _may_have_code(wheel, name):
        return
    path = scratch.create(file, info.file_size)
    extract_member(wheel.archive, wheel.row(name), path)
    # Other forms have a reason of their own: see `unsplit_images`.
    found = _open_movable(wheel, name, path) if form is Form.ELF else ""
    if isinstance(found, str):
        yield from unsplit_images(name, path, form, found)
        scratch.remove(path)
        return
    yield found


def _by_folder(unmoved: list[UnmovedCode]) -> Iterator[UnmovedCode]:
    """Yield code that stays; of files with one image each, a row for each folder."""
    groups: dict[tuple[str, str], list[UnmovedCode]] = {}
    for one in unmoved:
        folder, ending = posixpath.dirname(one.name), posixpath.splitext(one.name)[1]
        name = f"{folder}/*{ending}" if ending in {".bc", ".cubin"} else one.name
        groups.setdefault((name, one.why), []).append(one)
    for (name, why), group in groups.items():
        images, size = sum(one.images for one in group), sum(one.size for one in group)
        yield UnmovedCode(name=name, images=images, size=size, why=why)


class _CodeFound(Exception):  # noqa: N818 (the end of a search, and no error)
    """The reader of a member has seen enough of it."""


def _may_have_code(wheel: Wheel, name: str) -> bool:
    """Return True if device code may be in a library; one without is compared with RECORD."""
    search = MagicSearch()

    def feed(block: bytes) -> None:
        search.feed(block)
        if search.found:
            raise _CodeFound

    try:
        read_member(wheel.archive, wheel.row(name), feed)
    except _CodeFound:
        return True
    return False


def strip_libraries(
    libraries: tuple[SplittableLibrary, ...],
    *,
    key: Callable[[], str],
    loader_folder: str,
    tools: StripTools,
) -> tuple[StrippedLibrary, ...]:
    """Strip the libraries, in their order; of each unpacked file only the images are kept.

    Args:
        key: returns the core's key, for the names of the stubs; may wait.
        loader_folder: the path of the loader's folder in site-packages.

    Raises:
        ArchsplitError: as `strip_library`.
    """

    def strip(library: SplittableLibrary) -> StrippedLibrary:
        return strip_library(library, lambda: stub(library), tools)

    def stub(library: SplittableLibrary) -> Stub:
        return Stub(
            name=stub_name(key(), library.installed_path),
            # $ORIGIN is the library's folder, not the wheel's.
            folder=posixpath.relpath(loader_folder, posixpath.dirname(library.installed_path)),
        )

    # Most of it compares and hashes.
    return tuple(map_on_cores(strip, libraries, weight=lambda one: one.path.stat().st_size))


def tagged_machine(platforms: tuple[str, ...]) -> ElfMachine | None:
    """Return the machine of all platform tags; None if they differ or are unknown."""
    # A wheel may have several tags: manylinux_2_17_x86_64.manylinux2014_x86_64.
    for machine in MACHINE_NAMES.values():
        if all(platform.endswith(f"_{machine}") for platform in platforms):
            return machine
    return None


def _open_movable(wheel: Wheel, name: str, path: Path) -> SplittableLibrary | str:
    """Return an unpacked library with movable code, or the reason why it can't be split."""
    target = wheel.installed_path(name)
    try:
        elf = Elf(open_file(path, source=name))
        reasons = (
            (elf.header.machine not in MACHINE_NAMES, "it is for a processor that has no CUDA"),
            (elf.header.type != FileType.LIBRARY, "it is not a shared library"),
            # A position-independent program has the type of a library (ET_DYN).
            (any(one.type == _INTERPRETER for one in elf.segments), "it is a program"),
            # Without section headers, wrappers and containers can only be guessed.
            (not elf.section_count, "it was stripped of its section headers"),
            # The stub would come too late: no code would be registered.
            (
                Dynamic(elf).is_initialized_first,
                "its constructors run before all others (-z initfirst, DF_1_INITFIRST)",
            ),
            # The stub is found by a path relative to the library, which must be known now.
            (target is None, "the installer decides where it goes"),
        )
        reason = next((why for applies, why in reasons if applies), "")
        # A large library has thousands of containers: read once, here and for the split.
        containers = () if reason else registered_containers(elf)
    except BinaryFormatError:
        return "it is damaged"
    if reason or target is None or (reason := unmovable_reason(containers)):
        return reason
    return SplittableLibrary(
        name=name, installed_path=target, path=path, elf=elf, containers=containers
    )


def _refuse_split(wheel: Wheel) -> None:
    """Refuse the wheel of a split: a loader serves a single table."""
    suffixes = (f"/{LOADER_PACKAGE}/{IDENTITY_FILE}", f"/{PACK_FILE}")
    for name in wheel.names:
        if name.endswith(suffixes):
            raise InputError(
                f"{wheel.path} was split before: it has {name}",
                hint="split the fat wheel; `archsplit join` makes the fat libraries again",
            )


def _check_machines(
    wheel: Wheel, libraries: list[SplittableLibrary], unmoved: list[UnmovedCode]
) -> None:
    if not libraries:
        lines = [
            f"{one.name}: kept {count_text(one.images, 'image')}, {short_size(one.size)}: {one.why}"
            for one in unmoved
        ]
        nothing = f"{wheel.path} has no library with device code that can be moved"
        raise NothingToDoError(
            "\n  ".join((nothing, *(lines or ["it has no device code"]))),
            hint="--copy writes the wheel as it is; `archsplit inspect` says what is in it",
        )
    # The core has one loader, for one machine.
    if len({one.machine for one in libraries}) > 1:
        raise WheelError(f"{wheel.path} has libraries for several processors")


def core_name(request: SplitRequest, fat: WheelName) -> WheelName:
    """Return the name of the core's wheel.

    A core with the name and version of the fat wheel gets a build tag, unless it is published in
    place of the fat wheel: without the tag, pip prefers the index's wheel, which is the fat one.
    """
    project = distribution_name(request.name or fat.project)
    name = replace(fat, project=project, version=request.version or fat.version)
    return name if request.release or name != fat else name.add_build_tag(BUILD_TAG)


def core_key(request: SplitRequest, source: str, name: WheelName) -> str:
    """Return a hash over the source of a core and all options.

    The build id is the same for cores with the same images; their stubs must not have one name.
    """
    targets = None if request.targets is None else sorted(map(str, request.targets))
    # The version of archsplit too: another one may divide images or place containers differently.
    inputs = [source, name.project, name.build, request.by.value, targets, __version__]
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()


def import_package(wheel: Wheel) -> str:
    """Return the import package for the loader's folder: the one with the project's name.

    If the wheel has none, the core gets a new one: another package may belong to several projects,
    as ``nvidia`` does.

    Raises:
        WheelError: the folder of that name is not a package.
    """
    package = wheel.name.project.replace("-", "_")
    paths = {path for name in wheel.names if (path := wheel.installed_path(name))}
    has_folder = any(path.startswith(f"{package}/") for path in paths)
    # A namespace package belongs to several distributions, and so would the loader's folder.
    if has_folder and f"{package}/__init__.py" not in paths:
        raise WheelError(
            f"{package}/ in {wheel.path} is not a Python package, so it has no place for the loader"
        )
    return package


def fat_wheel_licenses(wheel: Wheel) -> dict[str, bytes]:
    """Return the license files of a wheel by name: in dist-info, or in its folder ``licenses``."""
    dist_info, licenses = f"{wheel.dist_info}/", {}
    for name in wheel.names:
        file = name.removeprefix(dist_info).removeprefix("licenses/")
        is_license = name.startswith(f"{dist_info}licenses/") or (
            name.startswith(dist_info) and file.upper().startswith(_LICENSES)
        )
        if is_license:
            licenses[file] = wheel.read(name)
    return licenses
