"""Write zip archives: members packed on all cores, or copied as packed bytes.

In: contents, or members of another archive. Out: an archive of deflated members.

A large member is packed in pieces of fixed size: the bytes don't depend on the number of cores, and
only a few pieces are in memory. libdeflate makes whole streams only, and a member is one stream.
So each piece but the last loses its end, and an empty stored block fills it up to a byte:

    libdeflate   [block][block][LAST block]                 LAST is one bit at an unknown offset
    piece        [block][block][     block][stored, empty]  the bit is cleared, the end is aligned
    member       piece piece piece ... [block][LAST block]  the last piece stays

`without_final_block` finds that bit: while an inflater reads the code tables at the start of a
block, it gives nothing out. Each candidate is verified: with the bit cleared the stream has to
unpack to the same content and to go on. Source of the format: RFC 1951.

libdeflate, against zlib at its default level, made the same libraries (106 MB to 1 GB) no larger at
four times the speed; zlib-ng and ISA-L were as fast or faster and made them 1 to 3 % and 2 to 11 %
larger. Its output depends on its release and the level alone, not on the processor.
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
from archsplit.wheels.zip_reader import UTF8_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import BinaryIO

    from archsplit.wheels.zip_reader import Archive

__pure__ = True

PACK_LEVEL = 6
"""Level of libdeflate: 7 saves another 0.5 % and takes a third longer."""

EARLIEST_ZIP_TIME = (1980, 1, 1, 0, 0, 0)
"""The time of members that come from no archive."""

_NAME_SIZES = struct.Struct("<HH")
_NAME_SIZES_AT, _LOCAL_SIZE = 26, 30
_SIZES_FOLLOW = 0x8
_UNIX = 3
# zipfile uses the same factor: the header's form is chosen before the packed size is known.
_ZIP64_MARGIN = 1.05
"""Incompressible content may grow by less than this factor."""

PIECE_BYTES = 4 << 20
"""Unpacked bytes. Each piece starts without the content before it, which costs 0.01 %."""

_MAX_PIECES = 12
"""Pieces in memory, packed or not: some 8 MB each for device code."""

_RAW = -zlib.MAX_WBITS
_LONGEST_BLOCK = 310_000
"""Unpacked bytes: a block of libdeflate has 300000, the last one up to 5000 more."""
_STEP_SIZES = (48, 8)
"""Packed bytes: code tables take a hundred, or a dozen for monotonous content."""
_HEAD = 600
"""Packed bytes: more than any code tables take."""
_SYMBOLS = 9
"""Packed bytes: more than a symbol with output, and the end of a block."""
_STORED, _STATIC, _DYNAMIC = 0b001, 0b011, 0b101
"""The first three bits of a last block."""
_SHORT = 64
"""Packed bytes: such a short block may have no silent step."""
_LONGEST_STATIC = 4096
"""Packed bytes: a longer block is shorter with code tables of its own."""
_LONGEST_STORED = 0xFFFF
_STORED_HEAD = 5
_TAIL_BLOCK = 1 << 16
_PART = 48 << 8
"""Packed bytes between checkpoints: whole steps; the last block begins near the end."""
_ENDINGS = (b"\0\0\xff\xff", b"\0\0\0\xff\xff")
"""An empty stored block: its three first bits fit into the last byte, or don't."""
_LAST = b"\3\0"
"""An empty last block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedContent:
    """The packed content of a member.

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
    """Pack a content in memory."""
    return _pack_all(HashingReader(content, where="the content"))


def pack_file(path: Path, deflater: ParallelDeflater | None = None) -> PackedContent:
    """Pack a file; only the packed bytes are held in memory.

    Args:
        deflater: shared by files that are packed at the same time; None makes one for this file.

    Raises:
        InputError: the file can't be read, or changes meanwhile.
    """
    return _pack_all(HashingReader(path, where=f"{path}"), deflater)


def _pack_all(reader: HashingReader, shared: ParallelDeflater | None = None) -> PackedContent:
    stream = bytearray()
    with contextlib.ExitStack() as stack:
        deflater = shared or stack.enter_context(contextlib.closing(ParallelDeflater()))
        # The digest is complete when the last piece was read, before the last is packed.
        for _, content in deflater.pack(reader.pieces(0), PACK_LEVEL):
            stream += content
    return PackedContent(content=stream, size=reader.size, crc=reader.crc, digest=reader.digest)


