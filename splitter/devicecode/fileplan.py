"""Plan a file without some of its images, whatever the file's form."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from splitter.binfmt import ar
from splitter.binfmt.elf import Elf
from splitter.binfmt.elf_header import FileType
from splitter.binfmt.fatbin import containers_of, read_containers
from splitter.devicecode.edits import Copy, applied, size_of
from splitter.devicecode.moving import ObstacleError
from splitter.devicecode.objects import shrunk_archive, shrunk_fatbin, shrunk_object
from splitter.devicecode.read import HEAD_SIZE, Form, form_of
from splitter.devicecode.rewrite import as_it_is, in_place, trimmed
from splitter.devicecode.scan import release
from splitter.devicecode.shrink import shrunk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from splitter.binfmt.cursor import Window
    from splitter.binfmt.elf_sections import Section
    from splitter.binfmt.fatbin import Container
    from splitter.devicecode.edits import Edit, Piece
    from splitter.devicecode.rewrite import Images, Trimmed
    from splitter.devicecode.selection import Selection


class Mode(enum.Enum):
    """How images are taken out."""

    SHRINK = "shrink"
    """The file gets shorter."""

    IN_PLACE = "in-place"
    """Zeros take their place: the file is as long as before, and packs better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to do with a file."""

    selection: Selection
    mode: Mode = Mode.SHRINK
    images: Images = as_it_is


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
    containers: tuple[Trimmed, ...] = field(repr=False)
    pieces: tuple[Piece, ...] = field(repr=False)
    note: str | None = None

    @property
    def size(self) -> int:
        """Bytes of the new file."""
        return size_of(self.pieces)

    @property
    def is_changed(self) -> bool:
        """Whether the new file is another one."""
        return self.pieces not in {(), (Copy(offset=0, size=len(self.window)),)}


def planned(window: Window, order: Order) -> FilePlan:
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
            edits = _shrunk(window, form, containers) if order.mode is Mode.SHRINK else ()
        except ObstacleError as obstacle:
            note = str(obstacle)
        edits = edits or in_place(containers)
    release(window)
    pieces = applied(edits, len(window))
    return FilePlan(window=window, form=form, containers=containers, pieces=pieces, note=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
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

    def read(self, order: Order) -> Iterator[Trimmed]:
        """The containers as they will be; raises as `containers` does."""
        for section, container in self.containers():
            entries = tuple(container.entries())
            kept = order.selection.kept(entries)
            yield trimmed(container, entries, kept, section=section, images=order.images)


def parts_of(window: Window) -> Iterator[Part]:
    """What can hold containers in a file, in its order.

    Raises:
        BinaryFormatError: it is damaged.
    """
    return _parts(window, form_of(window.data[:HEAD_SIZE].tobytes()))


def _parts(window: Window, form: Form | None) -> Iterator[Part]:
    if form is Form.ELF:
        yield Part(window=window, elf=Elf(window))
    elif form is Form.FATBIN:
        yield Part(window=window, elf=None)
    elif form is Form.STATIC_LIBRARY:
        for member in ar.read_members(window):
            if form_of(member.content.data[:HEAD_SIZE].tobytes()) is Form.ELF:
                yield Part(window=member.content, elf=Elf(member.content))


def _shrunk(window: Window, form: Form | None, containers: tuple[Trimmed, ...]) -> tuple[Edit, ...]:
    if form is Form.FATBIN:
        return shrunk_fatbin(containers)
    if form is Form.STATIC_LIBRARY:
        members = [
            (part.window, _shrunk_elf(part.elf, _within(part.window, containers)))
            for part in _parts(window, form)
            if part.elf is not None
        ]
        return shrunk_archive(window, members)
    return _shrunk_elf(Elf(window), containers)


def _shrunk_elf(elf: Elf, containers: tuple[Trimmed, ...]) -> tuple[Edit, ...]:
    if not any(one.is_changed for one in containers):
        return ()
    if elf.header.type == FileType.OBJECT:
        return shrunk_object(elf, containers)
    return shrunk(elf, containers)


def _within(window: Window, containers: tuple[Trimmed, ...]) -> tuple[Trimmed, ...]:
    end = window.start + len(window)
    return tuple(one for one in containers if window.start <= one.start < end)
