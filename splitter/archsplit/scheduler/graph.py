"""Graph of commands, whose edges follow from the files that the commands read and write.

Input are `Step` records. A step that reads a file waits for the step that writes it. Output is a
`Graph` with both directions of the edges, a topological order and the critical path of each step,
by which the scheduler orders what is ready. Nothing here runs a command.
"""

from __future__ import annotations

import dataclasses
import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from archsplit.system.process import Command

__pure__ = True


_CHEAP_SHARE = 0.02
"""Share of a run's seconds that cheap steps at the beginning may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command with its inputs, its outputs and guesses of its cost.

    Attributes:
        name: name for people; unique in its graph.
        command: the program and its arguments.
        reads: input files, all but those of the tools; those that no step writes must exist
            beforehand.
        writes: output files, which must exist and not be empty after a success.
        weight: guessed seconds, for the critical path.
        memory: guessed peak bytes; 0 for no guess. Steps of one kind should have the same guess,
            because the measured peak of one becomes the estimate of the others.
        memory_per_byte: guessed bytes on top for each byte of input; 0 for no guess.
        key: name in the history, the same in each build; "" for no history.
        parallel_flags: arguments for several cores, with ``{cores}`` in them, to be inserted after
            the program; empty for a step that always uses one core.
        reads_source: True if the step is the first to read a source, so that it finds its errors.
        runs_first: whether it starts before all others, with the steps that it waits for: where a
            failure is expected, or would be found too late.
        check: called after a success, in the runner's thread; it raises an error that ends the run.
        unit: the source that the step compiles, for `group_steps`; "" for none.
        parts: the steps that this one runs, one after the other; empty for a single command.
        is_remote: True if the step takes a slot of a farm, and none of this machine.
    """

    name: str
    command: Command
    reads: tuple[Path, ...]
    writes: tuple[Path, ...]
    weight: float = 1.0
    memory: int = 0
    memory_per_byte: float = 0.0
    key: str = ""
    parallel_flags: tuple[str, ...] = ()
    reads_source: bool = False
    runs_first: bool = False
    check: Callable[[], None] | None = None
    unit: str = ""
    parts: tuple[Step, ...] = ()
    is_remote: bool = False

    def __post_init__(self) -> None:
        if self.weight < 0 or self.memory < 0:
            raise ValueError(f"{self.name}: a weight or a memory can't be negative")

    def command_for(self, cores: int) -> Command:
        """Return the command for a number of cores; for one core, the unchanged command."""
        if cores == 1:
            return self.command
        program, *arguments = self.command.argv
        wide = (text.format(cores=cores) for text in self.parallel_flags)
        return dataclasses.replace(self.command, argv=(program, *wide, *arguments))


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Steps and their dependencies.

    Attributes:
        steps: in the order in which failures are reported.
        dependencies: for each step's position, the positions that the step waits for.
        dependents: for each step's position, the positions that wait for the step.
        order: all positions in topological order.
    """

    steps: tuple[Step, ...]
    dependencies: tuple[frozenset[int], ...] = field(init=False)
    dependents: tuple[frozenset[int], ...] = field(init=False)
    order: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        if len({step.name for step in self.steps}) != len(self.steps):
            raise ValueError("two steps have the same name")
        # Derived here, so that a caller can't pass edges that contradict the steps.
        object.__setattr__(self, "dependencies", self._edges())
        object.__setattr__(self, "dependents", self._reversed())
        object.__setattr__(self, "order", self._topological())

    def critical_path(self, seconds: Sequence[float] | None = None) -> tuple[float, ...]:
        """Return for each step the length of the longest chain that begins with it.

        Args:
            seconds: duration of each step; None for the weights.
        """
        own = [step.weight for step in self.steps] if seconds is None else seconds
        lengths = list(own)
        for position in reversed(self.order):
            for earlier in self.dependencies[position]:
                lengths[earlier] = max(lengths[earlier], own[earlier] + lengths[position])
        return tuple(lengths)

    def ranks(self, seconds: Sequence[float]) -> tuple[float, ...]:
        """Return each step's critical path, made longer where it should start early.

        Cheap steps that are the first to read a source come before the others, so that an error in
        the source shows at once. They are so cheap that the run takes hardly longer.

        Args:
            seconds: duration of each step.
        """
        ranks = list(self.critical_path(seconds))
        # A rank above the longest path puts a step before all others, whatever its own length.
        longest, left = max(ranks, default=0.0), sum(seconds) * _CHEAP_SHARE
        reading = [at for at, step in enumerate(self.steps) if step.reads_source]
        for position in sorted(reading, key=seconds.__getitem__):
            left -= seconds[position]
            if left >= 0:
                ranks[position] += longest
        for position in self._first_steps():
            ranks[position] += 2 * longest
        return tuple(ranks)

    def _first_steps(self) -> frozenset[int]:
        """Return the steps that run first, and those that they wait for."""
        waiting = [at for at, step in enumerate(self.steps) if step.runs_first]
        found: set[int] = set()
        while waiting:
            position = waiting.pop()
            waiting += self.dependencies[position] - found
            found.add(position)
        return frozenset(found)

    def _edges(self) -> tuple[frozenset[int], ...]:
        producer: dict[Path, int] = {}
        for position, step in enumerate(self.steps):
            for path in step.writes:
                # Two writers of a file would race, and the cache would keep the result of either.
                if path in producer:
                    first = self.steps[producer[path]].name
                    raise ValueError(f"{first} and {step.name} both write {path}")
                producer[path] = position
        return tuple(
            frozenset(producer[path] for path in step.reads if path in producer)
            for step in self.steps
        )

    def _reversed(self) -> tuple[frozenset[int], ...]:
        later: list[set[int]] = [set() for _ in self.steps]
        for position, earlier in enumerate(self.dependencies):
            for other in earlier:
                later[other].add(position)
        return tuple(map(frozenset, later))

    def _topological(self) -> tuple[int, ...]:
        missing = [len(earlier) for earlier in self.dependencies]
        ready = [position for position, count in enumerate(missing) if count == 0]
        order = []
        while ready:
            # A heap by position: the order is the same in each run, and so are the reports.
            position = heapq.heappop(ready)
            order.append(position)
            for later in self.dependents[position]:
                missing[later] -= 1
                if missing[later] == 0:
                    heapq.heappush(ready, later)
        if len(order) != len(self.steps):
            stuck = sorted(self.steps[at].name for at in set(range(len(missing))) - set(order))
            raise ValueError(f"these steps wait for each other: {', '.join(stuck)}")
        return tuple(order)
