"""Division of images into packs by their sizes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from split_samples import Sample, loaded, split

from archsplit.devicecode import partition as shares_module
from archsplit.release.report import REPORT_FILE
from archsplit.release.verify import verify_release
from archsplit.split.restore import join_split
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from archsplit.release.context import Effects


def requirements(wheel: Path) -> list[str]:
    with open_wheel(wheel) as pack:
        return sorted(map(str, pack.metadata().requires_dist or ()))


def joined_digests(out: Path, folder: Path) -> list[str]:
    return [one.sha256 for one in join_split(out, folder)]


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
    assert requirements(again.wheel("cc86")) == ["toyfat-shared80==1.0", "toyfat==1.0"]
    site = again.site(tmp_path / "site", "cc86", "shared80")
    whole = sample.site(tmp_path / "whole", "cc86")
    report = loaded(site, sample.folder, "8.6")
    assert report.talk == ""
    assert report.libraries == loaded(whole, sample.folder, "8.6").libraries
    half = again.site(tmp_path / "half", "cc86")
    assert "finds no code in 3 of 5 containers" in loaded(half, sample.folder, "8.6").talk
    assert joined_digests(out, tmp_path / "fat") == joined_digests(sample.out, tmp_path / "fat2")


def test_newest_ptx_of_several_packs_lies_in_one(
    sample: Sample, effects: Effects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares_module, "_LEAST_SAVING", 1)
    monkeypatch.setattr(shares_module, "_SAVING_SHARE", 0)
    out = split(sample.fat, tmp_path / "out", effects)
    again = Sample(folder=sample.folder, fat=sample.fat, out=out)
    verified = verify_release(out)
    # Each image lies in one pack.
    assert sum(verified.packs.values()) == verified.images
    assert requirements(again.wheel("ptx")) == ["toyfat-sharedptx==1.0", "toyfat==1.0"]
    # A GPU that the release doesn't know has the same PTX as with the whole pack.
    site = again.site(tmp_path / "site", "ptx", "sharedptx")
    whole = sample.site(tmp_path / "whole", "ptx")
    report = loaded(site, sample.folder, "13.0")
    assert (report.talk, report.libraries) == (
        "",
        loaded(whole, sample.folder, "13.0").libraries,
    )
    assert joined_digests(out, tmp_path / "fat") == joined_digests(sample.out, tmp_path / "fat2")
