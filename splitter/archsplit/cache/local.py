"""The local store: plain files, named by hash, that many processes share without locks.

``ac/<2 digits>/<key>`` has entries and manifests, ``cas/<2 digits>/<SHA-256>`` contents. Without
the two digits those are the paths of the HTTP protocol that Bazel's remote caches speak.

Read every entry of a store, and say which ones aren't what they should be.

A whole store as one tar file, and back; the same entries give the same bytes.

Keep a store below its size: what wasn't used for longest goes first.
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
"""A file that is used is touched, but no more often: a touch is a write, and costs like one."""
_SILENT = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE}
_MISPLACED = {errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY}
_TEMPORARY = "."


class StoreKind(Enum):
    """What a file of the store is; the values are the names of the folders."""

    ACTION = "ac"
    CONTENT = "cas"


class LocalStore:
    """A folder of results.

    Args:
        folder: made when something is stored.
        warn: is told, once for each kind of trouble, what doesn't work; nothing is ever raised.
        writable: whether anything may be changed in it.

    Attributes:
        written: bytes that were stored so far.
    """

    def __init__(self, folder: Path, *, warn: Callable[[str], None], writable: bool = True) -> None:
        self.folder = folder
        self.written = 0
        self._warn = warn
        self._writable = writable

    def path(self, kind: StoreKind, key: str) -> Path:
        """Where something is, or would be."""
        return self.folder / kind.value / key[:2] / key

    def get(self, kind: StoreKind, key: str) -> bytes | None:
        """What was stored, byte for byte, or None; what is damaged is removed."""
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
                self._trouble("read", error)
            return None
        if not is_intact(kind, key, blob):
            self._warn(f"dropped a damaged file: {path}")
            self.delete(kind, key)
            return None
        if self._writable:
            mark_used(path, used)
        return blob

    def put(self, kind: StoreKind, key: str, blob: bytes) -> bool:
        """Store it, all or nothing; False where that can't be done."""
        if not self._writable:
            return False
        path = self.path(kind, key)
        try:
            self._clear_for(path)
            store_file(path, blob)
        except OSError as error:
            if error.errno in _MISPLACED and (self.folder / kind.value).is_dir():
                # Something else lies in this place alone.
                return False
            # Full, read-only, not ours: it will be no better for what comes next.
            self._writable = False
            self._trouble("written", error)
            return False
        self.written += len(blob)
        return True

    def delete(self, kind: StoreKind, key: str) -> None:
        """Remove it, if it is there."""
        if self._writable:
            path = self.path(kind, key)
            with contextlib.suppress(OSError):
                self._clear_for(path)
                path.unlink()

    def keys(self, kind: StoreKind) -> Iterator[str]:
        """Everything of a kind, sorted."""
        for folder in sorted_names(self.folder / kind.value):
            for name in sorted_names(self.folder / kind.value / folder):
                if not name.startswith(_TEMPORARY):
                    yield name

    @staticmethod
    def _clear_for(path: Path) -> None:
        """Remove a folder that lies where a file belongs."""
        if path.is_dir() and not path.is_symlink():
            # Hardly anybody ever needs this import.
            import shutil  # noqa: PLC0415

            shutil.rmtree(path)

    def _trouble(self, what: str, error: OSError) -> None:
        self._warn(f"{self.folder} can't be {what}: {error.strerror}; compiling without")


def mark_used(path: Path, used: float | None = None) -> None:
    """Say that a file is in use, if nobody has said so for a while.

    Args:
        used: when somebody did, in seconds since 1970; None to look.
    """
    with contextlib.suppress(OSError):
        if time.time() - (path.stat().st_mtime if used is None else used) > TOUCH_SECONDS:
            os.utime(path)


def is_intact(kind: StoreKind, key: str, blob: bytes) -> bool:
    """Whether bytes are what their name promises, wherever they come from."""
    if kind is StoreKind.CONTENT:
        return hashlib.sha256(blob).hexdigest() == key
    return is_sealed(blob)


def sorted_names(folder: Path) -> list[str]:
    """The names in a folder; none where it can't be read."""
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []


