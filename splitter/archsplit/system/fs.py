"""Files and folders: whole outputs or nothing, and errors that name the file.

Every verb writes through this module. The idea is write beside, then rename: a file under its final
name is complete, and several files appear together or not at all. An output that exists and isn't a
regular file (a device, a FIFO, a link) is written to, never replaced or removed: `put_file` has
that rule. A temporary folder has a marker beside it, a file that its process has locked. So a later
process can recognize and remove the folders of killed processes, and removes nothing else. A single
output is also written in such a folder.
`output_errors` and `input_errors` turn an `OSError` into an error of archsplit.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import re
import shutil
import signal
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from archsplit.errors import DiskFullError, InputError, OutputError
from archsplit.system.env import cache_dir
from archsplit.system.file_lock import lock, try_lock
from archsplit.system.outputs import is_replaceable, write_in_place
from archsplit.system.signals import STOP_SIGNALS
from archsplit.system.units import BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import BinaryIO

_SHA256 = re.compile(r"[0-9a-f]{64}")
_TEMPORARY_PREFIX = ".archsplit-"
_TEMPORARY_NAME = re.compile(r"\.archsplit-[0-9a-f]{8}")
_MARKER_SUFFIX = ".lock"
_MARKER_LIMIT = 128
"""Bytes to read of a marker: more than its text has."""


@contextlib.contextmanager
def output_errors(path: Path) -> Iterator[None]:
    """Turn an OSError while ``path`` is written into an error of archsplit.

    Raises:
        DiskFullError: no space, or over the quota.
        OutputError: any other error of the system.
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


