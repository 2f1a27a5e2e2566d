"""Local store: plain files named by hash, which many processes share without locks.

``ac/<2 digits>/<key>`` holds entries and manifests. Every write goes into a temporary file that is
renamed, and every read checks a digest: no reader gets a partial file. Also here: verification,
export as a reproducible tar file, import, and LRU eviction.

Wheels that were downloaded as inputs are in a folder beside ``ac``. They are not entries of the
store, so they are counted and evicted separately: at most the cache's maximum size together, the
least recently used first. The last use is a file's access time, which is set here, because many
file systems don't keep it. The modification time stays.
"""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import time
from typing import IO, TYPE_CHECKING, NamedTuple

from archsplit.cache.entry import compute_key, decode_entry, decode_manifest
from archsplit.cache.sealed_blob import DamagedError, is_sealed
from archsplit.cache.usage import mark_used
from archsplit.errors import InputError, OutputError
from archsplit.system.file_lock import try_lock
from archsplit.system.outputs import (
    IrregularFileError,
    read_stored_file,
    remove_irregular,
    store_file,
)
from archsplit.system.temporary_files import is_marked_name, remove_if_abandoned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MAX_ENTRY_BYTES = 1 << 30
"""Most bytes of an entry."""
_MISS_ERRORS = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE}
_PATH_CONFLICT_ERRORS = {errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY}
_REFUSED_ERRORS = {errno.EACCES, errno.EPERM, errno.EROFS}

_EVICTION_TARGET = 0.9
"""Share of the maximum that eviction leaves, so that the next eviction isn't due soon."""
_EVICTION_INTERVAL = 300.0
"""Seconds after which the next process that stores something evicts."""
_EVICTION_SHARE = 0.05
"""Share of the maximum from which a process that stored so much evicts at once."""
_ABANDONED_SECONDS = 3600.0
"""Age in seconds from which a lease counts as abandoned."""
_EVICTION_STAMP = "last-eviction"
_OTHER_FOLDERS = (
    "direct",
    "lease",
    "digests",
    "components",
    "miss-reasons",
    "statistics",
    "circuit-breaker",
)
RESULTS_FOLDER = "ac"
"""Folder of entries and manifests."""


class LocalStore:
    """A folder of results; no method raises.

    Args:
        folder: made by the first write.
        warn: called with the message of each problem.
        writable: False for a store that must not be changed.
        is_chosen: False if no setting names this folder; then an error of permissions
            needs no warning.

    Attributes:
        written: bytes stored by this process.
        writable: False from the first error of the disk on.
        warn: called with the message of each problem.
    """

    def __init__(
        self,
        folder: Path,
        *,
        warn: Callable[[str], None],
        writable: bool = True,
        is_chosen: bool = True,
    ) -> None:
        self.folder = folder
        self._is_chosen = is_chosen
        self.written = 0
        self.warn = warn
        self._has_warned = False
        self.writable = writable

    def path(self, key: str) -> Path:
        """Return the path of a key, which may be missing."""
        return self.folder / RESULTS_FOLDER / key[:2] / key

    def get(self, key: str) -> bytes | None:
        """Return the stored bytes, or None; delete a damaged file."""
        path = self.path(key)
        try:
            blob, status = read_stored_file(path)
        except IrregularFileError:
            self.delete(key)
            return None
        except OSError as error:
            if error.errno not in _MISS_ERRORS:
                self._warn_of_error("read", error)
            return None
        if not is_sealed(blob):
            self.drop_damaged(key, "its digest is wrong")
            return None
        # The time of the last use is what eviction sorts by.
        if self.writable:
            mark_used(path, status.st_mtime)
        return blob

    def put(self, key: str, blob: bytes) -> bool:
        """Store bytes, all or nothing; return False on failure."""
        if not self.writable:
            return False
        path = self.path(key)
        try:
            store_file(path, blob)
        except OSError as error:
            if error.errno in _PATH_CONFLICT_ERRORS and (self.folder / RESULTS_FOLDER).is_dir():
                # A folder or file of another kind has this path; other keys can be stored.
                return False
            # The disk is full or read-only, or the folder belongs to another user: stop writing.
            self.writable = False
            # A build in a container or as a service often has no home that can be written, and
            # nvcc would print nothing.
            if self._is_chosen or error.errno not in _REFUSED_ERRORS:
                self._warn_of_error("written", error)
            return False
        self.written += len(blob)
        return True

    def drop_damaged(self, key: str, why: str) -> None:
        """Warn of a damaged file, and delete it in a store that may be written."""
        done = "deleted" if self.writable else "ignored"
        self.warn(f"{done} a damaged file of the cache: {self.path(key)}: {why}")
        self.delete(key)

    def delete(self, key: str) -> None:
        """Delete a file if it exists."""
        if self.writable:
            path = self.path(key)
            with contextlib.suppress(OSError):
                remove_irregular(path)
                path.unlink()

    def all_keys(self) -> Iterator[str]:
        """Return all keys, sorted."""
        for prefix in sorted_names(self.folder / RESULTS_FOLDER):
            for name in sorted_names(self.folder / RESULTS_FOLDER / prefix):
                if not is_marked_name(name):
                    yield name

    def _warn_of_error(self, action: str, error: OSError) -> None:
        # A folder that can't be read can't be written either: one warning is enough.
        if not self._has_warned:
            self._has_warned = True
            self.warn(f"{self.folder} can't be {action}: {error.strerror}; compiling without it")


