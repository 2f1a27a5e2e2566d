"""The plan for a file without some of its images, whatever the file's form.

In go a file and a `FileEdit`; out comes a `FilePlan` with the pieces of the new file. Shared
libraries are shrunk by `archsplit.devicecode.elf_shrink`; objects, static libraries and fatbins
here; where a file can't be shrunk, its images are zeroed in place.

An object has no addresses yet, and its relocations count from the start of a section. So containers
stay where they start, and the free bytes behind a section's last one are cut: all of them where a
section holds one container, as compilers write them. (``ld -r`` makes sections with several; the
images before the last container are then zeroed in place.)

nvcc's device link writes a stub container into every library, also where no object has anything to
link: cubins of notes and bookkeeping for each machine-code target, and no PTX. A GPU that takes PTX
everywhere else finds nothing in it, and misses nothing: no host code can name a kernel or variable
of it.
"""

from __future__ import annotations

import bisect
import enum
from dataclasses import dataclass, field, replace
from itertools import accumulate
from struct import Struct
from typing import TYPE_CHECKING

from archsplit.arch.target import CodeKind
from archsplit.devicecode.edits import (
    CopiedBytes,
    Edit,
    NewBytes,
    ZeroBytes,
    apply_edits,
    copy_entry,
    decompress,
    filter_container,
    overwrite,
    total_size,
    zero_in_place,
)
from archsplit.devicecode.elf_shrink import Cut, NotShrinkableError, section_edits, shrink_elf
from archsplit.devicecode.scan import (
    HEAD_SIZE,
    PE_PLACES,
    Form,
    detect_form,
    linked_containers,
    release_pages,
    released_blocks,
    search_unregistered,
)
from archsplit.devicecode.unregistered import (
    proven_digests,
    unused_unregistered,
    zero_unregistered,
)
from archsplit.errors import BinaryFormatError
from archsplit.formats import libraries
from archsplit.formats.cubin import Cubin
from archsplit.formats.elf import Elf, FileType, SectionType
from archsplit.formats.elf_dynamic import Dynamic, section_symbols
from archsplit.formats.fatbin import EXECUTABLE, RELOCATABLE, host_containers, read_containers
from archsplit.formats.libraries import is_signed_pe, read_pe_sections
from archsplit.formats.reader import Window
from archsplit.system.fs import hex_digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from archsplit.devicecode.edits import EditPiece, FilteredContainer, ImageEncoder
    from archsplit.devicecode.select import Selection
    from archsplit.devicecode.unregistered import UnregisteredImage
    from archsplit.formats.elf import Section
    from archsplit.formats.fatbin import Container, FatbinEntry
    from archsplit.formats.libraries import PeSection

_AR_MAGIC_SIZE = 8
_AR_HEADER_SIZE = 60
_AR_NAME_SIZE = 16
_AR_SIZE_AT, _AR_SIZE_WIDTH = 48, 10
# The numbers in a static library's index are big-endian on every machine.
_AR_INDEXES = {b"/": Struct(">I"), b"/SYM64/": Struct(">Q")}

_RELEASED_BYTES = 4 << 20
"""Bytes of a mapped library that are passed before its pages are given back."""

_MAX_STUB = 8192
"""The largest image that may be a stub; in CUDA 11.8 to 13.0 stubs have 600 to 1600 bytes."""

# Every cubin has symbols of its sections; they are no evidence of code.
_SECTION_SYMBOL = 3  # STT_SECTION
_CODE_AND_DATA = (".text", ".nv.global", ".nv.constant", ".nv.shared")


