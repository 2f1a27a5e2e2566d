"""Fatbins: containers of device code, their entries, and the wrappers that register them.

In: a host file, or a section or file of containers; out: containers and entries as records. NVIDIA
doesn't document the format. The layout here was measured on some 32,000 entries of public wheels
and checked against cuobjdump. So every field is checked, and an unknown value is refused or
reported as unknown, never guessed. Only headers are read; nothing is decompressed.

A program registers a container through a wrapper in ``.nvFatBinSegment``. The value of a wrapper's
pointer depends on the kind of file: relocations in an object, RELATIVE or RELR pointers in a
library, final addresses in a program that is not position-independent.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from archsplit.arch.target import Capability, CodeKind, Target
from archsplit.errors import BinaryFormatError
from archsplit.formats.elf import FileType, Machine, SectionType
from archsplit.formats.elf_dynamic import RELA, SYMBOL, Dynamic, read_pointers, relocation_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from archsplit.arch.target import Suffix
    from archsplit.formats.elf import Elf, Section
    from archsplit.formats.reader import Window

__pure__ = True

FATBIN_MAGIC = 0xBA55ED50
EXECUTABLE, RELOCATABLE = ".nv_fatbin", "__nv_relfatbin"
"""Sections with containers: executable code, and relocatable code (``-rdc=true``)."""

CONTAINER_LAYOUT = Struct("<IHHQ")
_CONTAINER_VERSION = 1
_ENTRY = Struct("<HHIQIIHHIIIQQQ")
_ENTRY_VERSION = 0x0101
_PAIR = Struct("<II")
_ALIGNMENT = 8
_ZEROS_BLOCK = 1 << 16


class EntryKind(enum.IntEnum):
    """Kinds of payloads: the first field of the header."""

    PTX = 1
    CUBIN = 2
    OLD_CUBIN = 4
    LTO_IR = 8
    INDEX = 32
    RELOCATABLE_PTX = 64
    TILE_IR = 128
    CONCATENATED = 256


class EntryFlag(enum.IntFlag):
    """Bits of ``flags`` with a known meaning."""

    LZ4 = 0x2000
    ZSTD = 0x8000
    ARCH_SPECIFIC = 0x10_0000
    FAMILY_SPECIFIC = 0x20_0000


class Compression(enum.Enum):
    """Compression of a payload; `UNKNOWN` if flags and sizes contradict each other."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"
    UNKNOWN = "unknown"


# The driver loads these directly. LTO IR, tile IR and the index need another step before a GPU can
# run them, so they don't count as a target's code.
_CODE_KINDS: Mapping[int, CodeKind] = {
    EntryKind.PTX: CodeKind.PTX,
    EntryKind.RELOCATABLE_PTX: CodeKind.PTX,
    EntryKind.CUBIN: CodeKind.SASS,
    EntryKind.OLD_CUBIN: CodeKind.SASS,
}
_KINDS = {int(kind): kind for kind in EntryKind}
_COMPRESSIONS = {
    (False, 0): Compression.NONE,
    # CUDA 11.8 to 12.9 write LZ4 blocks, CUDA 13 zstd frames.
    (True, int(EntryFlag.LZ4)): Compression.LZ4,
    (True, int(EntryFlag.ZSTD)): Compression.ZSTD,
}
# The field `arch` has no suffix: sm_90 and sm_90a differ only in their flags, and one container
# may hold both.
_SUFFIXES: dict[int, Suffix] = {
    0: "",
    int(EntryFlag.ARCH_SPECIFIC): "a",
    int(EntryFlag.FAMILY_SPECIFIC): "f",
}
_COMPRESSED = sum(flag for _, flag in _COMPRESSIONS)
_SUFFIXED = int(EntryFlag.ARCH_SPECIFIC | EntryFlag.FAMILY_SPECIFIC)
# The field has 32 bits; a number beyond these is damage, not a new GPU.
_MIN_SM, _MAX_SM = 10, 9999


