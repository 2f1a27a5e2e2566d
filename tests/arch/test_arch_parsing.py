from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archsplit.arch.compat import published_targets
from archsplit.arch.target import (
    CodeKind,
    Target,
    nvcc_names,
    target_names,
    torch_names,
)
from archsplit.errors import TargetError
from target_lists import parse_targets

target_sets = st.sets(st.sampled_from(published_targets()), min_size=1, max_size=8)


def printed(text: str) -> str:
    return " ".join(map(str, parse_targets(text)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sm_80,sm_90", "sm_80 sm_90"),
        (" sm_90  sm_80;compute_120f, sm_80 ", "sm_80 sm_90 compute_120f"),
        ("8.0;9.0a;12.0+PTX", "sm_80 sm_90a sm_120 compute_120"),
        ("7.5 8.6", "sm_75 sm_86"),
        ("10.0f+PTX", "sm_100f compute_100f"),
        ("Hopper", "sm_90 compute_90"),
        ("Turing;Ampere+Tegra", "sm_75 sm_87 compute_75"),
        ("Blackwell", "sm_100 sm_103 sm_120 sm_121 compute_121"),
        ("80-real;90a;120-virtual", "sm_80 sm_90a compute_90a compute_120"),
        ("90", "sm_90 compute_90"),
        ("-arch=sm_90", "sm_90 compute_90"),
        ("-arch sm_90a", "sm_90a compute_90a"),
        ("--gpu-architecture=compute_90", "compute_90"),
        ("-arch=compute_90 -code=sm_90", "sm_90"),
        ("--gpu-architecture compute_90 --gpu-code sm_90,compute_90", "sm_90 compute_90"),
        ("-gencode arch=compute_90,code=sm_90", "sm_90"),
        ("-gencode=arch=compute_90,code=[sm_90,compute_90]", "sm_90 compute_90"),
        ("--generate-code arch=compute_100f,code=sm_100f -arch=sm_75", "sm_75 sm_100f compute_75"),
        (
            '-gencode "arch=compute_80,code=sm_80" -gencode=arch=compute_86,code=sm_86',
            "sm_80 sm_86",
        ),
        ("arch=compute_120a,code=sm_120a", "sm_120a"),
        ("-arch=sm_90 -arch=sm_90", "sm_90 compute_90"),
    ],
)
def test_every_spelling_is_read(text: str, expected: str) -> None:
    assert printed(text) == expected


@pytest.mark.parametrize(
    "text",
    ["native", "all", "all-major", "OFF", "Auto", "Common", "sm_90;native", "-arch=native"],
)
def test_words_without_a_fixed_set_are_refused_with_a_reason(text: str) -> None:
    with pytest.raises(TargetError, match="is not a fixed set of targets: it means") as caught:
        parse_targets(text)
    assert caught.value.hint == "list the targets, such as sm_80,sm_90,compute_90"


def test_the_words_are_refused_in_any_spelling_too() -> None:
    with pytest.raises(TargetError, match="is not a fixed set"):
        torch_names("native")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sm90", "did you mean sm_90"),
        ("9.0+ptx", "is not valid in TORCH_CUDA_ARCH_LIST"),
        ("90-sass", "is not valid in CMAKE_CUDA_ARCHITECTURES"),
        ("9", "is not valid in CMAKE_CUDA_ARCHITECTURES"),
        ("-O3 -arch=sm_90", "'-O3' is not a target option of nvcc"),
        ("-gencode", "'' is not a valid value of -gencode"),
        ("-gencode code=sm_90", "is not a valid value of -gencode"),
        ("-gencode arch=compute_80,code=sm_86", "arch=compute_80 with code=sm_86"),
        ("-gencode arch=compute_90,code=lto_90", "no LTO code"),
        ("-arch=sm_90 -code=sm_90", "is not a pair that nvcc accepts"),
        ("-code=sm_90", "is not a pair that nvcc accepts"),
        ("-arch=sm_90 -arch=sm_80", "-arch is given twice"),
        ("-arch='sm_90", "No closing quotation"),
    ],
)
def test_an_unreadable_word_is_named(text: str, message: str) -> None:
    with pytest.raises(TargetError) as caught:
        parse_targets(text)
    assert message in str(caught.value)


def test_comma_is_refused_as_a_separator_for_torch() -> None:
    with pytest.raises(TargetError, match="is not valid in TORCH"):
        torch_names("8.0,9.0")


@given(target_sets)
def test_our_own_lists_round_trip(targets: set[Target]) -> None:
    assert parse_targets(",".join(map(str, targets))) == tuple(sorted(targets))


@given(target_sets)
def test_gencode_lists_round_trip(targets: set[Target]) -> None:
    numbers = {each: str(each).partition("_")[2] for each in targets}
    text = " ".join(f"-gencode arch=compute_{numbers[each]},code={each}" for each in targets)
    assert parse_targets(text, spelling=nvcc_names) == tuple(sorted(targets))


@given(target_sets)
def test_cmake_lists_round_trip(targets: set[Target]) -> None:
    words = {CodeKind.SASS: "real", CodeKind.PTX: "virtual"}
    text = ";".join(f"{str(each).partition('_')[2]}-{words[each.kind]}" for each in targets)
    assert parse_targets(text) == tuple(sorted(targets))


@given(target_sets)
def test_torch_lists_round_trip_for_sass(targets: set[Target]) -> None:
    sass = {each for each in targets if each.kind is CodeKind.SASS}
    text = ";".join(f"{each.capability}{each.suffix}" for each in sass)
    assert tuple(sorted(map(Target.parse, torch_names(text)))) == tuple(sorted(sass))


@given(st.text(st.sampled_from("-=[],;_. smcopute0189afPTX+gencodrhil\"'\\"), max_size=40))
def test_arbitrary_text_is_read_or_refused(text: str) -> None:
    for names in (target_names, torch_names, nvcc_names):
        try:
            found = parse_targets(text, spelling=names)
        except TargetError:
            continue
        assert list(found) == sorted(set(found))
