"""Files and folders: whole outputs or nothing, and errors that name the file.

Every verb writes through this module. The one idea is to write beside the output, then to rename: a
file under its final name is complete, and several files appear together or not at all. Until it is
renamed, a file is one of `archsplit.system.temporary_files`, or is in a folder with such a file as
its marker. So a later process recognizes and removes what killed processes have left, and nothing
else. An output that exists and isn't a regular file (a device, a FIFO, a link) is written to, never
replaced or removed: see `put_file`.

`output_errors` and `input_errors` turn an `OSError` into an error of archsplit.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import signal
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from archsplit.errors import DiskFullError, InputError, OutOfMemoryError, OutputError
from archsplit.system.file_lock import lock
from archsplit.system.outputs import is_replaceable, write_in_place
from archsplit.system.signals import STOP_SIGNALS
from archsplit.system.temporary_files import (
    DIR_SUFFIX,
    TemporaryFile,
    is_open_file,
    is_own_file,
    marked_name,
    remove_abandoned,
    remove_dir,
)
from archsplit.system.units import BLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import BinaryIO

_SHA256 = re.compile(r"[0-9a-f]{64}")
_FREE_BLOCKS = 1000
"""Free blocks from which on a disk is not full."""


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
        OutOfMemoryError: there is too little memory for it.
    """
    try:
        yield
    except OSError as error:
        hint = f"see its permissions: ls -ld {path}" if error.errno == errno.EACCES else None
        kind = OutOfMemoryError if error.errno == errno.ENOMEM else InputError
        raise kind(f"can't read {path}: {error.strerror}", hint=hint) from error


def open_input(path: Path) -> BinaryIO:
    """Open a regular file to read it; others are refused, because a pipe waits for a writer.

    Raises:
        InputError: see `input_errors`; or the file is not a regular one.
    """
    with input_errors(path):
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"can't read {path}: not a regular file", hint="copy it to a file")
        return path.open("rb")


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
    content: Iterable[bytes | memoryview], *, copy_to: BinaryIO | None = None
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

    See `put_file` for a ``path`` that is not a regular file. The next file that is written to the
    same folder removes what a killed process has left.

    Args:
        path: the output.
        mode: permissions of the output.
        private: a folder of `temporary_dir` on the same file system, for outputs in many folders.

    Raises:
        OutputError: see `output_errors`.
    """
    with output_errors(path):
        # Beside a device (/dev) there may be no room or permission for a temporary file.
        parent_dir = private or _resolve_parent(path.parent if is_replaceable(path) else None)
        with TemporaryFile(str(parent_dir)) as new:
            temporary = Path(new.path)
            yield temporary
            temporary.chmod(mode)
            put_file(temporary, path)


def _resolve_parent(folder: Path | None) -> Path:
    return Path(_temporary_folder() if folder is None else folder).resolve()


def _temporary_folder() -> str:
    """Return the folder of `tempfile`, which takes 5 ms to import, with `random` and `shutil`."""
    usual = "/tmp"  # noqa: S108 - as in `tempfile`
    named = next(filter(None, map(os.environ.get, ("TMPDIR", "TEMP", "TMP"))), usual)
    is_folder = Path(named).is_absolute() and Path(named).is_dir()
    can_write = is_folder and os.access(named, os.W_OK | os.X_OK)
    # `tempfile` takes another folder if this one is full.
    if can_write and os.statvfs(named).f_bavail > _FREE_BLOCKS and "tempfile" not in sys.modules:
        return named
    import tempfile  # noqa: PLC0415 - see above

    return tempfile.gettempdir()


def write_file(path: Path, content: bytes | str, *, private: Path | None = None) -> None:
    """Write a whole file, or nothing; see `atomic_replace`.

    Raises:
        OutputError: see `output_errors`.
    """
    with atomic_replace(path, private=private) as temporary:
        if isinstance(content, str):
            # A page may name a file whose name isn't UTF-8.
            content = content.encode(errors="backslashreplace")
        temporary.write_bytes(content)


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
        import shutil  # noqa: PLC0415 - with two codecs, 2 ms of each compilation

        with atomic_replace(path, mode=stat.S_IMODE(finished.stat().st_mode)) as beside:
            shutil.copyfile(finished, beside)


def sync_path(path: Path) -> None:
    """Flush the content of a file, or the names in a folder, to the disk.

    After a power cut, a file that was flushed by itself may have lost its name.

    Raises:
        OSError: the path can't be flushed; the caller writes the message.
    """
    descriptor = os.open(path, os.O_RDONLY)
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
    path = path.absolute()
    # Only the folders that are made here are removed again.
    # `Path.exists` raises an error if a folder above can't be searched, or a name is too long.
    created = [one for one in (path, *path.parents) if not os.path.exists(one)]  # noqa: PTH110
    # The system's message would be "File exists".
    if os.path.isfile(path):  # noqa: PTH113
        raise OutputError(f"{path} is a file, not a folder", hint="choose another folder")
    try:
        with output_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            # Tried, because permissions don't tell everything (read-only mounts, quotas).
            with TemporaryFile(str(path)):
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

    The folders of killed processes are removed by the next call with the same parent. A folder that
    can't be removed is left to it, too.

    Args:
        parent: where to make the folder; None for the system's temporary folder.

    Raises:
        OutputError: the folder can't be made.
    """
    parent_dir = _resolve_parent(parent)
    remove_abandoned(str(parent_dir))
    with contextlib.ExitStack() as stack:
        with output_errors(parent_dir):
            marker = stack.enter_context(TemporaryFile(str(parent_dir)))
            folder = Path(marker.path + DIR_SUFFIX)
            # Before it is made: a signal in between would leave it.
            stack.callback(remove_dir, str(folder))
            folder.mkdir(mode=0o700)
        yield folder


