"""The rules against an oracle that lists NVIDIA's documents, and their laws on any target."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archsplit.arch import compat
from archsplit.arch.compat import best_target, can_run_on, is_published, published_targets
from archsplit.arch.gpus import GPUS
from archsplit.arch.target import Capability, CodeKind, Target

# Who runs whose SASS, written out: "Binary Compatibility" in the programming guide. Each group is
# desktop and data centre parts of one major, ascending; an embedded part is a group of its own.
SASS_GROUPS = (
    ("3.0", "3.5", "3.7"),
    ("3.2",),
    ("5.0", "5.2"),
    ("5.3",),
    ("6.0", "6.1"),
    ("6.2",),
    ("7.0", "7.5"),
    ("7.2",),
    ("8.0", "8.6", "8.9"),
    ("8.7",),
    ("8.8",),
    ("9.0",),
    ("10.0", "10.3", "10.7"),
    ("10.1",),
    ("11.0",),
    ("12.0", "12.1"),
)
# Table "Family-Specific Compatibility" of the programming guide for CUDA 13.4, and for sm_101 the
# one of CUDA 12.9.
FAMILIES = {
    "100f": ("10.0", "10.3", "10.7"),
    "101f": ("10.1",),
    "103f": ("10.3", "10.7"),
    "107f": ("10.7",),
    "110f": ("11.0",),
    "120f": ("12.0", "12.1"),
    "121f": ("12.1",),
}
ASCENDING = sorted(itertools.chain(*SASS_GROUPS), key=float)
SUFFIXED = ("9.0", *ASCENDING[ASCENDING.index("10.0") :])

capabilities = st.builds(Capability, st.integers(1, 20), st.integers(0, 9))
real_capabilities = st.sampled_from(tuple(compat.GPU_BY_CAPABILITY))
real_targets = st.sampled_from(published_targets())
targets = real_targets | st.builds(
    Target,
    kind=st.sampled_from(CodeKind),
    capability=capabilities,
    suffix=st.sampled_from(("", "a", "f")),
)
target_lists = st.lists(targets, max_size=8)


def oracle_runs_on(name: str, capability: str) -> bool:
    """Return the answer of the documents' tables, by strings and lists."""
    kind, _, number = name.partition("_")
    base = number.rstrip("af")
    built_for = f"{base[:-1]}.{base[-1]}"
    if number.endswith("a"):
        return built_for == capability
    if number.endswith("f"):
        return capability in FAMILIES[number]
    if kind == "compute":
        return capability in ASCENDING[ASCENDING.index(built_for) :]
    group = next(group for group in SASS_GROUPS if built_for in group)
    return capability in group[group.index(built_for) :]


def oracle_ranking() -> list[str]:
    """Return all target names, the best first."""
    ranking = []
    for word in ("sm", "compute"):
        for capability in reversed(ASCENDING):
            number = capability.replace(".", "")
            suffixes = ("a", "f", "") if capability in SUFFIXED else ("",)
            ranking += [f"{word}_{number}{suffix}" for suffix in suffixes]
    return [name for name in ranking if not name.endswith("_90f")]


ORACLE_RANKING = oracle_ranking()


def test_the_table_and_the_oracle_have_the_same_targets() -> None:
    assert [str(each) for each in compat.GPU_BY_CAPABILITY] == ASCENDING
    assert {str(each) for each in published_targets()} == set(ORACLE_RANKING)


def test_published_target_runs_as_documented() -> None:
    for name, capability in itertools.product(ORACLE_RANKING, ASCENDING):
        expected = oracle_runs_on(name, capability)
        found = can_run_on(Target.parse(name), Capability.parse(capability))
        assert found == expected, f"{name} on {capability}"


@given(real_capabilities, st.sets(real_targets, max_size=10))
def test_best_target_is_first_of_the_ranking(capability: Capability, some: set[Target]) -> None:
    names = {str(each) for each in some}
    runnable = (name for name in ORACLE_RANKING if oracle_runs_on(name, str(capability)))
    expected = next((name for name in runnable if name in names), None)
    found = best_target(capability, some)
    assert (found and str(found)) == expected


def test_the_plain_matrix_has_the_same_rules() -> None:
    assert {str(target) for target in compat.published_targets()} == set(ORACLE_RANKING)
    for target in compat.published_targets():
        gpus = [str(one) for one in compat.GPU_BY_CAPABILITY if compat.can_run_on(target, one)]
        assert gpus == [each for each in ASCENDING if oracle_runs_on(str(target), each)]


