"""The plan for a file without some of its images, whatever the file's form.

In go a file and a `FileEdit`; out comes a `FilePlan` with the pieces of the new file. Shared
libraries are shrunk by `archsplit.devicecode.elf_shrink`, and fatbins here; if a file can't be
shrunk, its images are zeroed in place.

nvcc's device link writes a stub container into every library, even if no object has anything to
link: cubins of notes and bookkeeping for each machine-code target, and no PTX. A GPU that takes PTX
everywhere else finds nothing in it, and misses nothing: no host code can name a kernel or variable
of it.
"""

from __future__ import annotations

import enum
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from archsplit.arch.target import CodeKind
from archsplit.devicecode.decompression import image_content
from archsplit.devicecode.edits import (
    CopiedBytes,
    Edit,
    NewBytes,
    apply_edits,
    copy_entry,
    filter_container,
    is_for_driver,
    total_size,
    zero_in_place,
)
from archsplit.devicecode.elf_shrink import NotShrinkableError, shrink_elf
from archsplit.devicecode.file_forms import Form, window_form
from archsplit.devicecode.recompress import frame_image
from archsplit.devicecode.scan import PE_PLACES, search_unregistered
from archsplit.devicecode.select import code_targets
from archsplit.devicecode.units import known_wrappers, linked_containers
from archsplit.devicecode.unregistered import proven_digests, unused_unregistered, zero_unregistered
from archsplit.errors import BinaryFormatError
from archsplit.formats.cubin import Cubin
from archsplit.formats.elf import Elf, FileType, SectionType
from archsplit.formats.elf_dynamic import Dynamic, section_symbols
from archsplit.formats.fatbin import host_containers, read_containers
from archsplit.formats.libraries import is_signed_pe, read_pe_sections
from archsplit.formats.mapped import release_pages, released_blocks
from archsplit.formats.reader import Window
from archsplit.system.fs import hex_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from archsplit.devicecode.edits import EditPiece, FilteredContainer, ImageEncoder
    from archsplit.devicecode.select import Selection
    from archsplit.devicecode.unregistered import UnregisteredImage
    from archsplit.formats.elf import Section
    from archsplit.formats.fatbin import Container, FatbinEntry
    from archsplit.formats.libraries import PeSection


_RELEASED_BYTES = 4 << 20
"""Bytes of a mapped library that are passed before its pages are given back."""

_MAX_STUB = 8192
"""Largest image that may be a stub; in CUDA 11.8 to 13.0 stubs have 600 to 1600 bytes."""

# Every cubin has symbols of its sections; they are no evidence of code.
_SECTION_SYMBOL = 3  # STT_SECTION
_CODE_AND_DATA = (".text", ".nv.global", ".nv.constant", ".nv.shared")


class EditMode(enum.Enum):
    """Way in which images are removed."""

    SHRINK = "shrink"
    """The file gets shorter."""

    IN_PLACE = "in-place"
    """Zeros replace the images: the file keeps its length, and compresses better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEdit:
    """A request to remove images from a file.

    Attributes:
        zeroes_unregistered: overwrite code that only the library finds and no GPU needs; None
            for libraries of which a GPU has proven that it changes no result.
    """

    selection: Selection
    mode: EditMode = EditMode.SHRINK
    zeroes_unregistered: bool | None = None
    encode: ImageEncoder = copy_entry


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePlan:
    """Plan for a file without some of its images.

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
    form = window_form(window)
    containers = tuple(
        container for part in container_holders(window) for container in part.read(edit)
    )
    edits, note = zero_in_place(containers), None
    # Without a change in a container there is nothing to cut.
    if edits and edit.mode is EditMode.SHRINK:
        edits, note = shrink_or_zero(window, form, containers)
    unregistered = _unused_images(window, form, edit.selection)
    zeroes, digest = bool(edit.zeroes_unregistered), None
    if edit.zeroes_unregistered is None and unregistered:
        proven = proven_digests(Dynamic(Elf(window)).soname or "", edit.selection)
        # Only if it decides something: these libraries have hundreds of megabytes.
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


def _unused_images(
    window: Window, form: Form | None, selection: Selection
) -> tuple[UnregisteredImage, ...]:
    """Return the images that only the library finds, and that the choice does not need."""
    # A linker may merge or drop such data of an object.
    if form is not Form.ELF or is_linker_input(window):
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


