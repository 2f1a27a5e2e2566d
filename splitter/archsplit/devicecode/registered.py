"""Containers that a library registers at run time, and the obstacles to moving them.

In goes an ELF library; out comes each container with its wrapper (the ``__fatBinC_Wrapper_t`` of
nvcc) or with the reason why it must stay. A container can move into a pack if exactly one wrapper
points at it, and if that wrapper can be written to after the library was loaded. `read_library`
gives the facts of a library that a release is checked by.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from archsplit.devicecode.file_plan import has_only_stubs
from archsplit.devicecode.select import is_code
from archsplit.formats.descriptor import read_descriptor
from archsplit.formats.device_pack import PackImage
from archsplit.formats.elf import Elf, SegmentType
from archsplit.formats.elf_dynamic import Dynamic
from archsplit.formats.fatbin import (
    EXECUTABLE,
    LINKED,
    RELOCATABLE,
    WRAPPER_SECTION,
    EntryKind,
    host_containers,
    read_wrappers,
)
from archsplit.formats.mapped import release_pages
from archsplit.formats.reader import open_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from archsplit.arch.target import Target
    from archsplit.formats.descriptor import Descriptor
    from archsplit.formats.elf import Section
    from archsplit.formats.fatbin import Container, FatbinEntry

ContainerImages = tuple[tuple[PackImage, ...], ...]
"""Images of each container of a library."""

# PT_GNU_RELRO: written by the dynamic linker, then made read-only.
_RELRO = 0x6474E552
_WRITABLE = 2
_WRAPPER_SIZE = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredContainer:
    """A container, and the wrapper through which it could be moved.

    Attributes:
        wrapper: the number of the wrapper; None for a container that stays.
        obstacle: the reason to stay; "" for a container that can move.
        is_linked: True if it was linked from relocatable code, which the library has too.
        is_input: True for that relocatable code, if all linked containers can move.
    """

    section: Section
    container: Container = field(repr=False)
    entries: tuple[FatbinEntry, ...] = field(repr=False)
    wrapper: int | None
    obstacle: str = ""
    is_linked: bool = False
    is_input: bool = False

    @property
    def address(self) -> int:
        """Address of the container, relative to the load address."""
        return self.section.address_at(self.container.offset)

    @property
    def is_unused(self) -> bool:
        """True if a GPU without code in it misses nothing."""
        return self.is_linked or has_only_stubs(self.container, self.entries)


def registered_containers(elf: Elf) -> tuple[RegisteredContainer, ...]:
    """Return all containers of a library, in its order.

    Raises:
        BinaryFormatError: it is damaged, or was stripped of its section headers.
    """
    wrappers_by_offset: dict[int, list[tuple[int, int]]] = {}
    is_linked = False
    for number, wrapper in enumerate(read_wrappers(elf)):
        is_linked |= wrapper.version == LINKED
        if wrapper.container is not None:
            # A list, because `_classify` has to find out about a second wrapper.
            wrappers_by_offset.setdefault(wrapper.container.offset, []).append(
                (number, wrapper.version)
            )
    fixed = _fixed_wrappers(elf)
    found = tuple(_classify(elf, wrappers_by_offset, fixed, is_linked=is_linked))
    # An empty linked container is one of PTX: then the driver links the input for all GPUs.
    if all(one.wrapper is not None for one in found if one.is_linked):
        inputs = (is_linked and one.section.name == RELOCATABLE for one in found)
        found = tuple(replace(one, is_input=each) for one, each in zip(found, inputs, strict=True))
    return found


def wrapper_addresses(elf: Elf) -> range:
    """Return the address of each wrapper by its number, relative to the load address."""
    section = elf.section(WRAPPER_SECTION)
    return range(0) if section is None else section.addresses[::_WRAPPER_SIZE]


def unmovable_reason(containers: tuple[RegisteredContainer, ...]) -> str:
    """Return the reason why no container of a library can move, or ""."""
    if any(one.wrapper is not None for one in containers):
        return ""
    return (
        "; ".join(sorted({one.obstacle for one in containers} - {""}))
        or "it has no containers to move"
    )


def _classify(
    elf: Elf, wrappers_by_offset: dict[int, list[tuple[int, int]]], fixed: str, *, is_linked: bool
) -> Iterator[RegisteredContainer]:
    for section, container in host_containers(elf):
        entries = tuple(container.entries())
        wrappers = wrappers_by_offset.get(container.offset, [])
        obstacle = fixed
        # Two wrappers of one container would register its code twice.
        if len(wrappers) != 1:
            obstacle = f"{len(wrappers) or 'no'} wrappers point at them"
        # The functions that would register it are written by a device link.
        elif section.name == RELOCATABLE and not is_linked:
            obstacle = "they are input of a device link that was not done: nothing registers them"
        elif any(entry.kind is EntryKind.CONCATENATED for entry in entries):
            obstacle = (
                "they are in frames of several images, which join can't make again from packs"
            )
        # LTO IR and unknown kinds are read by a linker, not by the driver.
        elif not all(map(is_code, entries)):
            obstacle = "they hold entries that are not GPU code, such as LTO IR"
        yield RegisteredContainer(
            section=section,
            container=container,
            entries=entries,
            wrapper=None if obstacle or not entries else wrappers[0][0],
            # An empty container has nothing to move, so nothing is in the way.
            obstacle=obstacle if entries else "",
            is_linked=any(version == LINKED for _, version in wrappers),
        )


def _fixed_wrappers(elf: Elf) -> str:
    """Return the reason why wrappers can't be changed after loading, or ""."""
    section = elf.section(WRAPPER_SECTION)
    if section is None:
        return "no wrappers point at them"
    first, last = section.addresses.start, section.addresses.stop
    enclosing = {
        segment.type: segment
        for segment in elf.segments
        if segment.address <= first and last <= segment.address + segment.memory_size
    }
    load = enclosing.get(SegmentType.LOAD)
    # The loader of packs writes new pointers into the wrappers.
    if load is None or not load.flags & _WRITABLE or _RELRO in enclosing:
        return "their wrappers are read-only"
    return ""


