"""Take the end off a deflate stream, so that another stream can follow.

libdeflate makes whole streams only. A member that is packed in pieces, on several cores, has to be
one stream, and a single bit is in the way: the one by which the last block says that it is the
last. Nothing says where it is. So the stream's end is unpacked in small steps: while the inflater
reads the code tables at the beginning of a block, it gives nothing out. Whatever is found so is
proved: without that bit the stream unpacks to the same, and goes on.

Source of the format: RFC 1951.

Pack whatever is large in pieces: on all cores, and never holding more than a few of them.

The pieces' size is fixed, so the bytes that come out are the same whatever the number of threads.
libdeflate packs. Against zlib at its default level it made the same libraries (106 MB to 1 GB) no
larger, at four times the speed; zlib-ng and ISA-L were as fast or faster and made them 1 to 3 % and
2 to 11 % larger. And its output depends on its release and the level alone, not on what the
processor can do.

Pack members, or copy them packed as they are, into a new archive.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import stat
import struct
import threading
import zipfile
import zlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import deflate

from archsplit.errors import InputError, WheelError
from archsplit.system.fs import input_errors
from archsplit.system.resources import available_cores
from archsplit.system.units import BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import BinaryIO

    from archsplit.wheels.zip_checks import Archive

__pure__ = True

_RAW = -zlib.MAX_WBITS
_LONGEST_BLOCK = 310_000
"""libdeflate's blocks stand for 300000 bytes, the last one for up to 5000 more."""
_STEPS = (48, 8)
"""Packed bytes: code tables take a hundred, or a dozen where there is little to tell."""
_HEAD = 600
"""Packed bytes: more than any code tables take."""
_SYMBOLS = 9
"""Packed bytes: more than one symbol that gives something out, and a block's end."""
_STORED, _STATIC, _DYNAMIC = 0b001, 0b011, 0b101
"""The first three bits of a last block."""
_SHORT = 64
"""Packed bytes: in so few it can happen that no step is silent."""
_LONGEST_STATIC = 4096
"""Packed bytes: a block with more in it is shorter with code tables of its own."""
_LONGEST_STORED = 0xFFFF
_STORED_HEAD = 5
_TAIL_BLOCK = 1 << 16
_PART = 48 << 8
"""Packed bytes of the tail, in whole steps: most last blocks begin in one of the last few parts."""
_ENDINGS = (b"\0\0\xff\xff", b"\0\0\0\xff\xff")
"""A stored block without content; its first three bits, zeros, fit into the last byte or don't."""
_LAST = b"\3\0"
"""A last block without content."""


def without_final_block(
    stream: bytearray, content: bytes, turn: AbstractContextManager[object] | None = None
) -> bytearray:
    """The same stream without its end, up to a byte's boundary: any other stream may follow it.

    Args:
        stream: raw deflate, made by libdeflate.
        content: what it unpacks to; not empty.
        turn: held while the end is looked for. That is thousands of short calls, each of which
            lets go of the interpreter: several threads at a time would wait more than they do.
    """
    tail = _Tail(stream, content)
    with turn or nullcontext():
        for start, end, kind in tail.ranges():
            if (opened := tail.opened(start, end, kind)) is not None:
                return stream[: len(stream) - len(tail.packed)] + opened
    raise AssertionError("a deflate stream has a last block")


class _Mark(NamedTuple):
    """A place in the tail, and an inflater that has come to it.

    Attributes:
        at: packed bytes of the tail before it.
        known: what they unpack to, in bytes.
    """

    at: int
    known: int
    inflater: zlib._Decompress


