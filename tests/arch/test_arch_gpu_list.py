"""The parser for all options that take a GPU."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archsplit.arch import gpu_list
from archsplit.arch.compat import GPU_BY_CAPABILITY, published_targets
from archsplit.arch.gpu_list import (
    parse_capabilities,
    parse_gpu_targets,
    parse_target_patterns,
    require_published,
)
from archsplit.errors import TargetError

if TYPE_CHECKING:
    from archsplit.arch.target import Capability, Target

HERE = ("9.0", "NVIDIA A100-SXM4-80GB", "9.0")


def detect() -> tuple[str, ...]:
    return HERE


def nothing() -> tuple[str, ...]:
    return ()


def capabilities(text: str) -> str:
    return " ".join(map(str, parse_capabilities(text, detect=detect)))


def targets(text: str) -> str:
    return " ".join(map(str, parse_gpu_targets(text, detect=detect)))


def patterns(text: str) -> str:
    return " ".join(parse_target_patterns(text, detect=detect))


@pytest.mark.parametrize(
    ("text", "capability", "target", "pattern"),
    [
        ("9.0", "9.0", "sm_90", "sm_90*"),
        ("90", "9.0", "sm_90 compute_90", "sm_90*"),
        ("9.0a", "9.0", "sm_90a", "sm_90*"),
        ("9.0A", "9.0", "sm_90a", "sm_90*"),
        ("90a", "9.0", "sm_90a compute_90a", "sm_90*"),
        ("cc90", "9.0", "sm_90", "sm_90*"),
        ("90-real", "9.0", "sm_90", "sm_90*"),
        ("90-virtual", "9.0", "compute_90", "compute_90"),
        ("9.0+PTX", "9.0", "sm_90 compute_90", "sm_90*"),
        ("sm90", "9.0", "sm_90", "sm_90"),
        ("SM_90a", "9.0", "sm_90a", "sm_90a"),
        ("sm 90", "9.0", "sm_90", "sm_90"),
        ("sm_9.0", "9.0", "sm_90", "sm_90"),
        ("compute_90", "9.0", "compute_90", "compute_90"),
        ("compute-120f", "12.0", "compute_120f", "compute_120f"),
        ("H100", "9.0", "sm_90", "sm_90*"),
        ("h100 pcie", "9.0", "sm_90", "sm_90*"),
        ("RTX 4090", "8.9", "sm_89", "sm_89*"),
        ("RTX4090", "8.9", "sm_89", "sm_89*"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "8.9", "sm_89", "sm_89*"),
        ("Hopper", "9.0", "sm_90 compute_90", "sm_90*"),
        ("native", "9.0 8.0", "sm_80 sm_90", "sm_90* sm_80*"),
        ("RTX 4090, sm_90;7.5", "8.9 9.0 7.5", "sm_75 sm_89 sm_90", "sm_89* sm_90 sm_75*"),
        ("7.5 8.6 H100", "7.5 8.6 9.0", "sm_75 sm_86 sm_90", "sm_75* sm_86* sm_90*"),
        ("H100,9.0", "9.0", "sm_90", "sm_90*"),
    ],
)
def test_every_spelling_is_read_everywhere(
    text: str, capability: str, target: str, pattern: str
) -> None:
    assert (capabilities(text), targets(text), patterns(text)) == (capability, target, pattern)


def test_nvccs_own_options_are_targets() -> None:
    assert targets("-gencode arch=compute_90,code=[sm_90,compute_90]") == "sm_90 compute_90"
    assert targets("arch=compute_120a,code=sm_120a") == "sm_120a"


def test_shell_patterns_stay_as_they_are() -> None:
    assert patterns("compute_*, sm_[89]*") == "compute_* sm_[89]*"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("99.9", "'99.9': no GPU has the compute capability 99.9", "the published ones are"),
        ("999", "no GPU has the compute capability 99.9", "the published ones are 3.0"),
        ("4090", "no GPU has the compute capability 409.0", "did you mean RTX 4090 (8.9)?"),
        ("H1000", "unknown GPU 'H1000'; did you mean H100?", "write it like 9.0, sm_90, H100"),
        (
            "RTX 6000",
            "unknown GPU 'RTX 6000'",
            "did you mean Quadro RTX 6000 (7.5) or RTX 6000 Ada",
        ),
        ("RTX 9999", "unknown GPU 'RTX 9999'", "write it like"),
        ("nonsense", "unknown GPU 'nonsense'", "write it like"),
        ("9", "unknown GPU '9'", "write it like"),
        ("sm_", "unknown GPU 'sm_'", "write it like"),
        ("all", "is not a fixed set of targets", "list the targets"),
        ("H100 all", "is not a fixed set of targets", "list the targets"),
        (" ,", "the list of GPUs ' ,' is empty", "write it like"),
    ],
)
def test_an_unreadable_entry_is_refused_alike(text: str, message: str, hint: str) -> None:
    for parse in (parse_capabilities, parse_gpu_targets, parse_target_patterns):
        with pytest.raises(TargetError) as caught:
            parse(text, detect=detect)
        assert message in str(caught.value)
        assert caught.value.hint is not None
        assert hint in caught.value.hint


def test_gpu_with_the_suffix_of_a_target_is_not_a_target() -> None:
    # It was read as sm_90, which is other code than sm_90a.
    with pytest.raises(TargetError, match="unknown GPU 'cc90a'"):
        parse_gpu_targets("cc90a")


def test_generation_of_several_capabilities_is_refused_as_a_gpu() -> None:
    with pytest.raises(TargetError, match=r"'Ampere' stands for several capabilities: 8.0, 8.6"):
        parse_capabilities("Ampere", detect=detect)
    assert targets("Ampere") == "sm_80 sm_86 compute_86"


def test_products_are_read_into_a_table_once() -> None:
    gpu_list._capability_by_name.cache_clear()  # Other tests may have made it, unmeasured.
    assert list(map(str, parse_capabilities("H100, RTX4090"))) == ["9.0", "8.9"]
    assert gpu_list._capability_by_name.cache_info().misses == 1


def test_native_needs_a_gpu() -> None:
    for parse in (parse_capabilities, parse_gpu_targets, parse_target_patterns):
        with pytest.raises(TargetError, match="no NVIDIA GPU was found on this machine"):
            parse("native", detect=nothing)


def test_a_target_to_come_is_a_target_and_no_gpu() -> None:
    major = max(each.major for each in GPU_BY_CAPABILITY) + 1
    target = f"sm_{major}0"
    assert targets(target) == target
    with pytest.raises(TargetError, match=rf"no GPU has the compute capability {major}\.0"):
        parse_capabilities(target, detect=detect)
    with pytest.raises(TargetError, match=rf"'{target}': no GPU has the .* {major}\.0"):
        require_published(parse_gpu_targets(f"sm_90,{target}"))


@given(st.sampled_from(published_targets()))
def test_every_target_reads_as_itself(target: Target) -> None:
    assert parse_gpu_targets(str(target), detect=detect) == (target,)
    assert require_published([target]) == {target}
    assert parse_capabilities(str(target), detect=detect) == (target.capability,)


@given(st.sampled_from(tuple(GPU_BY_CAPABILITY)))
def test_every_capability_reads_as_itself(capability: Capability) -> None:
    for text in (str(capability), str(capability.sm_number), f"cc{capability.sm_number}"):
        assert parse_capabilities(text, detect=detect) == (capability,)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_capabilities, parse_gpu_targets, parse_target_patterns):
        with contextlib.suppress(TargetError):
            assert parse(text, detect=detect)
