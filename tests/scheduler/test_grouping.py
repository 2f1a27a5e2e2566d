"""Groups of steps: large files stay, nothing waits for itself, the same files are made."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archsplit.scheduler.graph import Graph, Step, group_steps
from archsplit.system.process import Command

PLACE = Path("/work")


def step(name: str, reads: str = "", writes: str = "", weight: float = 1.0, **more: object) -> Step:
    return Step(
        name=name,
        command=Command(argv=(name,), cwd=PLACE, env={}),
        reads=tuple(PLACE / each for each in reads.split()),
        writes=tuple(PLACE / each for each in writes.split()),
        weight=weight,
        unit=name.partition("/")[0] if "/" in name else "",
        **more,  # type: ignore[arg-type]
    )


def source(unit: str, *targets: int) -> list[Step]:
    """Return the steps of a source, as nvcc has them."""
    last = targets[-1]
    steps = [
        step(f"{unit}/pre", f"{unit}.cu", f"{unit}.ii"),
        step(f"{unit}/cudafe", f"{unit}.ii", f"{unit}.cpp"),
        step(f"{unit}/empty", "", f"{unit}.c", 0.1),
        step(f"{unit}/host", f"{unit}.cpp {unit}.c {unit}.{last}.stub", f"{unit}.h"),
    ]
    for target in targets:
        name = f"{unit}.{target}"
        steps += [
            step(f"{unit}/pre {target}", f"{unit}.cu", f"{name}.ii"),
            step(f"{unit}/cicc {target}", f"{name}.ii", f"{name}.ptx {name}.stub {name}.x"),
            step(f"{unit}/ptxas {target}", f"{name}.ptx", f"{name}.cubin"),
            step(f"{unit}/ptxas {target}a", f"{name}.ptx", f"{name}a.cubin"),
            step(f"{unit}/fat {target}", f"{name}.cubin", f"{name}.fatbin", 0.1),
            step(f"{unit}/fat {target}a", f"{name}a.cubin", f"{name}a.fatbin", 0.1),
            step(f"{unit}/copy {target}", f"{name}.fatbin {unit}.h", f"{name}.o", 0.1),
            step(f"{unit}/copy {target}a", f"{name}a.fatbin {unit}.h", f"{name}a.o", 0.1),
        ]
    return steps


def build(units: str, *targets: int) -> Graph:
    steps = [each for unit in units.split() for each in source(unit, *targets)]
    for target in targets:
        objects = (f"{unit}.{target}.o {unit}.{target}a.o" for unit in units.split())
        steps.append(step(f"link {target}", " ".join(objects), f"{target}.so"))
    return Graph(steps=tuple(steps))


def names(graph: Graph) -> list[list[str]]:
    return [[part.name for part in one.parts] or [one.name] for one in graph.steps]


def libraries(*targets: int) -> list[Path]:
    return [PLACE / f"{target}.so" for target in targets]


def test_a_source_is_one_action_for_the_host_and_one_for_each_virtual_target() -> None:
    graph = build("k m", 80, 90)
    grouped = group_steps(graph, wanted=libraries(80, 90))
    assert names(grouped)[:3] == [
        ["k/pre", "k/cudafe", "k/empty", "k/host"],
        ["k/pre 80", "k/cicc 80", "k/ptxas 80", "k/ptxas 80a", "k/fat 80", "k/fat 80a"],
        ["k/pre 90", "k/cicc 90", "k/ptxas 90", "k/ptxas 90a", "k/fat 90", "k/fat 90a"],
    ]
    assert [each[-1] for each in names(grouped)][-2:] == ["link 80", "link 90"]
    assert len(names(grouped)[-1]) == 5
    host, first = grouped.steps[:2]
    # Files inside an action, and files that no step reads, are not files of the action.
    assert {path.name for path in host.reads} == {"k.cu", "k.90.stub"}
    assert [path.name for path in host.writes] == ["k.h"]
    assert {path.name for path in first.writes} == {"k.80.fatbin", "k.80a.fatbin"}
    assert first.name == "k/pre 80, and 5 more"
    assert first.weight == pytest.approx(4.2)
    read = {path for each in grouped.steps for path in each.reads}
    assert sum(path in read for each in grouped.steps for path in each.writes) == 12


def test_large_file_joins_parallel_steps() -> None:
    steps = (
        step("k/a", "s", "b.c d"),
        step("k/b", "b.c", "out"),
        step("m/e", "s", "e"),
        step("k/c", "d e", "more"),
    )
    graph, wanted = Graph(steps=steps), [PLACE / "out", PLACE / "more"]
    assert names(group_steps(graph, wanted=wanted)) == [["k/a"], ["k/b"], ["m/e"], ["k/c"]]

    def size_of(path: Path) -> int:
        return 10**6 if path.suffix == ".c" else 0

    joined = group_steps(graph, wanted=wanted, size_of=size_of)
    assert names(joined) == [["k/a", "k/b"], ["m/e"], ["k/c"]]


def test_small_measured_sizes_change_no_group() -> None:
    graph = build("k m", 80, 90)
    guessed = group_steps(graph, wanted=libraries(80, 90))
    measured = group_steps(graph, wanted=libraries(80, 90), size_of=lambda _: 1000)
    assert names(measured) == names(guessed)


def test_chain_of_any_size_is_one_action() -> None:
    graph = Graph(steps=(step("k/a", "s", "b"), step("k/b", "b", "c"), step("m/c", "c", "d")))
    grouped = group_steps(graph, wanted=[PLACE / "d"])
    assert names(grouped) == [["k/a", "k/b"], ["m/c"]]


def test_no_action_waits_for_itself() -> None:
    # a -> b -> c and a -> c: with b elsewhere, a and c can't be one.
    steps = (
        step("k/a", "s", "big.ii other"),
        step("m/b", "other", "more"),
        step("k/c", "big.ii more", "out"),
    )
    assert names(group_steps(Graph(steps=steps), wanted=[])) == [["k/a"], ["m/b"], ["k/c"]]


def test_unrelated_paths_do_not_separate_two_steps() -> None:
    graph = Graph(
        steps=(
            step("k/a", "", "x1 x2 y z"),
            step("f/a", "", "w"),
            step("c/a", "y", "c1"),
            step("d/a", "z", "d1"),
            step("e/a", "c1 d1", "e1"),
            step("k/b", "x1 x2 w", "b1"),
        )
    )
    grouped = group_steps(graph, wanted=[], size_of=lambda _: 10**9)
    assert ["k/a", "k/b"] in names(grouped)
    assert len(grouped.steps) == 5


def test_all_checks_of_the_parts_are_made() -> None:
    made: list[str] = []
    steps = (
        step("k/a", "s", "b", check=lambda: made.append("a")),
        step("k/b", "b", "c"),
        step("k/c", "c", "d", check=lambda: made.append("c")),
    )
    (one,) = group_steps(Graph(steps=steps), wanted=[PLACE / "d"]).steps
    assert one.check is not None
    one.check()
    assert made == ["a", "c"]


@given(st.data())
def test_every_step_is_in_one_action_after_its_inputs(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    steps: list[Step] = []
    for at in range(count):
        reads = data.draw(st.sets(st.integers(0, at - 1), max_size=3)) if at else set()
        suffix = data.draw(st.sampled_from(["ii", "txt"]))
        unit, weight = data.draw(st.sampled_from("km")), data.draw(st.sampled_from([0.1, 1.0]))
        sources = " ".join(path.name for one in reads for path in steps[one].writes)
        steps.append(step(f"{unit}/{at}", sources, f"{at}.{suffix}", weight))
    graph = Graph(steps=tuple(steps))
    # `Graph` itself refuses a cycle.
    grouped = group_steps(graph, wanted=[path for one in steps for path in one.writes])
    done: set[Path] = set()
    for position in grouped.order:
        one = grouped.steps[position]
        for part in one.parts or (one,):
            assert done.issuperset(part.reads)
            done.update(part.writes)
    assert sorted(name for each in names(grouped) for name in each) == sorted(
        one.name for one in steps
    )
