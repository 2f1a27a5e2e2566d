"""Read a zip file that may be hostile: every fault is a finding, all in one exception.

In: a path. Out: `Archive`, whose directory and headers agree, with bounded sizes. A member is
unpacked into a temporary file together with `PackedOffsets`: how many bytes of the download a range
of the content takes, so that images get their share of a wheel's size.

The standard library reads the archive. It trusts the declared sizes, takes the last of two members
with one name, and doesn't compare a member's own header with the directory; two installers could
then unpack one wheel into different files. These checks are made here.

Sources: PKWARE's APPNOTE for the fields; the index's own rules against archives that two programs
read in two ways ("wheel archive confusion attacks", the index's blog, August 2025).
"""

from __future__ import annotations

import bisect
import contextlib
import copy
import errno
import hashlib
import io
import os
import stat
import struct
import tempfile
import zipfile
import zlib
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO

from isal import isal_zlib
from isal.igzip_lib import IsalError

from archsplit.errors import InputError, WheelError
from archsplit.system.fs import input_errors, open_input, output_errors
from archsplit.system.units import BLOCK, count_text
from archsplit.wheels.record import duplicate_names, member_fault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from zipfile import ZipFile, ZipInfo

    from _typeshed import WriteableBuffer

    from archsplit.wheels.record import RecordRow

__pure__ = True

MAX_EXPANSION = 1032
"""Largest compression ratio of deflate: a higher declared one is a lie.

Source: https://zlib.net/zlib_tech.html, "Maximum Compression Factor"
"""

MAX_UNPACKED_BYTES = 1 << 36
"""64 GiB of content: many times the largest CUDA wheels.

Members are streamed, so this bounds time and disk space, not memory.
"""

_FREE_BYTES, _MOST_TIMES = 1 << 29, 100
"""Content of any wheel, and of a larger one as a multiple of its size.

Wheels of code become 2 to 6 times as large, and wheels with zeros in place of code up to 30 times.
"""

_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
# Bits 0 (encrypted), 6 (strong encryption) and 13 (masked headers) of the flags.
_ENCRYPTED = 0x1 | 0x40 | 0x2000
SIZES_FOLLOW = 0x8
"""Bit 3 of a member's flags: its checksum and sizes come after its data."""
UTF8_NAME = 0x800
"""Bit 11 of a member's flags: its name is UTF-8, and not in code page 437."""
# The value in a field of 32 bits whose real value is in the zip64 extra field.
_IN_ZIP64_EXTRA = 0xFFFFFFFF
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_LOCAL_SIGNATURE = b"PK\3\4"
_END_SIGNATURE = b"PK\5\6"
_END_BYTES = 22

_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    OverflowError,
    ValueError,
)
"""Exceptions of zipfile for damaged input."""

BAD_DATA = "its compressed data can't be unpacked"
"""Fault in place of zlib's own texts, such as "Error -5 while decompressing data"."""
BAD_CHECKSUM = "its content doesn't match the checksum in the archive"


def zip_faults(archive: ZipFile, file: BinaryIO) -> list[str]:
    """Return one finding for each fault of an archive.

    Args:
        archive: the archive, open for reading.
        file: the file of the archive; its position is changed.
    """
    infos = archive.infolist()
    return [
        *_outer_faults(archive, file),
        *duplicate_names(info.filename for info in infos if not info.is_dir()),
        *_overlaps(infos, archive.start_dir),
        *(f"{info.filename}: {fault}" for info in infos for fault in _member_faults(info, file)),
    ]


def _outer_faults(archive: ZipFile, file: BinaryIO) -> Iterator[str]:
    infos = archive.infolist()
    # Data before the first member can be another archive, for readers that search from the start.
    if infos and min(info.header_offset for info in infos) > 0:
        yield "bytes before the first member"
    # The end record has a comment of any length; after it the file has to end.
    file.seek(-_END_BYTES - len(archive.comment), 2)
    if file.read(len(_END_SIGNATURE)) != _END_SIGNATURE:
        yield "bytes after the end of the archive"
    limit = min(MAX_UNPACKED_BYTES, max(_FREE_BYTES, _MOST_TIMES * archive.start_dir))
    if (total := sum(info.file_size for info in infos)) > limit:
        yield f"{total} bytes unpacked, the limit is {limit}"


