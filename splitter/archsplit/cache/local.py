"""The local store: plain files, named by hash, that many processes share without locks.

``ac/<2 digits>/<key>`` has entries and manifests, ``cas/<2 digits>/<SHA-256>`` contents. Without
the two digits those are the paths of the HTTP protocol that Bazel's remote caches speak.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import time
from enum import Enum
from typing import TYPE_CHECKING

from archsplit.cache.entry import is_sealed
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
            self.drop(kind, key)
            return None
        except OSError as error:
            if error.errno not in _SILENT:
                self._trouble("read", error)
            return None
        if not is_intact(kind, key, blob):
            self._warn(f"dropped a damaged file: {path}")
            self.drop(kind, key)
            return None
        if self._writable:
            touch(path, used)
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

    def drop(self, kind: StoreKind, key: str) -> None:
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


def touch(path: Path, used: float | None = None) -> None:
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
