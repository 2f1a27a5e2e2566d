"""A graph in the DOT language of graphviz, its critical path emphasised; pure."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from archsplit.scheduler.graph import Graph
    from archsplit.scheduler.outcome import Outcome

__pure__ = True


def graph_dot(graph: Graph, outcome: Outcome | None = None) -> str:
    """The graph as DOT text, with measured seconds where there are any, and guesses elsewhere."""
    seconds = [step.weight for step in graph.steps]
    for done in outcome.finished if outcome is not None else ():
        seconds[done.position] = done.seconds
    critical = critical_chain(graph, seconds)
    return "\n".join(["digraph steps {", *_dot_lines(graph, seconds, critical), "}"]) + "\n"


def critical_chain(graph: Graph, seconds: Sequence[float]) -> tuple[int, ...]:
    """The positions of the chain of steps that takes longest, first to last."""
    lengths = graph.critical_path(seconds)
    chain = []
    following = frozenset(range(len(graph.steps)))
    while following:
        # Of equals the first: the picture is the same each time.
        chain.append(min(following, key=lambda at: (-lengths[at], at)))
        following = graph.wakes[chain[-1]]
    return tuple(chain)


def _dot_lines(graph: Graph, seconds: Sequence[float], critical: tuple[int, ...]) -> Iterator[str]:
    yield '    rankdir="LR"; node [shape="box", fontname="sans-serif"];'
    for position, step in enumerate(graph.steps):
        label = f"{step.name}\\n{seconds[position]:.2f} s"
        bold = ', penwidth="3"' if position in critical else ""
        yield f'    n{position} [label="{_quoted(label)}"{bold}];'
    links = set(pairwise(critical))
    for position, earlier in enumerate(graph.waits_for):
        for each in sorted(earlier):
            bold = ' [penwidth="3"]' if (each, position) in links else ""
            yield f"    n{each} -> n{position}{bold};"


def _quoted(text: str) -> str:
    return text.replace('"', '\\"')
