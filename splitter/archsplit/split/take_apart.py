"""Split of one library: its device code is taken out, and a stub is added.

In: a library. Out: a `StrippedLibrary`: the packed library without the movable images, a table of
the containers that they belong to, and a record to restore the original. Device code that stays is
listed with the reason. After the file is written, the table is made from the file itself, and not
from the plan.

The unpacked library is never changed, so a library of gigabytes takes no memory, and each digest is
computed once. Its space is given back when the core's library is written, except for the images,
which the packs take. The core's library is packed in the background, while the packs are planned
and written.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from archsplit.devicecode.apply import check_plan, write_plan
from archsplit.devicecode.edits import apply_edits, filter_container
from archsplit.devicecode.file_forms import Form
from archsplit.devicecode.file_plan import FilePlan, shrink_or_zero
from archsplit.devicecode.model import Place
from archsplit.devicecode.registered import (
    container_images,
    registered_containers,
    wrapper_addresses,
)
from archsplit.devicecode.scan import read_contents
from archsplit.errors import BinaryFormatError, VerifyError
from archsplit.formats.device_pack import PackContainer, PackLibrary, container_key
from archsplit.formats.elf import MACHINE_NAMES, Elf, ElfMachine
from archsplit.formats.reader import open_file
from archsplit.release.report import UnmovedCode
from archsplit.split.restore import Restore, build_restore
from archsplit.split.stub import add_stub
from archsplit.system.fs import output_errors
from archsplit.system.parallel import ThreadPool
from archsplit.system.scratch import free_ranges
from archsplit.wheels.zip_writer import pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from archsplit.devicecode.edits import FilteredContainer
    from archsplit.devicecode.model import Unit
    from archsplit.devicecode.registered import ContainerImages, RegisteredContainer
    from archsplit.formats.reader import Window
    from archsplit.split.stub import Stub
    from archsplit.system.scratch import ScratchFiles
    from archsplit.wheels.zip_writer import PackedContent, ParallelDeflater

_UNREGISTERED = (
    "it is outside of the fatbin sections, in {section}, where only the library finds it"
)
_UNSPLIT = {
    Form.STATIC_LIBRARY: "a static library is input for a linker",
    Form.FATBIN: "a fatbin is read by a program, not registered by a library",
    Form.CUBIN: "a cubin is read by a program, not registered by a library",
    Form.PE: "it is a library for Windows",
    Form.DEVICE_PACK: "a device pack is served by the loader of its core",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SplittableLibrary:
    """A library with movable device code.

    Attributes:
        name: its name in the wheel.
        installed_path: its path in site-packages after the installation.
        path: the unpacked file.
        elf: that file, open.
        containers: all its containers.
    """

    name: str
    installed_path: str
    path: Path
    elf: Elf = field(repr=False)
    containers: tuple[RegisteredContainer, ...] = field(repr=False)

    @property
    def machine(self) -> ElfMachine:
        """Machine that the library is for."""
        return MACHINE_NAMES[self.elf.header.machine]

    @property
    def movable(self) -> tuple[RegisteredContainer, ...]:
        """Containers that can move into packs."""
        return tuple(one for one in self.containers if one.wrapper is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenLibrary:
    """A stripped library as it was written.

    Attributes:
        table: the containers and images that moved, with their addresses.
        restore: the record to restore the original.
    """

    table: PackLibrary
    restore: Restore = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StrippedLibrary:
    """A library without its movable images.

    Attributes:
        name: its path in site-packages after the installation.
        packed: the stripped library, packed for the core's wheel while packs are written.
        written: the table and the record, read from the written file.
        unmoved: the device code that is still in it.
        rows: the containers that moved, without addresses.
        moved: the original containers, in the order of the rows.
        window: the original library with all images; other bytes may be gone.
        image_file: the file of ``window``.
        notes: messages about a library that could not be shrunk.
        sizes: bytes before and after.
        member: its name in the wheel, which differs from ``name`` for files in ``.data``.
    """

    name: str
    packed: Future[PackedContent] = field(repr=False)
    written: Future[WrittenLibrary] = field(repr=False)
    unmoved: Future[tuple[UnmovedCode, ...]] = field(repr=False)
    rows: tuple[PackContainer, ...] = field(repr=False)
    moved: tuple[RegisteredContainer, ...] = field(repr=False)
    window: Window = field(repr=False)
    image_file: Path
    notes: tuple[str, ...]
    sizes: tuple[int, int]
    member: str

    @property
    def original_images(self) -> ContainerImages:
        """Images that moved, read before the library was written."""
        return tuple(row.images for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class StripTools:
    """Tools that the libraries of a split share.

    Attributes:
        workers: write and pack, while other libraries and packs are made.
        readers: read written libraries again, at the same time.
    """

    scratch: ScratchFiles
    deflater: ParallelDeflater = field(repr=False)
    workers: ThreadPool = field(repr=False)
    readers: ThreadPool = field(repr=False)


def strip_library(
    library: SplittableLibrary, stub: Callable[[], Stub], tools: StripTools
) -> StrippedLibrary:
    """Take the images out of a library, and make it need its stub.

    Of the unpacked file only the images are kept.

    Args:
        stub: may wait for the hash of the wheel.

    Raises:
        BinaryFormatError: the library is damaged.
        VerifyError: the result differs from the plan.
    """
    window, moved = library.elf.window, library.movable
    with errors_named(library), ThreadPool(1) as worker:
        # Hashing leaves the interpreter to the other steps.
        hashing = worker.submit(lambda: tuple(map(_row, moved)))
        plan = _plan_removal(library)
        path = tools.scratch.create_short_lived(f"{library.path.stem}.core", plan.size)
        write_plan(library.path, plan, path)
        # Containers that stay must be equal, and those that go must be empty.
        check_plan(plan, open_file(path))
        # After the check, which takes the sections for unmoved.
        add_stub(path, own := stub())
        written = tools.readers.submit(_read_back, library, own, plan, hashing, path)
        # The core's table doesn't wait for what only the report has.
        unmoved = tools.readers.submit(_find_unmoved, library, path)
        packing = _Packing(path=path, tools=tools, readers=(written, unmoved))
        packed = tools.workers.submit(packing.run)
        rows = hashing.result()
    return StrippedLibrary(
        name=library.installed_path,
        packed=packed,
        written=written,
        unmoved=unmoved,
        rows=rows,
        moved=moved,
        window=window,
        image_file=library.path,
        notes=(f"keeps its length, with zeros in place: {plan.note}",) if plan.note else (),
        member=library.name,
        sizes=(len(window), plan.size),
    )


def _read_back(
    library: SplittableLibrary,
    stub: Stub,
    plan: FilePlan,
    hashing: Future[tuple[PackContainer, ...]],
    path: Path,
) -> WrittenLibrary:
    """Return what is in a written library: not what was planned."""
    window, moved = library.elf.window, library.movable
    with errors_named(library):
        restore = build_restore(window, open_file(path), plan.pieces, moved)
        images = ((one.offset, one.size) for registered in moved for one in registered.entries)
        with output_errors(library.path):
            # Only the images are read again, by the packs.
            free_ranges(library.path, _ranges_between(images, len(window)))
        rows = _placed_rows(library.containers, hashing.result(), path)
    table = PackLibrary(name=library.installed_path, stub=stub.name, containers=rows)
    return WrittenLibrary(table=table, restore=restore)


def _find_unmoved(library: SplittableLibrary, path: Path) -> tuple[UnmovedCode, ...]:
    """Return the device code in a written library."""
    with errors_named(library):
        return (
            *unmoved_images(library.name, library.containers),
            *unregistered_images(library.name, path),
        )


@contextlib.contextmanager
def errors_named(library: SplittableLibrary) -> Iterator[None]:
    """Replace the unpacked copy's path in error messages by the name in the wheel."""
    try:
        yield
    except (BinaryFormatError, VerifyError) as error:
        text = str(error).replace(str(library.path.with_suffix("")), library.name)
        raise type(error)(f"{library.name} can't be split: {text}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Packing:
    """Packing of a stripped library, which frees its file piece by piece.

    Attributes:
        readers: jobs that read the file, too.
    """

    path: Path
    tools: StripTools
    readers: tuple[Future[WrittenLibrary], Future[tuple[UnmovedCode, ...]]]

    def run(self) -> PackedContent:
        """Pack the library, and remove its file."""
        packed = pack(self.path, self.tools.deflater, self._free)
        # A small library is packed before its table is read.
        for reader in self.readers:
            reader.exception()
        self.tools.scratch.remove(self.path)
        return packed

    def _free(self, end: int) -> None:
        # Together, the unpacked and the packed library would be most of a split's memory.
        if all(reader.done() for reader in self.readers):
            free_ranges(self.path, [(0, end)])


def _plan_removal(library: SplittableLibrary) -> FilePlan:
    window = library.elf.window
    filtered = tuple(map(_empty_container, library.containers))
    # With zeros the wheel gets as small, and the installed library doesn't.
    edits, note = shrink_or_zero(window, Form.ELF, filtered)
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


def _row(registered: RegisteredContainer) -> PackContainer:
    """Return a container's row, without the addresses in the core's library."""
    images = container_images(registered)
    return PackContainer(
        images=images,
        is_unused=registered.is_unused,
        is_linked=registered.is_linked,
        is_input=registered.is_input,
        key=container_key(images),
    )


def _placed_rows(
    containers: tuple[RegisteredContainer, ...], rows: tuple[PackContainer, ...], path: Path
) -> tuple[PackContainer, ...]:
    """Return the rows of a stripped library, with the addresses in the written file."""
    elf = Elf(open_file(path))
    # The cut moves containers, so their new addresses are read from the result.
    written = registered_containers(elf)
    if len(written) != len(containers):
        raise VerifyError(f"containers of {path}: {len(written)}, expected {len(containers)}")
    wrappers = wrapper_addresses(elf)
    places = (
        (wrappers[old.wrapper], new.address)
        for old, new in zip(containers, written, strict=True)
        if old.wrapper is not None
    )
    return tuple(
        replace(row, wrapper=wrapper, address=address)
        for row, (wrapper, address) in zip(rows, places, strict=True)
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
        yield _unmoved_code(name, [entry.size for one in group for entry in one.entries], why)


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
        yield _unmoved_code(name, _image_sizes(units), _UNREGISTERED.format(section=section))


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
        yield UnmovedCode(name=name, images=0, size=0, why=f"it can't be read: {reason}")
        return
    if units:
        # A file without images isn't worth a line of the report.
        yield _unmoved_code(name, _image_sizes(units), _UNSPLIT.get(form, why))


def _image_sizes(units: list[Unit]) -> list[int]:
    return [image.file_bytes for unit in units for image in unit.images]


def _unmoved_code(name: str, sizes: list[int], why: str) -> UnmovedCode:
    return UnmovedCode(name=name, images=len(sizes), size=sum(sizes), why=why)
