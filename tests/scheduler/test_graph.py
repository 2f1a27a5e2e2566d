from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archsplit.scheduler.graph import Graph, Step
from archsplit.system.process import Command


def step(
    name: str,
    reads: str = "",
    writes: str = "",
    weight: float = 1.0,
    *,
    reads_source: bool = False,
    first: bool = False,
) -> Step:
    return Step(
        name=name,
        command=Command(argv=("true",), cwd=Path("/"), env={}),
        reads=tuple(map(Path, reads.split())),
        writes=tuple(map(Path, writes.split())),
        weight=weight,
        reads_source=reads_source,
        runs_first=first,
    )


def test_step_waits_for_the_writers_of_its_inputs() -> None:
    graph = Graph(steps=(step("c", "a b"), step("a", writes="a"), step("b", "a", "b")))
    assert graph.dependencies == (frozenset({1, 2}), frozenset(), frozenset({1}))
    assert graph.dependents == (frozenset(), frozenset({0, 2}), frozenset({0}))
    assert graph.order == (1, 2, 0)


def test_cheap_readers_of_sources_come_early() -> None:
    graph = Graph(
        steps=(
            step("chain", writes="a", weight=10, reads_source=True),
            step("end", "a", weight=90),
            step("cheap", weight=1, reads_source=True),
            step("cheaper", weight=0.5, reads_source=True),
            step("as cheap", weight=1, reads_source=True),
            step("other", weight=0.1),
            step("fails", weight=50, reads_source=True, first=True),
        )
    )
    seconds = [each.weight for each in graph.steps]
    ranks = graph.ranks(seconds)
    order = sorted(range(len(ranks)), key=lambda at: (-ranks[at], at))
    names = [graph.steps[at].name for at in order]
    assert names == ["fails", "cheap", "as cheap", "cheaper", "chain", "end", "other"]


def test_the_critical_path_is_the_heaviest_chain_from_each_step() -> None:
    graph = Graph(
        steps=(
            step("a", writes="a", weight=1),
            step("long", "a", "l", weight=5),
            step("short", "a", "s", weight=2),
            step("end", "l s", weight=1),
        )
    )
    assert graph.critical_path() == (7, 6, 3, 1)


def test_two_steps_may_not_write_one_file() -> None:
    with pytest.raises(ValueError, match="one and two both write x"):
        Graph(steps=(step("one", writes="x"), step("two", writes="x")))


def test_two_steps_may_not_have_one_name() -> None:
    with pytest.raises(ValueError, match="the same name"):
        Graph(steps=(step("one"), step("one")))


def test_steps_in_a_cycle_are_named() -> None:
    with pytest.raises(ValueError, match="wait for each other: one, two"):
        Graph(steps=(step("zero", writes="z"), step("one", "b z", "a"), step("two", "a", "b")))


def test_a_weight_is_not_negative() -> None:
    with pytest.raises(ValueError, match="negative"):
        Graph(steps=(step("one", weight=-1),))


@given(st.data())
def test_the_order_respects_every_edge(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    shuffled = data.draw(st.permutations(range(count)))
    steps = []
    for position, number in enumerate(shuffled):
        earlier = data.draw(st.sets(st.sampled_from(shuffled), max_size=4))
        earlier &= set(shuffled[:position])
        steps.append(step(str(number), " ".join(f"f{e}" for e in earlier), f"f{number}"))
    graph = Graph(steps=tuple(data.draw(st.permutations(steps))))
    place = {position: at for at, position in enumerate(graph.order)}
    lengths = graph.critical_path()
    for position, earlier_ones in enumerate(graph.dependencies):
        for earlier_one in earlier_ones:
            assert place[earlier_one] < place[position]
            assert lengths[earlier_one] > lengths[position]
