"""Write zip archives: members packed on all cores, or copied as packed bytes.

In: contents, or members of another archive. Out: an archive of deflated members.

A large member is packed in pieces of fixed size: the bytes don't depend on the number of cores, and
only a few pieces are in memory. libdeflate makes whole streams only, and a member is one stream: so
`without_final_block` takes the end off each piece but the last. Large zstd frames become stored
blocks: deflate takes 20 ms/MB for them and saves 0.04 %.

libdeflate, against zlib at its default level, made the same libraries (106 MB to 1 GB) no larger at
four times the speed; zlib-ng and ISA-L were as fast or faster and made them 1 to 3 % and 2 to 11 %
larger. Its output depends only on its release and the level, not on the processor.
"""

from __future__ import annotations

import contextlib
import hashlib
import stat
import threading
import time
import zipfile
from collections import deque
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import deflate

from archsplit.errors import InputError
from archsplit.system.env import ZIP_EPOCH
from archsplit.system.fs import input_errors, read_blocks
from archsplit.system.parallel import ThreadPool
from archsplit.system.resources import available_cores
from archsplit.wheels.final_block import without_final_block
from archsplit.wheels.record import FILE_MODE
from archsplit.wheels.zip_reader import SIZES_FOLLOW, UTF8_NAME, read_packed_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future
    from pathlib import Path
    from typing import BinaryIO

    from archsplit.wheels.zip_reader import Archive

__pure__ = True

PACK_LEVEL = 6
"""Level of libdeflate: 7 saves another 0.5 % and takes a third longer."""

LATEST_ZIP_TIME = 4354819198
"""2107-12-31 23:59:58 UTC, the latest time of a zip member (APPNOTE 4.4.6)."""

_UNIX = 3

PIECE_BYTES = 4 << 20
"""Unpacked bytes. Each piece starts without the content before it, which costs 0.01 %."""

_MAX_PIECES = 24
"""Pieces at a time: a running one takes some 8 MB for device code, a packed one 4 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedContent:
    """Packed content of a member.

    Attributes:
        pieces: a raw deflate stream; never joined, which would be one copy more.
        size: bytes unpacked.
        crc: of the unpacked bytes.
        digest: the SHA-256 of the unpacked bytes.
    """

    pieces: tuple[bytearray, ...] = field(repr=False)
    size: int
    crc: int
    digest: bytes


def pack(
    content: bytes | Path,
    deflater: ParallelDeflater | None = None,
    on_read: Callable[[int], object] | None = None,
) -> PackedContent:
    """Pack bytes or a file; only a file's packed bytes are held in memory.

    Args:
        deflater: shared by contents that are packed at the same time; None makes one.
        on_read: called with the offset up to which the content was read, after each piece.

    Raises:
        InputError: the file can't be read, or changes meanwhile.
    """
    if isinstance(content, bytes):
        return _pack_all(HashingReader(BlockStream([content], size=len(content))), deflater)
    with input_errors(content):
        stream = BlockStream(read_blocks(content), size=content.stat().st_size)
    return _pack_all(HashingReader(stream, name=str(content), on_read=on_read), deflater)


def pack_blocks(
    blocks: Iterable[bytes | memoryview | Dense], size: int, deflater: ParallelDeflater
) -> PackedContent:
    """Pack a content that is made block by block; only the packed bytes are held in memory.

    Args:
        blocks: those in a `Dense` are stored as they are.
        size: of all blocks together.
        deflater: shared by contents that are packed at the same time.
    """
    return _pack_all(HashingReader(BlockStream(blocks, size=size)), deflater)


class Dense(NamedTuple):
    """Bytes that deflate doesn't make smaller, such as a large zstd frame."""

    content: bytes | memoryview


