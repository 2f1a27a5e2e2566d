"""One entry of a fatbin container: what its header says, and what that means."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING

from archsplit.arch.target import Capability, CodeKind, Target

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from archsplit.arch.target import Suffix
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
