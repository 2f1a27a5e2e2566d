"""Libraries in other formats than ELF: static libraries (ar) and Windows libraries (PE).

In: a `Window` of a file. Out: the members of a static library, or the sections of a Windows
library, among which those with device code.

Sources: ``<ar.h>`` and the manual page ar(5), for the format as GNU binutils write it;
https://learn.microsoft.com/windows/win32/debug/pe-format
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING

from archsplit.formats.reader import Window

if TYPE_CHECKING:
    from collections.abc import Iterator

__pure__ = True

AR_MAGIC = b"!<arch>\n"

_HEADER_SIZE = 60
_NAME, _SIZE, _END = slice(0, 16), slice(48, 58), slice(58, 60)
_END_MAGIC = b"`\n"
# The indexes of symbols (32 and 64 bits); a linker reads them, this reader doesn't.
_INDEXES = {b"/", b"/SYM64/"}
_LONG_NAMES = b"//"
_BSD = b"#1/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveMember:
    """A file of a static library."""

    name: str
    content: Window = field(repr=False)


def read_members(window: Window) -> Iterator[ArchiveMember]:
    """Return the files of a static library in their order, without the symbol indexes.

    Raises:
        BinaryFormatError: the file is not a static library, is damaged, is a thin archive (whose
            files are elsewhere), or has names in BSD's form.
    """
    magic = window.part(0, len(AR_MAGIC), "magic of a static library").to_bytes()
    # A thin archive begins with "!<thin>": it holds paths, not files.
    if magic != AR_MAGIC:
        raise window.fault(0, "magic of a static library", repr(magic), repr(AR_MAGIC))
    long_names = window.part(0, 0, "long names")
    offset = len(AR_MAGIC)
    while offset < len(window):
        name, content = _read_member(window, offset)
        # This member comes before all those that refer to it.
        if name == _LONG_NAMES:
            long_names = content
        elif name not in _INDEXES:
            yield _to_member(window, _decode_name(name, long_names), content)
        offset += _HEADER_SIZE + len(content)
        # Members begin at even offsets.
        offset += offset % 2


def _read_member(window: Window, offset: int) -> tuple[bytes, Window]:
    header = window.part(offset, _HEADER_SIZE, "header of a member").to_bytes()
    if header[_END] != _END_MAGIC:
        raise window.fault(offset + 58, "end of a header", repr(header[_END]), repr(_END_MAGIC))
    name, size = header[_NAME].rstrip(), header[_SIZE].strip()
    # `int` would accept a sign, spaces and underscores.
    if not size.isdigit():
        raise window.fault(offset + 48, "size of a member", repr(size), "digits")
    # In BSD's form the name lies in the content, and its bytes would be taken for the file's.
    if name.startswith(_BSD):
        raise window.fault(offset, "name of a member", repr(name), "one in GNU's form")
    content = window.part(offset + _HEADER_SIZE, int(size), "member of a static library")
    # Date, owner and mode are left out: they aren't part of the device code.
    return name, content


def _decode_name(name: bytes, long_names: Window) -> str:
    if name.startswith(b"/") and name[1:].isdigit():
        offset = int(name[1:])
        rest = long_names.part(offset, len(long_names) - offset, "long name").data
        # No path is longer, and a table without line ends must not be copied for every member.
        name = rest[:4096].tobytes().partition(b"\n")[0]
    return name.removesuffix(b"/").decode("utf-8", "surrogateescape")


def _to_member(window: Window, name: str, content: Window) -> ArchiveMember:
    source = f"{window.source}({name})"
    return ArchiveMember(
        name=name, content=Window(content.data, source=source, start=content.start)
    )


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
