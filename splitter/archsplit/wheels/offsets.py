"""Members unpacked with a map from unpacked offsets to bytes of the download.

In: a member of an archive. Out: its content in a temporary file, and `PackedOffsets`: how many
bytes of the download a range of the content takes. So images get their share of a wheel's size.
"""

from __future__ import annotations

import bisect
import contextlib
import struct
import tempfile
import zipfile
import zlib
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from archsplit.errors import WheelError
from archsplit.system.fs import input_errors, output_errors
from archsplit.system.units import BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from zipfile import ZipInfo

    from archsplit.wheels.zip_checks import Archive

__pure__ = True

_STEP = 2048
"""Packed bytes between two exact offsets."""

_NAME_SIZES = struct.Struct("<HH")
_NAME_SIZES_AT, _LOCAL_SIZE = 26, 30
_RAW = -zlib.MAX_WBITS


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedOffsets:
    """A map from offsets in a member's content to offsets in its packed stream.

    Exact at every 2048th packed byte (but for some bits that zlib holds back), interpolated between
    these: the packed size of a range is off by less than 4 KiB, whatever its length, and the sizes
    of ranges that cover the member add up to its packed size. Exact for a stored member.

    Attributes:
        unpacked, packed: the exact offsets, both ascending, from 0 to the two sizes.
    """

    unpacked: array[int] = field(repr=False)
    packed: array[int] = field(repr=False)

    def packed_size(self, start: int, end: int) -> int:
        """Return the packed size of the content from ``start`` up to, not including, ``end``."""
        return self._packed_offset(end) - self._packed_offset(start)

    def _packed_offset(self, offset: int) -> int:
        # The end of the content gets the end of the stream, whatever zlib held back.
        if offset >= self.unpacked[-1]:
            return self.packed[-1]
        after = bisect.bisect_right(self.unpacked, offset)
        low, high = self.unpacked[after - 1 : after + 1]
        start, end = self.packed[after - 1 : after + 1]
        # Linear between two exact points; integers, so that neighboring ranges add up.
        return start + (offset - low) * (end - start) // (high - low)


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
        checksum = zlib.crc32(piece, checksum)
        if len(block) >= BLOCK:
            yield bytes(block)
            block.clear()
    # Bytes after the end of the stream are downloaded too.
    offsets.packed[-1] = info.compress_size
    yield bytes(block)
    if (size, checksum) != (info.file_size, info.CRC):
        raise WheelError(
            f"{archive.path}: {info.filename} doesn't match the size or checksum in the archive"
        )


def _inflate_pieces(archive: Archive, info: ZipInfo) -> Iterator[tuple[bytes, int]]:
    """Yield pieces of the content, each with the packed offset of its end."""
    inflate = zlib.decompressobj(_RAW)
    is_stored = info.compress_type == zipfile.ZIP_STORED
    with input_errors(archive.path), archive.path.open("rb") as file:
        # The checks of `open_archive` have compared this header with the directory.
        file.seek(info.header_offset + _NAME_SIZES_AT)
        sizes = _NAME_SIZES.unpack(file.read(_NAME_SIZES.size))
        file.seek(info.header_offset + _LOCAL_SIZE + sum(sizes))
        for position in range(0, info.compress_size, _STEP):
            packed = file.read(min(_STEP, info.compress_size - position))
            try:
                piece = packed if is_stored else inflate.decompress(packed)
            except zlib.error as error:
                where = f"{archive.path}: {info.filename}"
                raise WheelError(f"{where} is damaged: {error}") from error
            yield piece, position + len(packed)
