"""What can be wrong with a zip file's directory and headers, before a byte of content is read.

Sources: PKWARE's APPNOTE for the fields; the index's own rules against archives that two programs
read in two ways ("wheel archive confusion attacks", the index's blog, August 2025).
"""

from __future__ import annotations

import stat
import struct
import zipfile
from typing import TYPE_CHECKING

from archsplit.wheels.member_names import duplicate_names, member_fault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO
    from zipfile import ZipFile, ZipInfo

__pure__ = True

MAX_EXPANSION = 1032
"""Deflate can't make more than 1032 bytes from one: a declared size beyond that is a lie.

Source: https://zlib.net/zlib_tech.html, "Maximum Compression Factor"
"""

MAX_TOTAL = 1 << 36
"""64 GiB unpacked: many times the largest CUDA wheels there are.

Members are streamed, so this bounds time, and the disk of who extracts them, not memory.
"""

_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
_ENCRYPTED = 0x1 | 0x40 | 0x2000
_SIZES_FOLLOW = 0x8
_UTF8 = 0x800
_IN_ZIP64_EXTRA = 0xFFFFFFFF
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_LOCAL_SIGNATURE = b"PK\3\4"
_END_SIGNATURE = b"PK\5\6"
_END_BYTES = 22


def zip_faults(archive: ZipFile, file: BinaryIO) -> list[str]:
    """Everything that a sound wheel's archive doesn't have, one finding each.

    Args:
        archive: the archive, open for reading.
        file: the file that it was opened from; its position is changed.
    """
    infos = archive.infolist()
    return [
        *_around(archive, file),
        *duplicate_names(info.filename for info in infos if not info.is_dir()),
        *_overlaps(infos, archive.start_dir),
        *(f"{info.filename}: {fault}" for info in infos for fault in _faults(info, file)),
    ]


def _around(archive: ZipFile, file: BinaryIO) -> Iterator[str]:
    infos = archive.infolist()
    if infos and min(info.header_offset for info in infos) > 0:
        yield "there are bytes before the first member"
    file.seek(-_END_BYTES - len(archive.comment), 2)
    if file.read(len(_END_SIGNATURE)) != _END_SIGNATURE:
        yield "there are bytes after its end"
    total = sum(info.file_size for info in infos)
    if total > MAX_TOTAL:
        yield f"{total} bytes unpacked, more than archsplit believes ({MAX_TOTAL})"


def _overlaps(infos: list[ZipInfo], end: int) -> Iterator[str]:
    ordered = sorted(infos, key=lambda info: info.header_offset)
    ends = [*(info.header_offset for info in ordered[1:]), end]
    for info, limit in zip(ordered, ends, strict=True):
        if info.header_offset + _LOCAL_HEADER.size + info.compress_size > limit:
            yield f"{info.filename}: overlaps what comes after it"


def _faults(info: ZipInfo, file: BinaryIO) -> Iterator[str]:
    name = info.orig_filename.removesuffix("/") if info.is_dir() else info.orig_filename
    fault = member_fault(name)
    if fault is not None:
        yield fault
    if not (name.isascii() or info.flag_bits & _UTF8):
        yield "its name is not marked as UTF-8"
    if info.flag_bits & _ENCRYPTED:
        yield "it is encrypted"
    if info.compress_type not in _METHODS:
        yield f"it is compressed with method {info.compress_type}, neither stored nor deflated"
    yield from _kind_faults(info)
    yield from _size_faults(info)
    yield from _header_faults(info, file)


def _kind_faults(info: ZipInfo) -> Iterator[str]:
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind == stat.S_IFLNK:
        yield "it is a symbolic link"
    elif kind not in {0, stat.S_IFDIR if info.is_dir() else stat.S_IFREG}:
        yield f"it is neither a file nor a folder (mode {kind:o})"


def _size_faults(info: ZipInfo) -> Iterator[str]:
    stored = info.compress_type == zipfile.ZIP_STORED
    if stored and info.file_size != info.compress_size:
        yield f"{info.compress_size} stored bytes say to be {info.file_size}"
    if not stored and info.file_size > MAX_EXPANSION * info.compress_size:
        yield f"{info.compress_size} bytes can't unpack to {info.file_size}"
    if info.is_dir() and info.file_size:
        yield "it is a folder with content"


def _header_faults(info: ZipInfo, file: BinaryIO) -> Iterator[str]:
    """Compare the member's own header, which installers that stream go by, with the directory."""
    file.seek(info.header_offset)
    header = file.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size or not header.startswith(_LOCAL_SIGNATURE):
        yield "it has no header where the directory says"
        return
    _, _, flags, method, _, _, crc, packed, unpacked, length, _ = _LOCAL_HEADER.unpack(header)
    declared = (info.CRC, info.compress_size, info.file_size)
    found = (crc, packed, unpacked)
    same = all(a in {b, _IN_ZIP64_EXTRA} for a, b in zip(found, declared, strict=True))
    codec = "utf-8" if flags & _UTF8 else "cp437"
    if file.read(length) != info.orig_filename.encode(codec, "replace"):
        yield "it has another name in its header than in the directory"
    if method != info.compress_type or flags != info.flag_bits:
        yield "it is packed in another way by its header than by the directory"
    if not (same or flags & _SIZES_FOLLOW):
        yield "it has another size or checksum in its header than in the directory"
