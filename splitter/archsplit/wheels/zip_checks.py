"""Open a zip file as if somebody hostile had made it: every oddity is a finding, and one exception.

The standard library reads the archive. It trusts the sizes that the archive declares, takes the
last of two members with one name, and doesn't compare a member's own header with the directory; two
installers could then unpack one wheel into different files. Those checks are made here.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import hashlib
import io
import struct
import zipfile
import zlib
from typing import IO, TYPE_CHECKING, BinaryIO

from archsplit.errors import InputError, WheelError
from archsplit.system.fs import input_errors
from archsplit.system.units import BLOCK
from archsplit.wheels.oddities import zip_faults

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from _typeshed import WriteableBuffer

    from archsplit.wheels.record import RecordRow

__pure__ = True

"""Bytes that are read at once."""

_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    OverflowError,
    ValueError,
)
"""What zipfile raises over damaged input."""


class Archive:
    """An open zip file without oddities; use `open_archive`.

    Attributes:
        path: the file.
        members: its files, by name, in the directory's order; empty folders are left out.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        with _understanding(f"{path}"):
            self._zip = zipfile.ZipFile(file)
            findings = zip_faults(self._zip, file)
        if findings:
            raise refusal(path, findings)
        self.members = {i.filename: i for i in self._zip.infolist() if not i.is_dir()}

    @contextlib.contextmanager
    def open(self, entry: RecordRow) -> Iterator[BinaryIO]:
        """Give the member that ``entry`` describes as a sequential stream.

        Raises:
            WheelError: there is no such member, or it is damaged. While it is read: it is damaged,
                longer or shorter than declared, or (where ``entry`` has a hash) something else.
        """
        if entry.path not in self.members:
            raise WheelError(f"{self.path}: {entry.path} is missing")
        # zipfile stops at the declared size, and wouldn't say that there is more; so it is told
        # of a size that is one byte larger, and the stream sees that byte.
        info = copy.copy(self.members[entry.path])
        declared, info.file_size = info.file_size, info.file_size + 1
        where = f"{self.path}: {entry.path}"
        with _understanding(where):
            content = self._zip.open(info)
        with content, io.BufferedReader(_Checked(content, where, entry, declared), BLOCK) as stream:
            yield stream


@contextlib.contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """Open a zip file and check all of it but the members' contents.

    Raises:
        InputError: the file is missing or can't be read.
        WheelError: it is no zip file, or not a sound one; the message lists every finding.
    """
    with input_errors(path):
        file = path.open("rb")
    with file:
        yield Archive(path, file)


def refusal(path: Path, findings: list[str]) -> WheelError:
    """The one error that lists all that is wrong with a wheel, sorted."""
    places = sorted(finding.removeprefix(f"{path}: ") for finding in findings)
    lines = "".join(f"\n  {place}" for place in places)
    return WheelError(f"{path} is not a sound wheel:{lines}")


class _Checked(io.RawIOBase):
    """Passes on what a member holds, and raises where that is not what it should be."""

    def __init__(self, content: IO[bytes], where: str, entry: RecordRow, declared: int) -> None:
        self._content, self._where, self._entry = content, where, entry
        self._left = declared
        self._digest = hashlib.new(entry.algorithm)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        with _understanding(self._where):
            block = self._content.read(len(view))
        view[: len(block)] = block
        self._digest.update(block)
        self._left -= len(block)
        if self._left < 0 or (self._left > 0 and not block):
            raise WheelError(f"{self._where} is not as long as the archive declares")
        if not block and self._entry.digest not in {None, self._digest.digest()}:
            raise WheelError(f"{self._where} is not what RECORD has the hash of")
        return len(block)


@contextlib.contextmanager
def _understanding(where: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise WheelError(f"{where} is damaged: {error}") from error
    except OSError as error:
        if error.errno in {None, errno.EINVAL}:
            raise WheelError(f"{where} is damaged: it points outside of the file") from error
        raise InputError(f"can't read {where}: {error.strerror}") from error
