"""Summary of a build or a split: its wheels, its downloads, and the code that stayed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from archsplit.release.report import (
    Plugin,
    Release,
    ReleaseWheel,
    SplitDetails,
    SplitLibrary,
    SplitSource,
    UnmovedCode,
)
from archsplit.release.summary import build_summary, split_summary

MB = 1_000_000


TAGS = "py3-none-linux_x86_64"


def wheel(name: str, size: int, *gpus: str, tags: str = TAGS) -> ReleaseWheel:
    """Return the row of the core, or of the pack of this name."""
    folder = name.replace("_", "")
    plugin = Plugin(kind="pack", name=name, serves=gpus) if name else None
    return ReleaseWheel(
        file=f"toy{folder and f'_{folder}'}-1.0-{tags}.whl",
        size=size,
        sha256="0" * 64,
        role="plugin" if name else "core",
        distribution=f"toy-{folder}" if name else "toy",
        plugin=plugin,
    )


DETAILS = SplitDetails(
    sources=(SplitSource(core="toy.whl", file="toy.whl", size=10 * MB, sha256="0" * 64),),
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
    notes=("toy.whl: WHEEL had no tag",),
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


def test_summary_lists_wheels_kept_code_and_downloads() -> None:
    assert split_summary(SPLIT).splitlines() == [
        "toy.whl is now",
        "    2.00 MB  toy-1.0-py3-none-linux_x86_64.whl  core",
        "    4.00 MB  toy_cc80-1.0-py3-none-linux_x86_64.whl",
        "    1.00 MB  toy_commoncc80-1.0-py3-none-linux_x86_64.whl  part for 8.0, 8.6",
        "    1.00 MB  toy_rest-1.0-py3-none-linux_x86_64.whl  rest, not published",
        "together 8.00 MB, 0.80 times the fat wheel's 10.0 MB",
        "names on the index: 3",
        "liba.so: 9.00 MB -> 1.00 MB",
        "  padded",
        "libb.a: kept 3 images (1.00 MB): a static library",
        "libc.so: kept device code: can't be read",
        "WHEEL had no tag",
        "GPU                                  download  install",
        '8.0, 8.6 (A100, A10, RTX 3090, A30)   7.00 MB  pip install "toy[cc80]"',
    ]


def test_totals_count_the_wheels_of_all_pythons() -> None:
    cores = [wheel("", size * MB, tags=f"cp31{size}-cp31{size}-linux_x86_64") for size in (1, 2)]
    sources = tuple(
        SplitSource(core=core.file, file=f"fat{core.size}.whl", size=5 * MB, sha256="0" * 64)
        for core in cores
    )
    details = replace(DETAILS, sources=sources)
    split = replace(SPLIT, wheels=(*cores, *SPLIT.wheels[1:]), split=details)
    lines = split_summary(split).splitlines()
    assert lines[0] == "fat1000000.whl, fat2000000.whl are now"
    assert "together 9.00 MB, 0.90 times the 2 fat wheels' 10.0 MB" in lines
    assert lines[-1].split("  ")[-2:] == ["6.00 MB to 7.00 MB", 'pip install "toy[cc80]"']


def test_common_lines_are_printed_once() -> None:
    files = [f"toy-1.0-cp31{each}-cp31{each}-linux_x86_64.whl" for each in (1, 2)]
    details = SplitDetails(
        sources=tuple(replace(DETAILS.sources[0], core=file) for file in files),
        needs={},
        libraries=tuple(replace(one, core=file) for file in files for one in DETAILS.libraries),
        unmoved=(replace(DETAILS.unmoved[0], core=files[1]),),
        notes=(*(f"{file}: 2 images stay" for file in files), f"{files[0]}: WHEEL had no tag"),
    )
    lines = split_summary(replace(SPLIT, split=details)).splitlines()
    assert lines[-5:] == [
        "liba.so: 9.00 MB -> 1.00 MB",
        "  padded",
        f"{files[1]}: libb.a: kept 3 images (1.00 MB): a static library",
        "2 images stay",
        f"{files[0]}: WHEEL had no tag",
    ]


def test_summary_without_a_gpu_ends_with_its_notes() -> None:
    without = replace(DETAILS, needs={})
    assert split_summary(replace(SPLIT, split=without)).endswith("WHEEL had no tag")
    # The capability of a GPU that has no pack here, and one without a product.
    needs = replace(DETAILS, needs={"8.0": ("cc75",), "9.9": ("cc80",)})
    assert split_summary(replace(SPLIT, split=needs)).splitlines()[-2:] == [
        "GPU  download  install",
        '9.9   6.00 MB  pip install "toy[cc99]"',
    ]


def test_row_without_room_has_fewer_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archsplit.release.summary._ROOM", len("toy8.0, 8.6 (A100)"))
    last = split_summary(SPLIT).splitlines()[-1]
    assert last == '8.0, 8.6 (A100)   7.00 MB  pip install "toy[cc80]"'


def test_gpu_without_products_adds_no_empty_name() -> None:
    needs = replace(DETAILS, needs={"8.7": ("cc80",), "8.8": ("cc80",)})
    last = split_summary(replace(SPLIT, split=needs)).splitlines()[-1]
    assert last.startswith("8.7, 8.8 (Jetson Orin) ")


@pytest.mark.parametrize(("size", "is_hinted"), [(10 * MB, False), (6 * MB, True)])
def test_grown_wheels_get_a_hint(size: int, *, is_hinted: bool) -> None:
    source = replace(DETAILS.sources[0], size=size)
    text = split_summary(replace(SPLIT, split=replace(DETAILS, sources=(source,))))
    assert ("--by target puts" in text) == is_hinted


def test_summary_of_a_build_lists_its_wheels() -> None:
    plugin = replace(wheel("sm_80", 4 * MB), plugin=Plugin(kind="library", name="sm_80"))
    built = replace(SPLIT, wheels=(wheel("", 2 * MB), plugin), split=None)
    assert build_summary(built, Path("dist")).splitlines() == [
        "toy 1.0 in dist",
        "    2.00 MB  toy-1.0-py3-none-linux_x86_64.whl  core",
        "    4.00 MB  toy_sm80-1.0-py3-none-linux_x86_64.whl  sm_80",
        "together 6.00 MB, 2 wheels",
    ]


def test_build_without_a_summary_is_refused() -> None:
    with pytest.raises(ValueError, match="a build has no summary of a split"):
        split_summary(replace(SPLIT, split=None))
