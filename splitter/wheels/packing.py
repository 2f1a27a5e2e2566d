"""Pack members, or copy them packed as they are, into a new archive.

libdeflate packs. Against zlib at its default level it made the same library (106 MB) no larger, at
3.5 times the speed; zlib-ng and ISA-L were as fast or faster and made it 3 % and 11 % larger. And
its output depends on its release and the level alone, not on what the processor can do.
"""

from __future__ import annotations

import hashlib
import mmap
import stat
import struct
import zipfile
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import deflate

from splitter.errors import WheelError
from splitter.system.files import reading

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

    from splitter.wheels.archive import Archive

LEVEL = 6
"""Of libdeflate; 7 saves another half per cent and takes a third longer."""

EARLIEST = (1980, 1, 1, 0, 0, 0)
"""The time of members that no archive had before."""

_NAME_SIZES = struct.Struct("<HH")
_NAME_SIZES_AT, _LOCAL_SIZE = 26, 30
_SIZES_FOLLOW = 0x8
_UNIX = 3
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A member's content, packed.

    Attributes:
        content: a raw deflate stream.
        size: bytes unpacked.
        crc: of the unpacked bytes.
        digest: the SHA-256 of the unpacked bytes.
    """

    content: bytes | bytearray = field(repr=False)
    size: int
    crc: int
    digest: bytes


def packed(content: bytes | mmap.mmap) -> Packed:
    """Pack some bytes; they are hashed beside it, on another core."""
    with ThreadPoolExecutor(1) as worker:
        hashing = worker.submit(hashlib.sha256, content)
        return Packed(
            content=deflate.deflate_compress(content, LEVEL),
            size=len(content),
            crc=deflate.crc32(content),
            digest=hashing.result().digest(),
        )


def packed_file(path: Path) -> Packed:
    """Pack a file; it is mapped into memory, not read into it.

    Raises:
        InputError: it can't be read.
    """
    with reading(path), path.open("rb") as file:
        if file.seek(0, 2) == 0:
            return packed(b"")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return packed(content)


class ArchiveWriter:
    """A new zip file, member by member; `close` writes its directory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._zip = zipfile.ZipFile(file, "w")

    def copy(self, archive: Archive, old: str, new: str) -> None:
        """Copy a member's packed bytes as they are.

        Raises:
            WheelError: the archive ends before they do.
            InputError: it can't be read.
        """
        info = _renamed(archive.members[old], new)
        info.compress_size = archive.members[old].compress_size
        with reading(archive.path), archive.path.open("rb") as source:
            self._begin(info)
            for block in packed_blocks(source, archive.members[old]):
                self._file.write(block)

    def replace(self, archive: Archive, old: str, new: str, content: Packed) -> None:
        """Write another content with a member's time and mode."""
        self._write(_renamed(archive.members[old], new), content)

    def add(self, name: str, content: Packed) -> None:
        """Write a file that was in no archive."""
        info = zipfile.ZipInfo(name, EARLIEST)
        info.create_system = _UNIX
        info.external_attr = (stat.S_IFREG | 0o644) << 16
        self._write(info, content)

    def close(self) -> None:
        """Write the directory."""
        self._zip.start_dir = self._file.tell()
        self._zip.close()

    def _write(self, info: zipfile.ZipInfo, content: Packed) -> None:
        info.compress_type = zipfile.ZIP_DEFLATED
        info.compress_size, info.file_size = len(content.content), content.size
        info.CRC = content.crc
        self._begin(info)
        self._file.write(content.content)

    def _begin(self, info: zipfile.ZipInfo) -> None:
        info.header_offset = self._file.tell()
        self._file.write(info.FileHeader())
        self._zip.filelist.append(info)
        self._zip.NameToInfo[info.filename] = info


def _renamed(info: zipfile.ZipInfo, name: str) -> zipfile.ZipInfo:
    """A member's header without what belongs to its old place."""
    new = copy(info)
    new.filename = new.orig_filename = name
    new.extra = new.comment = b""
    new.flag_bits &= ~_SIZES_FOLLOW
    return new


def packed_blocks(source: BinaryIO, info: zipfile.ZipInfo) -> Iterator[bytes]:
    """A member's packed bytes, out of the open file of the archive.

    Raises:
        WheelError: the file ends before they do.
    """
    # The archive's own checks have compared this header with the directory.
    source.seek(info.header_offset + _NAME_SIZES_AT)
    sizes = _NAME_SIZES.unpack(source.read(_NAME_SIZES.size))
    source.seek(info.header_offset + _LOCAL_SIZE + sum(sizes))
    left = info.compress_size
    while left:
        block = source.read(min(_BLOCK, left))
        if not block:
            raise WheelError(f"{info.filename} ends before it should")
        left -= len(block)
        yield block
