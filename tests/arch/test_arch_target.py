from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archsplit.arch.target import Capability, CodeKind, Suffix, Target
from archsplit.errors import TargetError

SUFFIXES: tuple[Suffix, ...] = ("", "a", "f")

capabilities = st.builds(Capability, st.integers(1, 999), st.integers(0, 9))
targets = st.builds(
    Target,
    kind=st.sampled_from(CodeKind),
    capability=capabilities,
    suffix=st.sampled_from(SUFFIXES),
)


@pytest.mark.parametrize(
    ("name", "kind", "numbers", "suffix"),
    [
        ("sm_90", CodeKind.SASS, (9, 0), ""),
        ("sm_90a", CodeKind.SASS, (9, 0), "a"),
        ("sm_103", CodeKind.SASS, (10, 3), ""),
        ("sm_120f", CodeKind.SASS, (12, 0), "f"),
        ("compute_80", CodeKind.PTX, (8, 0), ""),
        ("sm_150", CodeKind.SASS, (15, 0), ""),
    ],
)
def test_a_name_says_kind_capability_and_suffix(
    name: str, kind: CodeKind, numbers: tuple[int, int], suffix: Suffix
) -> None:
    target = Target.parse(name)
    assert target == Target(kind=kind, capability=Capability(*numbers), suffix=suffix)
    assert str(target) == name


@given(targets)
def test_printing_and_parsing_a_target_is_the_identity(target: Target) -> None:
    assert Target.parse(str(target)) == target


@given(capabilities)
def test_printing_and_parsing_a_capability_is_the_identity(capability: Capability) -> None:
    assert Capability.parse(str(capability)) == capability
    assert Capability.from_sm_number(capability.sm_number) == capability


@given(st.text().filter(lambda text: not re.search("[0-9]{2}|[0-9]\\.[0-9]", text)))
def test_other_text_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(TargetError) as no_target:
        Target.parse(text)
    with pytest.raises(TargetError) as no_capability:
        Capability.parse(text)
    for error in (no_target.value, no_capability.value):
        assert repr(text) in str(error)
        assert error.hint


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("sm90", "did you mean sm_90?"),
        ("SM_90A", "did you mean sm_90a?"),
        ("sm-100a", "did you mean sm_100a?"),
        ("compute120", "did you mean compute_120?"),
        ("sm_9O", "did you mean sm_90?"),
        ("gfx942", "write SASS targets like"),
        ("H100", "write SASS targets like"),
        ("smaller than all of them", "write SASS targets like"),
        ("", "write SASS targets like"),
    ],
)
def test_the_hint_proposes_the_nearest_target(text: str, hint: str) -> None:
    with pytest.raises(TargetError, match="is not a target") as caught:
        Target.parse(text)
    assert caught.value.hint is not None
    assert hint in caught.value.hint


@pytest.mark.parametrize("text", ["9", "9.", "09.0", "9.10", "0.1", "9.0a", " 9.0", "٩.0"])
def test_a_capability_is_two_plain_numbers(text: str) -> None:
    with pytest.raises(TargetError, match="is not a compute capability"):
        Capability.parse(text)


@pytest.mark.parametrize("numbers", [(0, 1), (-1, 0), (9, -1), (9, 10), (1000, 0)])
def test_number_out_of_range_is_not_a_capability(numbers: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="is not a compute capability"):
        Capability(*numbers)


def test_targets_sort_by_kind_capability_and_suffix() -> None:
    names = ["sm_75", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_100f", "compute_75", "compute_90"]
    assert [str(each) for each in sorted(map(Target.parse, reversed(names)))] == names


@given(targets, targets)
def test_the_order_is_total_and_agrees_with_equality(a: Target, b: Target) -> None:
    assert (a < b) + (a == b) + (a > b) == 1
    assert (a <= b) == (not a > b)


def test_a_target_has_no_order_with_other_things() -> None:
    with pytest.raises(TypeError):
        _ = Target.parse("sm_90") < "sm_90"