@pytest.mark.parametrize(
    ("capability", "names", "expected"),
    [
        ("9.0", "sm_80 sm_90 sm_90a compute_90a", "sm_90a"),
        ("8.9", "sm_80 sm_86 compute_89", "sm_86"),
        ("10.3", "sm_100f sm_103 compute_103a", "sm_103"),
        ("10.3", "sm_100 sm_100a sm_100f", "sm_100f"),
        ("8.7", "sm_80 sm_86 compute_80 compute_75", "compute_80"),
        ("12.1", "sm_120 compute_120", "sm_120"),
        ("13.0", "sm_120 compute_75 compute_120", "compute_120"),
        ("12.0", "sm_90 compute_90a sm_100f", None),
        ("7.5", "", None),
    ],
)
def test_best_target_is_chosen_in_frequent_cases(
    capability: str, names: str, expected: str | None
) -> None:
    found = best_target(Capability.parse(capability), map(Target.parse, names.split()))
    assert (found and str(found)) == expected


def test_a_future_target_is_unknown_but_follows_the_general_rules() -> None:
    target = Target.parse("sm_150f")
    assert not is_published(target)
    assert can_run_on(target, Capability(15, 0))
    assert can_run_on(target, Capability(15, 1))
    assert not can_run_on(target, Capability(16, 0))
    assert not is_published(Target.parse("sm_80a"))
    assert not is_published(Target.parse("sm_90f"))


def test_messages_have_the_names_of_products() -> None:
    assert compat.capability_text(Capability(9, 0)) == "9.0 (Hopper: H100, H200)"
    assert compat.capability_text(Capability(8, 8)) == "8.8 (Ampere)"
    assert compat.capability_text(Capability(15, 0)) == "15.0 (unknown)"


def test_renamed_parts_have_both_numbers() -> None:
    for old, new in compat.RENAMED_CAPABILITIES.items():
        assert compat.GPU_BY_CAPABILITY[old].embedded == compat.GPU_BY_CAPABILITY[new].embedded


def test_every_line_of_the_table_has_a_public_source() -> None:
    assert all(each.source.startswith("https://") for each in GPUS)
    assert [each.sm for each in GPUS] == sorted({each.sm for each in GPUS})


@given(targets)
def test_code_runs_on_its_own_target(target: Target) -> None:
    assert can_run_on(target, target.capability)


@given(targets, capabilities)
def test_suffix_only_removes_gpus(target: Target, capability: Capability) -> None:
    runs = [
        can_run_on(
            Target(kind=target.kind, capability=target.capability, suffix=suffix), capability
        )
        for suffix in ("a", "f", "")
    ]
    assert runs == sorted(runs)


@given(targets, capabilities)
def test_sass_never_leaves_its_major_nor_runs_on_a_lower_minor(
    target: Target, capability: Capability
) -> None:
    if target.kind is CodeKind.SASS and can_run_on(target, capability):
        assert capability.major == target.capability.major
        assert capability.minor >= target.capability.minor


@given(targets, capabilities, capabilities)
def test_plain_ptx_goes_on_running_upwards(target: Target, a: Capability, b: Capability) -> None:
    ptx = Target(kind=CodeKind.PTX, capability=target.capability)
    if can_run_on(ptx, min(a, b)):
        assert can_run_on(ptx, max(a, b))


@given(targets, capabilities, capabilities)
def test_running_is_transitive(target: Target, b: Capability, c: Capability) -> None:
    middle = Target(kind=target.kind, capability=b, suffix=target.suffix)
    if can_run_on(target, b) and can_run_on(middle, c):
        assert can_run_on(target, c)


@given(capabilities, target_lists)
def test_best_target_runs_on_the_gpu_if_any_target_does(
    capability: Capability, some: list[Target]
) -> None:
    best = best_target(capability, some)
    if best is None:
        assert not any(can_run_on(each, capability) for each in some)
    else:
        assert best in some
        assert can_run_on(best, capability)


@given(capabilities, target_lists)
def test_order_and_repetition_do_not_matter(capability: Capability, some: list[Target]) -> None:
    assert best_target(capability, some) == best_target(capability, [*reversed(some), *some])


@given(capabilities, target_lists, target_lists)
def test_the_best_of_all_is_the_best_of_the_bests(
    capability: Capability, some: list[Target], others: list[Target]
) -> None:
    bests = (best_target(capability, some), best_target(capability, others))
    assert best_target(capability, [*some, *others]) == best_target(capability, filter(None, bests))


@given(capabilities, target_lists, targets)
def test_one_more_target_never_makes_the_choice_worse(
    capability: Capability, some: list[Target], one_more: Target
) -> None:
    before = best_target(capability, some)
    after = best_target(capability, [*some, one_more])
    if before is None:
        assert after in {None, one_more}
    else:
        assert after is not None
        assert compat.preference(after) >= compat.preference(before)
