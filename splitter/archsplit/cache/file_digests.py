"""SHA-256 of files, without a second read of unchanged ones.

A digest is cached with the file's size, inode and times, only for this machine. It is not cached
for a file that changed shortly before it was read: a second change might not show in its times.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING

from archsplit.cache.usage import SETTLED_NS
from archsplit.system.fs import hash_stream
from archsplit.system.mounts import device_identity
from archsplit.system.outputs import read_stored_file, store_file

if TYPE_CHECKING:
    from pathlib import Path

_MOST = 20_000

FileStamp = tuple[int, int, int, int, int]


class FileDigests:
    """Digests of files, cached from process to process.

    Args:
        folder: folder of the cached digests; None to cache nothing.

    Attributes:
        folder: folder of this machine's digests; None to cache nothing.
        began: nanoseconds since 1970; every returned digest was read after this time.
    """

    def __init__(self, folder: Path | None) -> None:
        self.began = time.time_ns()
        self.folder = None if folder is None else folder / os.uname().nodename
        self._cached: dict[str, tuple[FileStamp, str]] = {}
        self._new: dict[str, dict[str, tuple[FileStamp, str]]] = {}
        self._checked: dict[str, str | None] = {}

    def load(self, group: str) -> None:
        """Load the cached digests of a group; a damaged file counts as empty."""
        if self.folder is None:
            return
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            rows = json.loads(read_stored_file(self.folder / group)[0])
            for path, (stamp, digest) in rows.items():
                self._cached[path] = (tuple(stamp), str(digest))

    def digest(self, path: str, *, group: str) -> str | None:
        """Return the digest of a file, or None for one that can't be read.

        Args:
            path: absolute path.
            group: name of the file in which the digest is cached.
        """
        if path not in self._checked:
            self._checked[path] = self._find(path, group)
        return self._checked[path]

    def recheck(self) -> None:
        """Check all files again: they may have changed since the last check."""
        self._checked.clear()

    def save(self) -> None:
        """Write the new digests; what can't be written is computed again next time."""
        if self.folder is None:
            return
        for group, rows in self._new.items():
            path = self.folder / group
            # Another process may have stored digests since `load`.
            merged = {**self._stored(path), **rows}
            # The newest last: old ones are of files that are gone.
            kept = dict(list(merged.items())[-_MOST:])
            with contextlib.suppress(OSError):
                store_file(path, json.dumps(kept).encode())
        self._new.clear()

    def _stored(self, path: Path) -> dict[str, tuple[FileStamp, str]]:
        try:
            rows = json.loads(read_stored_file(path)[0])
        except (OSError, ValueError):
            return {}
        return rows if isinstance(rows, dict) else {}

    def _find(self, path: str, group: str) -> str | None:
        try:
            stamp = read_stamp(path)
            known = self._cached.get(path)
            if known is not None and known[0] == stamp:
                return known[1]
            digest = _digest(path)
            # The file changed while it was read: the hashed bytes are unknown.
            if read_stamp(path) != stamp:
                return None
        except OSError:
            return None
        # A negative identity is this process's own.
        if time.time_ns() - max(stamp[2], stamp[3]) > SETTLED_NS and stamp[4] >= 0:
            self._new.setdefault(group, {})[path] = self._cached[path] = (stamp, digest)
        return digest


def read_stamp(path: str) -> FileStamp:
    """Return a file's size, inode, times and file system, which change when the file does."""
    status = os.stat(path)  # noqa: PTH116 - thousands of them: a Path each would cost more
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (status.st_size, status.st_ino, *times, device_identity(status.st_dev))


def _digest(path: str) -> str:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - as in `_stamp`
        return hash_stream(file)[0].hex()
