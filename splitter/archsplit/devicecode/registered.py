"""Which containers of a library can be moved out of it, and why the others can't.

Moved from archsplit.split.take_apart.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.devicecode.edits import filter_container
from archsplit.devicecode.file_plan import is_stub
from archsplit.devicecode.scan import release_pages
from archsplit.devicecode.select import is_code
from archsplit.formats.device_pack import PackImage
from archsplit.formats.elf import SegmentType
from archsplit.formats.fatbin import host_containers
from archsplit.formats.fatbin_wrappers import WRAPPER_SECTION, read_wrappers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.formats.elf import Elf, Section
    from archsplit.formats.fatbin import Container, FatbinEntry

_RELRO = 0x6474E552
_WRITABLE = 2
_WRAPPER_SIZE = 24
_LINKED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredContainer:
    """A container, and whether its images may go.

    Attributes:
        wrapper: the number of the wrapper that it is registered through; None where it stays.
        obstacle: why it stays; "" where it moves.
        is_linked: it was linked from relocatable code, which the library has too.
    """

    section: Section
    container: Container = field(repr=False)
    entries: tuple[FatbinEntry, ...] = field(repr=False)
    wrapper: int | None
    obstacle: str = ""
    is_linked: bool = False

    @property
    def is_spare(self) -> bool:
        """Whether a GPU that finds nothing in it misses nothing by that."""
        one = filter_container(self.container, self.entries, self.entries, section=self.section)
        return self.is_linked or is_stub(one)


def registered_containers(elf: Elf) -> tuple[RegisteredContainer, ...]:
    """All containers of a library in its order.

    Raises:
        BinaryFormatError: it is damaged, or was stripped of its section headers.
    """
    through: dict[int, list[tuple[int, int]]] = {}
    for number, wrapper in enumerate(read_wrappers(elf)):
        if wrapper.container is not None:
            through.setdefault(wrapper.container.offset, []).append((number, wrapper.version))
    return tuple(_places(elf, through, _fixed_wrappers(elf)))


def wrapper_address(elf: Elf, number: int) -> int:
    """Where a wrapper is, counted from the address at which the library is loaded."""
    section = next(section for section in elf.sections() if section.name == WRAPPER_SECTION)
    return section.address + number * _WRAPPER_SIZE


def unmovable_reason(elf: Elf) -> str:
    """Why nothing of a library can be moved, or "".

    Raises:
        BinaryFormatError: it is damaged, or was stripped of its section headers.
    """
    places = registered_containers(elf)
    if any(place.wrapper is not None for place in places):
        return ""
    return "; ".join(sorted({place.obstacle for place in places} - {""})) or "it has none to move"


def _places(
    elf: Elf, through: dict[int, list[tuple[int, int]]], fixed: str
) -> Iterator[RegisteredContainer]:
    for section, container in host_containers(elf):
        entries = tuple(container.entries())
        wrappers = through.get(container.offset, [])
        obstacle = fixed
        if len(wrappers) != 1:
            obstacle = f"{len(wrappers) or 'no'} wrappers lead there"
        elif not all(map(is_code, entries)):
            obstacle = "they hold what is no code for any GPU by itself"
        yield RegisteredContainer(
            section=section,
            container=container,
            entries=entries,
            wrapper=None if obstacle or not entries else wrappers[0][0],
            obstacle=obstacle if entries else "",
            is_linked=any(version == _LINKED for _, version in wrappers),
        )


def _fixed_wrappers(elf: Elf) -> str:
    """Why wrappers can't be changed after the library was loaded, or ""."""
    section = next((section for section in elf.sections() if section.name == WRAPPER_SECTION), None)
    if section is None:
        return "no wrappers lead there"
    first, last = section.address, section.address + section.size
    around = {
        segment.type: segment
        for segment in elf.segments
        if segment.address <= first and last <= segment.address + segment.memory_size
    }
    load = around.get(SegmentType.LOAD)
    if load is None or not load.flags & _WRITABLE or _RELRO in around:
        return "their wrappers can't be changed"
    return ""


def container_images(place: RegisteredContainer) -> tuple[PackImage, ...]:
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
    release_pages(place.container.body)
    return tuple(images)