class EditMode(enum.Enum):
    """The way in which images are removed."""

    SHRINK = "shrink"
    """The file gets shorter."""

    IN_PLACE = "in-place"
    """Zeros replace the images: the file keeps its length, and compresses better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEdit:
    """A request to remove images from a file.

    Attributes:
        zeroes_unregistered: overwrite code that only the library finds, where no GPU needs it; None
            for libraries of which a GPU has proven that it changes no result.
    """

    selection: Selection
    mode: EditMode = EditMode.SHRINK
    zeroes_unregistered: bool | None = None
    encode: ImageEncoder = copy_entry


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePlan:
    """The plan for a file without some of its images.

    Attributes:
        form: None for a file that can't hold containers.
        containers: all of them, in the file's order.
        pieces: the new file.
        note: the reason why a file that should shrink keeps its length, or None.
        unregistered: code that only a library finds, and that no GPU needs; of an emptied file,
            what it had.
        zeroes_unregistered: True if that code is overwritten with zeros.
        digest: the SHA-256 of the old file, if the plan depends on it.
    """

    window: Window = field(repr=False)
    form: Form | None
    containers: tuple[FilteredContainer, ...] = field(repr=False)
    pieces: tuple[EditPiece, ...] = field(repr=False)
    note: str | None = None
    unregistered: tuple[UnregisteredImage, ...] = field(default=(), repr=False)
    zeroes_unregistered: bool = False
    digest: str | None = None

    @property
    def zeroed(self) -> tuple[UnregisteredImage, ...]:
        """Images that are overwritten with zeros, where they lie."""
        return self.unregistered if self.zeroes_unregistered else ()

    @property
    def size(self) -> int:
        """Number of bytes of the new file."""
        return total_size(self.pieces)

    @property
    def is_emptied(self) -> bool:
        """True if the file is code for one GPU, and nothing of it stays."""
        return self.pieces == (NewBytes(b""),)

    @property
    def is_changed(self) -> bool:
        """True if the new file differs from the old one."""
        return self.pieces not in {(), (CopiedBytes(offset=0, size=len(self.window)),)}


def plan_rewrite(window: Window, edit: FileEdit) -> FilePlan:
    """Plan a new file over an old one, which stands by itself.

    Raises:
        BinaryFormatError: it is damaged, or was stripped of its section headers.
    """
    form = detect_form(window.data[:HEAD_SIZE].tobytes())
    containers = tuple(
        container for part in _holders(window, form) for container in part.read(edit)
    )
    edits: tuple[Edit, ...] = ()
    note = None
    if any(filtered.is_changed for filtered in containers):
        try:
            # All or nothing: a file whose second section can't be cut isn't shrunk in its first one
            # either.
            edits = _shrink_edits(window, form, containers) if edit.mode is EditMode.SHRINK else ()
        except NotShrinkableError as obstacle:
            note = str(obstacle).removeprefix(f"{window.source}: ")
        edits = edits or zero_in_place(containers)
    unregistered = _unregistered(window, form, edit.selection)
    zeroes, digest = edit.zeroes_unregistered, None
    if zeroes is None:
        proven = _proven_digests(window, edit.selection) if unregistered else frozenset()
        # Only where it decides something: these libraries have hundreds of megabytes.
        digest = hex_digest(released_blocks(window)) if proven else None
        zeroes = digest in proven
    if zeroes:
        edits = (*edits, *zero_unregistered(unregistered))
    release_pages(window)
    pieces = apply_edits(edits, len(window))
    return FilePlan(
        window=window,
        form=form,
        containers=containers,
        pieces=pieces,
        note=note,
        unregistered=unregistered,
        zeroes_unregistered=zeroes,
        digest=digest,
    )


def _proven_digests(window: Window, selection: Selection) -> frozenset[str]:
    return proven_digests(Dynamic(Elf(window)).soname or "", selection)


def _unregistered(
    window: Window, form: Form | None, selection: Selection
) -> tuple[UnregisteredImage, ...]:
    # Objects and archives are input of a linker, which may merge or drop such data.
    if form is not Form.ELF:
        return ()
    found: list[UnregisteredImage] = []
    passed = 0
    for unit in search_unregistered(window):
        found += unused_unregistered(window, (unit,), selection)
        passed += sum(image.file_bytes for image in unit.images)
        # As for registered containers: the headers are read once more.
        if passed >= _RELEASED_BYTES:
            release_pages(window)
            passed = 0
    return tuple(found)


def _shrink_edits(
    window: Window, form: Form | None, containers: tuple[FilteredContainer, ...]
) -> tuple[Edit, ...]:
    if form is Form.FATBIN:
        return shrink_fatbin(containers)
    if form is Form.PE:
        raise NotShrinkableError("a Windows library keeps its length: nothing in it may move")
    if form is Form.STATIC_LIBRARY:
        members = [
            (part.window, _elf_edits(part.elf, _containers_within(part.window, containers)))
            for part in _holders(window, form)
            if part.elf is not None
        ]
        return shrink_archive(window, members)
    return _elf_edits(Elf(window), containers)


def _elf_edits(elf: Elf, containers: tuple[FilteredContainer, ...]) -> tuple[Edit, ...]:
    if not any(filtered.is_changed for filtered in containers):
        return ()
    # Relocations of an object are relative to sections, so nothing needs new addresses.
    if elf.header.type == FileType.OBJECT:
        return shrink_object(elf, containers)
    return shrink_elf(elf, containers)


def _containers_within(
    window: Window, containers: tuple[FilteredContainer, ...]
) -> tuple[FilteredContainer, ...]:
    end = window.start + len(window)
    return tuple(filtered for filtered in containers if window.start <= filtered.start < end)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerHolder:
    """A part of a file that holds containers: an ELF file, an archive member, a PE section."""

    window: Window
    elf: Elf | None

    def containers(self) -> Iterator[tuple[Section | None, Container]]:
        """Yield all containers, each with its section.

        Raises:
            BinaryFormatError: it is damaged, or was stripped of its section headers.
        """
        if self.elf is not None:
            yield from host_containers(self.elf)
        else:
            yield from ((None, container) for container in read_containers(self.window))

    def read(self, edit: FileEdit) -> Iterator[FilteredContainer]:
        """Yield the containers after the edit; raise the same errors as `containers`."""
        linked = () if self.elf is None else linked_containers(self.elf)
        linked_entries, passed = [tuple(one.entries()) for one in linked], 0
        for section, container in self.containers():
            entries = tuple(container.entries())
            is_input = section is not None and section.name == RELOCATABLE
            kept = edit.selection.kept(entries, linked_entries if is_input else ())
            is_linked = self.is_linked(section)
            encode = edit.encode if is_linked else copy_entry
            new = filter_container(container, entries, kept, section=section, encode=encode)
            yield new if is_linked else replace(new, is_linked=False)
            passed += container.size
            # Each header brings in 64 KiB, and as many libraries are planned as there are cores.
            if passed >= _RELEASED_BYTES:
                release_pages(self.window)
                passed = 0

    def is_linked(self, section: Section | None) -> bool:
        """Return True if only a driver reads a section, and no linker."""
        if self.elf is None or section is None:
            return True
        # nvlink before CUDA 12.8 can't read relocatable code with zstd frames.
        return section.name == EXECUTABLE and self.elf.header.type != FileType.OBJECT


def container_holders(window: Window) -> Iterator[ContainerHolder]:
    """Return the parts of a file that can hold containers, in its order.

    Raises:
        BinaryFormatError: it is damaged.
    """
    return _holders(window, detect_form(window.data[:HEAD_SIZE].tobytes()))


def _holders(window: Window, form: Form | None) -> Iterator[ContainerHolder]:
    if form is Form.ELF:
        yield ContainerHolder(window=window, elf=Elf(window))
    elif form is Form.FATBIN:
        yield ContainerHolder(window=window, elf=None)
    elif form is Form.PE:
        for section in _editable_sections(window):
            yield ContainerHolder(window=section.content, elf=None)
    # Members that are no ELF files (LLVM bitcode) are copied as they are.
    elif form is Form.STATIC_LIBRARY:
        for member in libraries.read_members(window):
            if detect_form(member.content.data[:HEAD_SIZE].tobytes()) is Form.ELF:
                yield ContainerHolder(window=member.content, elf=Elf(member.content))


def _editable_sections(window: Window) -> list[PeSection]:
    """Return the sections of a Windows library whose containers may change."""
    try:
        # A signature covers all bytes, so a signed library stays as it is.
        if is_signed_pe(window):
            return []
        return [one for one in read_pe_sections(window) if one.name in PE_PLACES]
    except BinaryFormatError:
        # Two letters are the whole magic number: a text may begin with them.
        return []


def shrink_fatbin(containers: Sequence[FilteredContainer]) -> tuple[Edit, ...]:
    """Place containers back to back."""
    return tuple(
        Edit(start=filtered.start, end=filtered.end, pieces=filtered.pieces)
        for filtered in containers
    )


def shrink_object(elf: Elf, containers: Sequence[FilteredContainer]) -> tuple[Edit, ...]:
    """Return the edits of an object with these containers, which are all that it has.

    Raises:
        BinaryFormatError: it is damaged.
    """
    last = {
        filtered.section.index: filtered for filtered in containers if filtered.section is not None
    }
    # Relocations count from the start of the section, so these can't move.
    earlier = [filtered for filtered in containers if filtered not in last.values()]
    # A cut of a multiple of this leaves every later section aligned.
    alignment = max((section.alignment for section in elf.sections()), default=1) or 1
    cuts, sizes, edits = [], {}, list(zero_in_place(earlier))
    for filtered in last.values():
        if filtered.section is not None and filtered.is_changed:
            cut = _cut(filtered, filtered.section, alignment)
            cuts.append(cut)
            sizes[filtered.section.index] = filtered.start + filtered.size - filtered.section.offset
            end = filtered.section.offset + filtered.section.size
            # The cut is a multiple of the alignment, so some free bytes may stay.
            padding = ZeroBytes(size=cut.start - filtered.start - filtered.size)
            edits.append(Edit(start=filtered.start, end=end, pieces=(*filtered.pieces, padding)))
    cuts.sort(key=lambda cut: cut.start)
    return (*edits, *section_edits(elf, cuts, sizes=sizes))


def _cut(filtered: FilteredContainer, section: Section, alignment: int) -> Cut:
    """Return the free bytes behind a section's last container, as a multiple of all alignments."""
    end = section.offset + section.size
    free = end - filtered.start - filtered.size
    return Cut(start=end - free // alignment * alignment, end=end)


def shrink_archive(
    window: Window, members: Sequence[tuple[Window, Sequence[Edit]]]
) -> tuple[Edit, ...]:
    """Return the edits of a static library from the edits of all its members.

    Raises:
        BinaryFormatError: its index is damaged.
    """
    edits = [edit for _, changes in members for edit in changes]
    moves = []
    for content, changes in members:
        # A cut is a multiple of 8 at least, so the next member's offset stays even.
        growth = sum(edit.growth for edit in changes)
        if growth:
            moves.append((content.start - _AR_HEADER_SIZE, growth))
            edits.append(_size_edit(content, growth))
    return (*edits, *(_index_edits(window, moves) if moves else ()))


def _size_edit(content: Window, growth: int) -> Edit:
    text = str(len(content) + growth).ljust(_AR_SIZE_WIDTH).encode()
    return overwrite(content.start - _AR_HEADER_SIZE + _AR_SIZE_AT, text)


def _index_edits(window: Window, moves: Sequence[tuple[int, int]]) -> Iterator[Edit]:
    """Update the index of symbols, which has the offset of each symbol's member."""
    name = window.part(_AR_MAGIC_SIZE, _AR_NAME_SIZE, "name of the first member").to_bytes()
    number = _AR_INDEXES.get(name.rstrip())
    if number is None:
        return
    start = _AR_MAGIC_SIZE + _AR_HEADER_SIZE
    # A count, one offset for each symbol, then the names.
    (count,) = window.unpack(number, start, "count of an index")
    table = window.part(start + number.size, count * number.size, "index of a static library")
    offsets = (offset for (offset,) in table.records(number, "index of a static library"))
    # An offset counts the growth of all members before it. A library has thousands of members and
    # tens of thousands of symbols, so the sums are made once.
    starts = [at for at, _ in moves]
    growths = [0, *accumulate(growth for _, growth in moves)]
    new = [offset + growths[bisect.bisect_left(starts, offset)] for offset in offsets]
    # A damaged index has offsets before its first member.
    if min(new, default=0) < 0:
        raise window.fault(start, "index of a static library", "other offsets", "its members'")
    packed = b"".join(map(number.pack, new))
    yield Edit(start=table.start, end=table.start + len(table), pieces=(NewBytes(content=packed),))


def is_stub(filtered: FilteredContainer) -> bool:
    """Return True if a container has machine code without any function or variable."""
    if filtered.is_stub is not None:
        return filtered.is_stub
    return all(_is_stub_image(filtered, entry) for entry in filtered.entries)


def _is_stub_image(filtered: FilteredContainer, entry: FatbinEntry) -> bool:
    # A stub has only machine code: PTX makes the container a real one.
    is_sass = entry.target is not None and entry.target.kind is CodeKind.SASS
    # Decompressing every image of a library would take minutes; stubs are tiny.
    if not is_sass or max(entry.payload_size, entry.uncompressed_size) > _MAX_STUB:
        return False
    try:
        content = decompress(entry, filtered.container.payload(entry))
        elf = Cubin(Window(content, source="an image")).elf
        return not any(map(_is_code_or_data, (part.name for part in elf.sections()))) and not any(
            symbol.name and symbol.type != _SECTION_SYMBOL
            for part in elf.sections()
            if part.type == SectionType.SYMBOLS
            for symbol in section_symbols(elf, part)
        )
    except BinaryFormatError:
        # An unreadable image may hold anything, so it is not a stub.
        return False


def _is_code_or_data(section: str) -> bool:
    return section.startswith(_CODE_AND_DATA)