def _overlaps(infos: list[ZipInfo], end: int) -> Iterator[str]:
    ordered = sorted(infos, key=lambda info: info.header_offset)
    ends = [*(info.header_offset for info in ordered[1:]), end]
    for info, limit in zip(ordered, ends, strict=True):
        # Overlapping members are how a small archive unpacks to petabytes ("zip bomb").
        name = len(info.orig_filename.encode(errors="replace"))
        if info.header_offset + _LOCAL_HEADER.size + name + info.compress_size > limit:
            yield f"{info.filename}: overlaps the next member"


def _member_faults(info: ZipInfo, file: BinaryIO) -> Iterator[str]:
    name = info.orig_filename.removesuffix("/") if info.is_dir() else info.orig_filename
    if (fault := member_fault(name)) is not None:
        yield fault
    # Without the flag, readers take the name for code page 437.
    if not (name.isascii() or info.flag_bits & UTF8_NAME):
        yield "its name is not marked as UTF-8"
    if info.flag_bits & _ENCRYPTED:
        yield "it is encrypted"
    if info.compress_type not in _METHODS:
        yield f"it is compressed with method {info.compress_type}, neither stored nor deflated"
    yield from _kind_faults(info)
    yield from _size_faults(info)
    yield from _header_faults(info, file)


def _kind_faults(info: ZipInfo) -> Iterator[str]:
    # The upper half has the mode of Unix; 0 if another system wrote the archive.
    kind = stat.S_IFMT(info.external_attr >> 16)
    # Some installers would write through the link to a folder outside.
    if kind == stat.S_IFLNK:
        yield "it is a symbolic link"
    elif kind not in {0, stat.S_IFDIR if info.is_dir() else stat.S_IFREG}:
        yield f"it is neither a file nor a folder (mode {kind:o})"


def _size_faults(info: ZipInfo) -> Iterator[str]:
    stored = info.compress_type == zipfile.ZIP_STORED
    if stored and info.file_size != info.compress_size:
        yield f"{info.compress_size} stored bytes have the size {info.file_size}"
    if not stored and info.file_size > MAX_EXPANSION * info.compress_size:
        yield f"{count_text(info.compress_size, 'byte')} can't unpack to {info.file_size}"
    # Readers disagree about what they unpack for it.
    if info.is_dir() and info.file_size:
        yield "it is a folder with content"


def _header_faults(info: ZipInfo, file: BinaryIO) -> Iterator[str]:
    """Compare the directory with the member's own header, which streaming installers use."""
    file.seek(info.header_offset)
    header = file.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size or not header.startswith(_LOCAL_SIGNATURE):
        yield "it has no header at its offset of the directory"
        return
    _, _, flags, method, _, _, crc, packed, unpacked, length, _ = _LOCAL_HEADER.unpack(header)
    # The own header may leave the sizes to a record after the data, or to the zip64 extra field.
    declared = (info.CRC, info.compress_size, info.file_size)
    header_fields = (crc, packed, unpacked)
    is_equal = all(a in {b, _IN_ZIP64_EXTRA} for a, b in zip(header_fields, declared, strict=True))
    # The name as zipfile has decoded it, encoded again.
    codec = "utf-8" if flags & UTF8_NAME else "cp437"
    if file.read(length) != info.orig_filename.encode(codec, "replace"):
        yield "it has another name in its header than in the directory"
    if method != info.compress_type or flags != info.flag_bits:
        yield "it has another method or other flags in its header than in the directory"
    if not (is_equal or flags & SIZES_FOLLOW):
        yield "it has another size or checksum in its header than in the directory"


