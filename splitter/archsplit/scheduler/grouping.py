"""Groups of steps for one action each, which keep large files on one worker.

In: a graph, and the sizes of the files between its steps. Out: a graph with fewer steps, some of
which have `parts`. For CUDA that is one group per source and virtual target (preprocess, cicc, all
ptxas, fatbinary), one per source for the host, and one per target for objcopy and the link:

    source ──> preprocess ─7 MB─> cicc ─1 MB─> ptxas ─1 MB─> fatbinary ──0.6 MB──> objcopy ─> link
    source ──> preprocess ─7 MB─> cudafe++ ─6 MB─> host compile ────────0.1 MB───────┘

A farm finds results again by their actions, so the same sources must have the same groups on each
machine, with and without measurements: a measured size counts only if it is larger than the guess,
and is compared with a single limit, which is far from most sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from archsplit.scheduler.graph import Graph, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from pathlib import Path

__pure__ = True

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


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedBytes:
    """The bytes of the files that leave one step for another.

    Attributes:
        files: number of files.
        total: each file once, however many steps read it.
    """

    files: int
    total: int


def moved_bytes(graph: Graph, size_of: Callable[[Path], int]) -> MovedBytes:
    """Return the bytes between the steps of a graph."""
    read = {path for step in graph.steps for path in step.reads}
    sizes = [size_of(path) for step in graph.steps for path in step.writes if path in read]
    return MovedBytes(files=len(sizes), total=sum(sizes))


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

    return replace(
        longest,
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
        key="",
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
        is_last = self._after(first) == {second}
        is_first = self._before(second) == {first}
        # A cheap step that other groups wait for, or that waits for others, would delay them.
        wanted = (self._is_cheap(first) and is_last) or (self._is_cheap(second) and is_first)
        if not wanted and self._units(first) == self._units(second):
            # Where nothing else could run meanwhile, one action costs less than two.
            wanted = size >= _LARGE or (is_first and is_last)
        return wanted and (is_first or is_last or not self._has_detour(first, second))

    def join(self, writer: int, reader: int) -> None:
        """Make one group of those of two steps."""
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

    def _after(self, group: int) -> set[int]:
        found = {self.of(at) for one in self._members[group] for at in self._graph.dependents[one]}
        return found - {group}

    def _before(self, group: int) -> set[int]:
        members = self._members[group]
        found = {self.of(at) for one in members for at in self._graph.dependencies[one]}
        return found - {group}

    def _has_detour(self, first: int, second: int) -> bool:
        """Return True if a third group lies between two others.

        Both as one group would wait for themselves.
        """
        seen: set[int] = set()
        waiting = [group for group in self._after(first) if group != second]
        while waiting:
            group = waiting.pop()
            if group == second:
                return True
            if group not in seen:
                seen.add(group)
                waiting += self._after(group)
        return False
