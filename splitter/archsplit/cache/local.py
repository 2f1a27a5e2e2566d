"""Local store: plain files named by hash, which many processes share without locks.

``ac/<2 digits>/<key>`` holds entries and manifests, ``cas/<2 digits>/<SHA-256>`` contents. Without
the two digits these are the paths of the HTTP protocol of Bazel's remote caches. Every write goes
into a temporary file that is renamed, and every read checks a digest: nobody reads half a file.
Beside that: verification, export as a reproducible tar file, import, and LRU eviction.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import time
from enum import Enum
from typing import IO, TYPE_CHECKING, NamedTuple

from archsplit.cache.entry import DamagedError, decode_entry, is_sealed
from archsplit.cache.keys import compute_key
from archsplit.cache.manifest import decode_manifest
from archsplit.errors import InputError, OutputError
from archsplit.system.file_lock import try_lock
from archsplit.system.fs import store_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TOUCH_SECONDS = 3600.0
"""Least seconds between two updates of a file's last use: each is a write."""
_SILENT = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE}
_MISPLACED = {errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY}
_TEMPORARY = "."


class StoreKind(Enum):
    """Kinds of files; the values are the names of the folders."""

    ACTION = "ac"
    CONTENT = "cas"


class LocalStore:
    """A folder of results; no method raises.

    Args:
        folder: made by the first write.
        warn: called with each trouble.
        writable: False for a store that must not be changed.

    Attributes:
        written: bytes stored by this process.
    """

    def __init__(self, folder: Path, *, warn: Callable[[str], None], writable: bool = True) -> None:
        self.folder = folder
        self.written = 0
        self._warn = warn
        self._writable = writable

    def path(self, kind: StoreKind, key: str) -> Path:
        """Return the path of a key, which may be missing."""
        return self.folder / kind.value / key[:2] / key

    def get(self, kind: StoreKind, key: str) -> bytes | None:
        """Return the stored bytes, or None; delete a damaged file."""
        path = self.path(kind, key)
        try:
            with path.open("rb") as file:
                blob = file.read()
                used = os.fstat(file.fileno()).st_mtime
        except IsADirectoryError:
            self.delete(kind, key)
            return None
        except OSError as error:
            if error.errno not in _SILENT:
                self._warn_of("read", error)
            return None
        if not is_intact(kind, key, blob):
            self._warn(f"deleted a damaged file: {path}")
            self.delete(kind, key)
            return None
        if self._writable:
            mark_used(path, used)
        return blob

    def put(self, kind: StoreKind, key: str, blob: bytes) -> bool:
        """Store bytes, all or nothing; return False on failure."""
        if not self._writable:
            return False
        path = self.path(kind, key)
        try:
            self._clear_for(path)
            store_file(path, blob)
        except OSError as error:
            if error.errno in _MISPLACED and (self.folder / kind.value).is_dir():
                # A folder or file of another kind has this path; other keys can be stored.
                return False
            # Full, read-only or another user's: the next write would fail as well.
            self._writable = False
            self._warn_of("written", error)
            return False
        self.written += len(blob)
        return True

    def delete(self, kind: StoreKind, key: str) -> None:
        """Delete a file if it exists."""
        if self._writable:
            path = self.path(kind, key)
            with contextlib.suppress(OSError):
                self._clear_for(path)
                path.unlink()

    def keys(self, kind: StoreKind) -> Iterator[str]:
        """Return the keys of a kind, sorted."""
        for folder in sorted_names(self.folder / kind.value):
            for name in sorted_names(self.folder / kind.value / folder):
                if not name.startswith(_TEMPORARY):
                    yield name

    @staticmethod
    def _clear_for(path: Path) -> None:
        """Remove a folder at the path of a file."""
        if path.is_dir() and not path.is_symlink():
            # Imported late: hardly ever needed.
            import shutil  # noqa: PLC0415

            shutil.rmtree(path)

    def _warn_of(self, what: str, error: OSError) -> None:
        self._warn(f"{self.folder} can't be {what}: {error.strerror}; compiling without")


def mark_used(path: Path, used: float | None = None) -> None:
    """Update the time of last use of a file if that is an hour old.

    Args:
        used: that time in seconds since 1970; None to read it.
    """
    with contextlib.suppress(OSError):
        if time.time() - (path.stat().st_mtime if used is None else used) > TOUCH_SECONDS:
            os.utime(path)


def is_intact(kind: StoreKind, key: str, blob: bytes) -> bool:
    """Return True if bytes fit their key, or their own digest."""
    if kind is StoreKind.CONTENT:
        return hashlib.sha256(blob).hexdigest() == key
    return is_sealed(blob)


def sorted_names(folder: Path) -> list[str]:
    """Return the names in a folder; none for one that can't be read."""
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []


class StoreCheck(NamedTuple):
    """Number of files, and keys of the damaged ones."""

    files: int
    damaged: tuple[str, ...]


def verify_store(store: LocalStore) -> StoreCheck:
    """Read every file and delete the damaged ones."""
    files, damaged = 0, []
    for kind in StoreKind:
        for key in store.keys(kind):
            files += 1
            if not _is_valid(store, kind, key):
                damaged.append(key)
                store.delete(kind, key)
    return StoreCheck(files, tuple(damaged))


def _is_valid(store: LocalStore, kind: StoreKind, key: str) -> bool:
    try:
        blob = store.path(kind, key).read_bytes()
    except OSError:
        return False
    if not is_intact(kind, key, blob):
        return False
    return kind is StoreKind.CONTENT or _is_entry(key, blob) or _is_manifest(key, blob)