class Archive:
    """An open zip file without faults; made by `open_archive`.

    Attributes:
        path: the file.
        members: the files by name, in the directory's order, without folders.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        with _zip_errors(f"{path}"):
            self._zip = zipfile.ZipFile(file)
            findings = zip_faults(self._zip, file)
        if findings:
            raise unsound_wheel(path, findings)
        # Folders are implied by the names of files, and installers make them.
        self.members = {i.filename: i for i in self._zip.infolist() if not i.is_dir()}

    @contextlib.contextmanager
    def open(self, entry: RecordRow) -> Iterator[BinaryIO]:
        """Open the member of a RECORD row as a sequential stream.

        Raises:
            WheelError: there is no such member, or it is damaged. While reading: the member is
                damaged, its size is not the declared one, or ``entry`` has another hash.
        """
        if entry.path not in self.members:
            raise WheelError(f"{self.path}: {entry.path} is missing")
        # zipfile stops silently at the declared size. With a size one byte larger, the stream
        # gets to see that there is more.
        info = copy.copy(self.members[entry.path])
        declared, info.file_size = info.file_size, info.file_size + 1
        where = f"{self.path}: {entry.path}"
        with _zip_errors(where):
            content = self._zip.open(info)
        with (
            content,
            io.BufferedReader(_CheckedReader(content, where, entry, declared), BLOCK) as stream,
        ):
            yield stream


@contextlib.contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """Open a zip file, and check all of it but the contents of its members.

    Raises:
        InputError: the file is missing or can't be read.
        WheelError: the file is not a sound zip file; the message lists every finding.
    """
    # Errors while reading are told apart by `_zip_errors`.
    with open_input(path) as file:
        yield Archive(path, file)


def unsound_wheel(path: Path, findings: list[str], *, hint: str | None = None) -> WheelError:
    """Return the error with all findings about a wheel, sorted."""
    texts = sorted(finding.removeprefix(f"{path}: ") for finding in findings)
    lines = "".join(f"\n  {text}" for text in texts)
    hint = hint or "download it again, or build it again"
    return WheelError(f"{path} is not a sound wheel:{lines}", hint=hint)


def damage_error(where: str, fault: str) -> WheelError:
    """Return the error of a damaged file.

    Args:
        where: the file, and the member in it.
    """
    return WheelError(f"{where} is damaged: {fault}", hint="download it again, or build it again")


class _CheckedReader(io.RawIOBase):
    """A stream that compares the content with its declared size and hash."""

    def __init__(self, content: IO[bytes], where: str, entry: RecordRow, declared: int) -> None:
        self._content, self._where, self._entry = content, where, entry
        self._remaining = declared
        self._digest = hashlib.new(entry.algorithm)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        with _zip_errors(self._where):
            block = self._content.read(len(view))
        view[: len(block)] = block
        self._digest.update(block)
        self._remaining -= len(block)
        # Too much, or an end before the declared size.
        if self._remaining < 0 or (self._remaining > 0 and not block):
            raise damage_error(self._where, "it doesn't match the size in the archive")
        if not block and self._entry.digest not in {None, self._digest.digest()}:
            raise WheelError(f"{self._where} doesn't match its hash in RECORD")
        return len(block)


@contextlib.contextmanager
def _zip_errors(where: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise damage_error(where, _describe_damage(error)) from error
    except OSError as error:
        # A seek before the start of the file: the archive has a wrong offset, and the disk is
        # sound.
        if error.errno in {None, errno.EINVAL}:
            raise damage_error(where, "an offset is outside of the file") from error
        raise InputError(f"can't read {where}: {error.strerror}") from error


def _describe_damage(error: Exception) -> str:
    if isinstance(error, zlib.error):
        return BAD_DATA
    # The only text of zipfile that names the member, which the caller has done.
    return BAD_CHECKSUM if str(error).startswith("Bad CRC-32") else str(error)


_STEP = 2048
"""Packed bytes between two exact offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedOffsets:
    """A map from offsets in a member's content to offsets in its packed stream.

    Exact at every 2048th packed byte (but for some bits that ISA-L holds back), interpolated
    between these: the packed size of a range is off by less than 4 KiB, whatever its length, and
    the sizes of ranges that cover the member add up to its packed size. Exact for a stored member.

    Attributes:
        unpacked, packed: the exact offsets, both ascending, from 0 to the two sizes.
    """

    unpacked: array[int] = field(repr=False)
    packed: array[int] = field(repr=False)

    def packed_size(self, start: int, end: int) -> int:
        """Return the packed size of the content from ``start`` up to, not including, ``end``."""
        return self._packed_offset(end) - self._packed_offset(start)

    def _packed_offset(self, offset: int) -> int:
        # The end of the content gets the end of the stream, whatever was held back.
        if offset >= self.unpacked[-1]:
            return self.packed[-1]
        after = bisect.bisect_right(self.unpacked, offset)
        low, high = self.unpacked[after - 1 : after + 1]
        start, end = self.packed[after - 1 : after + 1]
        # Linear between two exact points; integers, so that neighboring ranges add up.
        return start + (offset - low) * (end - start) // (high - low)


