"""Steps and pools that several engine tests share."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from archsplit.scheduler.graph import Graph, Step
from archsplit.scheduler.pool import MemoryBudget
from archsplit.system.process import Command, CompletedProcess
from archsplit.system.resources import SystemMemory

if TYPE_CHECKING:
    from collections.abc import Callable

MB = 1 << 20
WIDE = ("--cores={cores}",)


def step(
    name: str, reads: str = "", writes: str = "", *, folder: Path = Path("/nowhere"), **more: object
) -> Step:
    """A step for `FakeRunner`: the program is its name, the arguments are what it writes."""
    written = tuple(folder / one for one in writes.split())
    return Step(
        name=name,
        command=Command(argv=(name, *map(str, written)), cwd=Path("/"), env={}),
        reads=tuple(folder / one for one in reads.split()),
        writes=written,
        **more,  # type: ignore[arg-type]
    )


def shell(
    folder: Path, name: str, script: str, reads: str = "", writes: str = "", **more: object
) -> Step:
    """A step that a shell runs in ``folder``."""
    return Step(
        name=name,
        command=Command(argv=("/bin/sh", "-c", script), cwd=folder, env=dict(os.environ)),
        reads=tuple(folder / one for one in reads.split()),
        writes=tuple(folder / one for one in writes.split()),
        **more,  # type: ignore[arg-type]
    )


def made_up_memory(folder: Path, total: int, available: int | None = None) -> SystemMemory:
    """A machine without cgroups that has so many bytes."""
    (folder / "proc").mkdir(parents=True, exist_ok=True)
    free = total if available is None else available
    text = f"MemTotal: {total // 1024} kB\nMemFree: 1 kB\nMemAvailable: {free // 1024} kB\n"
    (folder / "proc/meminfo").write_text(text)
    return SystemMemory(folder)


def plenty(folder: Path) -> MemoryBudget:
    """More memory than any test needs."""
    return MemoryBudget(made_up_memory(folder, 1 << 40))


@dataclass
class FakeRunner:
    """Runs nothing; a step ends when its turn says so, and all that happens is written down.

    Attributes:
        behaviour: for a command, what becomes of it; may sleep.
    """

    behaviour: Callable[[Command], CompletedProcess]

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self.log: list[tuple[str, str]] = []
        self.killed: set[str] = set()

    def run(self, command: Command) -> CompletedProcess:
        return self.start(command).wait()

    def cancel(self) -> None:
        pass

    def kill_unawaited(self) -> None:
        pass

    def start(self, command: Command) -> FakeRunning:
        self.write("start", command)
        return FakeRunning(self, command)

    def write(self, what: str, command: Command) -> None:
        with self.lock:
            self.log.append((what, command.argv[0]))


@dataclass
class FakeRunning:
    runner: FakeRunner
    command: Command
    memory: int = 0

    def wait(self) -> CompletedProcess:
        done = self.runner.behaviour(self.command)
        for path in self.command.argv[1:]:
            if path.startswith("--"):
                continue
            Path(path).write_text("written")
        self.runner.write("end", self.command)
        return done

    def kill(self, *, grace: float = 0.5) -> None:
        del grace
        self.runner.killed.add(self.command.argv[0])

    def resident_memory(self) -> int:
        return self.memory


def succeeds(command: Command) -> CompletedProcess:
    time.sleep(0.0002)
    return CompletedProcess(returncode=0, stdout="", stderr="", seconds=0.0)


@st.composite
def graphs(draw: st.DrawFn, folder: Path = Path("/nowhere")) -> Graph:
    """Any graph of steps without cycles, in any order."""
    count = draw(st.integers(1, 12))
    steps = []
    for number in range(count):
        earlier = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        one = step(
            f"s{number}",
            " ".join(f"f{each}" for each in sorted(earlier)),
            f"f{number}",
            folder=folder,
            weight=draw(st.integers(0, 20)),
            memory=draw(st.integers(1, 500)) * MB,
            parallel_flags=draw(st.sampled_from(((), WIDE))),
        )
        steps.append(one)
    return Graph(steps=tuple(draw(st.permutations(steps))))
