"""Cores and memory that this process and its children may use.

In: the kernel's files, ``/proc`` and cgroups of version 1 and 2. Out: numbers of cores and bytes.
The narrowest limit counts: a container's, a group's above it, or the machine's.

The package ``psutil`` isn't used: it takes 27 ms of CPU to import, reads all of ``/proc`` for the
descendants of a process (13 ms where the files here take 0.2 ms), and knows no limits of cgroups.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path("/")
_NO_LIMIT = 1 << 60
"""From here on a limit means "unlimited", which cgroup v1 writes as nearly 2**63."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MALLOC_OPTIONS = {_M_ARENA_MAX: 1, _M_TRIM_THRESHOLD: 64 << 20, _M_MMAP_THRESHOLD: 32 << 20}
"""Room for an image and what its compression needs; glibc takes no larger mmap threshold."""


def available_cores() -> int:
    """Return the number of cores for this process, which taskset and cpusets may limit."""
    # Not os.cpu_count(), which counts the machine's.
    return len(os.sched_getaffinity(0))


def parse_job_count(text: str) -> int:
    """Read a number of jobs from the command line.

    Raises:
        ValueError: the text is not a whole number of 1 or more, in plain digits.
    """
    # `int` would accept "1_0" and " 1".
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ValueError(f"{text!r} is not a number of 1 or more")
    return int(text)


def reuse_freed_memory() -> None:
    """Let the C library keep freed memory, for all threads together.

    Each thread would have memory of its own otherwise, and give it back after each image: the
    kernel clears every page again, which is a tenth of the time of a split. Elsewhere than with
    glibc nothing changes (`man 3 mallopt`).
    """
    import ctypes  # noqa: PLC0415

    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in _MALLOC_OPTIONS.items():
            mallopt(parameter, value)


class _CgroupFiles(NamedTuple):
    """Names of the files and counters of one version of cgroups."""

    mount: str
    limits: tuple[str, ...]
    usage: str
    reclaimable: frozenset[str]


_V1 = _CgroupFiles(
    mount="sys/fs/cgroup/memory",
    limits=("memory.limit_in_bytes",),
    usage="memory.usage_in_bytes",
    reclaimable=frozenset({"total_inactive_file", "total_active_file"}),
)
_V2 = _CgroupFiles(
    mount="sys/fs/cgroup",
    limits=("memory.max", "memory.high"),
    usage="memory.current",
    reclaimable=frozenset({"inactive_file", "active_file", "slab_reclaimable"}),
)


class SystemMemory:
    """Memory that the kernel lets this process and its children use.

    The limits are read once; the usage is read by each call of `available`.

    Args:
        root: the folder of ``proc`` and ``sys``; tests have their own.

    Attributes:
        total: bytes of the narrowest limit, or of the machine.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._limited = tuple(_limited_groups(root))
        limits = [limit for limit, _, _ in self._limited]
        # The narrowest of all: a container may be inside of a limited slice.
        self.total = min([_meminfo(root, "MemTotal", _NO_LIMIT), *limits])

    def available(self) -> int:
        """Return the bytes that can be allocated now without the OOM killer; never negative."""
        free = [_meminfo(self._root, "MemAvailable", self.total)]
        for limit, files, folder in self._limited:
            # Page cache counts as free, because the kernel gives it up.
            usage = _read_number(folder / files.usage) - _reclaimable(folder, files)
            free.append(limit - usage)
        return max(0, min(free))


def resident_memory(pid: int, root: Path = ROOT) -> int:
    """Return the bytes that a process and its descendants hold now; 0 after its end."""
    folder = root / "proc" / str(pid)
    with contextlib.suppress(OSError, ValueError, IndexError):
        # The second number is the resident set, in pages.
        pages = int((folder / "statm").read_text().split()[1])
        descendants = sum(resident_memory(child, root) for child in _children(folder))
        return pages * os.sysconf("SC_PAGE_SIZE") + descendants
    return 0


def _children(folder: Path) -> Iterator[int]:
    # A thread's list has only what that thread has started.
    for task in (folder / "task").iterdir():
        with contextlib.suppress(OSError):
            yield from map(int, (task / "children").read_text().split())


def _limited_groups(root: Path) -> Iterator[tuple[int, _CgroupFiles, Path]]:
    """Return the limits of the cgroups of this process, each with its group's folder."""
    for files, path in _memberships(root):
        mount = root / files.mount
        group = mount / path
        # In a container the path may be the host's, of which only the mount's top is there.
        for folder in (group, *group.parents):
            if folder.is_relative_to(mount):
                # `memory.high` only slows a group down, but that is what a build must not run into.
                limits = filter(None, (_read_number(folder / name) for name in files.limits))
                limit = min(limits, default=_NO_LIMIT)
                if limit < _NO_LIMIT:
                    yield limit, files, folder


def _memberships(root: Path) -> Iterator[tuple[_CgroupFiles, str]]:
    with contextlib.suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            # Version 2 has one hierarchy for all controllers and lists none.
            if not controllers:
                yield _V2, path.lstrip("/")
            elif "memory" in controllers.split(","):
                yield _V1, path.lstrip("/")


def _reclaimable(folder: Path, files: _CgroupFiles) -> int:
    counters = _read_counters(folder / "memory.stat")
    return sum(size for name, size in counters if name in files.reclaimable)


def _meminfo(root: Path, wanted: str, default: int) -> int:
    counters = _read_counters(root / "proc/meminfo")
    # Both are among the first lines: each check of running steps reads them.
    return next((size * 1024 for name, size in counters if name == f"{wanted}:"), default)


def _read_counters(path: Path) -> Iterator[tuple[str, int]]:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in path.read_text().splitlines():
            name, _, rest = line.partition(" ")
            yield name, int(rest.split()[0])


def _read_number(path: Path) -> int:
    """Return the number in a file; 0 if the file is missing or has no number ("max")."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
