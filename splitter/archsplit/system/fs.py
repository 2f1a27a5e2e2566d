"""Touch the file system: whole files or nothing, and errors that say which file.

An output that exists and is no regular file (a device, a FIFO, a link) is written to. It is never
replaced or removed: `put_file` has the rule for every verb.

Put finished files where they belong: all of them, or none.

Folders of the user's that outlive a run.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import hashlib
import io
import os
import shutil
import signal
import stat
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from archsplit.errors import DiskFullError, InputError, OutputError
from archsplit.system.file_lock import lock, try_lock
from archsplit.system.signals import STOP_SIGNALS
from archsplit.system.units import BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import BinaryIO

_PRIVATE = ".archsplit-"
_NEW_SECONDS = 60.0


class SupportsRead(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes; none at the end."""
        ...


@contextlib.contextmanager
def output_errors(path: Path) -> Iterator[None]:
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
def atomic_replace(path: Path, *, mode: int = 0o644) -> Iterator[Path]:
    """Give a temporary path beside ``path``; on success it becomes ``path``, else it is removed.

    See `put_file` for a ``path`` that is no regular file.

    Raises:
        OutputError: see `output_errors`.
    """
    import tempfile  # noqa: PLC0415 - with `random`, 4 ms of the 50 that a hit in the cache may take

    with output_errors(path):
        # Beside a device there may be no room for a file.
        beside = path.parent if is_replaceable(path) else None
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=beside)
        os.close(descriptor)
        temporary = Path(name)
        try:
            yield temporary
            temporary.chmod(mode)
            put_file(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_file(path: Path, content: bytes | str) -> None:
    """Write a whole file, or nothing.

    Raises:
        OutputError: see `output_errors`.
    """
    with atomic_replace(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def is_replaceable(path: Path) -> bool:
    """Tell whether an output may be replaced: it is a regular file, or nothing is there."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        # Whoever writes the file meets the same error, and says it.
        return True


def put_file(finished: Path, path: Path) -> None:
    """Make a finished file an output: replace a regular file, write to everything else.

    Devices and FIFOs take the content. A symbolic link stays, and what the link leads to is
    written. The finished file may be left behind.

    Raises:
        OSError: the output can't be written.
    """
    if not is_replaceable(path):
        with finished.open("rb") as content:
            _write_to(path, content, mode=stat.S_IMODE(os.fstat(content.fileno()).st_mode))
        return
    try:
        finished.replace(path)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with atomic_replace(path, mode=stat.S_IMODE(finished.stat().st_mode)) as beside:
            shutil.copyfile(finished, beside)


def overwrite_file(path: Path, content: bytes) -> None:
    """Write a file as compilers do: another name of the old file keeps the old content.

    See `put_file` for a ``path`` that is no regular file.

    Raises:
        OSError: the file can't be written.
    """
    if is_replaceable(path):
        path.unlink(missing_ok=True)
        path.write_bytes(content)
    else:
        _write_to(path, io.BytesIO(content))


def _write_to(path: Path, content: IO[bytes], *, mode: int | None = None) -> None:
    with os.fdopen(_opened(path), "wb") as file:
        shutil.copyfileobj(content, file, BLOCK)
        if mode is not None and stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            # Another user's file keeps its mode.
            with contextlib.suppress(OSError):
                os.fchmod(file.fileno(), mode)


def _opened(path: Path) -> int:
    """Open an output; the standard streams keep their positions in a file."""
    for own in (1, 2):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(own), path.stat()):
                return os.dup(own)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)


def store_file(path: Path, content: bytes) -> None:
    """Write a file of the program's own, whole or not at all; its folder is made.

    For caches, where another process may write the same: the last one wins. What a person has
    named is written by `atomic_replace`.

    Raises:
        OSError: the system refused; nothing is left of the file.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


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
def output_dir(path: Path) -> Iterator[Path]:
    """Give a folder where files can be written, absolute; made, and unmade again on failure.

    Raises:
        OutputError: it can't be made, is not a folder, or no file can be made in it.
    """
    import tempfile  # noqa: PLC0415 - see `atomic_replace`

    path = path.absolute()
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        with output_errors(path):
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
def temporary_dir(parent: Path | None = None) -> Iterator[Path]:
    """Give an empty folder that only this user can enter; it is gone afterwards, whatever happens.

    After a kill nobody can remove it, so whoever comes next to the same parent does.

    Args:
        parent: where to make it; the system's temporary folder when None.

    Raises:
        OutputError: it can't be made.
    """
    import tempfile  # noqa: PLC0415 - see `atomic_replace`

    place = parent or Path(tempfile.gettempdir())
    _sweep(place)
    while True:
        with output_errors(place):
            folder = Path(tempfile.mkdtemp(prefix=_PRIVATE, dir=place)).resolve()
        with _locked(folder) as lock:
            # One that a sweeper has just met belongs to the sweeper.
            if lock is not _Lock.TAKEN:
                try:
                    yield folder
                    return
                finally:
                    shutil.rmtree(folder, ignore_errors=True)


class _Lock(enum.Enum):
    """The state of a folder's lock."""

    OURS = enum.auto()
    TAKEN = enum.auto()
    UNKNOWN = enum.auto()


@contextlib.contextmanager
def stable_dir(subject: str) -> Iterator[Path]:
    """Give a private folder whose name depends on the subject alone.

    Results that name the folder are the same the next time. Another process with the same subject
    waits until the folder is gone. Where that can't be, the folder is one of `temporary_dir`.

    Raises:
        OutputError: it can't be made.
    """
    import tempfile  # noqa: PLC0415 - see `atomic_replace`

    # As long as the names of others: some results are known by the length of the path.
    name = _PRIVATE + hashlib.sha256(subject.encode(errors="surrogateescape")).hexdigest()[:8]
    folder = Path(tempfile.gettempdir()).resolve() / name
    descriptor = _own(folder)
    if descriptor is None:
        with temporary_dir() as other:
            yield other
        return
    try:
        # What a killed process has left.
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _own(folder: Path) -> int | None:
    """Make a folder, lock it, and return the descriptor of the lock; None where that fails."""
    while True:
        descriptor = -1
        try:
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            status = os.fstat(descriptor)
            if status.st_uid == os.getuid() and not status.st_mode & 0o077:
                lock(descriptor)
                # Whoever had the lock has removed the folder with it.
                if folder.exists() and os.path.samestat(folder.lstat(), status):
                    return descriptor
                os.close(descriptor)
                continue
        except FileNotFoundError:
            if not folder.parent.is_dir():
                return None
            continue
        except OSError:
            pass
        if descriptor >= 0:
            os.close(descriptor)
        return None


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[_Lock]:
    """Say that a folder is in use, for as long as this process lives, if nobody else does.

    A folder that is gone was taken by a sweeper; some file systems (some NFS) know no locks.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        yield _Lock.TAKEN
        return
    try:
        yield _lock(descriptor, folder)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> _Lock:
    try:
        if not try_lock(descriptor):
            return _Lock.TAKEN
    except OSError:
        return _Lock.UNKNOWN
    return _Lock.OURS if folder.exists() else _Lock.TAKEN


def _sweep(place: Path) -> None:
    """Remove private folders of processes that were killed: nobody holds them any more."""
    for folder in place.glob(f"{_PRIVATE}*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            # A new one may not be locked yet, and another user's is none of our business.
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < _NEW_SECONDS:
                continue
            with _locked(folder) as lock:
                if lock is _Lock.OURS:
                    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def input_errors(path: Path) -> Iterator[None]:
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
        InputError: see `input_errors`.
    """
    with input_errors(path):
        return path.read_bytes()


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content, as 64 hexadecimal digits.

    Raises:
        InputError: see `input_errors`.
    """
    with input_errors(path), path.open("rb") as file:
        return hash_stream(file)[0].hex()


def blocks(stream: SupportsRead) -> Iterator[bytes]:
    """Read a stream to its end, block by block."""
    while block := stream.read(BLOCK):
        yield block


def hash_stream(stream: SupportsRead) -> tuple[bytes, int]:
    """Read a stream to its end; return the SHA-256 and the number of bytes."""
    return hash_blocks(blocks(stream))


def hash_blocks(
    content: Iterable[bytes | memoryview],
    *,
    copy_to: BinaryIO | None = None,
    algorithm: str = "sha256",
) -> tuple[bytes, int]:
    """Return the digest and the size of a content, and write it to ``copy_to`` on the way."""
    # An index may give MD5 alone, which FIPS builds refuse for security.
    digest, size = hashlib.new(algorithm, usedforsecurity=False), 0
    for block in content:
        digest.update(block)
        size += len(block)
        if copy_to is not None:
            copy_to.write(block)
    return digest.digest(), size


def check_targets(folder: Path, names: Sequence[str]) -> None:
    """Refuse names under which something lies that a file can't replace.

    Raises:
        OutputError: names what is in the way.
    """
    for name in names:
        if (folder / name).is_dir():
            raise OutputError(
                f"can't write {folder / name}: a folder of that name is in the way",
                hint="remove it, or choose another folder with --out",
            )


def copy_into(source: Path, folder: Path) -> Path:
    """Copy a file into a folder, which is made, and return the copy's path.

    Raises:
        OutputError: it can't be written, or would be the file itself.
        InputError: the file can't be read.
    """
    target = folder / source.name
    if target.exists() and target.samefile(source):
        raise OutputError(f"{target} is the input", hint="choose another folder with --out")
    check_targets(folder, (source.name,))
    with output_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with (
        atomic_replace(target) as new,
        input_errors(source),
        source.open("rb") as old,
        new.open("wb") as file,
    ):
        shutil.copyfileobj(old, file)
    return target


def replace_all(names: Sequence[str], *, source: Path, target: Path) -> None:
    """Move files to ``target``, replacing what is there; on failure all is as it was.

    Both folders must be on one file system. Ctrl-C waits until it is done. What is there and no
    regular file is written to, after all others are moved: that can't be undone.

    Raises:
        OutputError: one of them can't be moved.
    """
    check_targets(target, names)
    moved: list[str] = []
    names = sorted(names, key=lambda name: not is_replaceable(target / name))
    with _undisturbed():
        try:
            for name in names:
                with output_errors(target / name):
                    _set_aside(name, source=source, target=target)
                    put_file(source / name, target / name)
                moved.append(name)
        except BaseException:
            for name in names[: len(moved) + 1]:
                _put_back(name, source=source, target=target, moved=name in moved)
            raise


def _set_aside(name: str, *, source: Path, target: Path) -> None:
    if (target / name).exists() and is_replaceable(target / name):
        (target / name).replace(source / f"{name}.before")


def _put_back(name: str, *, source: Path, target: Path, moved: bool) -> None:
    with contextlib.suppress(OSError):
        if moved and is_replaceable(target / name):
            (target / name).unlink()
        if (source / f"{name}.before").exists():
            (source / f"{name}.before").replace(target / name)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold back signals that end a program; they come when it is over."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where what may get lost is kept; not made here.

    ``ARCHSPLIT_CACHE_DIR`` names it, or it is where the XDG Base Directory Specification puts it,
    which has relative paths ignored.
    """
    return _folder(environment, "CACHE", ".cache")


def state_folder(environment: Mapping[str, str]) -> Path:
    """Where what should not get lost, and nobody else needs, is kept; not made here.

    ``ARCHSPLIT_STATE_DIR`` names it, or it is where the XDG Base Directory Specification puts it.
    """
    return _folder(environment, "STATE", ".local/state")


def _folder(environment: Mapping[str, str], kind: str, below_home: str) -> Path:
    named = Path(environment.get(f"ARCHSPLIT_{kind}_DIR", ""))
    if named.is_absolute():
        return named
    common = Path(environment.get(f"XDG_{kind}_HOME", ""))
    home = common if common.is_absolute() else Path(environment.get("HOME", "/")) / below_home
    return home / "archsplit"