def _is_entry(key: str, blob: bytes) -> bool:
    try:
        return compute_key(decode_entry(blob).components) == key
    except DamagedError:
        return False


def _is_manifest(key: str, blob: bytes) -> bool:
    try:
        decode_manifest(blob, request=key)
    except DamagedError:
        return False
    return True


def export_store(store: LocalStore, file: IO[bytes]) -> int:
    """Write all intact files as tar; return their number."""
    import tarfile  # noqa: PLC0415 - 8 ms of the 50 that a hit may take

    count = 0
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for kind in StoreKind:
            for key in store.keys(kind):
                blob = store.get(kind, key)
                if blob is not None:
                    member = tarfile.TarInfo(f"{kind.value}/{key}")
                    member.size = len(blob)
                    tar.addfile(member, io.BytesIO(blob))
                    count += 1
    return count


def import_store(store: LocalStore, file: IO[bytes], *, where: str) -> int:
    """Store the intact files of an export; return their number.

    Args:
        where: name of the export, for the message.

    Raises:
        InputError: the file is no export, or was cut.
        OutputError: the store can't be written.
    """
    import tarfile  # noqa: PLC0415 - as above

    count = 0
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                kind, _, key = member.name.partition("/")
                content = tar.extractfile(member)
                if kind in {each.value for each in StoreKind} and content is not None:
                    count += _import_file(store, StoreKind(kind), key, content.read())
    except (tarfile.TarError, OSError) as error:
        raise InputError(f"{where} is no exported cache: {error}") from None
    return count


def _import_file(store: LocalStore, kind: StoreKind, key: str, blob: bytes) -> bool:
    # A name becomes a path on this machine: only digests may.
    is_digest = len(key) == 64 and set(key) <= set("0123456789abcdef")  # noqa: PLR2004 - of SHA-256
    if not is_digest or not is_intact(kind, key, blob):
        return False
    if not store.put(kind, key, blob):
        raise OutputError(f"can't write into {store.folder}")
    return True


_DOWN_TO = 0.9
"""Share of the maximum that eviction leaves; the next one isn't due at once."""
_PASS_SECONDS = 300.0
_PASS_SHARE = 0.05
_LEFT_SECONDS = 3600.0
"""Age from which the process of a temporary file or lease must be dead."""
_EVICTION_STAMP = "trimmed"
_OTHERS = ("direct", "lease", "digests", "subjects", "told", "statistics", "repeatable", "away")


class _File(NamedTuple):
    used: float
    path: str
    size: int


class EvictionResult(NamedTuple):
    """Remaining and removed files, and their bytes."""

    files: int
    size: int
    removed: int
    freed: int


def is_eviction_due(folder: Path, *, written: int, maximum: int) -> bool:
    """Return True if a process that stored ``written`` bytes should evict."""
    if written > maximum * _PASS_SHARE:
        return True
    try:
        return (
            written > 0 and time.time() - (folder / _EVICTION_STAMP).stat().st_mtime > _PASS_SECONDS
        )
    except OSError:
        return written > 0


def evict(folder: Path, *, maximum: int) -> EvictionResult | None:
    """Evict the least recently used files; None if another process does or none can.

    Readers and writers never wait: a file that is removed while it is read stays readable.
    """
    with contextlib.suppress(OSError), (folder / _EVICTION_STAMP).open("w") as mark:
        if not try_lock(mark.fileno()):
            return None
        os.utime(folder / _EVICTION_STAMP)
        return _evict_files(folder, maximum)
    return None


def _evict_files(folder: Path, maximum: int) -> EvictionResult:
    files = sorted(_files(folder))
    total = sum(file.size for file in files)
    limit = total if total <= maximum else int(maximum * _DOWN_TO)
    left, removed = total, 0
    for file in files:
        if left <= limit:
            break
        with contextlib.suppress(FileNotFoundError):
            os.unlink(file.path)  # noqa: PTH108 - strings, for there may be a million
        left, removed = left - file.size, removed + 1
    return EvictionResult(
        files=len(files) - removed, size=left, removed=removed, freed=total - left
    )


def store_size(folder: Path) -> tuple[int, int]:
    """Return the number of files and their bytes."""
    sizes = [file.size for file in _files(folder)]
    return len(sizes), sum(sizes)


def _files(folder: Path) -> Iterator[_File]:
    """Return every file with its last use; remove what killed processes left."""
    places = [*(kind.value for kind in StoreKind), *_OTHERS]
    for place in places:
        yield from _below(folder / place)


def _below(place: Path) -> Iterator[_File]:
    with contextlib.suppress(OSError), os.scandir(place) as rows:
        for row in rows:
            with contextlib.suppress(OSError):
                status = row.stat(follow_symlinks=False)
                if row.is_dir(follow_symlinks=False):
                    yield from _below(place / row.name)
                elif _is_abandoned(place, row.name, status.st_mtime):
                    os.unlink(row.path)  # noqa: PTH108 - see `_evict_files`
                else:
                    yield _File(status.st_mtime, row.path, status.st_size)


def _is_abandoned(place: Path, name: str, written: float) -> bool:
    unfinished = name.startswith(".") or place.name == "lease"
    return unfinished and time.time() - written > _LEFT_SECONDS


def clear_store(folder: Path) -> tuple[int, int]:
    """Remove all files of a store; return their number and bytes."""
    files = list(_files(folder))
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(file.path)  # noqa: PTH108 - see `_evict_files`
    for place in [*(kind.value for kind in StoreKind), *_OTHERS]:
        for name in sorted_names(folder / place):
            with contextlib.suppress(OSError):
                (folder / place / name).rmdir()
    return len(files), sum(file.size for file in files)
