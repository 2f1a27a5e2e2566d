"""Division of images into packs by their sizes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from split_samples import Sample, loaded, split

from archsplit.devicecode import partition as shares_module
from archsplit.release.report import (
    REPORT_FILE,
    Plugin,
    Release,
    ReleaseWheel,
    SplitDetails,
    SplitLibrary,
    UnmovedCode,
    split_summary,
)
from archsplit.split.restore import join_split
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.release.context import Effects

MB = 1_000_000


def test_shared_packs_are_required_loaded_and_joined(
    sample: Sample, effects: Effects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares_module, "_LEAST_SAVING", 1)
    out = split(sample.fat, tmp_path / "out", effects)
    report = json.loads((out / REPORT_FILE).read_text())
    assert report["split"]["needs"]["8.6"] == ["cc86", "shared_80"]
    assert sum(one["size"] for one in report["wheels"]) < sum(
        one["size"] for one in json.loads((sample.out / REPORT_FILE).read_text())["wheels"]
    )
    again = Sample(folder=sample.folder, fat=sample.fat, out=out)
    with open_wheel(again.wheel("cc86")) as pack:
        requires = sorted(map(str, pack.metadata().requires_dist or ()))
    assert requires == ["toyfat-shared80==1.0", "toyfat==1.0"]
    site = again.site(tmp_path / "site", "cc86", "shared80")
    whole = sample.site(tmp_path / "whole", "cc86")
    report = loaded(site, sample.folder, "8.6")
    assert report.talk == ""
    assert report.libraries == loaded(whole, sample.folder, "8.6").libraries
    half = again.site(tmp_path / "half", "cc86")
    assert "finds no code in 3 of 5 containers" in loaded(half, sample.folder, "8.6").talk
    joined = join_split(out, tmp_path / "fat")
    assert [one.sha256 for one in joined] == [
        one.sha256 for one in join_split(sample.out, tmp_path / "fat2")
    ]


def wheel(size: int, pack: str | None = None, serves: tuple[str, ...] = ()) -> ReleaseWheel:
    name = f"foo-{pack}" if pack else "foo"
    return ReleaseWheel(
        file=f"{name}.whl",
        size=size,
        sha256="",
        role="plugin" if pack else "core",
        distribution=name,
        plugin=Plugin(kind="pack", name=pack, serves=serves) if pack else None,
    )


def test_the_text_weighs_the_release() -> None:
    needs = {"8.0": ("cc80", "shared_80"), "8.6": ("cc86", "shared_80"), "9.0": ("cc90",)}
    release = Release(
        project="foo",
        version="1",
        build_id="",
        interface_hash="",
        wheels=(
            wheel(10 * MB),
            wheel(5 * MB, "cc80"),
            wheel(5 * MB, "cc86"),
            wheel(40 * MB, "shared_80"),
            wheel(60 * MB, "cc90", ("9.0",)),
            wheel(2 * MB, "rest"),
        ),
        split=SplitDetails(source="fat.whl", source_sha256="", source_size=80 * MB, needs=needs),
    )
    lines = split_summary(release).splitlines()
    assert "      40.0 MB  foo-shared_80.whl  part for GPUs of capability 8.0, 8.6" in lines
    assert "together 122.0 MB, 1.52 times the fat wheel's 80.0 MB" in lines
    assert "  a GPU of 8.0 downloads 55.0 MB: core, cc80, shared_80" in lines
    assert "  a GPU of 9.0 downloads 70.0 MB: core, cc90" in lines
    assert "names on the index: 5" in lines
    assert any(line.startswith("note: images that several kinds of GPU take") for line in lines)


def test_the_text_of_a_small_split_and_of_an_old_one() -> None:
    needs = {"9.0": ("cc90",)}
    unmoved = (
        UnmovedCode(name="a.so", images=2, size=3 * MB, why="it is static"),
        UnmovedCode(name="b.so", images=0, size=0, why="it is damaged"),
    )
    library = SplitLibrary(
        name="c.so", size_before=9 * MB, size_after=2 * MB, containers=1, notes=("aligned",)
    )
    release = Release(
        project="foo",
        version="1",
        build_id="",
        interface_hash="",
        wheels=(wheel(10 * MB), wheel(5 * MB, "cc90", ("9.0",))),
        split=SplitDetails(
            source="fat.whl",
            source_sha256="",
            needs=needs,
            libraries=(library,),
            unmoved=unmoved,
            notes=("RECORD was repaired",),
        ),
    )
    lines = split_summary(release).splitlines()
    assert "together 15.0 MB" in lines
    assert lines[-5:] == [
        "c.so: 9.0 -> 2.0 MB",
        "  aligned",
        "a.so: 2 images, 3.0 MB stay: it is static",
        "b.so: what it has stay: it is damaged",
        "RECORD was repaired",
    ]
    with pytest.raises(ValueError, match="no summary of a split"):
        split_summary(replace(release, split=None))
