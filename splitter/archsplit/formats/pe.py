"""Sections of Windows libraries (PE/COFF), among which those with device code.

Source: https://learn.microsoft.com/windows/win32/debug/pe-format
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.formats.reader import Window

__pure__ = True

PE_MAGIC = b"MZ"

_SIGNATURE_AT, _SIGNATURE = 0x3C, 0x0000_4550  # "PE\0\0"
_COFF = Struct("<HHIIIHH")
_SECTION = Struct("<QIIIIIIHHI")
_NAME_SIZE = 8
_CODE = 0x20

# The size of the optional header up to the data directories, by its magic number.
_DIRECTORIES_AT = {0x10B: 96, 0x20B: 112}
_CERTIFICATES = 4
_MAGIC, _DIRECTORY = Struct("<H"), Struct("<II")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeSection:
    """A section of a PE file.

    Attributes:
        name: the first eight bytes of the name, as the format has them: ``.nv_fatb``.
        is_code: True for host instructions.
        content: the bytes in the file, without the padding after them.
    """

    name: str
    is_code: bool
    content: Window = field(repr=False)


def read_pe_sections(window: Window) -> Iterator[PeSection]:
    """Return the sections of a Windows library or program.

    Raises:
        BinaryFormatError: the file is not PE, or is damaged.
    """
    start = window.u32(_SIGNATURE_AT, "offset of the PE header")
    signature = window.u32(start, "PE signature")
    if signature != _SIGNATURE:
        raise window.fault(start, "PE signature", f"{signature:#x}", f"{_SIGNATURE:#x}")
    coff = window.unpack(_COFF, start + 4, "COFF header")
    count, optional_size = coff[1], coff[5]
    # The optional header differs between 32 and 64 bits; its size is enough to skip it.
    offset = start + 4 + _COFF.size + optional_size
    table = window.part(offset, count * _SECTION.size, "section headers")
    remaining = len(window)
    for row in table.records(_SECTION, "section headers"):
        name = row[0].to_bytes(_NAME_SIZE, "little").rstrip(b"\0").decode("utf-8", "replace")
        # In the file a section is padded; in memory it may be longer, with zeros.
        size = min(row[1], row[3])
        # Overlapping sections could make a small file yield content without end.
        remaining -= size
        if remaining < 0:
            raise window.fault(offset, "sections", "more than the file", "no overlaps")
        content = window.part(row[4], size, f"section {name!r}")
        yield PeSection(name=name, is_code=bool(row[9] & _CODE), content=content)


def is_signed_pe(window: Window) -> bool:
    """Return True if a Windows library has an Authenticode signature, which covers its bytes.

    Raises:
        BinaryFormatError: the file is not PE, or is damaged.
    """
    start = window.u32(_SIGNATURE_AT, "offset of the PE header")
    coff = window.unpack(_COFF, start + 4, "COFF header")
    offset, size = start + 4 + _COFF.size, coff[5]
    if size < _MAGIC.size:
        return False
    (magic,) = window.unpack(_MAGIC, offset, "optional header")
    at = _DIRECTORIES_AT.get(magic, size) + _CERTIFICATES * _DIRECTORY.size
    # The header may end before the table of signatures.
    if at + _DIRECTORY.size > size:
        return False
    _, length = window.unpack(_DIRECTORY, offset + at, "certificate table")
    return bool(length)
