"""Make objects, static libraries and fatbins shorter.

An object has no addresses yet, and its relocations count from the start of a section. So the
containers stay where they start, and what is cut is what is free behind a section's last one: all
of it where a section holds one container, as compilers write them. (``ld -r`` makes sections with
several; there the images before the last container are taken out in place.)

Plan a file without some of its images, whatever the file's form.

Containers in which there is nothing to run.

nvcc's device link writes one into every library, also where no object has anything to link: cubins
of notes and bookkeeping for each machine-code target, and no PTX. A GPU that takes PTX everywhere
else finds nothing in it, and misses nothing: no host code can name a kernel or variable of it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING

from archsplit.arch.target import CodeKind
from archsplit.devicecode.compression import decompress
from archsplit.devicecode.edits import (
    CopiedBytes,
    Edit,
    NewBytes,
    ZeroBytes,
    apply_edits,
    copy_entry,
    filter_container,
    overwrite,
    total_size,
    zero_in_place,
)
from archsplit.devicecode.elf_shrink import Cut, NotShrinkableError, section_edits, shrink_elf
from archsplit.devicecode.scan import HEAD_SIZE, Form, detect_form, release_pages
from archsplit.errors import BinaryFormatError
from archsplit.formats import ar
from archsplit.formats.cubin import Cubin
from archsplit.formats.elf import Elf, FileType, SectionType
from archsplit.formats.elf_dynamic import section_symbols
from archsplit.formats.fatbin import host_containers, read_containers
from archsplit.formats.reader import Window

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from archsplit.devicecode.edits import EditPiece, FilteredContainer, ImageEncoder
    from archsplit.devicecode.select import Selection
    from archsplit.formats.elf import Section
    from archsplit.formats.fatbin import Container, FatbinEntry

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
            padding = ZeroBytes(size=cut.start - one.start - one.size)
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
    yield Edit(start=table.start, end=table.start + len(table), pieces=(NewBytes(content=packed),))


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
    encode: ImageEncoder = copy_entry


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
        return total_size(self.pieces)

    @property
    def is_changed(self) -> bool:
        """Whether the new file is another one."""
        return self.pieces not in {(), (CopiedBytes(offset=0, size=len(self.window)),)}


def plan_rewrite(window: Window, order: FileEdit) -> FilePlan:
    """Plan a new file over an old one, which is a file of its own and not a part of one.

    Raises:
        BinaryFormatError: it is damaged, or was stripped of its section headers.
    """
    form = detect_form(window.data[:HEAD_SIZE].tobytes())
    containers = tuple(container for part in _parts(window, form) for container in part.read(order))
    edits: tuple[Edit, ...] = ()
    note = None
    if any(one.is_changed for one in containers):
        try:
            edits = _shrunk(window, form, containers) if order.mode is EditMode.SHRINK else ()
        except NotShrinkableError as obstacle:
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
            yield from host_containers(self.elf)
        else:
            yield from ((None, container) for container in read_containers(self.window))

    def read(self, order: FileEdit) -> Iterator[FilteredContainer]:
        """The containers as they will be; raises as `containers` does."""
        for section, container in self.containers():
            entries = tuple(container.entries())
            kept = order.selection.kept(entries)
            yield filter_container(container, entries, kept, section=section, encode=order.encode)


def container_holders(window: Window) -> Iterator[ContainerHolder]:
    """What can hold containers in a file, in its order.

    Raises:
        BinaryFormatError: it is damaged.
    """
    return _parts(window, detect_form(window.data[:HEAD_SIZE].tobytes()))


def _parts(window: Window, form: Form | None) -> Iterator[ContainerHolder]:
    if form is Form.ELF:
        yield ContainerHolder(window=window, elf=Elf(window))
    elif form is Form.FATBIN:
        yield ContainerHolder(window=window, elf=None)
    elif form is Form.STATIC_LIBRARY:
        for member in ar.read_members(window):
            if detect_form(member.content.data[:HEAD_SIZE].tobytes()) is Form.ELF:
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


_MOST = 8192
"""Bytes of the longest image that is looked at; those of CUDA 11.8 to 13.0 have 600 to 1600."""

_SECTION_SYMBOL = 3  # STT_SECTION
_CODE_AND_DATA = (".text", ".nv.global", ".nv.constant", ".nv.shared")


def is_stub(one: FilteredContainer) -> bool:
    """Whether all of a container is machine code without code: no function, no variable."""
    return all(_holds_nothing(one, entry) for entry in one.entries)


def _holds_nothing(one: FilteredContainer, entry: FatbinEntry) -> bool:
    is_sass = entry.target is not None and entry.target.kind is CodeKind.SASS
    if not is_sass or max(entry.payload_size, entry.uncompressed_size) > _MOST:
        return False
    try:
        content = decompress(entry, one.container.payload(entry))
        elf = Cubin(Window(content, source="an image")).elf
        return not any(map(_is_content, (part.name for part in elf.sections()))) and not any(
            symbol.name and symbol.type != _SECTION_SYMBOL
            for part in elf.sections()
            if part.type == SectionType.SYMBOLS
            for symbol in section_symbols(elf, part)
        )
    except BinaryFormatError:
        # What can't be read may be anything.
        return False


def _is_content(section: str) -> bool:
    return section.startswith(_CODE_AND_DATA)
