"""A new file as a plan over an old one: what is copied from where, and what stands in between.

Nothing is read or written here. An old file of gigabytes costs no more than the list of its
changes.

Take images out of containers: which bytes stand in their place.

In place, nothing moves but the images inside their own container, so no pointer into the file or
the memory changes: what stays goes to the container's front, its size is set anew, the rest is
zeros. The file is as long as before, and packs better.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING

from archsplit.errors import BinaryFormatError
from archsplit.formats.fatbin import FATBIN_MAGIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from archsplit.formats.elf import Section
    from archsplit.formats.fatbin import Container, FatbinEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedBytes:
    """Bytes of the old file."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBytes:
    """Bytes that are new."""

    content: bytes = field(repr=False)

    @property
    def size(self) -> int:
        """How many."""
        return len(self.content)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroBytes:
    """Bytes that are 0."""

    size: int


EditPiece = CopiedBytes | NewBytes | ZeroBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """What stands in the new file for the old one's bytes from ``start`` up to ``end``."""

    start: int
    end: int
    pieces: tuple[EditPiece, ...]

    @property
    def growth(self) -> int:
        """How much longer the file gets by it; negative where it gets shorter."""
        return total_size(self.pieces) - (self.end - self.start)


def overwrite(offset: int, content: bytes) -> Edit:
    """Other bytes in the same place."""
    return Edit(start=offset, end=offset + len(content), pieces=(NewBytes(content=content),))


def total_size(pieces: Iterable[EditPiece]) -> int:
    """Bytes of all pieces."""
    return sum(piece.size for piece in pieces)


def apply_edits(edits: Iterable[Edit], size: int) -> tuple[EditPiece, ...]:
    """The new file in pieces; of a file of ``size`` bytes, all that no edit touches is copied.

    Raises:
        BinaryFormatError: two edits overlap, or one lies outside of the file. A sound file can't
            bring that about: its headers, tables and sections would have to lie in each other.
    """
    ordered = sorted(edits, key=lambda edit: (edit.start, edit.end))
    return tuple(_joined(_pieces(ordered, size)))


def _pieces(edits: list[Edit], size: int) -> Iterator[EditPiece]:
    done = 0
    for edit in edits:
        if not done <= edit.start <= edit.end <= size:
            raise BinaryFormatError(
                f"what has to be changed at offset {edit.start:#x} overlaps with other parts of "
                "the file, which none of a sound file does"
            )
        yield CopiedBytes(offset=done, size=edit.start - done)
        yield from edit.pieces
        done = edit.end
    yield CopiedBytes(offset=done, size=size - done)


def _joined(pieces: Iterable[EditPiece]) -> Iterator[EditPiece]:
    """The same without empty pieces, and neighbours copied at once."""
    last: EditPiece | None = None
    for piece in pieces:
        if piece.size == 0:
            continue
        if (
            isinstance(last, CopiedBytes)
            and isinstance(piece, CopiedBytes)
            and _follows(last, piece)
        ):
            last = CopiedBytes(offset=last.offset, size=last.size + piece.size)
            continue
        if last is not None:
            yield last
        last = piece
    if last is not None:
        yield last


def _follows(first: CopiedBytes, second: CopiedBytes) -> bool:
    return first.offset + first.size == second.offset


if TYPE_CHECKING:
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
        return total_size(self.pieces)

    @property
    def is_changed(self) -> bool:
        """Whether a byte of it is another one."""
        return self.pieces != (CopiedBytes(offset=self.start, size=self.container.size),)


def copy_entry(container: Container, entry: FatbinEntry) -> tuple[EditPiece, ...]:
    """An entry's own bytes."""
    del container
    return (CopiedBytes(offset=entry.offset, size=entry.size),)


def filter_container(
    container: Container,
    entries: Iterable[FatbinEntry],
    kept: Iterable[FatbinEntry],
    *,
    section: Section | None = None,
    images: Images = copy_entry,
) -> FilteredContainer:
    """Plan a container that holds nothing but ``kept``, which may be nothing at all."""
    entries, kept = tuple(entries), tuple(kept)
    body = [piece for entry in kept for piece in images(container, entry)]
    header = _HEADER.pack(FATBIN_MAGIC, _VERSION, _HEADER.size, total_size(body))
    pieces: tuple[EditPiece, ...] = (NewBytes(content=header), *body)
    if body == [CopiedBytes(offset=entry.offset, size=entry.size) for entry in entries]:
        pieces = (CopiedBytes(offset=container.offset, size=container.size),)
    return FilteredContainer(
        container=container, entries=entries, kept=kept, pieces=pieces, section=section
    )


def zero_in_place(containers: Iterable[FilteredContainer]) -> tuple[Edit, ...]:
    """Change containers where they are; none may be longer than it was."""
    return tuple(
        Edit(
            start=one.start,
            end=one.end,
            pieces=(*one.pieces, ZeroBytes(size=one.container.size - one.size)),
        )
        for one in containers
        if one.is_changed
    )
