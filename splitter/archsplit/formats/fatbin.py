"""One entry of a fatbin container: what its header says, and what that means.

Read fatbins: containers and their entries.

NVIDIA doesn't document the format. The layout here was measured on some 32,000 entries of public
wheels and checked against cuobjdump. So every field is checked, and what is not known is refused
or called unknown, never guessed. Only headers are read; nothing is decompressed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING

from archsplit.arch.target import Capability, CodeKind, Target

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from archsplit.arch.target import Suffix
    from archsplit.formats.elf import Elf, Section
    from archsplit.formats.reader import Window

__pure__ = True

_ENTRY = Struct("<HHIQIIHHIIIQQQ")
_ENTRY_VERSION = 0x0101
_ENTRY_ALIGNMENT = 8


class EntryKind(enum.IntEnum):
    """What a payload is: the first field of the header."""

    PTX = 1
    CUBIN = 2
    OLD_CUBIN = 4
    LTO_IR = 8
    INDEX = 32
    RELOCATABLE_PTX = 64
    TILE_IR = 128
    CONCATENATED = 256


class EntryFlag(enum.IntFlag):
    """The bits of ``flags`` whose meaning is known."""

    BITS_64 = 0x1
    DEBUG = 0x2
    LINUX = 0x10
    LZ4 = 0x2000
    ZSTD = 0x8000
    OBFUSCATED = 0x1_0000
    ARCH_SPECIFIC = 0x10_0000
    FAMILY_SPECIFIC = 0x20_0000
    OPTIONS_BLOCK = 0x100_0000


class Compression(enum.Enum):
    """How a payload is stored; `UNKNOWN` when flags and sizes don't say the same."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"
    UNKNOWN = "unknown"


_CODE: Mapping[int, CodeKind] = {
    EntryKind.PTX: CodeKind.PTX,
    EntryKind.RELOCATABLE_PTX: CodeKind.PTX,
    EntryKind.CUBIN: CodeKind.SASS,
    EntryKind.OLD_CUBIN: CodeKind.SASS,
}
_KINDS = {int(kind): kind for kind in EntryKind}
_COMPRESSIONS = {
    (False, 0): Compression.NONE,
    (True, int(EntryFlag.LZ4)): Compression.LZ4,
    (True, int(EntryFlag.ZSTD)): Compression.ZSTD,
}
_SUFFIXES: dict[int, Suffix] = {
    0: "",
    int(EntryFlag.ARCH_SPECIFIC): "a",
    int(EntryFlag.FAMILY_SPECIFIC): "f",
}
_COMPRESSED = int(EntryFlag.LZ4 | EntryFlag.ZSTD)
_SUFFIXED = int(EntryFlag.ARCH_SPECIFIC | EntryFlag.FAMILY_SPECIFIC)
_KNOWN = sum(int(flag) for flag in EntryFlag)
_LEAST_ARCH, _MOST_ARCH = 10, 9999