class SupportsRead(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes; nothing at the end."""
        ...


@contextlib.contextmanager
def input_errors(path: Path) -> Iterator[None]:
    """Turn an OSError while ``path`` is read into an error of archsplit.

    Raises:
        InputError: the file is missing, a folder, or not readable.
    """
    try:
        yield
    except OSError as error:
        hint = f"see its permissions: ls -ld {path}" if error.errno == errno.EACCES else None
        raise InputError(f"can't read {path}: {error.strerror}", hint=hint) from error


def read_file(path: Path) -> bytes:
    """Read a whole file.

    Raises:
        InputError: see `input_errors`.
    """
    with input_errors(path):
        return path.read_bytes()


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, as 64 hexadecimal digits.

    Raises:
        InputError: see `input_errors`.
    """
    return hex_digest(read_blocks(path))


def is_sha256(text: str) -> bool:
    """Return True for the 64 hexadecimal digits of a SHA-256."""
    return _SHA256.fullmatch(text) is not None


def blocks(stream: SupportsRead) -> Iterator[bytes]:
    """Read a stream to its end in blocks of `BLOCK` bytes."""
    while block := stream.read(BLOCK):
        yield block


def read_blocks(path: Path) -> Iterator[bytes]:
    """Read a file to its end in blocks of `BLOCK` bytes.

    Raises:
        InputError: the file can't be read.
    """
    with input_errors(path), path.open("rb") as file:
        yield from blocks(file)


def hex_digest(content: Iterable[bytes | memoryview]) -> str:
    """Return the SHA-256 of a content in hexadecimal digits."""
    return hash_blocks(content)[0].hex()


def hash_stream(stream: SupportsRead) -> tuple[bytes, int]:
    """Read a stream to its end; return the SHA-256 and the number of bytes."""
    return hash_blocks(blocks(stream))


def hash_blocks(
    content: Iterable[bytes | memoryview],
    *,
    copy_to: BinaryIO | None = None,
) -> tuple[bytes, int]:
    """Return the SHA-256 and size of a content; copy the content to ``copy_to`` on the way."""
    digest, size = hashlib.sha256(), 0
    for block in content:
        digest.update(block)
        size += len(block)
        if copy_to is not None:
            copy_to.write(block)
    return digest.digest(), size


@contextlib.contextmanager
def atomic_replace(path: Path, *, mode: int = 0o644, private: Path | None = None) -> Iterator[Path]:
    """Yield a temporary path, which replaces ``path`` on success and is removed on failure.

    See `put_file` for a ``path`` that is not a regular file. The temporary path is in a folder of
    `temporary_dir`, so the next file that is written to the same folder removes what a killed
    process has left of it.

    Args:
        path: the output.
        mode: permissions of the output.
        private: a folder of `temporary_dir`; for many outputs, which take half the time with one.

    Raises:
        OutputError: see `output_errors`.
    """
    with output_errors(path), contextlib.ExitStack() as stack:
        if private is None:
            # Beside a device (/dev) there may be no room or permission for a temporary folder.
            parent_dir = _resolve_parent(path.parent if is_replaceable(path) else None)
            _remove_abandoned_once(parent_dir)
            private = stack.enter_context(_marked_dir(parent_dir))
        # Not the output's name: a page of an index would be found below the temporary folder, too.
        temporary = private / os.urandom(4).hex()
        temporary.touch(mode=0o600)
        yield temporary
        temporary.chmod(mode)
        put_file(temporary, path)


def _resolve_parent(folder: Path | None) -> Path:
    if folder is None:
        import tempfile  # noqa: PLC0415 - with `random`, 4 ms of the 50 that a cache hit may take

        folder = Path(tempfile.gettempdir())
    return folder.resolve()


def write_file(path: Path, content: bytes | str, *, private: Path | None = None) -> None:
    """Write a whole file, or nothing; see `atomic_replace`.

    Raises:
        OutputError: see `output_errors`.
    """
    with atomic_replace(path, private=private) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def put_file(finished: Path, path: Path) -> None:
    """Make a finished file an output: replace a regular file, write to everything else.

    Devices and FIFOs take the content. A symbolic link stays, and its target is written. The
    finished file may be left behind.

    Raises:
        OSError: the output can't be written.
    """
    if not is_replaceable(path):
        with finished.open("rb") as content:
            write_in_place(path, content, mode=stat.S_IMODE(os.fstat(content.fileno()).st_mode))
        return
    try:
        # rename(2) is atomic: readers see the old file or the new one, never a part.
        finished.replace(path)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        # rename(2) works within one file system: copy beside the output first, then rename.
        with atomic_replace(path, mode=stat.S_IMODE(finished.stat().st_mode)) as beside:
            shutil.copyfile(finished, beside)


def sync_file(path: Path) -> None:
    """Flush the content of a file to the disk.

    Raises:
        OSError: the file can't be flushed; the caller writes the message.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Flush the names in a folder to the disk.

    After a power cut, a file that was flushed by itself may have lost its name.

    Raises:
        OSError: the folder can't be flushed; the caller writes the message.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def output_dir(path: Path) -> Iterator[Path]:
    """Make an output folder and yield its absolute path; remove new folders on failure.

    Raises:
        OutputError: the folder can't be made, is a file, or is not writable.
    """
    import tempfile  # noqa: PLC0415 - see `_resolve_parent`

    path = path.absolute()
    # Only the folders that are made here are removed again.
    created = [folder for folder in (path, *path.parents) if not folder.exists()]
    # The system's message would be "File exists".
    if path.is_file():
        raise OutputError(f"{path} is a file, not a folder", hint="choose another folder")
    try:
        with output_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            # Tried, because permissions don't tell everything (read-only mounts, quotas).
            with tempfile.TemporaryFile(dir=path):
                pass
        yield path.resolve()
    except BaseException:
        for folder in created:
            # A folder that is not empty has files of other programs.
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


@contextlib.contextmanager
def temporary_dir(parent: Path | None = None) -> Iterator[Path]:
    """Yield an empty folder that only this user can enter, and remove it afterwards.

    The folders of killed processes are removed by the next call with the same parent. Such a folder
    has a marker beside it, ``.archsplit-1a2b3c4d.lock``, which only this module writes: nothing
    without a marker is ever removed.

    Args:
        parent: where to make the folder; None for the system's temporary folder.

    Raises:
        OutputError: the folder can't be made.
    """
    parent_dir = _resolve_parent(parent)
    remove_abandoned_dirs(parent_dir)
    with contextlib.ExitStack() as stack:
        with output_errors(parent_dir):
            folder = stack.enter_context(_marked_dir(parent_dir))
        yield folder


@contextlib.contextmanager
def _marked_dir(parent_dir: Path) -> Iterator[Path]:
    """Yield a folder with a marker, and remove both; `temporary_dir` has the rules.

    Raises:
        OSError: the folder can't be made.
    """
    folder = parent_dir / f"{_TEMPORARY_PREFIX}{os.urandom(4).hex()}"
    while os.path.lexists(folder) or os.path.lexists(_marker(folder)):
        folder = parent_dir / f"{_TEMPORARY_PREFIX}{os.urandom(4).hex()}"
    descriptor = -1
    # Named before it is made: a signal in between would leave a folder without an owner.
    try:
        descriptor = _make_marker(folder)
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        # A folder that can't be removed keeps its marker, and the next call removes both.
        if not os.path.lexists(folder):
            with contextlib.suppress(OSError):
                _marker(folder).unlink(missing_ok=True)
        if descriptor >= 0:
            os.close(descriptor)


def _make_marker(folder: Path) -> int:
    """Make the locked marker of a folder that comes next; return its descriptor.

    Raises:
        OSError: the marker can't be made.
    """
    marker = _marker(folder)
    # Not on every file system, and not without /proc.
    with contextlib.suppress(OSError):
        # Without a name until it is locked and complete: a kill leaves no empty marker.
        unnamed = os.open(folder.parent, os.O_RDWR | os.O_TMPFILE, 0o600)
        return _fill_marker(unnamed, folder, name=marker)
    named = os.open(marker, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    return _fill_marker(named, folder)


def _fill_marker(descriptor: int, folder: Path, *, name: Path | None = None) -> int:
    """Lock a marker, write its text, and give it a name; return its descriptor."""
    try:
        # The text comes after the lock: another process removes no folder with a locked marker.
        with contextlib.suppress(OSError):
            try_lock(descriptor)
        os.write(descriptor, _marker_text(folder))
        if name is not None:
            # With a folder's descriptor, as link(2) by itself doesn't follow the link in /proc.
            os.link(f"/proc/self/fd/{descriptor}", name, src_dir_fd=descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _marker(folder: Path) -> Path:
    return folder.with_name(folder.name + _MARKER_SUFFIX)


def _marker_text(folder: Path) -> bytes:
    # With the name: a copy under another name marks nothing.
    return f"temporary folder {folder.name} of archsplit\n".encode()


@contextlib.contextmanager
def stable_dir(subject: str) -> Iterator[Path]:
    """Yield a private folder whose name depends only on the subject.

    So outputs that contain the folder's name are reproducible. Blocks while another process has the
    folder of the same subject. If the file system has no locks, or the name is taken, the folder is
    one of `temporary_dir`.

    Raises:
        OutputError: the folder can't be made.
    """
    import tempfile  # noqa: PLC0415 - see `_resolve_parent`

    # As long as other names of `temporary_dir`: some outputs depend on the length of the path.
    name = (
        _TEMPORARY_PREFIX + hashlib.sha256(subject.encode(errors="surrogateescape")).hexdigest()[:8]
    )
    folder = Path(tempfile.gettempdir()).resolve() / name
    descriptor = _make_locked_dir(folder)
    if descriptor is None:
        with temporary_dir() as other:
            yield other
        return
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _marker(folder).unlink(missing_ok=True)
        os.close(descriptor)


def _make_locked_dir(folder: Path) -> int | None:
    """Lock a folder's marker and make the folder, empty; return the lock, None on failure."""
    marker = _marker(folder)
    while True:
        try:
            # NOFOLLOW: anyone may make a link in /tmp.
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(marker, flags, 0o600)
        except OSError:
            return None
        try:
            if not _is_own_file(descriptor):
                raise PermissionError
            lock(descriptor)
            # Otherwise the process that had the lock has removed the marker by now.
            if _is_open_file(descriptor, marker):
                _make_marked_dir(folder, descriptor)
                return descriptor
        except OSError:
            os.close(descriptor)
            return None
        os.close(descriptor)


def _make_marked_dir(folder: Path, descriptor: int) -> None:
    """Make a folder, and before it the text of its marker.

    Raises:
        FileExistsError: there is a folder that a killed process has not left.
    """
    # A killed process may have left the folder.
    if os.pread(descriptor, _MARKER_LIMIT, 0) == _marker_text(folder):
        shutil.rmtree(folder, ignore_errors=True)
    elif os.path.lexists(folder):
        raise FileExistsError
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, _marker_text(folder), 0)
    folder.mkdir(mode=0o700)