@contextlib.contextmanager
def stable_dir(subject: str) -> Iterator[Path]:
    """Yield a private folder whose name depends only on the subject.

    So outputs that contain the folder's name are reproducible. Blocks while another process has the
    folder of the same subject. If the file system has no locks, or the name is taken, the folder is
    one of `temporary_dir`.

    Raises:
        OutputError: the folder can't be made.
    """
    # As long as other names of `temporary_dir`: some outputs depend on the length of the path.
    digest = hashlib.sha256(subject.encode(errors="surrogateescape")).digest()
    marker = _resolve_parent(None) / marked_name(digest[:4])
    folder = Path(f"{marker}{DIR_SUFFIX}")
    descriptor = _make_locked_dir(folder, marker)
    if descriptor is None:
        with temporary_dir() as other:
            yield other
        return
    try:
        yield folder
    finally:
        remove_dir(str(folder))
        marker.unlink(missing_ok=True)
        os.close(descriptor)


def _make_locked_dir(folder: Path, marker: Path) -> int | None:
    """Lock a folder's marker and make the folder, empty; return the lock, None on failure."""
    while True:
        try:
            # NOFOLLOW: anyone may make a link in /tmp.
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(marker, flags, 0o600)
        except OSError:
            return None
        try:
            if not is_own_file(descriptor):
                raise PermissionError
            lock(descriptor)
            # Otherwise the process that had the lock has removed the marker by now.
            if is_open_file(descriptor, str(marker)):
                # A killed process may have left the folder; without a mark it is somebody's.
                if os.read(descriptor, 1):
                    remove_dir(str(folder))
                elif os.path.lexists(folder):
                    marker.unlink()
                os.write(descriptor, b"1")
                folder.mkdir(mode=0o700)
                return descriptor
        except OSError:
            os.close(descriptor)
            return None
        os.close(descriptor)


def check_output_names(folder: Path, names: Sequence[str]) -> None:
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
    check_output_names(folder, (source.name,))
    with output_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with atomic_replace(target) as new, new.open("wb") as file:
        file.writelines(read_blocks(source))
    return target


def replace_all(names: Sequence[str], *, source: Path, target: Path) -> None:
    """Move files to ``target`` and replace files there; on failure restore all of them.

    Each file is replaced by one rename, so a killed process leaves the old file or the new one
    under each name. Links to files are replaced, and links to devices are written to. Signals are
    blocked meanwhile: Ctrl-C takes effect after the last file.

    Args:
        names: the files' names in both folders.
        source: their folder now, on the file system of ``target``.
        target: their folder afterwards.

    Raises:
        OutputError: a file can't be moved.
    """
    check_output_names(target, names)
    moved: list[str] = []
    # Writing to a device can't be undone, so devices come last.
    names = sorted(names, key=lambda name: not is_replaceable(target / name))
    with _blocked_signals():
        try:
            for name in names:
                with output_errors(target / name):
                    put = _back_up_output(target / name, source / f"{name}.before")
                    put(source / name, target / name)
                moved.append(name)
        except BaseException:
            # The file at which it failed has a backup too.
            for name in names[: len(moved) + 1]:
                _restore_output(name, source=source, target=target, moved=name in moved)
            raise


def _back_up_output(path: Path, backup: Path) -> Callable[[Path, Path], None]:
    """Keep a file or a link, which a failure restores; return the function for the new file."""
    # The link is replaced: the file behind it may be anything.
    is_link = path.is_symlink() and (path.is_file() or not path.exists())
    if is_link or (path.exists() and is_replaceable(path)):
        try:
            os.link(path, backup, follow_symlinks=False)
        except OSError:
            # No hard links on this file system, or only for the file's owner.
            import shutil  # noqa: PLC0415 - as above

            shutil.copy2(path, backup, follow_symlinks=False)
    return os.replace if is_link else put_file


def _restore_output(name: str, *, source: Path, target: Path, moved: bool) -> None:
    with contextlib.suppress(OSError):
        # What was written to a device can't be taken back.
        if os.path.lexists(source / f"{name}.before"):
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