def container_images(registered: RegisteredContainer) -> tuple[PackImage, ...]:
    """Return the images of a container, with their digests."""
    images = []
    for number, entry in enumerate(registered.entries):
        content = registered.container.body.at(entry.offset, entry.size, "image")
        # Not an error: `_classify` passes only containers that have nothing but code.
        assert entry.target is not None, "only code moves"
        images.append(
            PackImage(
                number=number,
                target=entry.target,
                size=entry.size,
                digest=hashlib.sha256(content.data).digest(),
            )
        )
    release_pages(registered.container.body)
    return tuple(images)


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A shared library.

    Attributes:
        descriptor: the plugin's descriptor; None for a library that is not a plugin.
        containers: the targets of each fatbin container.
        exports: the names of the symbols that it defines for others.
        relocatable: the targets of each container that a device link takes.
    """

    descriptor: Descriptor | None
    containers: tuple[frozenset[Target], ...]
    exports: frozenset[str]
    relocatable: tuple[frozenset[Target], ...] = ()

    @property
    def targets(self) -> frozenset[Target]:
        """All targets that the library has code for."""
        return frozenset().union(*self.containers, *self.relocatable)


def read_library(path: Path) -> Library:
    """Read a library without decompressing device code.

    Raises:
        InputError: the file can't be read.
        BinaryFormatError: it is not an ELF file, or it is damaged.
    """
    elf = Elf(open_file(path))
    # Containers of the two sections are judged by different rules.
    targets_by_section: dict[str, list[frozenset[Target]]] = {EXECUTABLE: [], RELOCATABLE: []}
    for section, container in host_containers(elf):
        targets = (entry.target for entry in container.entries())
        targets_by_section[section.name].append(
            frozenset(target for target in targets if target is not None)
        )
    return Library(
        descriptor=read_descriptor(elf),
        containers=tuple(targets_by_section[EXECUTABLE]),
        relocatable=tuple(targets_by_section[RELOCATABLE]),
        exports=frozenset(symbol.name for symbol in Dynamic(elf).exported_symbols()),
    )