def _is_own_file(descriptor: int) -> bool:
    status = os.fstat(descriptor)
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()


def _is_open_file(descriptor: int, path: Path) -> bool:
    """Return True if the open file still has this path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def remove_abandoned_dirs(parent_dir: Path) -> None:
    """Remove what killed processes have left in a folder: see `temporary_dir`."""
    # A killed process can't remove its folder, and /tmp is often cleaned only at a restart.
    markers: list[Path] = []
    with contextlib.suppress(OSError):
        markers += parent_dir.glob(f"{_TEMPORARY_PREFIX}*{_MARKER_SUFFIX}")
    for marker in markers:
        if _TEMPORARY_NAME.fullmatch(marker.stem):
            with contextlib.suppress(OSError):
                descriptor = os.open(marker, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    _remove_if_abandoned(marker, descriptor)
                finally:
                    os.close(descriptor)


# A folder with thousands of outputs is too long to be listed for each.
_remove_abandoned_once = functools.lru_cache(maxsize=64)(remove_abandoned_dirs)


def _remove_if_abandoned(marker: Path, descriptor: int) -> None:
    folder = marker.with_suffix("")
    # Another user's folder stays. A marker has its text only while its process has the lock.
    if not _is_own_file(descriptor) or os.read(descriptor, _MARKER_LIMIT) != _marker_text(folder):
        return
    if try_lock(descriptor) and _is_open_file(descriptor, marker):
        shutil.rmtree(folder, ignore_errors=True)
        # Last: what could not be removed keeps its marker.
        if not os.path.lexists(folder):
            marker.unlink()


def check_targets(folder: Path, names: Sequence[str]) -> None:
    """Check that files can be written under these names.

    Raises:
        OutputError: a folder has one of the names.
    """
    for name in names:
        if (folder / name).is_dir():
            raise OutputError(
                f"can't write {folder / name}: a folder of that name is in the way",
                hint="remove it, or choose another folder with --out",
            )


def copy_into(source: Path, folder: Path) -> Path:
    """Copy a file into a folder, and return the copy's path.

    Raises:
        OutputError: the copy can't be written, or would replace its source.
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
    """Move files to ``target`` and replace files there; on failure restore all of them.

    Each file is replaced by one rename, so a killed process leaves the old file or the new one
    under each name. Signals are blocked meanwhile: Ctrl-C takes effect after the last file.

    Args:
        names: the files' names in both folders.
        source: their folder now, on the file system of ``target``.
        target: their folder afterwards.

    Raises:
        OutputError: a file can't be moved.
    """
    check_targets(target, names)
    moved: list[str] = []
    # Writing to a device can't be undone, so devices come last.
    names = sorted(names, key=lambda name: not is_replaceable(target / name))
    with _blocked_signals():
        try:
            for name in names:
                with output_errors(target / name):
                    _back_up_target(name, source=source, target=target)
                    put_file(source / name, target / name)
                moved.append(name)
        except BaseException:
            # The file at which it failed has a backup too.
            for name in names[: len(moved) + 1]:
                _restore_target(name, source=source, target=target, moved=name in moved)
            raise


def _back_up_target(name: str, *, source: Path, target: Path) -> None:
    """Link a file into the private folder, from which a failure restores it."""
    if (target / name).exists() and is_replaceable(target / name):
        backup = source / f"{name}.before"
        try:
            os.link(target / name, backup)
        except OSError:
            # No hard links on this file system, or only for the file's owner.
            shutil.copy2(target / name, backup)


def _restore_target(name: str, *, source: Path, target: Path, moved: bool) -> None:
    with contextlib.suppress(OSError):
        # What was written to a device can't be taken back.
        if (source / f"{name}.before").exists():
            (source / f"{name}.before").replace(target / name)
        elif moved and is_replaceable(target / name):
            (target / name).unlink()


@contextlib.contextmanager
def _blocked_signals() -> Iterator[None]:
    """Block the signals that end a program; the kernel delivers them afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder for data that can be made again: ``ARCHSPLIT_CACHE_DIR`` or XDG's.

    The folder is not made here.
    """
    return Path(cache_dir(environment))
