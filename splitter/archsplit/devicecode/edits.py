"""A new file as a plan over an old one: what is copied from where, and what stands in between.

Nothing is read or written here. An old file of gigabytes costs no more than the list of its
changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.errors import BinaryFormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """Bytes of the old file."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Bytes that are new."""

    content: bytes = field(repr=False)

    @property
    def size(self) -> int:
        """How many."""
        return len(self.content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Zeros:
    """Bytes that are 0."""

    size: int


EditPiece = Copy | Text | Zeros


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """What stands in the new file for the old one's bytes from ``start`` up to ``end``."""

    start: int
    end: int
    pieces: tuple[EditPiece, ...]

    @property
    def growth(self) -> int:
        """How much longer the file gets by it; negative where it gets shorter."""
        return edited_size(self.pieces) - (self.end - self.start)


def overwrite(offset: int, content: bytes) -> Edit:
    """Other bytes in the same place."""
    return Edit(start=offset, end=offset + len(content), pieces=(Text(content=content),))


def edited_size(pieces: Iterable[EditPiece]) -> int:
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
        yield Copy(offset=done, size=edit.start - done)
        yield from edit.pieces
        done = edit.end
    yield Copy(offset=done, size=size - done)


def _joined(pieces: Iterable[EditPiece]) -> Iterator[EditPiece]:
    """The same without empty pieces, and neighbours copied at once."""
    last: EditPiece | None = None
    for piece in pieces:
        if piece.size == 0:
            continue
        if isinstance(last, Copy) and isinstance(piece, Copy) and _follows(last, piece):
            last = Copy(offset=last.offset, size=last.size + piece.size)
            continue
        if last is not None:
            yield last
        last = piece
    if last is not None:
        yield last


def _follows(first: Copy, second: Copy) -> bool:
    return first.offset + first.size == second.offset