class StoreCheck(NamedTuple):
    """How many files there are, and the keys of those that are damaged."""

    files: int
    damaged: tuple[str, ...]


def verify_store(store: LocalStore) -> StoreCheck:
    """Read everything; what is damaged is removed."""
    files, damaged = 0, []
    for kind in StoreKind:
        for key in store.keys(kind):
            files += 1
            if not _is_good(store, kind, key):
                damaged.append(key)
                store.delete(kind, key)
    return StoreCheck(files, tuple(damaged))


def _is_good(store: LocalStore, kind: StoreKind, key: str) -> bool:
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
    """Write all that is intact; how many files there were."""
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
    """Store all that is intact, whatever else the file has; how many files there were.

    Args:
        where: the file's name, for the message.

    Raises:
        InputError: it is no such file, or not all of it.
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
                    count += _keep(store, StoreKind(kind), key, content.read())
    except (tarfile.TarError, OSError) as error:
        raise InputError(f"{where} is no exported cache: {error}") from None
    return count


def _keep(store: LocalStore, kind: StoreKind, key: str, blob: bytes) -> bool:
    # A name is a path on this machine: only what is a digest may be one.
    is_digest = len(key) == 64 and set(key) <= set("0123456789abcdef")  # noqa: PLR2004 - of SHA-256
    if not is_digest or not is_intact(kind, key, blob):
        return False
    if not store.put(kind, key, blob):
        raise OutputError(f"can't write into {store.folder}")
    return True


_DOWN_TO = 0.9
"""Of the maximum: so that the next pass isn't due at once."""
_PASS_SECONDS = 300.0
_PASS_SHARE = 0.05
_LEFT_SECONDS = 3600.0
"""Age of a temporary file or a lease whose process must be dead."""
_MARK = "trimmed"
_OTHERS = ("direct", "lease", "digests", "subjects", "told", "statistics", "repeatable", "away")


class _File(NamedTuple):
    used: float
    path: str
    size: int


class EvictionResult(NamedTuple):
    """What a pass left and took: numbers of files, and bytes."""

    files: int
    size: int
    removed: int
    freed: int


def is_eviction_due(folder: Path, *, written: int, maximum: int) -> bool:
    """Whether a pass should be made by a process that has stored ``written`` bytes."""
    if written > maximum * _PASS_SHARE:
        return True
    try:
        return written > 0 and time.time() - (folder / _MARK).stat().st_mtime > _PASS_SECONDS
    except OSError:
        return written > 0


def evict(folder: Path, *, maximum: int) -> EvictionResult | None:
    """Make a pass; None when another process is at it, or none can be made.

    Nobody who reads or writes is held up: what is removed while it's read can be read to the end.
    """
    with contextlib.suppress(OSError), (folder / _MARK).open("w") as mark:
        if not try_lock(mark.fileno()):
            return None
        os.utime(folder / _MARK)
        return _trim(folder, maximum)
    return None


def _trim(folder: Path, maximum: int) -> EvictionResult:
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
    """How many files there are, and their bytes."""
    sizes = [file.size for file in _files(folder)]
    return len(sizes), sum(sizes)


def _files(folder: Path) -> Iterator[_File]:
    """Every file, with when it was used last; what killed processes left is removed."""
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
                elif _is_left(place, row.name, status.st_mtime):
                    os.unlink(row.path)  # noqa: PTH108 - see `_trim`
                else:
                    yield _File(status.st_mtime, row.path, status.st_size)


def _is_left(place: Path, name: str, written: float) -> bool:
    unfinished = name.startswith(".") or place.name == "lease"
    return unfinished and time.time() - written > _LEFT_SECONDS


def clear_store(folder: Path) -> tuple[int, int]:
    """Remove everything that is a store's; how many files, and their bytes."""
    files = list(_files(folder))
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(file.path)  # noqa: PTH108 - see `_trim`
    for place in [*(kind.value for kind in StoreKind), *_OTHERS]:
        for name in sorted_names(folder / place):
            with contextlib.suppress(OSError):
                (folder / place / name).rmdir()
    return len(files), sum(file.size for file in files)
