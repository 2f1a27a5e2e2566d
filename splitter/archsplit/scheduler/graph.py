"""Graph of commands, whose edges follow from the files that the commands read and write.

Input are `Step` records. A step that reads a file waits for the step that writes it. Output is a
`Graph` with both directions of the edges, a topological order and the critical path of each step,
by which the scheduler orders what is ready. Nothing here runs a command.

`group_steps` joins steps to one action each, which keeps large files on one worker. In: a graph,
and the sizes of the files between its steps. Out: a graph with fewer steps, some of which have
`parts`. For CUDA that is one group per source and virtual target (preprocess, cicc, all ptxas,
fatbinary), one per source for the host, and one per target for objcopy and the link:

    source ──> preprocess ─7 MB─> cicc ─1 MB─> ptxas ─1 MB─> fatbinary ──0.6 MB──> objcopy ─> link
    source ──> preprocess ─7 MB─> cudafe++ ─6 MB─> host compile ────────0.1 MB───────┘

A farm finds results again by their actions, so the same sources must have the same groups on each
machine, with and without measurements: a measured size counts only if it is larger than the guess,
and is compared with a single limit, which is far from most sizes.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from archsplit.system.process import Command

__pure__ = True

_CHEAP_SHARE = 0.02
"""Share of a run's seconds that cheap steps at the beginning may take."""


class Step(NamedTuple):
    """A command with its inputs, its outputs and guesses of its cost.

    Attributes:
        name: name for people; unique in its graph.
        command: the program and its arguments.
        reads: input files, except the tools' own; those that no step writes must exist
            beforehand.
        writes: output files, which must exist and not be empty after a success.
        weight: guessed seconds, for the critical path.
        seconds_per_byte: guessed seconds for each byte of input, which count once the inputs are
            there; 0 for no guess.
        memory: guessed peak bytes; 0 for no guess. Steps of one kind should have the same guess,
            because the measured peak of one becomes the estimate of the others.
        memory_per_byte: guessed bytes on top for each byte of input; 0 for no guess.
        key: name in the history, the same in each build; "" for no history.
        parallel_flags: arguments for several cores, with ``{cores}`` in them, to be inserted after
            the program; empty for a step that always uses one core.
        reads_source: True if the step is the first to read a source, so that it finds its errors.
        runs_first: True if the step, with the steps that it waits for, starts before all others:
            a failure is expected, or would be found too late.
        check: called after a success, in the runner's thread; it raises an error that ends the run.
        unit: the source that the step compiles, for `group_steps`; "" for none.
        parts: the steps that this one runs, one after the other; empty for a single command.
        is_remote: True if the step takes a slot of a farm, and not one of this machine.
    """

    name: str
    command: Command
    reads: tuple[Path, ...]
    writes: tuple[Path, ...]
    weight: float = 1.0
    seconds_per_byte: float = 0.0
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

    def command_for(self, cores: int) -> Command:
        """Return the command for a number of cores; for one core, the unchanged command."""
        if cores == 1:
            return self.command
        program, *arguments = self.command.argv
        wide = (text.format(cores=cores) for text in self.parallel_flags)
        return self.command._replace(argv=(program, *wide, *arguments))