class HashingReader:
    """A content that is read once, and hashed on the way.

    Attributes:
        size: bytes, before reading.
        crc: of the bytes read so far.

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
        """The SHA-256 of the bytes read so far."""
        return self._digest.digest()

    def pieces(self, owner: int) -> Iterator[DeflatePiece]:
        """Yield the content in pieces; an empty content is one empty piece.

        Raises:
            InputError: the file can't be read, or its size changed.
        """
        with self._open() as file:
            for start in range(0, max(self.size, 1), PIECE_BYTES):
                block = file.read(min(PIECE_BYTES, self.size - start))
                self.crc = deflate.crc32(block, self.crc)
                self._digest.update(block)
                is_last = start + len(block) == self.size
                # A file that grew or shrank would not fit its size in RECORD.
                if file.read(1) if is_last else len(block) < PIECE_BYTES:
                    raise InputError(f"{self._where} changed while it was packed")
                yield DeflatePiece(owner=owner, content=block, is_last=is_last)

    @contextlib.contextmanager
    def _open(self) -> Iterator[BinaryIO]:
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
    """A new zip file, written member by member; `close` writes the directory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._members: list[zipfile.ZipInfo] = []
        self._needs_zip64 = False

    def copy(self, archive: Archive, old: str, new: str) -> None:
        """Copy the packed bytes of a member.

        Raises:
            WheelError: the archive ends too early.
            InputError: the archive can't be read.
        """
        info = _copy_header(archive.members[old], new)
        info.compress_size = archive.members[old].compress_size
        with input_errors(archive.path), archive.path.open("rb") as source:
            self._begin(info)
            # CRC and sizes are those of the old directory: the bytes are the same.
            for block in read_packed_blocks(source, archive.members[old]):
                self._file.write(block)

    def replace(self, archive: Archive, old: str, new: str, content: PackedContent) -> None:
        """Write another content, with the time and mode of an old member."""
        self._write(_copy_header(archive.members[old], new), content)

    def add(self, name: str, content: PackedContent) -> None:
        """Write a new member."""
        info = zipfile.ZipInfo(name, EARLIEST_ZIP_TIME)
        info.create_system = _UNIX
        # Without a file type, some tools unpack files without any permission.
        info.external_attr = (stat.S_IFREG | 0o644) << 16
        self._write(info, content)

    def begin(self, info: zipfile.ZipInfo) -> None:
        """Start a member of several parts; of its header only ``file_size`` is used."""
        self._needs_zip64 = info.file_size * _ZIP64_MARGIN > zipfile.ZIP64_LIMIT
        self._begin(info, zip64=self._needs_zip64)

    def extend(self, content: bytes | bytearray) -> None:
        """Write a packed part of the member."""
        self._members[-1].compress_size += len(content)
        self._file.write(content)

    def end(self, crc: int) -> None:
        """Finish the member: write its header with the sizes."""
        info = self._members[-1]
        info.CRC = crc
        end = self._file.tell()
        # The header was written with zeros; now CRC and packed size are known.
        self._file.seek(info.header_offset)
        self._file.write(info.FileHeader(zip64=self._needs_zip64))
        self._file.seek(end)

    def close(self) -> None:
        """Write the directory."""
        with zipfile.ZipFile(self._file, "w") as directory:
            # zipfile writes the directory for all of them, zip64 records included.
            directory.filelist = self._members

    def _write(self, info: zipfile.ZipInfo, content: PackedContent) -> None:
        info.compress_type = zipfile.ZIP_DEFLATED
        info.compress_size, info.file_size = len(content.content), content.size
        info.CRC = content.crc
        self._begin(info)
        self._file.write(content.content)

    def _begin(self, info: zipfile.ZipInfo, *, zip64: bool | None = None) -> None:
        # By itself, zipfile writes other names as UTF-8 before Python 3.14, and in code page 437
        # since then, where that has the characters.
        info.flag_bits &= ~UTF8_NAME
        if not info.filename.isascii():
            info.flag_bits |= UTF8_NAME
        info.header_offset = self._file.tell()
        self._file.write(info.FileHeader(zip64=zip64))
        self._members.append(info)


def _copy_header(info: zipfile.ZipInfo, name: str) -> zipfile.ZipInfo:
    """Copy the header of a member, without the fields of its old archive."""
    new = copy(info)
    new.filename = new.orig_filename = name
    new.extra = new.comment = b""
    # The new header has the sizes, whatever the old writer knew when it began.
    new.flag_bits &= ~_SIZES_FOLLOW
    return new