class FatbinEntry(NamedTuple):
    """An entry's header. Offsets count from the start of the file, sizes are bytes.

    A tuple, because an environment has a hundred thousand: a frozen dataclass takes twice as long
    to make, and four times as long to send to another process.

    Attributes:
        kind: the kind of payload, or None for an unknown number.
        arch: the sm number, without the suffix.
        suffix: the target's suffix, also for kinds without a `target`.
        target: the architecture of SASS or PTX; None for other kinds.
        version: of the PTX ISA for PTX; 1.7 or 1.8 for cubins.
        padded_size: from the payload's start to the next entry.
        compressed_size, uncompressed_size: 0 for a payload that is not compressed.
        options_offset: within the header; 0 if absent.
        frame: for an image in a frame of several, the frame's offset; else 0.
        frame_start: the image's offset in the decompressed frame.
        frame_share: the part of the frame's bytes that it stands for, by uncompressed size.
    """

    offset: int
    kind: EntryKind | None
    kind_number: int
    arch: int
    suffix: Suffix
    target: Target | None
    version: tuple[int, int]
    flags: int
    compression: Compression
    header_size: int
    padded_size: int
    compressed_size: int
    uncompressed_size: int
    options_offset: int
    frame: int = 0
    frame_start: int = 0
    frame_share: int = 0

    @property
    def size(self) -> int:
        """Bytes in the file: the header and the padded payload, or a share of a frame."""
        return self.frame_share if self.frame else self.header_size + self.padded_size

    @property
    def payload_offset(self) -> int:
        """Offset of the payload in the file."""
        return self.offset + self.header_size

    @property
    def payload_size(self) -> int:
        """Bytes of the payload; an uncompressed one includes its padding."""
        # The header has no field for the payload's true size if it isn't compressed.
        return self.compressed_size or self.padded_size

    @property
    def raw_size(self) -> int:
        """Bytes of the decompressed image; with the padding if it isn't compressed."""
        return self.uncompressed_size or self.padded_size

    @property
    def kind_name(self) -> str:
        """Kind as text: ``PTX``, ``LTO IR``, ``kind 512``."""
        if self.kind is None:
            return f"kind {self.kind_number}"
        return self.kind.name.replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """Images of one translation unit; the driver loads the best one for a GPU.

    Attributes:
        offset: file offset of the header.
        body: the entries back to back; empty if all images were removed.
    """

    offset: int
    body: Window = field(repr=False)

    @property
    def size(self) -> int:
        """Bytes in the file: the header and all entries."""
        return self.body.start + len(self.body) - self.offset

    def entries(self) -> Iterator[FatbinEntry]:
        """Return the entries in their order.

        Raises:
            BinaryFormatError: an entry is damaged, or larger than the rest of the container.
        """
        offset = 0
        while offset < len(self.body):
            # Each entry has a header of 64 bytes or more, so the loop ends.
            entry = read_entry(self.body, offset)
            yield entry
            offset += entry.size

    def payload(self, entry: FatbinEntry) -> Window:
        """Return the payload of an entry as stored in the file, compressed or not."""
        return self.body.at(entry.payload_offset, entry.payload_size, "payload")

    def inner_entries(self, entry: FatbinEntry) -> tuple[FatbinEntry, ...]:
        """Return the images in a frame of kind 256; none for other kinds and unknown tables.

        nvFatbin 13's ``-concat`` writes cubins and PTX into frames of their own, sm_80 and sm_90
        together, sm_100 and later together. The header's ``options_offset`` leads to a table:

            u32 count, u32 size of the table, with these two fields
            count records: an entry's header, then its name and its options

        A name ends with a NUL. Options begin with their offset in the record and their length (two
        u32), and end with a NUL. A record ends at a multiple of eight bytes. In the file, its
        ``header_size`` is the offset of the payload in the decompressed frame, and ``padded_size``
        its bytes there. With its own size in place of the offset, a record is the header that the
        image has outside of frames, and so it is returned, with the frame's compression. Payloads
        lie back to back, and fill the frame. Measured on libnvfatbin 13.5.
        """
        if entry.kind is not EntryKind.CONCATENATED:
            return ()
        try:
            header = self.body.at(entry.offset, entry.header_size, "header of a frame")
            count, size = header.unpack(_PAIR, entry.options_offset, "images of a frame")
            table = header.part(entry.options_offset, size, "images of a frame")
            return tuple(_read_records(table, count, entry))
        except BinaryFormatError:
            # A later nvFatbin may write another table; the rest of the file can be read.
            return ()

    def images(self, entries: Iterable[FatbinEntry]) -> tuple[FatbinEntry, ...]:
        """Return entries with the images of each frame in its place."""
        return tuple(one for each in entries for one in self.inner_entries(each) or (each,))


def read_container(window: Window, offset: int) -> Container:
    """Read the header of the container at ``offset``.

    Raises:
        BinaryFormatError: no container begins there, its version is unknown, or its end is beyond
            the window.
    """
    magic, version, header_size, size = window.unpack(CONTAINER_LAYOUT, offset, "fatbin container")
    # The format has no checksum: only these fields together make a container likely.
    for name, found, expected in (
        ("magic", magic, FATBIN_MAGIC),
        ("version", version, _CONTAINER_VERSION),
        ("header size", header_size, CONTAINER_LAYOUT.size),
        ("size modulo 8", size % _ALIGNMENT, 0),
    ):
        if found != expected:
            raise window.fault(
                offset, f"fatbin container's {name}", f"{found:#x}", f"{expected:#x}"
            )
    body = window.part(offset + header_size, size, "body of a fatbin container")
    return Container(offset=window.start + offset, body=body)