@dataclass(frozen=True, slots=True, kw_only=True)
class FatbinEntry:
    """An entry's header. Offsets count from the start of the file, sizes are bytes.

    Attributes:
        kind: None when its number is not one that is known.
        arch: the sm number, without the suffix.
        suffix: of the target, whatever the kind.
        target: what the code was built for; None for what is neither SASS nor PTX.
        version: of the PTX ISA for PTX; 1.7 or 1.8 for cubins.
        padded_size: from the payload's start to the next entry.
        compressed_size, uncompressed_size: 0 for a payload that is not compressed.
        options_offset, name_offset: within the header; 0 when it has none.
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
    name_offset: int
    name_size: int

    @property
    def size(self) -> int:
        """Bytes in the file: the header and the padded payload."""
        return self.header_size + self.padded_size

    @property
    def payload_offset(self) -> int:
        """Where the payload starts."""
        return self.offset + self.header_size

    @property
    def payload_size(self) -> int:
        """Bytes of the payload; with its padding, if it is not compressed."""
        return self.compressed_size or self.padded_size

    @property
    def kind_name(self) -> str:
        """The kind in words: ``PTX``, ``LTO IR``, ``kind 512``."""
        if self.kind is None:
            return f"kind {self.kind_number}"
        return self.kind.name.replace("_", " ")

    @property
    def unknown_flags(self) -> int:
        """The bits of the flags that mean nothing to us."""
        return self.flags & ~_KNOWN


def read_entry(window: Window, offset: int) -> FatbinEntry:
    """Read the header of the entry at ``offset``, and check that it fits into the window.

    Raises:
        BinaryFormatError: a field contradicts another, or the version is not the known one.
    """
    row = window.unpack(_ENTRY, offset, "fatbin entry")
    for what, found, expected, good in _checks(row):
        if not good:
            raise window.fault(offset, f"{what} of a fatbin entry", str(found), expected)
    entry = _entry(window.start + offset, row)
    window.part(offset, entry.size, "fatbin entry with its payload")
    return entry


def _checks(row: tuple[int, ...]) -> Iterator[tuple[str, int, str, bool]]:
    kind, version, header, padded, compressed, options, _, _, arch, name, name_size, flags, *_ = row
    limit = f"no more than the header's {header}"
    yield "version", version, str(_ENTRY_VERSION), version == _ENTRY_VERSION
    yield "header size", header, f"{_ENTRY.size} or more", header >= _ENTRY.size
    yield "header size", header, "a multiple of 8", header % _ENTRY_ALIGNMENT == 0
    yield "padded size", padded, "a multiple of 8", padded % _ENTRY_ALIGNMENT == 0
    yield "compressed size", compressed, f"no more than {padded}", compressed <= padded
    yield "end of options", options, limit, options <= header
    yield "end of the name", name + name_size, limit, name + name_size <= header
    if kind in _CODE:
        yield "sm number", arch, "one of a capability", _LEAST_ARCH <= arch <= _MOST_ARCH
    yield "suffix flags", flags, "either a or f", flags & _SUFFIXED != _SUFFIXED


def _entry(offset: int, row: tuple[int, ...]) -> FatbinEntry:
    flags, compressed_size = row[11], row[4]
    suffix = _SUFFIXES[flags & _SUFFIXED]
    return FatbinEntry(
        offset=offset,
        kind=_KINDS.get(row[0]),
        kind_number=row[0],
        arch=row[8],
        suffix=suffix,
        target=_target(row[0], row[8], suffix),
        version=(row[7], row[6]),
        flags=flags,
        compression=_COMPRESSIONS.get(
            (compressed_size > 0, flags & _COMPRESSED), Compression.UNKNOWN
        ),
        header_size=row[2],
        padded_size=row[3],
        compressed_size=compressed_size,
        uncompressed_size=row[13],
        options_offset=row[5],
        name_offset=row[9],
        name_size=row[10],
    )


def _target(kind: int, arch: int, suffix: Suffix) -> Target | None:
    code = _CODE.get(kind)
    if code is None:
        return None
    return Target(kind=code, capability=Capability.from_sm_number(arch), suffix=suffix)


FATBIN_MAGIC = 0xBA55ED50
EXECUTABLE, RELOCATABLE = ".nv_fatbin", "__nv_relfatbin"
"""The sections: what runs; and what ``-rdc=true`` objects held before their device link."""

_CONTAINER = Struct("<IHHQ")
_ALIGNMENT = 8
_VERSION = 1
_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The images of one translation unit, of which a device takes the best.

    Attributes:
        offset: where its header starts in the file.
        body: its entries back to back; empty in a container that was emptied.
    """

    offset: int
    body: Window = field(repr=False)

    @property
    def size(self) -> int:
        """Bytes in the file: the header and all entries."""
        return self.body.start + len(self.body) - self.offset

    def entries(self) -> Iterator[FatbinEntry]:
        """The entries in their order.

        Raises:
            BinaryFormatError: an entry is damaged, or larger than what is left for it.
        """
        offset = 0
        while offset < len(self.body):
            entry = read_entry(self.body, offset)
            yield entry
            offset += entry.size

    def payload(self, entry: FatbinEntry) -> Window:
        """The payload of one of its entries as it lies in the file, compressed or not."""
        return self.body.at(entry.payload_offset, entry.payload_size, "payload")

    def name(self, entry: FatbinEntry) -> bytes:
        """The name that one of its entries has in its header; most have none."""
        return self.body.at(entry.offset + entry.name_offset, entry.name_size, "name").to_bytes()


def read_container(window: Window, offset: int) -> Container:
    """Read the header of the container at ``offset``.

    Raises:
        BinaryFormatError: there is none, its version is unknown, or the window ends before it does.
    """
    magic, version, header_size, size = window.unpack(_CONTAINER, offset, "fatbin container")
    for what, found, expected in (
        ("magic", magic, FATBIN_MAGIC),
        ("version", version, _VERSION),
        ("header size", header_size, _CONTAINER.size),
        ("size modulo 8", size % _ALIGNMENT, 0),
    ):
        if found != expected:
            raise window.fault(
                offset, f"fatbin container's {what}", f"{found:#x}", f"{expected:#x}"
            )
    body = window.part(offset + header_size, size, "body of a fatbin container")
    return Container(offset=window.start + offset, body=body)


def read_containers(window: Window) -> Iterator[Container]:
    """The containers of a fatbin section or file.

    They lie back to back. Zeros between them are passed over: they are what is left where a
    container was cut in place.

    Raises:
        BinaryFormatError: something else than a container or zeros.
    """
    offset = _after_zeros(window, 0)
    while offset < len(window):
        container = read_container(window, offset)
        yield container
        offset = _after_zeros(window, offset + container.size)


def fatbin_sections(elf: Elf) -> Iterator[Section]:
    """The sections of a host library, program or object that hold containers.

    Raises:
        BinaryFormatError: the file was stripped of its section headers, so nothing can be said; or
            such sections overlap.
    """
    if elf.section_count == 0:
        expected = "those that say where the device code is"
        raise elf.window.fault(0, "section headers", "none", expected)
    left = len(elf.window)
    for section in elf.sections():
        if section.name in {EXECUTABLE, RELOCATABLE}:
            left -= section.size
            if left < 0:
                raise elf.window.fault(0, "fatbin sections", "more than the file", "no overlaps")
            yield section


def host_containers(elf: Elf) -> Iterator[tuple[Section, Container]]:
    """All containers of a host file, each with its section; raises as the functions above do."""
    for section in fatbin_sections(elf):
        for container in read_containers(elf.content(section)):
            yield section, container


def _after_zeros(window: Window, offset: int) -> int:
    size = _ALIGNMENT
    while offset < len(window):
        block = window.data[offset : offset + size].tobytes()
        zeros = len(block) - len(block.lstrip(b"\0"))
        if zeros < len(block):
            return offset + zeros - zeros % _ALIGNMENT
        offset += zeros
        size = min(2 * size, _BLOCK)
    return offset
