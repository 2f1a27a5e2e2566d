"""SHA-256 of files, without reading again what can't have changed.

A digest is remembered with the file's size, inode, time of change and time of modification, for
this machine alone. It isn't used for what changed so shortly before it was read that a second
change might not show in the times.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING

from archsplit.system.fs import hash_stream, store_file

if TYPE_CHECKING:
    from pathlib import Path

SETTLED_NS = 2_000_000_000
_MOST = 20_000

FileStamp = tuple[int, int, int, int, int]


class FileDigests:
    """Digests of files, remembered from process to process.

    Args:
        folder: where they are remembered; None to remember nothing.

    Attributes:
        folder: where this machine's are; None to remember nothing.
        began: nanoseconds since 1970: whatever digest was told since is of a file as it was then,
            if that hasn't changed since.
    """

    def __init__(self, folder: Path | None) -> None:
        self.began = time.time_ns()
        self.folder = None if folder is None else folder / os.uname().nodename
        self._known: dict[str, tuple[FileStamp, str]] = {}
        self._new: dict[str, dict[str, tuple[FileStamp, str]]] = {}
        self._asked: dict[str, str | None] = {}

    def load(self, group: str) -> None:
        """Bring in what is remembered of a group of files; a damaged memory is an empty one."""
        if self.folder is None:
            return
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            rows = json.loads((self.folder / group).read_bytes())
            for path, (stamp, digest) in rows.items():
                self._known[path] = (tuple(stamp), str(digest))

    def digest(self, path: str, *, group: str) -> str | None:
        """The digest of a file, or None where there is none that can be read.

        Args:
            path: absolute.
            group: what the digest is remembered with.
        """
        if path not in self._asked:
            self._asked[path] = self._find(path, group)
        return self._asked[path]

    def recheck(self) -> None:
        """Look at all files again: time has passed in which they may have changed."""
        self._asked.clear()

    def save(self) -> None:
        """Remember what was learned; where that's impossible, it will be learned again."""
        if self.folder is None:
            return
        for group, rows in self._new.items():
            path = self.folder / group
            merged = {**self._stored(path), **rows}
            kept = dict(list(merged.items())[-_MOST:])
            with contextlib.suppress(OSError):
                store_file(path, json.dumps(kept).encode())
        self._new.clear()

    def _stored(self, path: Path) -> dict[str, tuple[FileStamp, str]]:
        try:
            rows = json.loads(path.read_bytes())
        except (OSError, ValueError):
            return {}
        return rows if isinstance(rows, dict) else {}

    def _find(self, path: str, group: str) -> str | None:
        try:
            stamp = read_stamp(path)
            known = self._known.get(path)
            if known is not None and known[0] == stamp:
                return known[1]
            digest = _digest(path)
            if read_stamp(path) != stamp:
                return None
        except OSError:
            return None
        if time.time_ns() - max(stamp[2], stamp[3]) > SETTLED_NS:
            self._new.setdefault(group, {})[path] = self._known[path] = (stamp, digest)
        return digest


def read_stamp(path: str) -> FileStamp:
    """Return what changes when a file does: size, inode, times of change, device."""
    status = os.stat(path)  # noqa: PTH116 - thousands of them: a Path each would cost more
    return (status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_dev)


def _digest(path: str) -> str:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - as in `_stamp`
        return hash_stream(file)[0].hex()