def sorted_names(folder: Path) -> list[str]:
    """Return the names in a folder; none for one that can't be read."""
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []


class StoreCheck(NamedTuple):
    """The result of a check of all files.

    Attributes:
        files: number of files.
        damaged: keys of the damaged ones, which were deleted.
    """

    files: int
    damaged: tuple[str, ...]


def verify_store(store: LocalStore) -> StoreCheck:
    """Read every file and delete the damaged ones."""
    files, damaged = 0, []
    for key in store.all_keys():
        files += 1
        blob = _stored_bytes(store, key)
        if not (_is_entry(key, blob) or _is_manifest(key, blob)):
            damaged.append(key)
            store.delete(key)
    return StoreCheck(files, tuple(damaged))


def _stored_bytes(store: LocalStore, key: str) -> bytes:
    """Return the bytes of a file; none if it can't be read, so that it counts as damaged."""
    try:
        return read_stored_file(store.path(key))[0]
    except OSError:
        return b""


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
        for key in store.all_keys():
            # Damaged files are left out: the importer would refuse them.
            blob = store.get(key)
            if blob is not None:
                member = tarfile.TarInfo(f"{RESULTS_FOLDER}/{key}")
                member.size = len(blob)
                tar.addfile(member, io.BytesIO(blob))
                count += 1
    return count


def import_store(store: LocalStore, file: IO[bytes], *, where: str) -> tuple[int, int]:
    """Store the intact files of an export; return their number, and the number of all files.

    Args:
        where: name of the export, for the message.

    Raises:
        InputError: the file is not an export, or is truncated.
        OutputError: the store can't be written.
    """
    import tarfile  # noqa: PLC0415 - as above

    from archsplit.system.fs import output_errors  # noqa: PLC0415 - as above

    count = total = 0
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                folder, _, key = member.name.partition("/")
                content = tar.extractfile(member)
                if folder == RESULTS_FOLDER and content is not None:
                    total += 1
                    # A sparse member of some bytes could fill memory with zeros.
                    if member.issparse() or member.size > MAX_ENTRY_BYTES:
                        continue
                    blob = content.read()
                    with output_errors(store.folder):
                        count += _import_file(store, key, blob)
    except (tarfile.TarError, OSError) as error:
        raise InputError(f"{where} is not an exported cache: {error}") from None
    return count, total


def _import_file(store: LocalStore, key: str, blob: bytes) -> bool:
    # A member's name becomes a path on this machine, so only digests are accepted (no `../`).
    is_digest = len(key) == 64 and set(key) <= set("0123456789abcdef")  # noqa: PLR2004 - of SHA-256
    if not is_digest or not is_sealed(blob):
        return False
    if not store.writable:
        raise OutputError(f"can't write into {store.folder}")
    store_file(store.path(key), blob)
    return True


class _File(NamedTuple):
    last_used: float
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
    if written > maximum * _EVICTION_SHARE:
        return True
    try:
        age = time.time() - (folder / _EVICTION_STAMP).stat().st_mtime
    except OSError:
        # Nothing was evicted yet.
        age = math.inf
    return written > 0 and age > _EVICTION_INTERVAL


def evict(folder: Path, *, maximum: int, warn: Callable[[str], None]) -> EvictionResult | None:
    """Evict the least recently used files; None if another process evicts, or on an error.

    Readers and writers never wait: a file that is removed while it is read stays readable.

    Args:
        folder: the folder of the store.
        maximum: bytes of all files together.
        warn: called once if files can't be deleted and the store stays too large.
    """
    stamp = folder / _EVICTION_STAMP
    with contextlib.suppress(OSError):
        remove_irregular(stamp)
        with stamp.open("w") as lock_file:
            if not try_lock(lock_file.fileno()):
                return None
            os.utime(stamp)
            return _evict_files(folder, maximum, warn)
    return None