def shrink_or_zero(
    window: Window, form: Form | None, containers: tuple[FilteredContainer, ...]
) -> tuple[tuple[Edit, ...], str | None]:
    """Return the edits that shrink a file, or zero its images with the reason.

    Raises:
        BinaryFormatError: the file is damaged.
    """
    try:
        # All or nothing: a file whose second section can't be cut isn't shrunk in its first one
        # either.
        return _shrink_edits(window, form, containers), None
    except NotShrinkableError as obstacle:
        return zero_in_place(containers), str(obstacle).removeprefix(f"{window.source}: ")


def _shrink_edits(
    window: Window, form: Form | None, containers: tuple[FilteredContainer, ...]
) -> tuple[Edit, ...]:
    if form is Form.FATBIN:
        # Back to back.
        return tuple(Edit(start=one.start, end=one.end, pieces=one.pieces) for one in containers)
    if form is Form.PE:
        raise NotShrinkableError("a Windows library keeps its length: nothing in it may move")
    return shrink_elf(Elf(window), containers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerHolder:
    """A part of a file that holds containers: an ELF file, a fatbin or a PE section."""

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
        linked = () if self.elf is None else linked_containers(known_wrappers(self.elf))
        offsets = {one.offset for one in linked}
        targets, passed = tuple(code_targets(one.images(one.entries())) for one in linked), 0
        for section, container in self.containers():
            entries = tuple(container.entries())
            images = container.images(entries)
            # nvlink before CUDA 12.8 can't read relocatable code with zstd frames.
            is_input = not is_for_driver(section)
            keep = partial(edit.selection.kept, linked=targets if is_input else ())
            encode = copy_entry if is_input else edit.encode
            filtered = partial(filter_container, container, section=section)
            new = filtered(entries, keep(entries), encode=encode)
            # A linker may read only what its own release of nvFatbin writes.
            if not is_input and images != entries and len(kept := keep(images)) < len(images):
                # A damaged frame stays: other programs report it.
                with suppress(BinaryFormatError):
                    one = filtered(images, kept, encode=partial(frame_image, encode=encode))
                    # Images of a frame have much in common: most of them are smaller together.
                    new = min(new, one, key=lambda each: each.size)
            if linked:
                is_linked = container.offset in offsets
                new = replace(new, linked=targets if is_input else (), is_linked=is_linked)
            yield new
            passed += container.size
            # Each header brings in 64 KiB, and as many libraries are planned as there are cores.
            if passed >= _RELEASED_BYTES:
                release_pages(self.window)
                passed = 0


def is_linker_input(window: Window) -> bool:
    """Return True for a static library or an object."""
    form = window_form(window)
    is_object = form is Form.ELF and Elf(window).header.type == FileType.OBJECT
    return is_object or form is Form.STATIC_LIBRARY


def container_holders(window: Window) -> Iterator[ContainerHolder]:
    """Return the parts of a file that can hold containers, in its order.

    Raises:
        BinaryFormatError: it is damaged.
    """
    form = window_form(window)
    # From objects and static libraries nvprune removes targets.
    if is_linker_input(window):
        return
    if form is Form.ELF:
        yield ContainerHolder(window=window, elf=Elf(window))
    elif form is Form.FATBIN:
        yield ContainerHolder(window=window, elf=None)
    elif form is Form.PE:
        for section in _editable_sections(window):
            yield ContainerHolder(window=section.content, elf=None)


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


def is_stub(filtered: FilteredContainer) -> bool:
    """Return True if a container has machine code without any function or variable."""
    if filtered.is_stub is not None:
        return filtered.is_stub
    return has_only_stubs(filtered.container, filtered.entries)


def has_only_stubs(container: Container, entries: Iterable[FatbinEntry]) -> bool:
    """Return True if no image of a container has a function or variable; see `is_stub`."""
    return all(_is_stub_image(container, entry) for entry in entries)


def _is_stub_image(container: Container, entry: FatbinEntry) -> bool:
    # A stub has only machine code: PTX makes the container a real one.
    is_sass = entry.target is not None and entry.target.kind is CodeKind.SASS
    # Decompressing every image of a library would take minutes; stubs are tiny.
    if not is_sass or max(entry.payload_size, entry.uncompressed_size) > _MAX_STUB:
        return False
    try:
        content = image_content(container, entry)
        elf = Cubin(Window(content, source="an image")).elf
        return not any(part.name.startswith(_CODE_AND_DATA) for part in elf.sections()) and not any(
            symbol.name and symbol.type != _SECTION_SYMBOL
            for part in elf.sections()
            if part.type == SectionType.SYMBOLS
            for symbol in section_symbols(elf, part)
        )
    except BinaryFormatError:
        # An unreadable image may hold anything, so it is not a stub.
        return False
