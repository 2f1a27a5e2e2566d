"""Cubins, the ELF files of machine code for a GPU, and zstd frames around them.

NVIDIA doesn't document the header. The rules here were checked against cubins of CUDA 11.8 to 13.0.

Some libraries have cubins in zstd frames, without a length beside them. `frame_size` reads it from
the headers of the frame's blocks (RFC 8878, section 3.1.1), and nothing is decompressed.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.arch.target import Capability, Target
from archsplit.formats.elf import Elf, Header, Machine, SectionType, read_header
from archsplit.formats.elf_dynamic import FUNCTION, section_symbols

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.formats.reader import Window

__pure__ = True

_KERNEL = 0x10
"""Bit of a symbol's ``other`` that only kernels have, not device functions."""

_TOOL_NOTE = ".note.nv.tkinfo"
_CUDA_NOTE = ".note.nv.cuinfo"
_CUDA_FIELDS = struct.Struct("<HHH")
"""Version of the note, the virtual architecture, and the toolkit: 130 for CUDA 13.0."""
_VENDOR = b"NVIDIA Corp\0"
_SM_NUMBERS, _TOOLKITS = range(10, 1000), range(90, 500)
"""Numbers that the note's fields can have."""
_COMMAND_LINE = re.compile(rb"-arch (sm_[1-9][0-9]{1,3}[af]?)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel: its mangled name, and the size of its machine code in bytes."""

    name: str
    size: int


class Cubin:
    """An ELF file of machine code for one GPU.

    Attributes:
        elf: the file.
        capability: the capability that the code was built for. The suffix (``a``, ``f``) is not in
            the header, but in the fatbin entry that holds the cubin.
    """

    __slots__ = ("capability", "elf")

    def __init__(self, window: Window) -> None:
        """Read the header.

        Raises:
            BinaryFormatError: the file is not a cubin, or has an unknown ABI version.
        """
        self.elf = Elf(window)
        self.capability = _header_capability(self.elf.header, window)

    def kernels(self) -> Iterator[Kernel]:
        """Return the kernels in the order of the symbol table.

        Raises:
            BinaryFormatError: the symbols or their names are damaged.
        """
        tables = (part for part in self.elf.sections() if part.type == SectionType.SYMBOLS)
        table = next(tables, None)
        if table is None:
            # A stripped cubin, or one with only device functions.
            return
        for symbol in section_symbols(self.elf, table):
            # `cuobjdump -elf` shows this bit as STO_CUDA_ENTRY.
            if symbol.type == FUNCTION and symbol.other & _KERNEL:
                yield Kernel(name=symbol.name, size=symbol.size)

    def noted_target(self) -> Target | None:
        """Return the target with its suffix, if ptxas noted it, else None.

        ptxas notes its command line since CUDA 13.

        Raises:
            BinaryFormatError: the note has another capability than the header.
        """
        section = self.elf.section(_TOOL_NOTE)
        if section is None:
            return None
        note = self.elf.content(section)
        # A search, not a parser, because the note's layout isn't documented. Without a match, the
        # fatbin entry decides.
        match = _COMMAND_LINE.search(note.data)
        if match is None:
            return None
        target = Target.parse(match[1].decode())
        if target.capability != self.capability:
            expected = f"one of capability {self.capability}, as in the header"
            raise note.fault(match.start(), "target noted by ptxas", str(target), expected)
        return target

    def toolkit_version(self) -> int | None:
        """Return the toolkit's version as in CUDART_VERSION, if it was noted, else None."""
        section = self.elf.section(_CUDA_NOTE)
        if section is None:
            return None
        # A search, as above: the layout isn't documented.
        data = self.elf.content(section).to_bytes()
        fields = data.partition(_VENDOR)[2][: _CUDA_FIELDS.size]
        if len(fields) < _CUDA_FIELDS.size:
            return None
        _, virtual, toolkit = _CUDA_FIELDS.unpack(fields)
        # Another layout would have other numbers in these places.
        if virtual not in _SM_NUMBERS or toolkit not in _TOOLKITS:
            return None
        return int(toolkit // 10 * 1000 + toolkit % 10 * 10)


def read_capability(head: Window) -> Capability:
    """Return the capability of a cubin by its first 64 bytes.

    Raises:
        BinaryFormatError: see `Cubin`.
    """
    return _header_capability(read_header(head), head)


def _header_capability(header: Header, window: Window) -> Capability:
    # The one field by which a GPU's ELF file differs from a host's.
    if header.machine != Machine.CUDA:
        raise window.fault(18, "ELF machine", str(header.machine), f"{Machine.CUDA:d} for CUDA")
    number = _sm_number(header, window)
    try:
        return Capability.from_sm_number(number)
    except ValueError as error:
        raise window.fault(48, "flags of a cubin", f"sm {number}", "a capability") from error


def _sm_number(header: Header, window: Window) -> int:
    """Return the sm number in the flags, whose layout depends on the ABI version."""
    # CUDA 13 writes version 8, and CUDA 12.8 for sm_100 and later.
    if header.abi_version == 7:  # noqa: PLR2004 - the number is its name
        return header.flags & 0xFF
    if header.abi_version == 8:  # noqa: PLR2004 - the number is its name
        return header.flags >> 8 & 0xFFFF
    raise window.fault(8, "ABI version of a cubin", str(header.abi_version), "7 or 8")


ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

_MAGIC_SIZE, _BLOCK_HEADER, _CHECKSUM = 4, 3, 4
_SINGLE_SEGMENT, _RESERVED_BIT, _HAS_CHECKSUM = 0x20, 0x08, 0x04
_DICTIONARY_SIZES = (0, 1, 2, 4)
_CONTENT_SIZES = (0, 2, 4, 8)
_RUN, _RESERVED = 1, 3


def frame_size(window: Window) -> int:
    """Return the bytes of the frame at the start of a window.

    Raises:
        BinaryFormatError: the frame is missing, or longer than the window.
    """
    magic = window.part(0, _MAGIC_SIZE, "zstd frame").to_bytes()
    if magic != ZSTD_MAGIC:
        raise window.fault(0, "zstd frame", magic.hex(), ZSTD_MAGIC.hex())
    descriptor = window.part(_MAGIC_SIZE, 1, "zstd frame").to_bytes()[0]
    if descriptor & _RESERVED_BIT:
        raise window.fault(_MAGIC_SIZE, "reserved bit of a zstd frame", "1", "0")
    is_single = bool(descriptor & _SINGLE_SEGMENT)
    # A frame of one segment has a size of one byte where others have none, and no window size.
    content = _CONTENT_SIZES[descriptor >> 6] or int(is_single)
    dictionary = _DICTIONARY_SIZES[descriptor & 3]
    position = _MAGIC_SIZE + 1 + int(not is_single) + dictionary + content
    is_last = False
    while not is_last:
        header = window.part(position, _BLOCK_HEADER, "block of a zstd frame").to_bytes()
        number = int.from_bytes(header, "little")
        is_last, kind, size = bool(number & 1), number >> 1 & 3, number >> 3
        if kind == _RESERVED:
            raise window.fault(position, "type of a zstd block", "3", "0 to 2")
        # Writers end a frame with an empty block at most. Zeros would be empty blocks without end.
        if size == 0 and not is_last:
            raise window.fault(position, "zstd block", "an empty one", "bytes, or the last block")
        # A run has one byte, whatever its length.
        position += _BLOCK_HEADER + (1 if kind == _RUN else size)
    position += _CHECKSUM if descriptor & _HAS_CHECKSUM else 0
    return len(window.part(0, position, "zstd frame"))