def _evict_files(folder: Path, maximum: int, warn: Callable[[str], None]) -> EvictionResult:
    files = sorted(_files(folder))
    total = sum(file.size for file in files)
    limit = total if total <= maximum else int(maximum * _EVICTION_TARGET)
    result, refused = _remove_first(files, limit)
    if refused and result.size > limit:
        warn(
            f"{folder} is over its limit; files that stay: {len(refused)} ({refused[-1]});"
            " their owner can delete them: archsplit cache trim"
        )
    return result


def _remove_first(
    files: list[_File], limit: int, *, keep: str = ""
) -> tuple[EvictionResult, list[str]]:
    """Remove files in their order until the others fit; also return the errors."""
    total = remaining = sum(file.size for file in files)
    removed, refused = 0, []
    for file in files:
        if remaining <= limit:
            break
        if file.path == keep:
            continue
        try:
            os.unlink(file.path)  # noqa: PTH108 - strings, for there may be a million
        except FileNotFoundError:
            # Another process was faster.
            remaining -= file.size
        except OSError as error:
            # A file in another user's folder stays, and the next ones are tried.
            refused.append(error.strerror or "")
        else:
            remaining, removed = remaining - file.size, removed + 1
    freed = total - remaining
    return EvictionResult(len(files) - removed, remaining, removed, freed), refused


def store_size(folder: Path) -> tuple[int, int]:
    """Return the number of files and their bytes."""
    sizes = [file.size for file in _files(folder)]
    return len(sizes), sum(sizes)


def _files(folder: Path) -> Iterator[_File]:
    """Yield every file with its last use; remove what killed processes have left."""
    for subdirectory in _subdirectories(folder):
        yield from _files_below(subdirectory)


def _subdirectories(folder: Path) -> Iterator[Path]:
    """Yield the folders of all kinds of files; some may be missing."""
    for name in (RESULTS_FOLDER, *_OTHER_FOLDERS):
        yield folder / name


def _files_below(folder: Path) -> Iterator[_File]:
    with contextlib.suppress(OSError), os.scandir(folder) as items:
        for item in items:
            with contextlib.suppress(OSError):
                # Others are being written.
                if is_marked_name(item.name):
                    remove_if_abandoned(item.path)
                    continue
                status = item.stat(follow_symlinks=False)
                if item.is_dir(follow_symlinks=False):
                    yield from _files_below(folder / item.name)
                elif folder.name == "lease" and time.time() - status.st_mtime > _ABANDONED_SECONDS:
                    os.unlink(item.path)  # noqa: PTH108 - see `_remove_first`
                else:
                    yield _File(status.st_mtime, item.path, status.st_size)


def clear_store(folder: Path) -> EvictionResult:
    """Remove all files of a store that may be removed."""
    result, _ = _remove_first(list(_files(folder)), limit=-1)
    for subdirectory in _subdirectories(folder):
        for name in sorted_names(subdirectory):
            # Only empty folders are removed: other files in them are not the cache's.
            with contextlib.suppress(OSError):
                (subdirectory / name).rmdir()
    return result


_DOWNLOADS_FOLDER = "wheels"


def downloads_folder(cache: Path) -> Path:
    """Return the folder of the wheels in a cache; it may not exist."""
    return cache / _DOWNLOADS_FOLDER


def mark_download(path: Path) -> None:
    """Set the time of a wheel's last use to now."""
    # The wheels in another user's folder are used, too; only its owner trims it.
    with contextlib.suppress(OSError):
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))


def downloads_size(cache: Path) -> tuple[int, int]:
    """Return the number of wheels and their bytes."""
    sizes = [each.size for each in _downloads(cache)]
    return len(sizes), sum(sizes)


def trim_downloads(cache: Path, *, maximum: int, keep: Path | None = None) -> EvictionResult:
    """Remove the least recently used wheels until the others fit.

    A wheel that is read meanwhile stays readable for its reader.

    Args:
        maximum: bytes of all wheels together; 0 removes all.
        keep: a wheel that stays, whatever its size.
    """
    return _remove_first(sorted(_downloads(cache)), maximum, keep=str(keep))[0]


def _downloads(cache: Path) -> Iterator[_File]:
    with contextlib.suppress(OSError), os.scandir(downloads_folder(cache)) as items:
        for item in items:
            # Folders are downloads that still run.
            with contextlib.suppress(OSError):
                if item.name.endswith(".whl") and item.is_file(follow_symlinks=False):
                    status = item.stat(follow_symlinks=False)
                    used = max(status.st_atime, status.st_mtime)
                    yield _File(used, item.path, status.st_size)
