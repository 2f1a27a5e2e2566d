# ruff: noqa: INP001, T201 - a script, whose table goes to standard output
"""Simulation of a build on a farm: speed-up and bytes by the number of workers.

    python bench/bench_farm.py [--json FILE]

500 sources for 8 targets, in the actions that `group_steps` makes of their steps. Durations are
drawn around measured ones (a file with CUB; heavy: kernels like flash-attention's). Each
worker has 16 slots and a link of 1 Gbit/s, and all of them load from one store. Not simulated:
planning, the writing of wheels, the transfer of the toolkit, cache hits and lost workers.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
from pathlib import Path
from typing import NamedTuple

from archsplit.scheduler.graph import Graph, Step, group_steps, guess_size
from archsplit.system.process import Command

_SOURCES, _TARGETS, _SLOTS = 500, 8, 16
_OVERHEAD = 0.05
_PLACE = Path("/build")
_GOALS = {("usual", 16): 0.9, ("heavy", 64): 0.8}


class Load(NamedTuple):
    """Medians and spreads of the seconds of cicc and ptxas."""

    cicc: tuple[float, float]
    ptxas: tuple[float, float]


_LOADS = {
    "usual": Load((5.7, 0.74), (1.4, 0.97)),
    "heavy": Load((14.0, 0.74), (9.0, 0.97)),
}


class Case(NamedTuple):
    """A farm: workers, and bytes per second of a worker's link and of the store's."""

    load: str
    workers: int
    link: float
    store: float


_GIGABIT = 125e6
_CASES = tuple(
    Case(load, workers, _GIGABIT, _GIGABIT * store)
    for load in _LOADS
    for workers, store in ((4, 10), (16, 10), (64, 10))
)


def make_graph(load: Load, chance: random.Random) -> Graph:
    """Return the steps of a build, with their durations as weights."""

    def seconds(median: float, spread: float) -> float:
        return min(60.0, chance.lognormvariate(math.log(median), spread))

    def step(name: str, unit: str, reads: str, writes: str, weight: float) -> Step:
        return Step(
            name=name,
            command=Command(argv=(name,), cwd=_PLACE, env={}),
            reads=tuple(_PLACE / each for each in reads.split()),
            writes=tuple(_PLACE / each for each in writes.split()),
            weight=weight,
            unit=unit,
        )

    steps = []
    for number in range(_SOURCES):
        unit, last = f"{number}", f"{number}-{_TARGETS - 1}"
        steps += [
            step(f"{unit} pre", unit, "", f"{unit}.ii", 0.9),
            step(f"{unit} cudafe++", unit, f"{unit}.ii", f"{unit}.cpp", 3.4),
            step(f"{unit} host", unit, f"{unit}.cpp {last}.stub.c", f"{unit}.host.obj", 5.3),
        ]
        for target in range(_TARGETS):
            at = f"{unit}-{target}"
            steps += [
                step(f"{at} pre", unit, "", f"{at}.ii", 0.9),
                step(f"{at} cicc", unit, f"{at}.ii", f"{at}.ptx {at}.stub.c", seconds(*load.cicc)),
                step(f"{at} ptxas", unit, f"{at}.ptx", f"{at}.cubin", seconds(*load.ptxas)),
                step(f"{at} fatbin", unit, f"{at}.cubin", f"{at}.fatbin", 0.01),
                step(f"{at} copy", unit, f"{at}.fatbin {unit}.host.obj", f"{at}.o", 0.01),
            ]
    for target in range(_TARGETS):
        objects = " ".join(f"{number}-{target}.o" for number in range(_SOURCES))
        steps.append(step(f"link {target}", "", objects, f"{target}.so", 2.0))
    return Graph(steps=tuple(steps))


class Line:
    """A connection that moves one file after the other."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free = 0.0

    def move(self, now: float, size: int) -> float:
        """Return the time at which bytes have arrived that are sent now."""
        self._free = max(now, self._free) + size / self._rate
        return self._free


def simulate(graph: Graph, case: Case, *, moves: bool) -> float:
    """Return the seconds of a build.

    Args:
        moves: False for one machine, whose steps find all files on its disk.
    """
    ranks = graph.critical_path()
    waits = [len(found) for found in graph.dependencies]
    made = {path for step in graph.steps for path in step.writes}
    ready = [(-ranks[at], at) for at, count in enumerate(waits) if not count]
    heapq.heapify(ready)
    free, lines = [_SLOTS] * case.workers, [Line(case.link) for _ in range(case.workers)]
    store, now = Line(case.store), 0.0
    # Events: the end of an execution, whose outputs leave then, and the end of an action.
    events: list[tuple[float, int, int, bool]] = []
    while ready or events:
        while ready and (worker := max(range(case.workers), key=free.__getitem__)) >= 0:
            if not free[worker]:
                break
            _, at = heapq.heappop(ready)
            free[worker] -= 1
            step, begin = graph.steps[at], now
            if moves:
                size = sum(guess_size(path) for path in step.reads if path in made)
                begin = max(store.move(now, size), lines[worker].move(now, size)) + _OVERHEAD
            heapq.heappush(events, (begin + step.weight, at, worker, True))
        now, at, worker, has_outputs = heapq.heappop(events)
        if has_outputs and moves:
            size = sum(map(guess_size, graph.steps[at].writes))
            arrived = max(store.move(now, size), lines[worker].move(now, size))
            heapq.heappush(events, (arrived, at, worker, False))
            continue
        free[worker] += 1
        for later in graph.dependents[at]:
            waits[later] -= 1
            if not waits[later]:
                heapq.heappush(ready, (-ranks[later], later))
    return now


def main() -> None:
    """Print a row for each farm."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for load, values in _LOADS.items():
        graph = make_graph(values, random.Random(17))  # noqa: S311 - the same in each run
        hours = sum(step.weight for step in graph.steps) / 3600
        one_machine = simulate(graph, Case(load, 1, _GIGABIT, _GIGABIT), moves=False)
        wanted = [path for step in graph.steps for path in step.writes if path.suffix == ".so"]
        grouped = group_steps(graph, wanted=wanted)
        read = {path for step in grouped.steps for path in step.reads}
        written = [path for step in grouped.steps for path in step.writes if path in read]
        moved = sum(map(guess_size, written)) / _SOURCES / _TARGETS / 1e6
        print(
            f"{load}: {hours:.1f} CPU h, {one_machine / 60:.1f} min on one machine;"
            f" {len(graph.steps)} steps, {len(grouped.steps)} actions,"
            f" {moved:.2f} MB move for each source and target"
        )
        for case in (each for each in _CASES if each.load == load):
            seconds = simulate(grouped, case, moves=True)
            share = one_machine / seconds / case.workers
            goal = _GOALS.get((load, case.workers))
            rows.append({**case._asdict(), "seconds": seconds, "share": share, "goal": goal})
            text = "" if goal is None else f", goal {goal:.2f}"
            print(f"  {case.workers:3} x {_SLOTS}: {seconds / 60:6.1f} min, {share:.2f}{text}")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
