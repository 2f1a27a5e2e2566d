"""Split of one library: its device code is taken out, and a stub is added.

In: a library. Out: a `StrippedLibrary`: the packed library without the movable images, a table of
the containers that they belong to, and a record to restore the original. Device code that stays is
listed with the reason. After the file is written, the table is made from the file itself, and not
from the plan.

The unpacked library is never changed, so a library of gigabytes takes no memory, and each digest is
computed once. Its space is given back when the core's library is written, but for the images, which
the packs take.
"""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
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
from archsplit.errors import BinaryFormatError, VerifyError
from archsplit.formats.device_pack import PackContainer, PackLibrary, container_key
from archsplit.formats.elf import Elf
from archsplit.formats.reader import open_file
from archsplit.release.report import UnmovedCode
from archsplit.split.restore import Restore, build_restore
from archsplit.split.stub import add_stub
from archsplit.system.fs import output_errors
from archsplit.system.scratch import free_ranges
from archsplit.wheels.zip_writer import pack_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from archsplit.devicecode.edits import Edit, FilteredContainer
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
        original_images: the same images, read before the library was written.
        moved: the original containers, in the order of the table.
        window: the original library with all images; other bytes may be gone.
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
    stub: Stub,
    original: Path,
    *,
    member: str,
    scratch: ScratchFiles,
    deflater: ParallelDeflater | None = None,
) -> StrippedLibrary:
    """Take the images out of a library, and make it need its stub.

    Args:
        name: its path in site-packages after the installation.
        original: the unpacked library; only its images are kept.
        member: its name in the wheel.
        deflater: shared by the libraries of a wheel.

    Raises:
        BinaryFormatError: the library is damaged.
        VerifyError: the result differs from the plan.
    """
    window = open_file(original)
    elf = Elf(window)
    containers = registered_containers(elf)
    plan = _plan_removal(window, elf, containers)
    path = scratch.create_short_lived(f"{original.stem}.core", plan.size)
    write_plan(original, plan, path)
    # Containers that stay must be equal, and those that go must be empty.
    check_plan(plan, path)
    # After the check, which takes the sections for unmoved.
    add_stub(path, stub)
    moved = tuple(registered for registered in containers if registered.wrapper is not None)
    restore = build_restore(window, open_file(path), plan.pieces, moved)
    images = ((entry.offset, entry.size) for registered in moved for entry in registered.entries)
    original_images = tuple(map(container_images, moved))
    with output_errors(original):
        # Only the images are read again, by the packs.
        free_ranges(original, _ranges_between(images, len(window)))
    with ThreadPoolExecutor(1) as worker:
        # Before any pack is written: unpacked, it would take its space beside the images and packs.
        packing = worker.submit(pack_file, path, deflater)
        table = _table(name, stub.name, containers, original_images, path)
        # Of the written file: what is in there after the split, not what was planned.
        unmoved = (*unmoved_images(member, containers), *unregistered_images(member, path))
        packed = packing.result()
    scratch.remove(path)
    return StrippedLibrary(
        packed=packed,
        table=table,
        original_images=original_images,
        moved=moved,
        window=window,
        image_file=original,
        notes=(plan.note,) if plan.note else (),
        unmoved=unmoved,
        restore=restore,
        member=member,
        sizes=(len(window), plan.size),
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
    name: str,
    stub: str,
    containers: tuple[RegisteredContainer, ...],
    images: ContainerImages,
    path: Path,
) -> PackLibrary:
    """Return the table of a stripped library, with the addresses in the written file."""
    elf = Elf(open_file(path))
    # The cut moves containers, so their new addresses are read from the result.
    addresses = container_addresses(elf)
    if len(addresses) != len(containers):
        raise VerifyError(f"{path} has {len(addresses)} containers, expected {len(containers)}")
    # Once for all wrappers: a library has thousands of them, and as many sections.
    wrappers = wrapper_addresses(elf) if containers else range(0)
    moved = (
        (registered, wrappers[registered.wrapper], address)
        for registered, address in zip(containers, addresses, strict=True)
        if registered.wrapper is not None
    )
    return PackLibrary(
        name=name,
        stub=stub,
        containers=tuple(
            PackContainer(
                wrapper=wrapper,
                address=address,
                images=rows,
                is_unused=registered.is_unused,
                key=container_key(rows),
            )
            for (registered, wrapper, address), rows in zip(moved, images, strict=True)
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