def container_header(size: int) -> bytes:
    """Return the header of a container whose entries have ``size`` bytes together."""
    return CONTAINER_LAYOUT.pack(FATBIN_MAGIC, _CONTAINER_VERSION, CONTAINER_LAYOUT.size, size)


def read_containers(window: Window) -> Iterator[Container]:
    """Return the containers of a fatbin section or file.

    The containers lie back to back. Zeros between them are skipped: they are the rest of a
    container that was shrunk in place.

    Raises:
        BinaryFormatError: the window has bytes other than containers and zeros.
    """
    offset = _skip_zeros(window, 0)
    while offset < len(window):
        container = read_container(window, offset)
        yield container
        offset = _skip_zeros(window, offset + container.size)


def fatbin_sections(elf: Elf) -> Iterator[Section]:
    """Return the sections with containers of a host library, program or object.

    Raises:
        BinaryFormatError: the file has no section headers, which are needed to find device code; or
            the sections found are larger than the file.
    """
    # Without section headers, device code would be overlooked, and the file taken for a host file.
    if elf.section_count == 0:
        expected = "section headers of the device code"
        raise elf.window.fault(0, "section headers", "none", expected)
    remaining = len(elf.window)
    for section in elf.sections():
        # cuobjdump needs -all to see the second one, which has half of NCCL's device code.
        if section.name in {EXECUTABLE, RELOCATABLE}:
            remaining -= section.size
            if remaining < 0:
                raise elf.window.fault(0, "fatbin sections", "more than the file", "no overlaps")
            yield section


def host_containers(elf: Elf) -> Iterator[tuple[Section, Container]]:
    """Return all containers of a host file, each with its section.

    Raises:
        BinaryFormatError: as for `fatbin_sections` and `read_containers`.
    """
    for section in fatbin_sections(elf):
        for container in read_containers(elf.content(section)):
            yield section, container


def _skip_zeros(window: Window, offset: int) -> int:
    # Most gaps are short, so the first block is small; a long gap must not be copied at once.
    size = _ALIGNMENT
    while offset < len(window):
        block = window.data[offset : offset + size].tobytes()
        zeros = len(block) - len(block.lstrip(b"\0"))
        if zeros < len(block):
            # A container begins at a multiple of 8 bytes after the last: fewer zeros are its own
            # first bytes.
            return offset + zeros - zeros % _ALIGNMENT
        offset += zeros
        size = min(2 * size, _ZEROS_BLOCK)
    return offset


def read_entry(window: Window, offset: int) -> FatbinEntry:
    """Read the header of the entry at ``offset``, and check all its fields.

    Raises:
        BinaryFormatError: a field contradicts another, the version is unknown, or the entry reaches
            beyond the window.
    """
    fields = window.unpack(_ENTRY, offset, "fatbin entry")
    if not is_sound_header(fields):
        field_name, found, expected, _ = next(one for one in header_checks(fields) if not one[3])
        raise window.fault(offset, f"{field_name} of a fatbin entry", str(found), expected)
    entry = _to_entry(window.start + offset, fields)
    window.check_range(offset, entry.size, "fatbin entry with its payload")
    return entry


def _read_records(table: Window, count: int, frame: FatbinEntry) -> Iterator[FatbinEntry]:
    at, start, raw = _PAIR.size, 0, frame.uncompressed_size
    # Each record has 64 bytes or more, so the table's size limits the count.
    for _ in range(count):
        fields = table.unpack(_ENTRY, at, "image of a frame")
        size, end = _record_size(table, at, fields), start + fields[3]
        own = (*fields[:2], size, *fields[3:])
        if fields[2] != start or not start < end <= raw or not is_sound_header(own):
            raise table.fault(at, "image of a frame", str(fields), f"one with a payload at {start}")
        yield _to_entry(table.start + at, own)._replace(
            compression=frame.compression,
            frame=frame.offset,
            frame_start=start,
            # From the ends, not from each size: together the rounded shares are the whole.
            frame_share=end * frame.size // raw - start * frame.size // raw,
        )
        at, start = at + size, end
    if (at, start) != (len(table), raw):
        raise table.fault(0, "frame", f"{start} bytes", str(raw))


