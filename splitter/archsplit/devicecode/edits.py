"""A new file as a plan over an old one: copied ranges, new bytes, zeros and packed images.

In go containers and the images that stay; out come edits and pieces. Nothing is read or written
here, so the plan for a file of gigabytes costs no more than the list of its changes.

Edits in place move nothing but images inside their own container, so no pointer into the file or
the memory changes: the images that stay go to the container's front, its size is set anew, the rest
is zeros. The file keeps its length, and compresses better.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from archsplit.errors import BinaryFormatError
from archsplit.formats.fatbin import RELOCATABLE, container_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from archsplit.arch.target import Target
    from archsplit.formats.elf import Section
    from archsplit.formats.fatbin import Container, FatbinEntry

    ImageEncoder = Callable[[Container, FatbinEntry], "tuple[EditPiece, ...]"]
    """A function from an entry to its bytes in the new file: copied, or compressed."""


class CopiedBytes(NamedTuple):
    """A range of the old file; a tuple, because a plan has one for each of many thousand images."""

    offset: int
    size: int


class NewBytes(NamedTuple):
    """Bytes that the old file does not have."""

    content: bytes

    @property
    def size(self) -> int:
        """Number of bytes."""
        return len(self.content)


class ZeroBytes(NamedTuple):
    """A run of zeros."""

    size: int


EditPiece = CopiedBytes | NewBytes | ZeroBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Replacement for the old file's bytes from ``start`` up to ``end``."""

    start: int
    end: int
    pieces: tuple[EditPiece, ...]

    @property
    def growth(self) -> int:
        """Number of bytes that the file gets longer; negative if it gets shorter."""
        # Sizes in the headers of archives change by this number.
        return total_size(self.pieces) - (self.end - self.start)


def overwrite(offset: int, content: bytes) -> Edit:
    """Replace bytes by others of the same length."""
    return Edit(start=offset, end=offset + len(content), pieces=(NewBytes(content=content),))


def total_size(pieces: Iterable[EditPiece]) -> int:
    """Return the bytes of all pieces together."""
    return sum(piece.size for piece in pieces)


def apply_edits(edits: Iterable[Edit], size: int) -> tuple[EditPiece, ...]:
    """Return the new file in pieces; bytes outside of all edits are copied.

    Args:
        edits: in any order.
        size: of the old file.

    Raises:
        BinaryFormatError: two edits overlap, or one lies outside of the file. An undamaged file
            can't cause that: its headers, tables and sections would have to overlap.
    """
    # An empty edit (an insertion) at the start of another comes before it.
    ordered = sorted(edits, key=lambda edit: (edit.start, edit.end))
    return tuple(_join_pieces(_pieces(ordered, size)))


def _pieces(edits: list[Edit], size: int) -> Iterator[EditPiece]:
    position = 0
    for edit in edits:
        # Edits are sorted, so an overlap shows as a start before the end of the last one.
        if not position <= edit.start <= edit.end <= size:
            raise BinaryFormatError(
                f"the part to change at offset {edit.start:#x} overlaps with other parts of "
                "the file: the file is damaged"
            )
        # Empty copies are dropped when the pieces are joined.
        yield CopiedBytes(offset=position, size=edit.start - position)
        yield from edit.pieces
        position = edit.end
    yield CopiedBytes(offset=position, size=size - position)


def _join_pieces(pieces: Iterable[EditPiece]) -> Iterator[EditPiece]:
    """Join neighboring copies and drop empty pieces."""
    last: EditPiece | None = None
    for piece in pieces:
        if piece.size == 0:
            continue
        if (
            isinstance(last, CopiedBytes)
            and isinstance(piece, CopiedBytes)
            and last.offset + last.size == piece.offset
        ):
            last = CopiedBytes(offset=last.offset, size=last.size + piece.size)
            continue
        if last is not None:
            yield last
        last = piece
    if last is not None:
        yield last


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredContainer:
    """A container without some of its images.

    Attributes:
        container: the old container.
        entries: all of its entries.
        kept: the entries that stay, in their order.
        pieces: the new container, header included.
        section: the section that holds it; None in a bare fatbin.
        is_stub: the result of `archsplit.devicecode.file_plan.is_stub`, if it is known already.
        linked: for input of a device link, the targets of each linked container of the file.
        is_linked: True if a device link wrote it.
    """

    container: Container
    entries: tuple[FatbinEntry, ...] = field(repr=False)
    kept: tuple[FatbinEntry, ...] = field(repr=False)
    pieces: tuple[EditPiece, ...] = field(repr=False)
    section: Section | None = None
    is_stub: bool | None = None
    linked: tuple[frozenset[Target], ...] = ()
    is_linked: bool = False

    @property
    def start(self) -> int:
        """Start in the old file."""
        return self.container.offset

    @property
    def end(self) -> int:
        """End in the old file."""
        return self.start + self.container.size

    @property
    def size(self) -> int:
        """Number of bytes of the new container."""
        return total_size(self.pieces)

    @property
    def is_for_driver(self) -> bool:
        """True if only a driver reads the container, and no linker."""
        return is_for_driver(self.section)

    @property
    def shared(self) -> tuple[FatbinEntry, ...]:
        """Images in frames of several (kind 256), which stay whole."""
        return tuple(one for entry in self.kept for one in self.container.inner_entries(entry))

    @property
    def is_changed(self) -> bool:
        """True if any byte differs from the old container."""
        # Compared by pieces, not by bytes: `filter_container` makes one copy of what stays whole.
        return self.pieces != (CopiedBytes(offset=self.start, size=self.container.size),)


def is_for_driver(section: Section | None) -> bool:
    """Return True if only a driver reads a section, or a file without sections."""
    return section is None or section.name != RELOCATABLE


def copy_entry(_: Container, entry: FatbinEntry) -> tuple[EditPiece, ...]:
    """Return an entry's own bytes."""
    return (CopiedBytes(offset=entry.offset, size=entry.size),)


def filter_container(
    container: Container,
    entries: Iterable[FatbinEntry],
    kept: Iterable[FatbinEntry],
    *,
    section: Section | None = None,
    encode: ImageEncoder = copy_entry,
) -> FilteredContainer:
    """Plan a container with only the entries of ``kept``, or with none."""
    entries, kept = tuple(entries), tuple(kept)
    body = [piece for entry in kept for piece in encode(container, entry)]
    # The size in the header counts only the entries.
    header = container_header(total_size(body))
    pieces: tuple[EditPiece, ...] = (NewBytes(content=header), *body)
    # Nothing changed: one copy keeps padding between entries too.
    if body == [CopiedBytes(offset=entry.offset, size=entry.size) for entry in entries]:
        pieces = (CopiedBytes(offset=container.offset, size=container.size),)
    return FilteredContainer(
        container=container, entries=entries, kept=kept, pieces=pieces, section=section
    )


def zero_in_place(containers: Iterable[FilteredContainer]) -> tuple[Edit, ...]:
    """Return the edits that change containers in place; none may grow."""
    return tuple(
        Edit(
            start=filtered.start,
            end=filtered.end,
            # The size in the container's header ends before the zeros.
            pieces=(*filtered.pieces, ZeroBytes(size=filtered.container.size - filtered.size)),
        )
        for filtered in containers
        # Unchanged containers need no edit: what no edit covers is copied.
        if filtered.is_changed
    )
