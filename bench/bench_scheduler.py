# ruff: noqa: INP001, T201 - a script, whose table goes to standard output
"""Cost of the scheduler itself: CPU seconds and memory per step, with steps that do nothing.

    python bench/bench_scheduler.py [--json FILE]

Each source has a host pass and one chain of steps for each of 8 targets, as nvcc's plan has them.
An executor without programs ends each step after a hundredth of its expected seconds. The goal is
at most 1 ms a step at 20,000 steps and 1,024 slots, and 500 MB.
"""

from __future__ import annotations

import argparse
import heapq
import json
import resource
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from program_usage import megabytes

from archsplit.scheduler.graph import Graph, Step
from archsplit.scheduler.pool import LocalPool
from archsplit.scheduler.runner import RunOptions, run_graph
from archsplit.system.process import Command, CompletedProcess, SubprocessRunner
from archsplit.system.terminal import SilentProgress

if TYPE_CHECKING:
    from archsplit.scheduler.executor import Ended

_TARGETS = 8
_CASES = ((500, 16), (2_000, 256), (20_000, 1_024))
_GOAL_MS, _GOAL_MB = 1.0, 500
_SPEED = 100
_DONE = CompletedProcess(returncode=0, stdout="", stderr="", seconds=0.0)


class NullStep:
    """A step that can't be killed, and holds no memory."""

    def kill(self, *, grace: float = 0.0) -> None:
        """End the step."""

    def resident_memory(self) -> int:
        """Return 0."""
        return 0


class NullExecutor:
    """An executor whose steps end by themselves after some time; one thread counts it."""

    is_local = False
    moved = 0

    def __init__(self) -> None:
        self._ends: list[tuple[float, int, Ended]] = []
        self._changed = threading.Condition()
        self._count = 0
        threading.Thread(target=self._work, daemon=True).start()

    def start(self, step: Step, *, cores: int, ended: Ended) -> NullStep:
        """Start nothing, and end it in time."""
        del cores
        with self._changed:
            self._count += 1
            heapq.heappush(
                self._ends, (time.monotonic() + step.weight / _SPEED, self._count, ended)
            )
            self._changed.notify()
        return NullStep()

    def find_fault(self, step: Step, done: CompletedProcess) -> str:
        """Return no fault."""
        del step, done
        return ""

    def kill_unawaited(self) -> None:
        """Kill nothing."""

    def close(self) -> None:
        """Release nothing."""

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._ends or self._ends[0][0] > time.monotonic():
                    wait = self._ends[0][0] - time.monotonic() if self._ends else None
                    self._changed.wait(wait)
                _, _, ended = heapq.heappop(self._ends)
            ended(_DONE)


def main() -> int:
    """Run the cases; return 0 if the goals were met in the last one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    file = parser.parse_args().json
    rows = [_measure(steps, slots) for steps, slots in _CASES]
    print(f"{'steps':>7} {'slots':>6} {'wall s':>7} {'CPU ms a step':>14} {'MB':>6}")
    for row in rows:
        print("{steps:7} {slots:6} {wall:7.2f} {cpu_ms:14.3f} {mb:6.0f}".format(**row))
    if file is not None:
        file.write_text(json.dumps(rows, indent=2))
    return 0 if rows[-1]["cpu_ms"] <= _GOAL_MS and rows[-1]["mb"] <= _GOAL_MB else 1


def _measure(count: int, slots: int) -> dict[str, float]:
    graph = Graph(steps=tuple(_steps(count)))
    began, cpu = time.monotonic(), time.process_time()
    outcome = run_graph(
        graph,
        RunOptions(
            pool=LocalPool(slots),
            runner=SubprocessRunner(),
            progress=SilentProgress(),
            executor=NullExecutor(),
        ),
    )
    assert len(outcome.finished) == len(graph.steps)
    return {
        "steps": len(graph.steps),
        "slots": slots,
        "wall": time.monotonic() - began,
        "cpu_ms": (time.process_time() - cpu) / len(graph.steps) * 1000,
        "mb": megabytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss),
    }


def _steps(count: int) -> list[Step]:
    steps: list[Step] = []
    source = 0
    while len(steps) < count:
        steps += _source(source)
        source += 1
    return steps[:count]


def _source(number: int) -> list[Step]:
    folder = Path(f"/private/{number:05}")
    steps = [
        _step(folder, "preprocess", "", "ii", 1.0),
        _step(folder, "cudafe++", "ii", "cpp", 1.5),
    ]
    for target in range(_TARGETS):
        names = [f"{target}.{kind}" for kind in ("ii", "ptx", "cubin", "fatbin")]
        for kind, reads, writes, weight in zip(
            ("preprocess", "cicc", "ptxas", "fatbinary"),
            ("", *names),
            names,
            (1.0, 6.0, 0.9, 0.1),
            strict=False,
        ):
            steps.append(_step(folder, f"{kind} {target}", reads, writes, weight))
    steps.append(_step(folder, "host compile", "cpp", "o", 4.0))
    steps += [
        _step(folder, f"objcopy {target}", f"{target}.fatbin o", f"{target}.o", 0.1)
        for target in range(_TARGETS)
    ]
    return steps


def _step(folder: Path, name: str, reads: str, writes: str, weight: float) -> Step:
    return Step(
        name=f"{folder.name}/{name}",
        command=Command(argv=("true",), cwd=folder, env={}),
        reads=tuple(folder / each for each in reads.split()),
        writes=tuple(folder / each for each in writes.split()),
        weight=weight,
        parallel_flags=("{cores}",) if name.startswith("cicc") else (),
    )


if __name__ == "__main__":
    raise SystemExit(main())
