"""Files of one job that no other job reads: in memory while there is room, otherwise on the disk.

In: a folder and a limit. Out: paths. The one idea: a file in memory has no name, so its path is a
link to its descriptor in ``/proc``. Readers, writers, mappings and child processes use that path as
they use any other. `free_ranges` gives space back while the rest of a file is still in use.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import Self

_PUNCH_HOLE, _KEEP_SIZE = 2, 1
"""Flags of fallocate(2). Source: ``linux/falloc.h``."""


class ScratchFiles:
    """Scratch files of one job; the exit removes those in memory.

    Args:
        folder: the folder of all paths; its owner removes it.
        memory: bytes for all files in memory together.
    """

    def __init__(self, folder: Path, *, memory: int) -> None:
        self.folder = folder
        self._free_memory = memory
        self._in_memory: dict[Path, tuple[int, int]] = {}
        self._beyond_limit: Path | None = None
        # Several threads of the job make and remove files.
        self._lock = threading.Condition()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for path in list(self._in_memory):
            self.remove(path)

    def create(self, name: str, size: int) -> Path:
        """Return the path of a new file; on the disk, the file comes with the first write.

        Args:
            size: the expected bytes, which decide between memory and disk.
        """
        # Too large a file goes to the disk; a later, smaller one may still fit.
        return self._create(name, size, is_short_lived=False)

    def create_short_lived(self, name: str, size: int) -> Path:
        """Return the path of a new file that is removed soon: one at a time may exceed the limit.

        A second one waits until the first is removed, and doesn't go to the disk.

        Args:
            size: as for `create`.
        """
        return self._create(name, size, is_short_lived=True)

    def _create(self, name: str, size: int, *, is_short_lived: bool) -> Path:
        path = self.folder / name
        with self._lock:
            fits = size <= self._free_memory
            if is_short_lived and not fits:
                self._lock.wait_for(lambda: self._beyond_limit is None)
            exceeds = is_short_lived and not fits
            if (fits or exceeds) and (descriptor := _memory_file(path)) is not None:
                # What exceeds the limit takes nothing of it: it would be negative.
                counted = size if fits else 0
                self._free_memory -= counted
                self._in_memory[path] = (descriptor, counted)
                self._beyond_limit = path if exceeds else self._beyond_limit
        return path

    def remove(self, path: Path) -> None:
        """Remove a file; mappings of it stay valid."""
        path.unlink(missing_ok=True)
        with self._lock:
            if path in self._in_memory:
                descriptor, size = self._in_memory.pop(path)
                os.close(descriptor)
                self._free_memory += size
            if path == self._beyond_limit:
                self._beyond_limit = None
                self._lock.notify_all()


def _memory_file(path: Path) -> int | None:
    """Make a path a link to a new file in memory; return its descriptor, None on failure."""
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
        descriptor = os.memfd_create(path.name)
        stack.callback(os.close, descriptor)
        # Child processes have a /proc/self of their own.
        path.symlink_to(f"/proc/{os.getpid()}/fd/{descriptor}")
        # A sandbox may hide /proc.
        if path.exists():
            stack.pop_all()
            return descriptor
        path.unlink()
    return None


def free_ranges(path: Path, ranges: Iterable[tuple[int, int]]) -> None:
    """Give the space of parts of a file back; they read as zeros from then on.

    A file system without holes keeps the parts as they are.

    Args:
        ranges: offset and size of each part.
    """
    # os.posix_fallocate can't punch holes.
    fallocate = ctypes.CDLL(None).fallocate
    with path.open("r+b") as file:
        for offset, size in ranges:
            place = (ctypes.c_long(offset), ctypes.c_long(size))
            fallocate(file.fileno(), _PUNCH_HOLE | _KEEP_SIZE, *place)