def _record_size(table: Window, at: int, fields: tuple[int, ...]) -> int:
    """Return the bytes of a record with its name and options."""
    options, name, name_size = fields[5], fields[9], fields[10]
    end = name + name_size
    if options:
        end = sum(table.unpack(_PAIR, at + options, "options in a frame"))
    # At least one NUL, then up to the next record; without name and options no NUL.
    return max(_ENTRY.size, end // _ALIGNMENT * _ALIGNMENT + _ALIGNMENT)


def is_sound_header(fields: tuple[int, ...]) -> bool:
    """Return True if the fields of an entry's header pass all of `header_checks`, but faster."""
    kind, version, header, padded, compressed, options, _, _, arch, *rest = fields
    name, name_size, flags, _, _ = rest
    return (
        version == _ENTRY_VERSION
        and header >= _ENTRY.size
        and (header | padded) % _ALIGNMENT == 0
        and compressed <= padded
        and options <= header
        and name + name_size <= header
        and (kind not in _CODE_KINDS or _MIN_SM <= arch <= _MAX_SM)
        and flags & _SUFFIXED != _SUFFIXED
    )


def header_checks(fields: tuple[int, ...]) -> Iterator[tuple[str, int, str, bool]]:
    """Yield all checks of an entry's header, for messages: field, value, expectation, result."""
    kind, version, header, padded, compressed, options, _, _, arch, *rest = fields
    name, name_size, flags, _, _ = rest
    limit = f"no more than the header's {header}"
    yield "version", version, str(_ENTRY_VERSION), version == _ENTRY_VERSION
    yield "header size", header, f"{_ENTRY.size} or more", header >= _ENTRY.size
    yield "header size", header, "a multiple of 8", header % _ALIGNMENT == 0
    yield "padded size", padded, "a multiple of 8", padded % _ALIGNMENT == 0
    # The stored payload lies inside of its padding.
    yield "compressed size", compressed, f"no more than {padded}", compressed <= padded
    yield "end of options", options, limit, options <= header
    yield "end of the name", name + name_size, limit, name + name_size <= header
    # Other kinds may have 0 here.
    if kind in _CODE_KINDS:
        yield "sm number", arch, "one of a capability", _MIN_SM <= arch <= _MAX_SM
    # nvcc has no target with both suffixes, so both flags together mean a damaged header.
    yield "suffix flags", flags, "either a or f", flags & _SUFFIXED != _SUFFIXED


def _to_entry(offset: int, fields: tuple[int, ...]) -> FatbinEntry:
    kind, _, header_size, padded_size, compressed_size, options_offset, *rest = fields
    minor, major, arch, _, _, flags, _, uncompressed_size = rest
    suffix = _SUFFIXES[flags & _SUFFIXED]
    return FatbinEntry(
        offset=offset,
        kind=_KINDS.get(kind),
        kind_number=kind,
        arch=arch,
        suffix=suffix,
        target=_to_target(kind, arch, suffix),
        version=(major, minor),
        flags=flags,
        compression=_COMPRESSIONS.get(
            # A flag without a size, or a size without a flag, isn't refused: such an entry can't be
            # unpacked, but it can be moved as it is.
            (compressed_size > 0, flags & _COMPRESSED),
            Compression.UNKNOWN,
        ),
        header_size=header_size,
        padded_size=padded_size,
        compressed_size=compressed_size,
        uncompressed_size=uncompressed_size,
        options_offset=options_offset,
    )


# A hundred thousand entries have few targets, which then are the same objects.
@lru_cache(maxsize=1024)
def _to_target(kind: int, arch: int, suffix: Suffix) -> Target | None:
    code = _CODE_KINDS.get(kind)
    if code is None:
        return None
    return Target(kind=code, capability=Capability.from_sm_number(arch), suffix=suffix)


WRAPPER_SECTION = ".nvFatBinSegment"
_WRAPPER = Struct("<IIQQ")
_WRAPPER_MAGIC = 0x466243B1
# In version 2 the last field points to an array that the start-up code of the device link fills.
LINKED = 2
"""Version of a wrapper that a device link wrote."""
WRAPPER_VERSIONS = {1, LINKED}
# The field that leads to the container; the other pointer of the record isn't device code.
_DATA_AT = 8
_SHN_LORESERVE = 0xFF00  # from here on it is not a section's index
# R_X86_64_64 and R_AARCH64_ABS64.
_ABSOLUTE: Mapping[int, int] = {Machine.X86_64: 1, Machine.AARCH64: 257}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapper:
    """Record by which a program registers one container with the CUDA runtime.

    Attributes:
        offset: file offset of the wrapper.
        version: 1, or 2 for a device-linked program (``-rdc=true``).
        container: the container, or None if the file has no value for the pointer.
    """

    offset: int
    version: int
    container: Container | None


def read_wrappers(elf: Elf) -> Iterator[Wrapper]:
    """Return all wrappers of a host library, program or object.

    Raises:
        BinaryFormatError: a wrapper or its container is damaged.
    """
    section = _single_section(
        elf, (section for section in elf.sections() if section.name == WRAPPER_SECTION)
    )
    if section is None:
        return
    content = elf.content(section)
    # The pointer's own bytes don't always have its value: in objects and in most libraries, the
    # addend of a relocation has it.
    targets = dict(_pointer_targets(elf, section))
    for index, (magic, version, _, _) in enumerate(content.records(_WRAPPER, WRAPPER_SECTION)):
        offset = index * _WRAPPER.size
        _check_wrapper(content, offset, magic, version)
        target = targets.get(offset)
        yield Wrapper(
            offset=content.start + offset,
            version=version,
            container=None if target is None else read_container(target, 0),
        )


def _single_section(elf: Elf, sections: Iterator[Section]) -> Section | None:
    section = next(sections, None)
    # A linker merges them; of two, it isn't known which one the constructors register.
    if next(sections, None) is not None:
        raise elf.window.fault(0, f"sections for {WRAPPER_SECTION}", "several", "one")
    return section


def _check_wrapper(content: Window, offset: int, magic: int, version: int) -> None:
    if magic != _WRAPPER_MAGIC:
        raise content.fault(offset, "magic of a wrapper", f"{magic:#x}", f"{_WRAPPER_MAGIC:#x}")
    if version not in WRAPPER_VERSIONS:
        raise content.fault(offset + 4, "version of a wrapper", str(version), "1 or 2")


def _pointer_targets(elf: Elf, section: Section) -> Iterator[tuple[int, Window]]:
    """Return each wrapper's offset in its section, and the bytes that its pointer leads to."""
    # The type decides which of the tables below exist.
    if elf.header.type == FileType.OBJECT:
        return _targets_in_object(elf, section)
    if elf.header.type == FileType.EXECUTABLE:
        return _targets_in_program(elf, section)
    return _targets_in_library(elf, section)


def _targets_in_library(elf: Elf, section: Section) -> Iterator[tuple[int, Window]]:
    for pointer in read_pointers(elf, Dynamic(elf), section.addresses):
        wrapper, field = divmod(pointer.address - section.address, _WRAPPER.size)
        if field == _DATA_AT:
            # To the end of the segment: the container's own header has its size.
            target = elf.from_address(pointer.value, "container of a wrapper")
            yield wrapper * _WRAPPER.size, target


def _targets_in_program(elf: Elf, section: Section) -> Iterator[tuple[int, Window]]:
    # A program that is not position-independent has final addresses, and no relocations for them.
    rows = elf.content(section).records(_WRAPPER, WRAPPER_SECTION)
    for index, (_, _, data, _) in enumerate(rows):
        yield index * _WRAPPER.size, elf.from_address(data, "container of a wrapper")


def _targets_in_object(elf: Elf, section: Section) -> Iterator[tuple[int, Window]]:
    relocations = list(_absolute_relocations(elf, section))
    # An undefined or absolute symbol has no section: the linker decides about its value.
    indexes = {index for _, index, _ in relocations if 0 < index < _SHN_LORESERVE}
    sections = {other.index: other for other in elf.sections() if other.index in indexes}
    for wrapper, index, at in relocations:
        if index in sections:
            window = elf.content(sections[index])
            yield wrapper, window.part(at, len(window) - at, "container of a wrapper")


def _absolute_relocations(elf: Elf, section: Section) -> Iterator[tuple[int, int, int]]:
    """Return each wrapper's offset, and the section and offset that its pointer leads to."""
    tables = (one for one in elf.sections() if one.type == SectionType.RELA)
    relocations = _single_section(elf, (one for one in tables if one.info == section.index))
    if relocations is None:
        return
    absolute = relocation_type(elf, _ABSOLUTE)
    symbols = elf.content(elf.section_at(relocations.link))
    for offset, info, addend in elf.content(relocations).records(RELA, "relocations"):
        wrapper, field = divmod(offset, _WRAPPER.size)
        if field == _DATA_AT and info & 0xFFFF_FFFF == absolute:
            row = symbols.unpack(SYMBOL, (info >> 32) * SYMBOL.size, "symbol of a wrapper")
            yield wrapper * _WRAPPER.size, row[3], row[4] + addend