class BlockStream:
    """A stream of blocks of any size, read in blocks of other sizes.

    Attributes:
        is_dense: True if the bytes that were read last are from `Dense` blocks.
    """

    def __init__(self, blocks: Iterable[bytes | memoryview | Dense], *, size: int) -> None:
        self.size, self.is_dense = size, False
        self._blocks = iter(blocks)
        self._rest, self._is_rest_dense = memoryview(b""), False

    def read(self, size: int) -> bytes:
        """Return the next bytes, fewer at the end and before bytes of the other kind."""
        parts: list[memoryview] = []
        while size:
            if not self._rest:
                block = next(self._blocks, None)
                if block is None:
                    break
                self._is_rest_dense = isinstance(block, Dense)
                self._rest = memoryview(block.content if isinstance(block, Dense) else block)
            if any(parts) and self.is_dense != self._is_rest_dense:
                break
            self.is_dense = self._is_rest_dense
            parts.append(self._rest[:size])
            self._rest = self._rest[size:]
            size -= len(parts[-1])
        return b"".join(parts)


def _pack_all(reader: HashingReader, shared: ParallelDeflater | None = None) -> PackedContent:
    with contextlib.ExitStack() as stack:
        deflater = shared or stack.enter_context(contextlib.closing(ParallelDeflater()))
        # The digest is complete when the last piece was read, before the last is packed.
        packed = tuple(deflater.pack(reader.pieces()))
    return PackedContent(pieces=packed, size=reader.size, crc=reader.crc, digest=reader.digest)


class HashingReader:
    """A content that is read once, and hashed on the way.

    Attributes:
        size: bytes, before reading.
        crc: of the bytes read so far.

    Raises:
        InputError: the file can't be read.
    """

    def __init__(
        self,
        content: BlockStream,
        *,
        name: str = "the content",
        on_read: Callable[[int], object] | None = None,
    ) -> None:
        self._content, self._name, self._on_read = content, name, on_read
        self.size, self.crc = content.size, 0
        self._digest = hashlib.sha256()

    @property
    def digest(self) -> bytes:
        """SHA-256 of the bytes read so far."""
        return self._digest.digest()

    def pieces(self) -> Iterator[DeflatePiece]:
        """Yield the content in pieces; an empty content is one empty piece.

        Raises:
            InputError: the file can't be read, or its size changed.
        """
        end, is_last = 0, False
        while not is_last:
            block = self._content.read(min(PIECE_BYTES, self.size - end))
            is_dense = self._content.is_dense
            self.crc = deflate.crc32(block, self.crc)
            self._digest.update(block)
            end += len(block)
            is_last = end == self.size
            # A file that grew or shrank would not fit its size in RECORD.
            if self._content.read(1) if is_last else not block:
                raise InputError(f"{self._name} changed while it was packed")
            if self._on_read is not None:
                self._on_read(end)
            yield DeflatePiece(content=block, is_last=is_last, is_dense=is_dense)