def read_packed_blocks(source: BinaryIO, info: ZipInfo, size: int = BLOCK) -> Iterator[bytes]:
    """Yield the packed bytes of a member from the open file of its archive.

    Args:
        size: of each block but the last.

    Raises:
        WheelError: the file ends too early.
    """
    # The checks of `open_archive` have compared this header with the directory.
    source.seek(info.header_offset)
    *_, name_size, extra_size = _LOCAL_HEADER.unpack(source.read(_LOCAL_HEADER.size))
    source.seek(name_size + extra_size, os.SEEK_CUR)
    remaining = info.compress_size
    while remaining:
        block = source.read(min(size, remaining))
        if not block:
            raise WheelError(f"{info.filename} ends too early")
        remaining -= len(block)
        yield block


def read_head(archive: Archive, info: ZipInfo, size: int) -> bytes:
    """Return up to ``size`` first bytes of a member, without unpacking the rest.

    Raises:
        WheelError: its data is damaged.
    """
    pieces = (piece for piece, _ in _inflate_pieces(archive, info))
    # The first packed bytes may be a header without any output.
    return next(filter(None, pieces), b"")[:size]


@contextlib.contextmanager
def unpack_with_offsets(
    archive: Archive, info: ZipInfo
) -> Iterator[tuple[BinaryIO, PackedOffsets]]:
    """Unpack a member into an unnamed temporary file, which is removed afterwards.

    Raises:
        WheelError: the data is damaged, or not of the size and checksum that the archive declares.
        OutputError: the temporary folder is full.
    """
    folder = Path(tempfile.gettempdir())
    with output_errors(folder):
        # Without a name, so a killed process leaves nothing.
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by the next line
    with file:
        offsets = PackedOffsets(unpacked=array("Q", [0]), packed=array("Q", [0]))
        for block in _blocks(archive, info, offsets):
            with output_errors(folder):
                file.write(block)
        with output_errors(folder):
            file.flush()
        yield file, offsets


def _blocks(archive: Archive, info: ZipInfo, offsets: PackedOffsets) -> Iterator[bytes]:
    """Yield the content in blocks, and fill ``offsets`` on the way."""
    block, size, checksum = bytearray(), 0, 0
    for piece, packed in _inflate_pieces(archive, info):
        size += len(piece)
        # More than declared: stopped before the disk is full.
        if size > info.file_size:
            break
        if piece:
            # Equal unpacked offsets would make a division by zero.
            offsets.unpacked.append(size)
            offsets.packed.append(packed)
        block += piece
        checksum = isal_zlib.crc32(piece, checksum)
        if len(block) >= BLOCK:
            yield bytes(block)
            block.clear()
    # Bytes after the end of the stream are downloaded too.
    offsets.packed[-1] = info.compress_size
    yield bytes(block)
    if (size, checksum) != (info.file_size, info.CRC):
        where = f"{archive.path}: {info.filename}"
        raise damage_error(where, "it doesn't match the size or checksum in the archive")


def _inflate_pieces(archive: Archive, info: ZipInfo) -> Iterator[tuple[bytes, int]]:
    """Yield pieces of the content, each with the packed offset of its end."""
    inflate = isal_zlib.decompressobj(-zlib.MAX_WBITS)
    is_stored = info.compress_type == zipfile.ZIP_STORED
    position = 0
    with input_errors(archive.path), archive.path.open("rb") as file:
        for packed in read_packed_blocks(file, info, _STEP):
            position += len(packed)
            try:
                piece = packed if is_stored else inflate.decompress(packed)
            except IsalError as error:  # type: ignore[misc] # its stub calls the class an instance
                raise damage_error(f"{archive.path}: {info.filename}", BAD_DATA) from error
            yield piece, position
