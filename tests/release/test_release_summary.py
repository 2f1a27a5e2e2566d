"""The text that a split prints: its wheels, its downloads, and what stayed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from archsplit.release.report import (
    Plugin,
    Release,
    ReleaseWheel,
    SplitDetails,
    SplitLibrary,
    UnmovedCode,
    split_summary,
)

MB = 1_000_000


def wheel(name: str, size: int, *gpus: str) -> ReleaseWheel:
    """The core, or the pack of this name."""
    plugin = Plugin(kind="pack", name=name, serves=gpus) if name else None
    return ReleaseWheel(
        file=f"toy_{name}.whl" if name else "toy.whl",
        size=size,
        sha256="0" * 64,
        role="plugin" if name else "core",
        distribution=f"toy-{name}" if name else "toy",
        plugin=plugin,
    )


DETAILS = SplitDetails(
    source="toy.whl",
    source_sha256="0" * 64,
    source_size=10 * MB,
    needs={"8.0": ("cc80", "common_cc80"), "8.6": ("cc80", "common_cc80")},
    libraries=(
        SplitLibrary(
            name="liba.so", size_before=9 * MB, size_after=MB, containers=2, notes=("padded",)
        ),
    ),
    unmoved=(
        UnmovedCode(name="libb.a", images=3, size=MB, why="a static library"),
        UnmovedCode(name="libc.so", images=0, size=0, why="can't be read"),
    ),
    notes=("WHEEL had no tag",),
)
SPLIT = Release(
    project="toy",
    version="1.0",
    build_id="0" * 64,
    interface_hash="1" * 64,
    wheels=(
        wheel("", 2 * MB),
        wheel("cc80", 4 * MB, "8.0", "8.6"),
        wheel("common_cc80", MB),
        wheel("rest", MB),
    ),
    split=DETAILS,
)


def test_wheels_downloads_and_what_stayed() -> None:
    assert split_summary(SPLIT).splitlines() == [
        "toy.whl is now",
        "       2.0 MB  toy.whl  core",
        "       4.0 MB  toy_cc80.whl  GPUs of capability 8.0, 8.6",
        "       1.0 MB  toy_common_cc80.whl  part for GPUs of capability 8.0, 8.6",
        "       1.0 MB  toy_rest.whl  rest",
        "together 8.0 MB, 0.80 times the fat wheel's 10.0 MB",
        "  a GPU of 8.0, 8.6 downloads 7.0 MB: core, cc80, common_cc80",
        "names on the index: 3",
        "liba.so: 9.0 -> 1.0 MB",
        "  padded",
        "libb.a: 3 images, 1.0 MB stay: a static library",
        "libc.so: what it has stay: can't be read",
        "WHEEL had no tag",
    ]


@pytest.mark.parametrize(("size", "is_noted"), [(10 * MB, False), (6 * MB, True), (0, False)])
def test_wheels_that_grew_get_a_note(size: int, *, is_noted: bool) -> None:
    text = split_summary(replace(SPLIT, split=replace(DETAILS, source_size=size)))
    assert ("--by target puts" in text) == is_noted
    # Old reports lack the size.
    assert ("times the fat wheel's" in text) == bool(size)


def test_a_build_has_none() -> None:
    with pytest.raises(ValueError, match="a build has no summary of a split"):
        split_summary(replace(SPLIT, split=None))
