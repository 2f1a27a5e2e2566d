"""Read the notes of an ELF file (System V gABI, chapter 5, "Note Section")."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING

from archsplit.formats.elf_header import SegmentType
from archsplit.formats.elf_sections import SectionType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.formats.elf import Elf
    from archsplit.formats.reader import Window

__pure__ = True

_NOTE = Struct("<III")


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A note: who defines what it means, which of the owner's types it is, and its bytes."""

    owner: str
    type: int
    content: Window


def read_notes(elf: Elf) -> Iterator[Note]:
    """The notes of all PT_NOTE segments, or of the note sections in a file without segments.

    Raises:
        BinaryFormatError: a note is cut short, or the notes take more room than the file has.
    """
    left = len(elf.window)
    for area, alignment in _areas(elf):
        left -= len(area)
        if left < 0:
            raise area.fault(0, "notes", "more bytes than the file has", "no overlaps")
        yield from _notes_in(area, 8 if alignment == 8 else 4)  # noqa: PLR2004 - gABI: 4 or 8


def _areas(elf: Elf) -> Iterator[tuple[Window, int]]:
    if elf.segments:
        for segment in elf.segments:
            if segment.type == SegmentType.NOTE:
                window = elf.window.at(segment.offset, segment.file_size, "note segment")
                yield window, segment.alignment
    else:
        for section in elf.sections():
            if section.type == SectionType.NOTE:
                yield elf.content(section), section.alignment


def _notes_in(area: Window, alignment: int) -> Iterator[Note]:
    offset = 0
    while offset < len(area):
        owner_size, size, kind = area.unpack(_NOTE, offset, "note")
        owner = area.part(offset + _NOTE.size, owner_size, "owner of a note")
        start = _aligned(offset + _NOTE.size + owner_size, alignment)
        yield Note(
            owner=owner.to_bytes().removesuffix(b"\0").decode("utf-8", "surrogateescape"),
            type=kind,
            content=area.part(start, size, "content of a note"),
        )
        offset = _aligned(start + size, alignment)


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
