"""Take images out of containers: which bytes stand in their place.

In place, nothing moves but the images inside their own container, so no pointer into the file or
the memory changes: what stays goes to the container's front, its size is set anew, the rest is
zeros. The file is as long as before, and packs better.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING

from archsplit.devicecode.edits import Copy, Edit, EditPiece, Text, Zeros, edited_size
from archsplit.formats.fatbin import FATBIN_MAGIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from archsplit.formats.elf_sections import Section
    from archsplit.formats.entry import FatbinEntry
    from archsplit.formats.fatbin import Container

    Images = Callable[[Container, FatbinEntry], tuple[EditPiece, ...]]
    """The bytes of an entry that stays: as they are, or packed anew."""

_HEADER = Struct("<IHHQ")
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredContainer:
    """A container without some of its images.

    Attributes:
        container: as it is.
        entries: all of its entries.
        kept: those that stay, in their order.
        pieces: the new container, header included.
        section: where it lies; None in a bare fatbin.
    """

    container: Container
    entries: tuple[FatbinEntry, ...] = field(repr=False)
    kept: tuple[FatbinEntry, ...] = field(repr=False)
    pieces: tuple[EditPiece, ...] = field(repr=False)
    section: Section | None = None

    @property
    def start(self) -> int:
        """Where it starts in the old file."""
        return self.container.offset

    @property
    def end(self) -> int:
        """Where it ends in the old file."""
        return self.start + self.container.size

    @property
    def size(self) -> int:
        """Bytes of the new container."""
        return edited_size(self.pieces)

    @property
    def is_changed(self) -> bool:
        """Whether a byte of it is another one."""
        return self.pieces != (Copy(offset=self.start, size=self.container.size),)


def unchanged_container(container: Container, entry: FatbinEntry) -> tuple[EditPiece, ...]:
    """An entry's own bytes."""
    del container
    return (Copy(offset=entry.offset, size=entry.size),)


def filter_container(
    container: Container,
    entries: Iterable[FatbinEntry],
    kept: Iterable[FatbinEntry],
    *,
    section: Section | None = None,
    images: Images = unchanged_container,
) -> FilteredContainer:
    """Plan a container that holds nothing but ``kept``, which may be nothing at all."""
    entries, kept = tuple(entries), tuple(kept)
    body = [piece for entry in kept for piece in images(container, entry)]
    header = _HEADER.pack(FATBIN_MAGIC, _VERSION, _HEADER.size, edited_size(body))
    pieces: tuple[EditPiece, ...] = (Text(content=header), *body)
    if body == [Copy(offset=entry.offset, size=entry.size) for entry in entries]:
        pieces = (Copy(offset=container.offset, size=container.size),)
    return FilteredContainer(
        container=container, entries=entries, kept=kept, pieces=pieces, section=section
    )


def zero_in_place(containers: Iterable[FilteredContainer]) -> tuple[Edit, ...]:
    """Change containers where they are; none may be longer than it was."""
    return tuple(
        Edit(
            start=one.start,
            end=one.end,
            pieces=(*one.pieces, Zeros(size=one.container.size - one.size)),
        )
        for one in containers
        if one.is_changed
    )