class Graph:
    """Steps and their dependencies.

    Args:
        steps: see the attribute.

    Attributes:
        steps: in the order in which failures are reported.
        dependencies: for each step's position, the positions that the step waits for.
        dependents: for each step's position, the positions that wait for the step.
        order: all positions in topological order.
    """

    def __init__(self, *, steps: tuple[Step, ...]) -> None:
        if len({step.name for step in steps}) != len(steps):
            raise ValueError("two steps have the same name")
        if any(min(step.weight, step.memory) < 0 for step in steps):
            raise ValueError("a weight or a memory can't be negative")
        self.steps = steps
        # Derived here, so that a caller can't pass edges that contradict the steps.
        self.dependencies = self._edges()
        self.dependents = self._reversed_edges()
        self.order = self._topological()

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
        """Return each step's critical path, made longer if the step should start early.

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

    def _reversed_edges(self) -> tuple[frozenset[int], ...]:
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


_LARGE = 1 << 18
"""Bytes; a smaller file costs less to move than the time that parallel steps gain."""
_CHEAP_SECONDS = 0.2
"""Seconds; a shorter step costs less than an action of its own."""
_SIZES = {
    ".ii": 6_000_000,
    ".cpp": 5_000_000,
    ".ptx": 600_000,
    ".gpu": 600_000,
    ".cubin": 500_000,
    ".fatbin": 500_000,
    ".o": 700_000,
}
"""Guesses by the suffix of a file, measured on a file with CUB; for others `_OTHER_SIZE`."""
_OTHER_SIZE = 65_000


def guess_size(path: Path) -> int:
    """Return the guessed bytes of a file between two steps."""
    return _SIZES.get(path.suffix, _OTHER_SIZE)


def group_steps(
    graph: Graph, *, wanted: Collection[Path], size_of: Callable[[Path], int] = guess_size
) -> Graph:
    """Return a graph whose steps run several steps of ``graph`` each.

    Args:
        graph: steps with names of their units.
        wanted: files without a reader that must be kept.
        size_of: returns the bytes of a file that a step writes.
    """
    groups = _Groups(graph)
    readers: dict[Path, list[int]] = {}
    for at, step in enumerate(graph.steps):
        for path in step.reads:
            readers.setdefault(path, []).append(at)
    turn = {position: number for number, position in enumerate(graph.order)}
    for writer in graph.order:
        for path in graph.steps[writer].writes:
            # A smaller file than guessed joins, too: a machine without history must decide alike.
            size = max(size_of(path), guess_size(path))
            for reader in readers.get(path, ()):
                if groups.should_join(writer, reader, size):
                    groups.join(writer, reader)
    read_by = {path: {groups.of(at) for at in found} for path, found in readers.items()}

    def steps() -> Iterator[Step]:
        for group, members in groups.members():
            parts = tuple(graph.steps[at] for at in sorted(members, key=turn.__getitem__))
            yield parts[0] if len(parts) == 1 else _grouped(parts, group, read_by, wanted)

    return Graph(steps=tuple(steps()))


def _grouped(
    parts: tuple[Step, ...], group: int, read_by: dict[Path, set[int]], wanted: Collection[Path]
) -> Step:
    written = {path for part in parts for path in part.writes}
    longest = max(parts, key=lambda part: part.weight)

    def check() -> None:
        for part in parts:
            if part.check is not None:
                part.check()

    return longest._replace(
        name=f"{longest.name}, and {len(parts) - 1} more",
        reads=tuple(
            dict.fromkeys(path for part in parts for path in part.reads if path not in written)
        ),
        # A file that no other action reads stays where it was made.
        writes=tuple(
            path
            for part in parts
            for path in part.writes
            if path in wanted or read_by.get(path, set()) - {group}
        ),
        weight=sum(part.weight for part in parts),
        memory=max(part.memory for part in parts),
        memory_per_byte=max(part.memory_per_byte for part in parts),
        key="; ".join(part.key for part in parts) if all(part.key for part in parts) else "",
        parallel_flags=(),
        reads_source=any(part.reads_source for part in parts),
        runs_first=any(part.runs_first for part in parts),
        check=check if any(part.check for part in parts) else None,
        parts=parts,
    )


class _Groups:
    """Groups of positions in a graph, whose own graph has no cycle."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._group = list(range(len(graph.steps)))
        self._members = {at: [at] for at in self._group}

    def of(self, position: int) -> int:
        """Return the group of a position."""
        return self._group[position]

    def members(self) -> Iterable[tuple[int, list[int]]]:
        """Return all groups with their positions, in the order of their longest steps."""
        return sorted(self._members.items(), key=lambda row: self._longest(row[1]))

    def should_join(self, writer: int, reader: int, size: int) -> bool:
        """Return True if the groups of two steps should become one.

        Args:
            writer: position of the step that writes a file.
            reader: position of a step that reads the file.
            size: bytes of the file.
        """
        first, second = self.of(writer), self.of(reader)
        if first == second:
            return False
        one_reader = self._groups_after(first) == {second}
        one_writer = self._groups_before(second) == {first}
        # A cheap step that other groups wait for, or that waits for others, would delay them.
        gains = (self._is_cheap(first) and one_reader) or (self._is_cheap(second) and one_writer)
        if not gains and self._units(first) == self._units(second):
            # If nothing else could run meanwhile, one action costs less than two.
            gains = size >= _LARGE or (one_writer and one_reader)
        return gains and (one_writer or one_reader or not self._has_detour(first, second))

    def join(self, writer: int, reader: int) -> None:
        """Make one group of two steps' groups."""
        first, second = self.of(writer), self.of(reader)
        for at in self._members.pop(second):
            self._group[at] = first
            self._members[first].append(at)

    def _longest(self, members: list[int]) -> int:
        return min(members, key=lambda at: (-self._graph.steps[at].weight, at))

    def _is_cheap(self, group: int) -> bool:
        return sum(self._graph.steps[at].weight for at in self._members[group]) <= _CHEAP_SECONDS

    def _units(self, group: int) -> frozenset[str]:
        steps = (self._graph.steps[at] for at in self._members[group])
        # A cheap step in the group of another unit changes nothing for this question.
        return frozenset(step.unit for step in steps if step.weight > _CHEAP_SECONDS)

    def _groups_after(self, group: int) -> set[int]:
        found = {self.of(at) for one in self._members[group] for at in self._graph.dependents[one]}
        return found - {group}

    def _groups_before(self, group: int) -> set[int]:
        members = self._members[group]
        found = {self.of(at) for one in members for at in self._graph.dependencies[one]}
        return found - {group}

    def _has_detour(self, first: int, second: int) -> bool:
        """Return True if a path from one group to another leads through a third.

        As one group, the two would wait for the third, which waits for them.
        """
        seen: set[int] = set()
        waiting = [group for group in self._groups_after(first) if group != second]
        while waiting:
            group = waiting.pop()
            if group == second:
                return True
            if group not in seen:
                seen.add(group)
                waiting += self._groups_after(group)
        return False
