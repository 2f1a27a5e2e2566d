"""Unpack one member into a file, fast: for members of hundreds of megabytes.

ISA-L inflates at twice zlib's speed; what is hashed and written is so beside it, on another core.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from isal import isal_zlib
from isal.igzip_lib import IsalError

from archsplit.errors import WheelError
from archsplit.system.fs import input_errors, output_errors
from archsplit.system.units import BLOCK
from archsplit.wheels.zip_writer import packed_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO
    from zipfile import ZipInfo

    from archsplit.wheels.record import RecordRow
    from archsplit.wheels.zip_checks import Archive

__pure__ = True


def unpack(archive: Archive, entry: RecordRow, path: Path) -> None:
    """Write the member that ``entry`` describes to ``path``.

    Raises:
        WheelError: it is damaged, not as long as declared, or not what ``entry`` has the hash of.
        OutputError: ``path`` can't be written.
        InputError: the archive can't be read.
    """
    info = archive.members[entry.path]
    where = f"{archive.path}: {entry.path}"
    with ThreadPoolExecutor(1) as worker, output_errors(path), path.open("wb") as file:
        sink = _Sink(file, entry.algorithm)
        taken = worker.submit(sink.take, b"")
        for block in _inflated(archive, info, where):
            taken.result()
            if sink.size > info.file_size:
                break
            taken = worker.submit(sink.take, block)
        taken.result()
    if (sink.size, sink.crc) != (info.file_size, info.CRC):
        raise WheelError(f"{where} is not what the archive declares")
    if entry.digest not in {None, sink.digest.digest()}:
        raise WheelError(f"{where} is not what RECORD has the hash of")


class _Sink:
    """Takes the content, on another thread than the one that inflates it."""

    def __init__(self, file: BinaryIO, algorithm: str) -> None:
        self._file = file
        self.digest = hashlib.new(algorithm)
        self.size, self.crc = 0, 0

    def take(self, block: bytes) -> None:
        """Write, hash and count a block."""
        self._file.write(block)
        self.digest.update(block)
        self.crc = zlib.crc32(block, self.crc)
        self.size += len(block)


def _inflated(archive: Archive, info: ZipInfo, where: str) -> Iterator[bytes]:
    """The content in blocks of no more than a megabyte, however much a packed one stands for."""
    inflate = isal_zlib.decompressobj(-zlib.MAX_WBITS)
    with input_errors(archive.path), archive.path.open("rb") as file:
        for packed in packed_blocks(file, info):
            if info.compress_type == zipfile.ZIP_STORED:
                yield packed
                continue
            left = packed
            while left and not inflate.eof:
                try:
                    yield inflate.decompress(left, BLOCK)
                except IsalError as error:  # type: ignore[misc] # its stub calls the class an instance
                    raise WheelError(f"{where} is damaged: {error}") from error
                left = inflate.unconsumed_tail
    yield inflate.flush() if info.compress_type != zipfile.ZIP_STORED else b""
