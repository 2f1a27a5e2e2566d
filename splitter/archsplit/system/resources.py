"""How many programs to run at a time.

How much memory there is, and who uses it: cgroups, the machine, a tree of processes.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


def available_cores() -> int:
    """How many cores this process may use; fewer than the machine has under taskset or cgroups."""
    return len(os.sched_getaffinity(0))


def parse_job_count(text: str) -> int:
    """Read a number of jobs as a user writes it.

    Raises:
        ValueError: it is not a whole number of 1 or more, in plain digits.
    """
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ValueError(f"{text!r} is not a number of 1 or more")
    return int(text)


ROOT = Path("/")
_NO_LIMIT = 1 << 60
"""cgroup v1 says nearly 2**63 where there is no limit."""


class _Words(NamedTuple):
    """How one version of cgroups names things."""

    mount: str
    limits: tuple[str, ...]
    usage: str
    reclaimable: frozenset[str]


_V1 = _Words(
    mount="sys/fs/cgroup/memory",
    limits=("memory.limit_in_bytes",),
    usage="memory.usage_in_bytes",
    reclaimable=frozenset({"total_inactive_file", "total_active_file"}),
)
_V2 = _Words(
    mount="sys/fs/cgroup",
    limits=("memory.max", "memory.high"),
    usage="memory.current",
    reclaimable=frozenset({"inactive_file", "active_file", "slab_reclaimable"}),
)


class SystemMemory:
    """What the kernel lets this process and its children use.

    The limits are read once; how much of them is used, at each question.

    Args:
        root: the folder in which ``proc`` and ``sys`` are; tests have their own.

    Attributes:
        total: bytes of the narrowest limit, or of the machine.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._limited = tuple(_limited_groups(root))
        limits = [limit for limit, _, _ in self._limited]
        self.total = min([_meminfo(root).get("MemTotal", _NO_LIMIT), *limits])

    def available(self) -> int:
        """Bytes that can be had now without the OOM killer: never negative.

        Page cache counts as available, because the kernel gives it up.
        """
        rooms = [_meminfo(self._root).get("MemAvailable", self.total)]
        for limit, words, folder in self._limited:
            rooms.append(limit - _number(folder / words.usage) + _reclaimable(folder, words))
        return max(0, min(rooms))


def resident_memory(pid: int, root: Path = ROOT) -> int:
    """Bytes of memory that a process and its descendants hold now; 0 when it is gone."""
    folder = root / "proc" / str(pid)
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = int((folder / "statm").read_text().split()[1])
        below = sum(resident_memory(child, root) for child in _children(folder))
        return pages * os.sysconf("SC_PAGE_SIZE") + below
    return 0


def _children(folder: Path) -> Iterator[int]:
    # A thread's list has only what that thread has started.
    for task in (folder / "task").iterdir():
        with contextlib.suppress(OSError):
            yield from map(int, (task / "children").read_text().split())


def _limited_groups(root: Path) -> Iterator[tuple[int, _Words, Path]]:
    """The cgroups above this process that have a memory limit, and what it is."""
    for words, path in _memberships(root):
        mount = root / words.mount
        group = mount / path
        # In a container the path may be the host's, and only the mount's top be there.
        for folder in (group, *group.parents):
            if folder.is_relative_to(mount):
                found = [_number(folder / name) for name in words.limits]
                limit = min((each for each in found if each), default=_NO_LIMIT)
                if limit < _NO_LIMIT:
                    yield limit, words, folder


def _memberships(root: Path) -> Iterator[tuple[_Words, str]]:
    with contextlib.suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield _V2, path.lstrip("/")
            elif "memory" in controllers.split(","):
                yield _V1, path.lstrip("/")


def _reclaimable(folder: Path, words: _Words) -> int:
    return sum(size for name, size in _table(folder / "memory.stat") if name in words.reclaimable)


def _meminfo(root: Path) -> dict[str, int]:
    return {name.rstrip(":"): size * 1024 for name, size in _table(root / "proc/meminfo")}


def _table(path: Path) -> Iterator[tuple[str, int]]:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in path.read_text().splitlines():
            name, _, rest = line.partition(" ")
            yield name, int(rest.split()[0])


def _number(path: Path) -> int:
    """The number in a file; 0 where there is none, or no number ("max")."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