class _Tail:
    """The end of a stream, in which its last block begins.

    Attributes:
        packed: its bytes.
    """

    def __init__(self, stream: bytearray, content: bytes) -> None:
        self._inflater = zlib.decompressobj(_RAW)
        known = at = 0
        while (left := len(content) - _LONGEST_BLOCK - known) > 0:
            known += len(self._inflater.decompress(stream[at : at + _TAIL_BLOCK], left))
            at = min(at + _TAIL_BLOCK, len(stream)) - len(self._inflater.unconsumed_tail)
        self.packed = bytes(stream[at:])
        self._content = content[known:]
        self._marks = list(self._marked())

    def ranges(self) -> Iterator[tuple[int, int, int]]:
        """Where the last block may begin, in bytes, and its first bits; the likely ones first."""
        for step in _STEPS:
            for place in self._silences(step):
                yield max(0, place - step), place + _SYMBOLS, _DYNAMIC
        size = len(self.packed)
        yield max(0, size - _SHORT), size, _DYNAMIC
        yield from ((start, start + 2, _STORED) for start in self._stored())
        yield max(0, size - _LONGEST_STATIC), size, _STATIC
        yield from ((0, size, kind) for kind in (_DYNAMIC, _STATIC))

    def opened(self, start: int, end: int, kind: int) -> bytes | None:
        """The tail without an end, if its last block begins between two bytes with these bits."""
        mark = next(mark for mark in reversed(self._marks) if mark.at <= start)
        inflater = mark.inflater.copy()
        known = mark.known + len(inflater.decompress(self.packed[mark.at : start]))
        rest, wanted = self.packed[start:], self._content[known:]
        bits, mask = int.from_bytes(rest[: end - start + 1], "little"), kind | 7
        for bit in (bit for bit in range(8 * (end - start)) if bits >> bit & mask == kind):
            head = bytearray(rest[: bit // 8 + _HEAD])
            head[bit // 8] ^= 1 << bit % 8
            begun = _unpacked(inflater.copy(), bytes(head))
            if begun is None or not wanted.startswith(begun):
                continue
            for ending in _ENDINGS:
                changed = head + rest[len(head) :] + ending
                if _unpacked(inflater.copy(), bytes(changed + _LAST), whole=True) == wanted:
                    return self.packed[:start] + changed
        return None

    def _marked(self) -> Iterator[_Mark]:
        inflater, known = self._inflater.copy(), 0
        for at in range(0, len(self.packed), _PART):
            yield _Mark(at=at, known=known, inflater=inflater.copy())
            known += len(inflater.decompress(self.packed[at : at + _PART]))

    def _silences(self, step: int) -> Iterator[int]:
        """The bytes before which code tables begin, the last ones first."""
        for mark in reversed(self._marks):
            inflater, end = mark.inflater.copy(), min(mark.at + _PART, len(self.packed))
            silent = {
                at
                for at in range(mark.at, end, step)
                if not inflater.decompress(self.packed[at : at + step])
            }
            yield from sorted((at for at in silent if at - step not in silent), reverse=True)
        yield 0

    def _stored(self) -> Iterator[int]:
        """A stored block tells its length, and the last one's leads to the stream's end."""
        size = len(self.packed)
        for length in range(1, min(_LONGEST_STORED, size - _STORED_HEAD) + 1):
            head = size - length - 4
            sizes = length.to_bytes(2, "little") + (length ^ 0xFFFF).to_bytes(2, "little")
            if self.packed[head : head + 4] == sizes:
                yield max(0, head - 2)


def _unpacked(inflater: zlib._Decompress, packed: bytes, *, whole: bool = False) -> bytes | None:
    try:
        content = inflater.decompress(packed)
    except zlib.error:
        return None
    is_whole = inflater.eof and not inflater.unused_data
    return content if is_whole or not whole else None


PIECE_BYTES = 4 << 20
"""Bytes, unpacked. Each piece begins without what the one before it was, which costs 0.01 %."""

_AT_ONCE = 12
"""Pieces in memory, packed or not: some 8 MB each where they hold device code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeflatePiece:
    """Some of a member's content.

    Attributes:
        owner: which member's.
        is_last: whether nothing follows it.
    """

    owner: int
    content: bytes = field(repr=False)
    is_last: bool


class ParallelDeflater:
    """Threads that pack; several archives may be written with one, each from a thread of its own.

    Args:
        threads: as many pieces are packed at a time; the cores there are, when None.
    """

    def __init__(self, threads: int | None = None) -> None:
        count = min(threads or available_cores(), _AT_ONCE)
        self._workers = ThreadPoolExecutor(count)
        self._turn = threading.Lock()
        self._room = threading.BoundedSemaphore(min(count + 2, _AT_ONCE))

    def close(self) -> None:
        """Wait for what is being packed, and forget the rest."""
        self._workers.shutdown(cancel_futures=True)

    def packed(
        self, pieces: Iterator[DeflatePiece], level: int
    ) -> Iterator[tuple[DeflatePiece, bytearray]]:
        """Pack the pieces; they come out in their order, each with what is to be written of it."""
        ahead: deque[tuple[DeflatePiece, Future[bytearray]]] = deque()
        try:
            for piece in pieces:
                # Whoever holds pieces gives one back before it waits for room.
                while not self._room.acquire(blocking=not ahead):
                    yield self._first(ahead)
                ahead.append((piece, self._workers.submit(self._packed, piece, level)))
            while ahead:
                yield self._first(ahead)
        finally:
            for _, future in ahead:
                future.cancel()
                self._room.release()

    def _first(
        self, ahead: deque[tuple[DeflatePiece, Future[bytearray]]]
    ) -> tuple[DeflatePiece, bytearray]:
        packed = ahead[0][1].result()
        piece, _ = ahead.popleft()
        self._room.release()
        return piece, packed

    def _packed(self, piece: DeflatePiece, level: int) -> bytearray:
        stream = deflate.deflate_compress(piece.content, level)
        return stream if piece.is_last else without_final_block(stream, piece.content, self._turn)


PACK_LEVEL = 6
"""Of libdeflate; 7 saves another half per cent and takes a third longer."""

EARLIEST_ZIP_TIME = (1980, 1, 1, 0, 0, 0)
"""The time of members that no archive had before."""

_NAME_SIZES = struct.Struct("<HH")
_NAME_SIZES_AT, _LOCAL_SIZE = 26, 30
_SIZES_FOLLOW = 0x8
_UNIX = 3
_ZIP64_MARGIN = 1.05
"""What doesn't pack may come out larger than it went in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedContent:
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


def pack(content: bytes) -> PackedContent:
    """Pack some bytes."""
    return _packed(HashingReader(content, where="the content"))


def pack_file(path: Path) -> PackedContent:
    """Pack a file; only pieces of it are held in memory.

    Raises:
        InputError: it can't be read, or changes meanwhile.
    """
    return _packed(HashingReader(path, where=f"{path}"))


def _packed(intake: HashingReader) -> PackedContent:
    stream = bytearray()
    with contextlib.closing(ParallelDeflater()) as press:
        for _, content in press.packed(intake.pieces(0), PACK_LEVEL):
            stream += content
    return PackedContent(content=stream, size=intake.size, crc=intake.crc, digest=intake.digest)


class HashingReader:
    """A content that is read once, from its beginning to its end, and counted on the way.

    Attributes:
        size: bytes, as declared before it was read.
        crc: of what has been read.

    Raises:
        InputError: the file can't be read.
    """

    def __init__(self, content: bytes | Path, *, where: str) -> None:
        self._content, self._where = content, where
        self.size = _size(content)
        self.crc = 0
        self._digest = hashlib.sha256()

    @property
    def digest(self) -> bytes:
        """The SHA-256 of what has been read."""
        return self._digest.digest()

    def pieces(self, owner: int) -> Iterator[DeflatePiece]:
        """Read it; there is one piece at least.

        Raises:
            InputError: it can't be read, or is longer or shorter than it was.
        """
        with self._opened() as file:
            for start in range(0, max(self.size, 1), PIECE_BYTES):
                block = file.read(min(PIECE_BYTES, self.size - start))
                self.crc = deflate.crc32(block, self.crc)
                self._digest.update(block)
                is_last = start + len(block) == self.size
                if file.read(1) if is_last else len(block) < PIECE_BYTES:
                    raise InputError(f"{self._where} changed while it was packed")
                yield DeflatePiece(owner=owner, content=block, is_last=is_last)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        if isinstance(self._content, bytes):
            yield io.BytesIO(self._content)
        else:
            with input_errors(self._content), self._content.open("rb") as file:
                yield file


def _size(content: bytes | Path) -> int:
    if isinstance(content, bytes):
        return len(content)
    with input_errors(content):
        return content.stat().st_size


class ArchiveWriter:
    """A new zip file, member by member; `close` writes its directory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._members: list[zipfile.ZipInfo] = []
        self._needs_zip64 = False

    def copy(self, archive: Archive, old: str, new: str) -> None:
        """Copy a member's packed bytes as they are.

        Raises:
            WheelError: the archive ends before they do.
            InputError: it can't be read.
        """
        info = _renamed(archive.members[old], new)
        info.compress_size = archive.members[old].compress_size
        with input_errors(archive.path), archive.path.open("rb") as source:
            self._begin(info)
            for block in read_packed_blocks(source, archive.members[old]):
                self._file.write(block)

    def replace(self, archive: Archive, old: str, new: str, content: PackedContent) -> None:
        """Write another content with a member's time and mode."""
        self._write(_renamed(archive.members[old], new), content)

    def add(self, name: str, content: PackedContent) -> None:
        """Write a file that was in no archive."""
        info = zipfile.ZipInfo(name, EARLIEST_ZIP_TIME)
        info.create_system = _UNIX
        info.external_attr = (stat.S_IFREG | 0o644) << 16
        self._write(info, content)

    def begin(self, info: zipfile.ZipInfo) -> None:
        """Start a member that comes in parts; its ``file_size`` is known, the rest is not."""
        self._needs_zip64 = info.file_size * _ZIP64_MARGIN > zipfile.ZIP64_LIMIT
        self._begin(info, zip64=self._needs_zip64)

    def extend(self, content: bytes | bytearray) -> None:
        """Write a part, packed."""
        self._members[-1].compress_size += len(content)
        self._file.write(content)

    def end(self, crc: int) -> None:
        """Finish the member: its header can be written now."""
        info = self._members[-1]
        info.CRC = crc
        end = self._file.tell()
        self._file.seek(info.header_offset)
        self._file.write(info.FileHeader(zip64=self._needs_zip64))
        self._file.seek(end)

    def close(self) -> None:
        """Write the directory."""
        with zipfile.ZipFile(self._file, "w") as directory:
            directory.filelist = self._members

    def _write(self, info: zipfile.ZipInfo, content: PackedContent) -> None:
        info.compress_type = zipfile.ZIP_DEFLATED
        info.compress_size, info.file_size = len(content.content), content.size
        info.CRC = content.crc
        self._begin(info)
        self._file.write(content.content)

    def _begin(self, info: zipfile.ZipInfo, *, zip64: bool | None = None) -> None:
        info.header_offset = self._file.tell()
        self._file.write(info.FileHeader(zip64=zip64))
        self._members.append(info)


def _renamed(info: zipfile.ZipInfo, name: str) -> zipfile.ZipInfo:
    """A member's header without what belongs to its old place."""
    new = copy(info)
    new.filename = new.orig_filename = name
    new.extra = new.comment = b""
    new.flag_bits &= ~_SIZES_FOLLOW
    return new


def read_packed_blocks(source: BinaryIO, info: zipfile.ZipInfo) -> Iterator[bytes]:
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
        block = source.read(min(BLOCK, left))
        if not block:
            raise WheelError(f"{info.filename} ends before it should")
        left -= len(block)
        yield block
