"""Files that are written whole: outputs, and files of a cache.

What is at the path already decides. Outputs: a regular file is replaced. A device, a FIFO or a link
that a user names as an output is written to, never replaced or removed. Files of a cache:
everything but a regular file, or a link to one, is damage. It is never opened, because a FIFO would
block, and it is replaced.

A module of its own, because each hit of the compiler wrapper reads a cache and writes outputs: it
imports little.
"""

from __future__ import annotations

import os
import stat
import sys

from archsplit.system.temporary_files import TemporaryFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO

# As `archsplit.system.units.BLOCK`, whose module imports `re`.
_BLOCK = 1 << 20


class IrregularFileError(OSError):
    """A folder, FIFO, socket or device has the path of a cache's file."""


def read_stored_file(path: Path | str) -> tuple[bytes, os.stat_result]:
    """Return content and status of a cache's file.

    Raises:
        IrregularFileError: the path isn't a regular file.
        OSError: the file is missing or can't be read.
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise IrregularFileError(f"{path} is not a regular file")
    with open(path, "rb", buffering=0) as file:
        return file.read(), status


def store_file(path: Path | str, content: bytes) -> None:
    """Write a cache's file, whole or not at all, and make its folder.

    Several processes may write the same file: the last one wins. Outputs that a user has named are
    written by `atomic_replace`.

    Raises:
        OSError: the file can't be written; nothing is left of it.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    remove_irregular(path)
    _replace_file(path, content)


def _replace_file(path: Path | str, content: bytes | memoryview) -> None:
    # Beside the output, and not below its name, which may have 255 bytes.
    with TemporaryFile(os.path.dirname(path), 0o666) as new:
        with open(new.descriptor, "wb", buffering=0, closefd=False) as file:
            _write_all(file, content)
        os.replace(new.path, path)


def remove_irregular(path: Path | str) -> None:
    """Remove anything irregular at the path of a cache file; no folder with files.

    Raises:
        OSError: it can't be removed: a folder with files is not a cache's.
    """
    if is_replaceable(path):
        return
    if os.path.isdir(path) and not os.path.islink(path):
        found = list(os.walk(path, topdown=False))
        if any(files for _, _, files in found):
            raise IrregularFileError(f"{path} is a folder with files: it is not empty")
        for folder, _, _ in found:
            os.rmdir(folder)
    else:
        os.unlink(path)


def is_replaceable(path: Path | str) -> bool:
    """Return True if an output may be replaced: a regular file, or nothing yet."""
    try:
        # lstat: a link is written through, so that it stays a link.
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        # The caller's write fails with the same error, and reports it.
        return True


def overwrite_file(path: Path | str, content: bytes | memoryview) -> None:
    """Write an output whole or not at all; other hard links keep the old content.

    See `is_replaceable` for a ``path`` that is not a regular file.

    Raises:
        OSError: the file can't be written.
    """
    if is_replaceable(path):
        # Compilers remove an old output first, and one that is killed then leaves none.
        _replace_file(path, content)
        return
    with open(_open_output(path), "wb", buffering=0) as file:
        _write_all(file, content)


def write_in_place(path: Path | str, content: IO[bytes], *, mode: int | None = None) -> None:
    """Write to an output that exists and may not be replaced.

    Args:
        mode: permissions for a regular file behind a link; None to leave them.

    Raises:
        OSError: the file can't be written.
    """
    with open(_open_output(path), "wb", buffering=0) as file:
        while block := content.read(_BLOCK):
            _write_all(file, block)
        if mode is not None and stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            try:
                os.fchmod(file.fileno(), mode)
            except OSError:
                # Only its owner may change a file's mode, so another user's file keeps its own.
                pass


def append_to_file(path: Path, content: bytes) -> None:
    """Append to a regular file, whose owner and permissions stay.

    Raises:
        OSError: the content can't be written; the file is as it was.
    """
    size = os.stat(path).st_size
    try:
        with open(path, "ab", buffering=0) as file:
            _write_all(file, content)
    except OSError:
        os.truncate(path, size)
        raise


def _write_all(file: IO[bytes], content: bytes | memoryview) -> None:
    # A pipe or a terminal may take a part of a block.
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def _open_output(path: Path | str) -> int:
    """Open an output; the standard streams keep their positions in a file."""
    for standard in (1, 2):
        # Opening /dev/stdout anew would truncate a redirection's file.
        if _is_stream(path, standard):
            return os.dup(standard)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)


def _is_stream(path: Path | str, standard: int) -> bool:
    try:
        return os.path.samestat(os.fstat(standard), os.stat(path))
    except OSError:
        # The stream is closed, or there is nothing at the path yet.
        return False


def open_streams() -> None:
    """Open closed standard streams (``>&-``), so that no output file gets their numbers."""
    for number in range(3):
        if not _is_open(number):
            os.open(os.devnull, os.O_RDWR)
    # Python has None for a stream that was closed when it started.
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - as long as the process
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - the same


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
