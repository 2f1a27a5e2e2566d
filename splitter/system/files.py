"""Touch the file system: whole files or nothing, and errors that say which file."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from splitter.errors import DiskFullError, InputError, OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLOCK = 1 << 20
_PRIVATE = ".archsplit-"
_NEW_SECONDS = 60.0


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError while ``path`` is written into an error of ours.

    Raises:
        DiskFullError: no space, or over the quota.
        OutputError: anything else that the system refused.
    """
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise DiskFullError(
                f"no space left while writing {path}", hint="free some space and run it again"
            ) from error
        raise OutputError(
            f"can't write {path}: {error.strerror}", hint="choose another folder"
        ) from error


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = 0o644) -> Iterator[Path]:
    """Give a temporary path beside ``path``; on success it becomes ``path``, else it is removed.

    Raises:
        OutputError: see `writing`.
    """
    import tempfile  # noqa: PLC0415 - with `random`, 4 ms of the 50 that a hit in the cache may take

    with writing(path):
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(descriptor)
        temporary = Path(name)
        try:
            yield temporary
            temporary.chmod(mode)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def write_file(path: Path, content: bytes | str) -> None:
    """Write a whole file, or nothing.

    Raises:
        OutputError: see `writing`.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def write_over(path: Path, content: bytes) -> None:
    """Write a file as compilers do: another name of the old one keeps the old content."""
    if path.is_file():
        path.unlink()
    path.write_bytes(content)


def sync_folder(path: Path) -> None:
    """Put the names in a folder on the disk: after a power cut a synced file may have lost its own.

    Raises:
        OSError: it can't be done; who calls knows what that means to a person.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def output_folder(path: Path) -> Iterator[Path]:
    """Give a folder where files can be written, absolute; made, and unmade again on failure.

    Raises:
        OutputError: it can't be made, is not a folder, or no file can be made in it.
    """
    import tempfile  # noqa: PLC0415 - see `replacing`

    path = path.absolute()
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                pass
        yield path.resolve()
    except BaseException:
        for folder in made:
            # What is not empty has become somebody else's.
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


@contextlib.contextmanager
def private_folder(parent: Path | None = None) -> Iterator[Path]:
    """Give an empty folder that only this user can enter; it is gone afterwards, whatever happens.

    After a kill nobody can remove it, so whoever comes next to the same parent does.

    Args:
        parent: where to make it; the system's temporary folder when None.

    Raises:
        OutputError: it can't be made.
    """
    import tempfile  # noqa: PLC0415 - see `replacing`

    place = parent or Path(tempfile.gettempdir())
    _sweep(place)
    with writing(place):
        folder = Path(tempfile.mkdtemp(prefix=_PRIVATE, dir=place)).resolve()
    try:
        with _locked(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Say that a folder is in use, for as long as this process lives; False where one can't."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        # Somebody else holds it, or the file system (some NFS) knows no locks.
        yield False
    else:
        yield True
    finally:
        os.close(descriptor)


def _sweep(place: Path) -> None:
    """Remove private folders of processes that were killed: nobody holds them any more."""
    for folder in place.glob(f"{_PRIVATE}*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            # A new one may not be locked yet, and another user's is none of our business.
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < _NEW_SECONDS:
                continue
            with _locked(folder) as abandoned:
                if abandoned:
                    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an OSError while ``path`` is read into an error of ours.

    Raises:
        InputError: the file is missing, a folder, or may not be read.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"can't read {path}: {error.strerror}") from error


def read_file(path: Path) -> bytes:
    """Read a whole file.

    Raises:
        InputError: see `reading`.
    """
    with reading(path):
        return path.read_bytes()


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content, as 64 hexadecimal digits.

    Raises:
        InputError: see `reading`.
    """
    digest = hashlib.sha256()
    with reading(path), path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
