"""A control group with a memory limit, in which the kernel kills what takes more."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ROOT = Path("/sys/fs/cgroup")
_PATIENCE = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A control group of our own.

    Attributes:
        folder: where the kernel shows it.
        limit_file: takes the bytes.
        events_file: has a line ``oom_kill N``.
    """

    folder: Path
    limit_file: str
    events_file: str

    def inside(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the command that runs ``argv`` in the group."""
        script = 'echo $$ > "$0" && exec "$@"'
        return ("/bin/sh", "-c", script, str(self.folder / "cgroup.procs"), *argv)

    def kills(self) -> int:
        """Return the number of processes that the kernel has killed for lack of memory."""
        lines = (self.folder / self.events_file).read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[Group | None]:
    """Yield a group with a limit in bytes below our own, or None if none can be made."""
    group = _made(limit)
    try:
        yield group
    finally:
        if group is not None:
            _remove(group.folder)


def _remove(folder: Path) -> None:
    """Remove a group as soon as the last process that was killed in it is gone."""
    deadline = time.monotonic() + _PATIENCE
    while (folder / "cgroup.procs").read_text() and time.monotonic() < deadline:
        time.sleep(0.1)
    folder.rmdir()


def _made(limit: int) -> Group | None:
    for group in _candidates():
        with contextlib.suppress(OSError):
            group.folder.mkdir()
            try:
                (group.folder / group.limit_file).write_text(str(limit))
            except OSError:
                group.folder.rmdir()
                continue
            return group
    return None


def _candidates() -> Iterator[Group]:
    """Yield groups below our own, and below its parents: in version 2 ours may have none."""
    name = f"bench-nvcc-{os.getpid()}"
    v1 = {"limit_file": "memory.limit_in_bytes", "events_file": "memory.oom_control"}
    v2 = {"limit_file": "memory.max", "events_file": "memory.events"}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        root, files = (_ROOT / "memory", v1) if controllers else (_ROOT, v2)
        if controllers in {"", "memory"}:
            ours = root / path.lstrip("/")
            for folder in (ours, *(each for each in ours.parents if each.is_relative_to(root))):
                yield Group(folder=folder / name, **files)