def read_packed_blocks(source: BinaryIO, info: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield the packed bytes of a member from the open file of its archive.

    Raises:
        WheelError: the file ends too early.
    """
    # The checks of `open_archive` have compared this header with the directory.
    source.seek(info.header_offset + _NAME_SIZES_AT)
    sizes = _NAME_SIZES.unpack(source.read(_NAME_SIZES.size))
    source.seek(info.header_offset + _LOCAL_SIZE + sum(sizes))
    remaining = info.compress_size
    while remaining:
        block = source.read(min(BLOCK, remaining))
        if not block:
            raise WheelError(f"{info.filename} ends too early")
        remaining -= len(block)
        yield block


@dataclass(frozen=True, slots=True, kw_only=True)
class DeflatePiece:
    """A part of a member's content.

    Attributes:
        owner: the number of the member.
        is_last: True for the end of the member.
    """

    owner: int
    content: bytes = field(repr=False)
    is_last: bool


class ParallelDeflater:
    """Threads that pack pieces, for several archives at a time.

    Each archive is written from a thread of its own.

    Args:
        threads: pieces packed at a time; None for one on each core.
    """

    def __init__(self, threads: int | None = None) -> None:
        # More threads would only wait for pieces.
        count = min(threads or available_cores(), _MAX_PIECES)
        self._workers = ThreadPoolExecutor(count)
        self._search_lock = threading.Lock()
        # Two more than threads: while results are written, no thread waits.
        self._slots = threading.BoundedSemaphore(min(count + 2, _MAX_PIECES))

    def close(self) -> None:
        """Wait for running threads, and drop waiting pieces."""
        self._workers.shutdown(cancel_futures=True)

    def pack(
        self, pieces: Iterator[DeflatePiece], level: int
    ) -> Iterator[tuple[DeflatePiece, bytearray]]:
        """Yield the pieces in their order, each with its packed bytes."""
        queue: deque[tuple[DeflatePiece, Future[bytearray]]] = deque()
        try:
            for piece in pieces:
                # Waiting with pieces in the queue would be a deadlock of two archives.
                while not self._slots.acquire(blocking=not queue):
                    yield self._pop(queue)
                queue.append((piece, self._workers.submit(self._deflate, piece, level)))
            while queue:
                yield self._pop(queue)
        finally:
            for _, future in queue:
                future.cancel()
                self._slots.release()

    def _pop(
        self, queue: deque[tuple[DeflatePiece, Future[bytearray]]]
    ) -> tuple[DeflatePiece, bytearray]:
        # A failed piece stays in the queue, where the cleanup releases its slot.
        packed = queue[0][1].result()
        piece, _ = queue.popleft()
        self._slots.release()
        return piece, packed

    def _deflate(self, piece: DeflatePiece, level: int) -> bytearray:
        # libdeflate has no state between calls, so the result doesn't depend on the thread.
        stream = deflate.deflate_compress(piece.content, level)
        return (
            stream
            if piece.is_last
            else without_final_block(stream, piece.content, self._search_lock)
        )


def without_final_block(
    stream: bytearray, content: bytes, search_lock: AbstractContextManager[object] | None = None
) -> bytearray:
    """Return a stream without its final block bit, aligned so that another stream can follow.

    Args:
        stream: raw deflate, made by libdeflate.
        content: the unpacked stream; not empty.
        search_lock: held during the search: thousands of short calls, each of which releases the
            interpreter lock. Several threads at a time would mostly wait for that lock.
    """
    tail = _Tail(stream, content)
    with search_lock or nullcontext():
        for start, end, kind in tail.candidate_ranges():
            if (new := tail.without_end(start, end, kind)) is not None:
                return stream[: len(stream) - len(tail.packed)] + new
    # The last candidate is the whole tail, so the search can't miss.
    raise AssertionError("a deflate stream has a last block")


class _Checkpoint(NamedTuple):
    """An offset in the tail, and an inflater that has read up to it.

    Attributes:
        at: packed bytes of the tail before the checkpoint.
        unpacked: unpacked bytes before the checkpoint.
        inflater: its state; copied before use.
    """

    at: int
    unpacked: int
    inflater: zlib._Decompress


class _Tail:
    """The end of a stream, long enough to contain the start of the last block.

    Attributes:
        packed: the bytes of the tail.
    """

    def __init__(self, stream: bytearray, content: bytes) -> None:
        self._inflater = zlib.decompressobj(_RAW)
        unpacked = at = 0
        while (remaining := len(content) - _LONGEST_BLOCK - unpacked) > 0:
            unpacked += len(self._inflater.decompress(stream[at : at + _TAIL_BLOCK], remaining))
            at = min(at + _TAIL_BLOCK, len(stream)) - len(self._inflater.unconsumed_tail)
        # The last block begins within the last 310,000 unpacked bytes.
        self.packed = bytes(stream[at:])
        self._content = content[unpacked:]
        self._checkpoints = list(self._make_checkpoints())

    def candidate_ranges(self) -> Iterator[tuple[int, int, int]]:
        """Yield ranges for the start of the last block, with its first bits; likely ones first."""
        for step in _STEP_SIZES:
            for at in self._silent_offsets(step):
                # The block begins in the silent step or ends the one before it.
                yield max(0, at - step), at + _SYMBOLS, _DYNAMIC
        size = len(self.packed)
        yield max(0, size - _SHORT), size, _DYNAMIC
        yield from ((start, start + 2, _STORED) for start in self._stored_block_offsets())
        yield max(0, size - _LONGEST_STATIC), size, _STATIC
        yield from ((0, size, kind) for kind in (_DYNAMIC, _STATIC))

    def without_end(self, start: int, end: int, kind: int) -> bytes | None:
        """Return the tail without its end, if the last block begins in the range."""
        # An inflater can't go backwards, so it starts at the last checkpoint before the range.
        nearest = next(one for one in reversed(self._checkpoints) if one.at <= start)
        inflater = nearest.inflater.copy()
        unpacked = nearest.unpacked + len(inflater.decompress(self.packed[nearest.at : start]))
        rest, expected = self.packed[start:], self._content[unpacked:]
        bits, mask = int.from_bytes(rest[: end - start + 1], "little"), kind | 7
        for bit in (bit for bit in range(8 * (end - start)) if bits >> bit & mask == kind):
            head = bytearray(rest[: bit // 8 + _HEAD])
            head[bit // 8] ^= 1 << bit % 8
            # A quick check of the block's first bytes refuses nearly all wrong bits.
            first = _inflate(inflater.copy(), bytes(head))
            if first is None or not expected.startswith(first):
                continue
            # Which one fits depends on the number of bits that the block uses of its last byte.
            for ending in _ENDINGS:
                changed = head + rest[len(head) :] + ending
                if _inflate(inflater.copy(), bytes(changed + _LAST), whole=True) == expected:
                    return self.packed[:start] + changed
        return None

    def _make_checkpoints(self) -> Iterator[_Checkpoint]:
        inflater, unpacked = self._inflater.copy(), 0
        for at in range(0, len(self.packed), _PART):
            yield _Checkpoint(at=at, unpacked=unpacked, inflater=inflater.copy())
            unpacked += len(inflater.decompress(self.packed[at : at + _PART]))

    def _silent_offsets(self, step: int) -> Iterator[int]:
        """Yield the offsets of steps without output, from the end of the stream."""
        for checkpoint in reversed(self._checkpoints):
            inflater = checkpoint.inflater.copy()
            end = min(checkpoint.at + _PART, len(self.packed))
            silent = {
                at
                for at in range(checkpoint.at, end, step)
                if not inflater.decompress(self.packed[at : at + step])
            }
            yield from sorted((at for at in silent if at - step not in silent), reverse=True)
        yield 0

    def _stored_block_offsets(self) -> Iterator[int]:
        """Yield the offsets of stored blocks that would end with the stream, by their length."""
        size = len(self.packed)
        for length in range(1, min(_LONGEST_STORED, size - _STORED_HEAD) + 1):
            head = size - length - 4
            sizes = length.to_bytes(2, "little") + (length ^ 0xFFFF).to_bytes(2, "little")
            if self.packed[head : head + 4] == sizes:
                yield max(0, head - 2)


def _inflate(inflater: zlib._Decompress, packed: bytes, *, whole: bool = False) -> bytes | None:
    try:
        content = inflater.decompress(packed)
    except zlib.error:
        # Most candidates are no blocks at all.
        return None
    is_whole = inflater.eof and not inflater.unused_data
    return content if is_whole or not whole else None