class ArchiveWriter:
    """A new zip file, written member by member; `close` writes the directory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._members: list[zipfile.ZipInfo] = []

    def copy(self, archive: Archive, old: str, new: str) -> None:
        """Copy the packed bytes of a member.

        Raises:
            WheelError: the archive ends too early.
            InputError: the archive can't be read.
        """
        info = _copy_header(archive.members[old], new)
        info.compress_size = archive.members[old].compress_size
        self._begin(info)
        # CRC and sizes come from the old directory: the bytes are the same.
        for block in _packed_blocks(archive, old):
            self._file.write(block)

    def replace(self, archive: Archive, old: str, new: str, content: PackedContent) -> None:
        """Write another content, with the time and mode of an old member."""
        self._write(_copy_header(archive.members[old], new), content)

    def add(
        self, name: str, content: PackedContent, *, mode: int = FILE_MODE, epoch: int = ZIP_EPOCH
    ) -> None:
        """Write a new member.

        Args:
            epoch: its time in seconds since 1970, brought into a zip's range.
        """
        moment = time.gmtime(min(max(epoch, ZIP_EPOCH), LATEST_ZIP_TIME))
        info = zipfile.ZipInfo(name, moment[:6])
        # Fixed, because the value decides how installers read the mode.
        info.create_system = _UNIX
        # Without a file type, some tools unpack files without any permission.
        info.external_attr = (stat.S_IFREG | mode) << 16
        self._write(info, content)

    def close(self) -> None:
        """Write the directory."""
        with zipfile.ZipFile(self._file, "w") as directory:
            # zipfile writes the directory for all of them, zip64 records included.
            directory.filelist = self._members

    def _write(self, info: zipfile.ZipInfo, content: PackedContent) -> None:
        info.compress_type = zipfile.ZIP_DEFLATED
        info.compress_size, info.file_size = sum(map(len, content.pieces)), content.size
        info.CRC = content.crc
        self._begin(info)
        for piece in content.pieces:
            self._file.write(piece)

    def _begin(self, info: zipfile.ZipInfo) -> None:
        # By itself, zipfile writes other names as UTF-8 before Python 3.14, and in code page 437
        # since then, where that has the characters.
        info.flag_bits &= ~UTF8_NAME
        if not info.filename.isascii():
            info.flag_bits |= UTF8_NAME
        info.header_offset = self._file.tell()
        self._file.write(info.FileHeader())
        self._members.append(info)


def _copy_header(info: zipfile.ZipInfo, name: str) -> zipfile.ZipInfo:
    """Copy the header of a member, without the fields of its old archive."""
    new = copy(info)
    new.filename = new.orig_filename = name
    new.extra = new.comment = b""
    # The new header has the sizes, whatever the old writer knew when it began.
    new.flag_bits &= ~SIZES_FOLLOW
    return new


def _packed_blocks(archive: Archive, name: str) -> Iterator[bytes]:
    # Without the writes: an error of the new archive's disk is not the old archive's.
    with input_errors(archive.path), archive.path.open("rb") as source:
        yield from read_packed_blocks(source, archive.members[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class DeflatePiece:
    """A part of a member's content.

    Attributes:
        is_last: True for the end of the member.
        is_dense: True for bytes that deflate doesn't make smaller.
    """

    content: bytes = field(repr=False)
    is_last: bool
    is_dense: bool = False


class ParallelDeflater:
    """Threads that pack pieces, for several archives at a time.

    Each archive is written from a thread of its own.

    Args:
        threads: pieces packed at a time; None for one on each core.
        level: of libdeflate; 10 saves 3.5 % of a library and takes ten times as long as 6.
    """

    def __init__(self, threads: int | None = None, *, level: int = PACK_LEVEL) -> None:
        self._level = level
        # A third of the pieces waits for those before them, so that no thread waits.
        count = min(threads or available_cores(), max(1, _MAX_PIECES * 2 // 3))
        self._workers = ThreadPool(count)
        self._slots = threading.BoundedSemaphore(min(count + max(2, count // 2), _MAX_PIECES))

    def close(self) -> None:
        """Wait for running threads, and drop waiting pieces."""
        self._workers.shutdown(cancel_futures=True)

    def pack(self, pieces: Iterator[DeflatePiece]) -> Iterator[bytearray]:
        """Yield the packed bytes of pieces, in their order."""
        queue: deque[Future[bytearray]] = deque()
        try:
            for piece in pieces:
                # Waiting with pieces in the queue would be a deadlock of two archives.
                while not self._slots.acquire(blocking=not queue):
                    yield self._pop(queue)
                try:
                    queue.append(self._workers.submit(_deflate, piece, self._level))
                except RuntimeError:
                    # Closed after an error elsewhere: another archive may wait for the slot.
                    self._slots.release()
                    raise
            while queue:
                yield self._pop(queue)
        finally:
            for future in queue:
                future.cancel()
                self._slots.release()

    def _pop(self, queue: deque[Future[bytearray]]) -> bytearray:
        # A failed piece stays in the queue, where the cleanup releases its slot.
        packed = queue[0].result()
        queue.popleft()
        self._slots.release()
        return packed


def _deflate(piece: DeflatePiece, level: int) -> bytearray:
    # libdeflate has no state between calls, so the result doesn't depend on the thread.
    stream = deflate.deflate_compress(piece.content, 0 if piece.is_dense else level)
    return stream if piece.is_last else without_final_block(stream, piece.content)
