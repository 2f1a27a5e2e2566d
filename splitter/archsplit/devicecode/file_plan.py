"""Plan a file without some of its images, whatever the file's form."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.devicecode.edits import Copy, apply_edits, edited_size
from archsplit.devicecode.elf_shrink import shrink_elf
from archsplit.devicecode.moving import ObstacleError
from archsplit.devicecode.objects import shrink_archive, shrink_fatbin, shrink_object
from archsplit.devicecode.read import HEAD_SIZE, Form, form_of
from archsplit.devicecode.rewrite import filter_container, unchanged_container, zero_in_place
from archsplit.devicecode.scan import release_pages
from archsplit.formats import ar
from archsplit.formats.elf import Elf
from archsplit.formats.elf_header import FileType
from archsplit.formats.fatbin import containers_of, read_containers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.devicecode.edits import Edit, EditPiece
    from archsplit.devicecode.rewrite import FilteredContainer, Images
    from archsplit.devicecode.selection import Selection
    from archsplit.formats.elf_sections import Section
    from archsplit.formats.fatbin import Container
    from archsplit.formats.reader import Window


class EditMode(enum.Enum):
    """How images are taken out."""

    SHRINK = "shrink"
    """The file gets shorter."""

    IN_PLACE = "in-place"
    """Zeros take their place: the file is as long as before, and packs better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEdit:
    """What to do with a file."""

    selection: Selection
    mode: EditMode = EditMode.SHRINK
    images: Images = unchanged_container


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePlan:
    """A file without some of its images.

    Attributes:
        form: what the file is; None for what holds no containers.
        containers: all of them, in the file's order.
        pieces: the new file.
        note: why it gets no shorter, though it should; or None.
    """

    window: Window = field(repr=False)
    form: Form | None
    containers: tuple[FilteredContainer, ...] = field(repr=False)
    pieces: tuple[EditPiece, ...] = field(repr=False)
    note: str | None = None

    @property
    def size(self) -> int:
        """Bytes of the new file."""
        return edited_size(self.pieces)

    @property
    def is_changed(self) -> bool:
        """Whether the new file is another one."""
        return self.pieces not in {(), (Copy(offset=0, size=len(self.window)),)}


def plan_rewrite(window: Window, order: FileEdit) -> FilePlan:
    """Plan a new file over an old one, which is a file of its own and not a part of one.

    Raises:
        BinaryFormatError: it is damaged, or was stripped of its section headers.
    """
    form = form_of(window.data[:HEAD_SIZE].tobytes())
    containers = tuple(container for part in _parts(window, form) for container in part.read(order))
    edits: tuple[Edit, ...] = ()
    note = None
    if any(one.is_changed for one in containers):
        try:
            edits = _shrunk(window, form, containers) if order.mode is EditMode.SHRINK else ()
        except ObstacleError as obstacle:
            note = str(obstacle)
        edits = edits or zero_in_place(containers)
    release_pages(window)
    pieces = apply_edits(edits, len(window))
    return FilePlan(window=window, form=form, containers=containers, pieces=pieces, note=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerHolder:
    """What holds containers: an ELF file, a member of a static library, a fatbin."""

    window: Window
    elf: Elf | None

    def containers(self) -> Iterator[tuple[Section | None, Container]]:
        """All containers, each with its section.

        Raises:
            BinaryFormatError: it is damaged, or was stripped of its section headers.
        """
        if self.elf is not None:
            yield from containers_of(self.elf)
        else:
            yield from ((None, container) for container in read_containers(self.window))

    def read(self, order: FileEdit) -> Iterator[FilteredContainer]:
        """The containers as they will be; raises as `containers` does."""
        for section, container in self.containers():
            entries = tuple(container.entries())
            kept = order.selection.kept(entries)
            yield filter_container(container, entries, kept, section=section, images=order.images)


def container_holders(window: Window) -> Iterator[ContainerHolder]:
    """What can hold containers in a file, in its order.

    Raises:
        BinaryFormatError: it is damaged.
    """
    return _parts(window, form_of(window.data[:HEAD_SIZE].tobytes()))


def _parts(window: Window, form: Form | None) -> Iterator[ContainerHolder]:
    if form is Form.ELF:
        yield ContainerHolder(window=window, elf=Elf(window))
    elif form is Form.FATBIN:
        yield ContainerHolder(window=window, elf=None)
    elif form is Form.STATIC_LIBRARY:
        for member in ar.read_members(window):
            if form_of(member.content.data[:HEAD_SIZE].tobytes()) is Form.ELF:
                yield ContainerHolder(window=member.content, elf=Elf(member.content))


def _shrunk(
    window: Window, form: Form | None, containers: tuple[FilteredContainer, ...]
) -> tuple[Edit, ...]:
    if form is Form.FATBIN:
        return shrink_fatbin(containers)
    if form is Form.STATIC_LIBRARY:
        members = [
            (part.window, _shrunk_elf(part.elf, _within(part.window, containers)))
            for part in _parts(window, form)
            if part.elf is not None
        ]
        return shrink_archive(window, members)
    return _shrunk_elf(Elf(window), containers)


def _shrunk_elf(elf: Elf, containers: tuple[FilteredContainer, ...]) -> tuple[Edit, ...]:
    if not any(one.is_changed for one in containers):
        return ()
    if elf.header.type == FileType.OBJECT:
        return shrink_object(elf, containers)
    return shrink_elf(elf, containers)


def _within(
    window: Window, containers: tuple[FilteredContainer, ...]
) -> tuple[FilteredContainer, ...]:
    end = window.start + len(window)
    return tuple(one for one in containers if window.start <= one.start < end)
