"""A graph of commands that follows from the files they read and write; pure."""

from __future__ import annotations

import dataclasses
import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from archsplit.system.process import Command

__pure__ = True


_CHEAP_SHARE = 0.02
"""Of all seconds of a run, those that cheap steps at its beginning may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command to run.

    Attributes:
        name: what a person calls it; unique in its graph.
        command: what runs.
        reads: files it needs; those that no step writes must be there beforehand.
        writes: files that must be there, and not empty, when it has succeeded.
        weight: a guess of its seconds, to find the critical path.
        memory: a guess of the bytes that it needs at most; 0 where there is none. Steps of a kind
            should have the same guess: what one of them needs is then expected of the others.
        memory_per_byte: a guess of how many bytes it needs on top for each byte that it reads; 0
            where nobody knows.
        key: what it is called in the history, from build to build; "" to learn nothing of it.
        parallel_flags: arguments that make it use several cores, put after the program, with
            ``{cores}`` in them; empty where it can't.
        reads_source: whether it is the first to read a source, in which it may find a fault.
        runs_first: whether it starts before all others, as it is expected to fail.
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

    def __post_init__(self) -> None:
        if self.weight < 0 or self.memory < 0:
            raise ValueError(f"{self.name}: a weight or a memory can't be negative")

    def command_for(self, cores: int) -> Command:
        """The command that works on so many cores; one core gives the command as it is."""
        if cores == 1:
            return self.command
        program, *arguments = self.command.argv
        wide = (text.format(cores=cores) for text in self.parallel_flags)
        return dataclasses.replace(self.command, argv=(program, *wide, *arguments))


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Steps, and which of them must wait for which.

    Attributes:
        steps: in the order in which failures are reported.
        dependencies: for each step's position, the positions of those that it waits for.
        dependents: the other way round: the positions that wait for it.
        order: all positions so that each comes after those it waits for.
    """

    steps: tuple[Step, ...]
    dependencies: tuple[frozenset[int], ...] = field(init=False)
    dependents: tuple[frozenset[int], ...] = field(init=False)
    order: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        if len({step.name for step in self.steps}) != len(self.steps):
            raise ValueError("two steps have the same name")
        # The constructor derives what the caller can't contradict.
        object.__setattr__(self, "dependencies", self._edges())
        object.__setattr__(self, "dependents", self._reversed())
        object.__setattr__(self, "order", self._topological())

    def critical_path(self, seconds: Sequence[float] | None = None) -> tuple[float, ...]:
        """For each step the length of the longest chain that begins with it, itself included.

        Args:
            seconds: how long each step takes; their weights when None.
        """
        own = [step.weight for step in self.steps] if seconds is None else seconds
        lengths = list(own)
        for position in reversed(self.order):
            for earlier in self.dependencies[position]:
                lengths[earlier] = max(lengths[earlier], own[earlier] + lengths[position])
        return tuple(lengths)

    def ranks(self, seconds: Sequence[float]) -> tuple[float, ...]:
        """Return each step's critical path, made longer where it should start early.

        Cheap steps that are the first to read a source come before the others, so that a fault in
        it shows at once. They are so few that the run takes hardly longer.

        Args:
            seconds: how long each step takes.
        """
        ranks = list(self.critical_path(seconds))
        longest, left = max(ranks, default=0.0), sum(seconds) * _CHEAP_SHARE
        reading = [at for at, step in enumerate(self.steps) if step.reads_source]
        for position in sorted(reading, key=seconds.__getitem__):
            left -= seconds[position]
            if self.steps[position].runs_first:
                ranks[position] += 2 * longest
            elif left >= 0:
                ranks[position] += longest
        return tuple(ranks)

    def _edges(self) -> tuple[frozenset[int], ...]:
        producer: dict[Path, int] = {}
        for position, step in enumerate(self.steps):
            for path in step.writes:
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
