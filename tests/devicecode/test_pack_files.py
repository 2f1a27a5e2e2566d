"""Packs of several cores divided into files: every core finds all its containers, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from archsplit.arch.target import Capability
from archsplit.devicecode.partition import (
    PackContents,
    PackFile,
    PackPlan,
    ReleaseCores,
    divide_packs,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

MB = 1_000_000
NINE = Capability(9, 0)
X86, ARM = "x86_64", "aarch64"


def divided(
    sizes: Sequence[int], machines: Sequence[str], *holders: set[int]
) -> tuple[PackPlan, tuple[PackFile, ...]]:
    """Divide one pack with one image in each container."""
    pack = PackContents(name="cc90", serves=(NINE,), offsets=(frozenset({16}),) * len(sizes))
    plan = PackPlan(packs=(pack,), needs={NINE: ("cc90",)})
    cores = ReleaseCores(machines=tuple(machines), holders=tuple(map(frozenset, holders)))
    return divide_packs(plan, cores, {(number, 16): size for number, size in enumerate(sizes)})


def rows(files: Sequence[PackFile]) -> list[tuple[str, tuple[int, ...], list[int], bool]]:
    """Name, cores and containers of each file, and True for a generic one."""
    return [
        (
            file.pack.name,
            file.cores,
            [number for number, each in enumerate(file.pack.offsets) if each],
            file.is_generic,
        )
        for file in files
    ]


def test_alike_cores_share_one_file() -> None:
    plan, files = divided([5, 5], [X86, X86, ARM], {0, 1, 2}, {0, 1, 2})
    assert rows(files) == [("cc90", (0, 1, 2), [0, 1], True)]
    assert plan.needs == {NINE: ("cc90",)}


def test_each_platform_has_a_file() -> None:
    _, files = divided([5, 5], [X86, X86, ARM], {0, 1, 2}, {0, 1})
    assert rows(files) == [("cc90", (0, 1), [0, 1], True), ("cc90", (2,), [0], True)]


def test_the_common_part_of_platforms_is_a_pack() -> None:
    plan, files = divided([5 * MB, 5], [X86, X86, ARM], {0, 1, 2}, {0, 1})
    assert rows(files) == [
        ("cc90", (0, 1), [1], True),
        ("cc90", (2,), [], True),
        ("common_cc90", (0, 1, 2), [0], True),
    ]
    assert plan.needs == {NINE: ("cc90", "common_cc90")}
    assert [(pack.name, pack.serves) for pack in plan.packs] == [("cc90", ()), ("common_cc90", ())]


def test_an_odd_python_has_a_file_of_its_own() -> None:
    _, files = divided([5, 5, 5], [X86] * 3, {0, 1, 2}, {0}, {1, 2})
    assert rows(files) == [("cc90", (1, 2), [0, 2], True), ("cc90", (0,), [0, 1], False)]


def test_common_images_are_stored_per_platform_if_smaller() -> None:
    cores = ({0, 1, 2, 3}, {0, 1}, {2, 3}, {0}, {2})
    _, files = divided([5, 9 * MB, 9 * MB, 7, 7], [X86, X86, ARM, ARM], *cores)
    assert rows(files)[-2:] == [
        ("common_cc90", (0, 1), [0, 1], True),
        ("common_cc90", (2, 3), [0, 2], True),
    ]


@given(
    st.lists(st.sampled_from([X86, ARM]), min_size=1, max_size=5),
    st.lists(st.tuples(st.sampled_from([10, MB, 9 * MB]), st.sets(st.integers(0, 4))), max_size=6),
)
def test_every_core_finds_its_containers_once(
    machines: list[str], containers: list[tuple[int, set[int]]]
) -> None:
    held = [{core for core in cores if core < len(machines)} for _, cores in containers]
    kept = [(size, cores) for (size, _), cores in zip(containers, held, strict=True) if cores]
    plan, files = divided([size for size, _ in kept], machines, *(cores for _, cores in kept))
    for core in range(len(machines)):
        own = [file for file in files if core in file.cores]
        # An installer takes one file of each pack, and all packs have one for each core.
        assert [file.pack.name for file in own] == [pack.name for pack in plan.packs]
        found = [number for row in rows(own) for number in row[2]]
        assert sorted(found) == [n for n, (_, cores) in enumerate(kept) if core in cores]
