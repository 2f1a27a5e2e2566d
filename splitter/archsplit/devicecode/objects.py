"""Make objects, static libraries and fatbins shorter.

An object has no addresses yet, and its relocations count from the start of a section. So the
containers stay where they start, and what is cut is what is free behind a section's last one: all
of it where a section holds one container, as compilers write them. (``ld -r`` makes sections with
several; there the images before the last container are taken out in place.)
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from archsplit.devicecode.edits import Edit, Text, Zeros, overwrite
from archsplit.devicecode.headers import Cut, section_edits
from archsplit.devicecode.rewrite import zero_in_place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from archsplit.devicecode.rewrite import FilteredContainer
    from archsplit.formats.elf import Elf
    from archsplit.formats.elf_sections import Section
    from archsplit.formats.reader import Window

_AR_MAGIC_SIZE = 8
_AR_HEADER_SIZE = 60
_AR_NAME_SIZE = 16
_AR_SIZE_AT, _AR_SIZE_WIDTH = 48, 10
_AR_INDEXES = {b"/": Struct(">I"), b"/SYM64/": Struct(">Q")}


def shrink_fatbin(containers: Sequence[FilteredContainer]) -> tuple[Edit, ...]:
    """Containers back to back."""
    return tuple(Edit(start=one.start, end=one.end, pieces=one.pieces) for one in containers)


def shrink_object(elf: Elf, containers: Sequence[FilteredContainer]) -> tuple[Edit, ...]:
    """An object with these containers, which are all that it has.

    Raises:
        BinaryFormatError: it is damaged.
    """
    last = {one.section.index: one for one in containers if one.section is not None}
    earlier = [one for one in containers if one not in last.values()]
    step = max((section.alignment for section in elf.sections()), default=1) or 1
    cuts, sizes, edits = [], {}, list(zero_in_place(earlier))
    for one in last.values():
        if one.section is not None and one.is_changed:
            cut = _cut(one, one.section, step)
            cuts.append(cut)
            sizes[one.section.index] = one.start + one.size - one.section.offset
            end = one.section.offset + one.section.size
            padding = Zeros(size=cut.start - one.start - one.size)
            edits.append(Edit(start=one.start, end=end, pieces=(*one.pieces, padding)))
    cuts.sort(key=lambda cut: cut.start)
    return (*edits, *section_edits(elf, cuts, sizes=sizes))


def shrink_archive(
    window: Window, members: Sequence[tuple[Window, Sequence[Edit]]]
) -> tuple[Edit, ...]:
    """A static library whose members are changed by these edits; all members have to be named.

    Raises:
        BinaryFormatError: its index is damaged.
    """
    edits = [edit for _, changes in members for edit in changes]
    moves = []
    for content, changes in members:
        growth = sum(edit.growth for edit in changes)
        if growth:
            moves.append((content.start - _AR_HEADER_SIZE, growth))
            edits.append(_size_edit(content, growth))
    return (*edits, *(_index_edits(window, moves) if moves else ()))


def _cut(one: FilteredContainer, section: Section, step: int) -> Cut:
    """What is free behind a section's last container, in steps that keep all alignments."""
    end = section.offset + section.size
    free = end - one.start - one.size
    return Cut(start=end - free // step * step, end=end)


def _size_edit(content: Window, growth: int) -> Edit:
    text = str(len(content) + growth).ljust(_AR_SIZE_WIDTH).encode()
    return overwrite(content.start - _AR_HEADER_SIZE + _AR_SIZE_AT, text)


def _index_edits(window: Window, moves: Sequence[tuple[int, int]]) -> Iterator[Edit]:
    """The index of symbols has the offset of the member that defines each of them."""
    name = window.part(_AR_MAGIC_SIZE, _AR_NAME_SIZE, "name of the first member").to_bytes()
    number = _AR_INDEXES.get(name.rstrip())
    if number is None:
        return
    start = _AR_MAGIC_SIZE + _AR_HEADER_SIZE
    (count,) = window.unpack(number, start, "count of an index")
    table = window.part(start + number.size, count * number.size, "index of a static library")
    offsets = (offset for (offset,) in table.records(number, "index of a static library"))
    new = [offset + sum(growth for at, growth in moves if at < offset) for offset in offsets]
    if min(new, default=0) < 0:
        raise window.fault(start, "index of a static library", "other offsets", "its members'")
    packed = b"".join(map(number.pack, new))
    yield Edit(start=table.start, end=table.start + len(table), pieces=(Text(content=packed),))
