"""Run one command to its end, and find what it took: wall and CPU seconds, and peak memory."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = 1 / os.sysconf("SC_CLK_TCK")
LOG = "said.log"
_SAMPLE = 0.2
"""Seconds between two looks at the memory of a process tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A run of a command.

    Attributes:
        wall: seconds from start to end.
        cpu: user and system seconds of the process and all descendants that were waited for.
        peak: bytes; the largest measured sum of the resident memory of all its processes.
        returncode: exit status; negative is the signal that ended it.
        exceeded: True if it was killed for more memory than the ceiling.
        said: the end of its output on both streams.
    """

    wall: float
    cpu: float
    peak: int
    returncode: int
    exceeded: bool
    said: str


def measure(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    servers: tuple[int, ...] = (),
    ceiling: int | None = None,
    patience: float = 900.0,
) -> Measured:
    """Run ``argv`` and measure it.

    Args:
        argv: the program and its arguments.
        cwd: the folder to run it in; its output is kept there, in `LOG`.
        env: its whole environment.
        servers: processes that work for it: theirs is added to its CPU time and memory.
        ceiling: bytes of resident memory above which all of it is killed, as a container would.
        patience: seconds after which all of it is killed.
    """
    log = cwd / LOG
    before = sum(map(_cpu, servers))
    started = time.monotonic()
    process = _start(argv, cwd=cwd, env=env, log=log)
    watch = _Watch(process, servers, ceiling, started + patience)
    watch.start()
    try:
        _, status, usage = os.wait4(process, 0)
    except BaseException:
        kill(family((process,)))
        raise
    finally:
        wall = time.monotonic() - started
        watch.stop()
    return Measured(
        wall=wall,
        cpu=usage.ru_utime + usage.ru_stime + sum(map(_cpu, servers)) - before,
        peak=watch.peak,
        returncode=os.waitstatus_to_exitcode(status),
        exceeded=watch.exceeded,
        said=log.read_text(errors="replace")[-4000:],
    )


def _start(argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], log: Path) -> int:
    # posix_spawn can't change the folder, and a fork beside the threads of a watch could hang.
    enter = ("/bin/sh", "-c", 'cd "$0" && exec "$@"', str(cwd))
    output = (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    both = [output, (os.POSIX_SPAWN_DUP2, 1, 2)]
    return os.posix_spawnp(enter[0], (*enter, *argv), env, file_actions=both, setsid=True)


class _Watch(threading.Thread):
    """Looks at the memory of a process and its descendants until it is told to stop."""

    def __init__(
        self, process: int, servers: tuple[int, ...], ceiling: int | None, deadline: float
    ) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self.exceeded = False
        self._process = process
        self._servers = servers
        self._ceiling = ceiling
        self._deadline = deadline
        self._over = threading.Event()

    def run(self) -> None:
        """Sample the memory; kill processes that take too much or too long."""
        while not self._over.wait(_SAMPLE):
            tree = family((self._process, *self._servers))
            resident = sum(tree.values())
            self.peak = max(self.peak, resident)
            self.exceeded |= self._ceiling is not None and resident > self._ceiling
            if self.exceeded or time.monotonic() > self._deadline:
                kill(pid for pid in tree if pid not in self._servers)

    def stop(self) -> None:
        """End the thread."""
        self._over.set()
        self.join()


def kill(processes: Iterable[int]) -> None:
    """Kill each process that still runs."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def family(ancestors: tuple[int, ...]) -> dict[int, int]:
    """Return the processes and all their descendants, each with its resident bytes."""
    parents, resident = {}, {}
    for folder in Path("/proc").iterdir():
        fields = _fields(int(folder.name)) if folder.name.isdigit() else None
        if fields is not None:
            parents[int(folder.name)] = int(fields[1])
            resident[int(folder.name)] = int(fields[21]) * _PAGE
    found: set[int] = set()
    newer = set(ancestors) & set(parents)
    while newer:
        found |= newer
        newer = {pid for pid, parent in parents.items() if parent in newer} - found
    return {pid: resident[pid] for pid in found}


def _cpu(process: int) -> float:
    """Return the CPU seconds of a living process and of the children that it waited for."""
    fields = _fields(process)
    return 0.0 if fields is None else sum(map(int, fields[11:15])) * _TICK


def _fields(process: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the third (the state) on; None if it is gone."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in parentheses, and may contain any character.
    return text[text.rindex(")") + 2 :].split()
