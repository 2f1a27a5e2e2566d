from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st
from scheduler_samples import graphs, step

from archsplit.scheduler.graph import Graph
from archsplit.scheduler.schedule import Schedule


def scheduled(graph: Graph) -> Schedule:
    return Schedule(graph, graph.critical_path())


def longest_chain(graph: Graph, position: int) -> float:
    """By trying every chain, as no scheduler could."""
    later = (longest_chain(graph, each) for each in graph.dependents[position])
    return graph.steps[position].weight + max(later, default=0)


@given(graphs())
def test_the_critical_path_is_the_longest_of_all_chains(graph: Graph) -> None:
    expected = tuple(longest_chain(graph, position) for position in range(len(graph.steps)))
    assert graph.critical_path() == expected


@given(graphs(), st.integers())
def test_every_step_runs_once_and_after_its_inputs(graph: Graph, seed: int) -> None:
    random = Random(seed)
    schedule = scheduled(graph)
    done: list[int] = []
    while not schedule.is_finished:
        while schedule.ready and random.random() < 0.7:
            first = schedule.ready[0]
            # Nothing that may start is more urgent.
            assert longest_chain(graph, first) == max(
                longest_chain(graph, each) for each in schedule.ready
            )
            schedule.start(first)
        if schedule.running:
            ended = random.choice(sorted(schedule.running))
            if random.random() < 0.1:
                schedule.requeue(ended)
                continue
            assert graph.dependencies[ended] <= set(done)
            schedule.succeed(ended)
            done.append(ended)
    assert sorted(done) == list(range(len(graph.steps)))
    assert schedule.first_failed is None


@given(graphs(), st.data())
def test_reported_failure_is_the_first_in_serial_order(graph: Graph, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.integers(0, len(graph.steps) - 1)))
    schedule = scheduled(graph)
    failed = set()
    while not schedule.is_finished:
        for position in tuple(schedule.ready):
            schedule.start(position)
        ended = data.draw(st.sampled_from(sorted(schedule.running)))
        if ended in bad:
            failed.add(ended)
            for each in schedule.fail(ended):
                schedule.discard(each)
        else:
            schedule.succeed(ended)
    # A step fails if it is bad and nothing that it needs is.
    reachable = {at for at in bad if not bad & ancestors(graph, at)}
    assert schedule.first_failed == min(reachable, default=None)
    assert failed <= reachable


def ancestors(graph: Graph, position: int) -> set[int]:
    found = set(graph.dependencies[position])
    return found.union(*(ancestors(graph, each) for each in found)) if found else found


def test_step_before_a_failure_still_runs_with_its_inputs() -> None:
    graph = Graph(
        steps=(
            step("early", "late-input"),
            step("bad"),
            step("input", writes="late-input"),
            step("useless"),
            step("after bad", "x"),
        )
    )
    schedule = scheduled(graph)
    for position in (1, 3):
        schedule.start(position)
    assert schedule.fail(1) == {3}
    assert schedule.ready == [2]
    schedule.discard(3)
    schedule.start(2)
    assert schedule.succeed(2) == (0,)
    schedule.start(0)
    assert schedule.succeed(0) == ()
    assert schedule.is_finished
    assert schedule.first_failed == 1


def test_of_equally_urgent_steps_the_first_in_the_graph_is_first() -> None:
    schedule = scheduled(Graph(steps=(step("b"), step("a"), step("long", weight=2))))
    assert schedule.ready == [2, 0, 1]


def test_steps_ready_soon_are_predicted() -> None:
    graph = Graph(
        steps=(
            step("a", writes="a"),
            step("b", writes="b"),
            step("of a", "a"),
            step("of both", "a b"),
        )
    )
    schedule = scheduled(graph)
    schedule.start(0)
    schedule.start(1)
    assert schedule.ready_by({0: 1.0, 1: 5.0}, by=2.0) == (2,)
    assert set(schedule.ready_by({0: 1.0, 1: 5.0}, by=5.0)) == {2, 3}
    assert schedule.ready_by({0: 1.0, 1: 5.0}, by=0.5) == ()
