"""Merge of a split whose wheels lie in several folders."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest
from split_samples import Sample, split

from archsplit.cli.main import main
from archsplit.errors import OutputError, VerifyError
from archsplit.release.merge import gather
from archsplit.release.report import REPORT_FILE, Release
from target_lists import parse_targets

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.release.context import Effects

NAMES = ("archsplit-report.json", "archsplit-manifest.json")


def part(out: Path, folder: Path, *keep: str) -> Path:
    """Copy some wheels of a split, with lists of only these."""
    folder.mkdir()
    for name in NAMES:
        content = json.loads((out / name).read_text())
        wheels = [one for one in content["wheels"] if one["file"].startswith(keep)]
        (folder / name).write_text(json.dumps({**content, "wheels": wheels}))
        for wheel in wheels:
            shutil.copyfile(out / wheel["file"], folder / wheel["file"])
    return folder


@pytest.fixture
def parts(sample: Sample, tmp_path: Path) -> list[Path]:
    prefixes = ("toyfat-1", "toyfat_cc80", "toyfat_")
    return [part(sample.out, tmp_path / f"part{prefix}", prefix) for prefix in prefixes]


def test_gathered_parts_equal_the_complete_split(
    sample: Sample, parts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / "whole"
    content: dict[str, list[dict[str, str]]] = {}
    # Twice: what is there already is a part of the same split.
    for folders, words in ((parts[:2], ["--partial"]), ([*parts, sample.out], [])):
        command = ["gather", *map(str, folders), "--out", str(whole), "--json", *words]
        assert main(command) == 0
        content = json.loads(capsys.readouterr().out)
    assert sorted(os.listdir(whole)) == sorted(os.listdir(sample.out))
    reports = [json.loads((folder / NAMES[0]).read_text()) for folder in (whole, sample.out)]
    for report in (*reports, content):
        report["wheels"].sort(key=lambda wheel: wheel["file"])
    assert reports[0] == reports[1] == content
    assert main(["verify", str(whole)]) == 0


def test_unrelated_splits_are_refused(
    sample: Sample, parts: list[Path], tmp_path: Path, effects: Effects
) -> None:
    other = split(sample.fat, tmp_path / "other", effects, targets=parse_targets("sm_90"))
    with pytest.raises(VerifyError, match="different builds: build_id, needs") as caught:
        gather([*parts, other], out=tmp_path / "whole")
    assert caught.value.hint is not None
    assert "from the same files" in caught.value.hint
    assert not (tmp_path / "whole").exists()
    before = {path.name: path.read_bytes() for path in other.iterdir()}
    with pytest.raises(OutputError, match="already has a different split of toyfat"):
        gather(parts, out=other)
    assert {path.name: path.read_bytes() for path in other.iterdir()} == before


def test_contradicting_lists_are_refused(parts: list[Path], tmp_path: Path) -> None:
    path = parts[1] / NAMES[1]
    content = json.loads(path.read_text())
    content["wheels"][0]["sha256"] = "0" * 64
    path.write_text(json.dumps(content))
    with pytest.raises(VerifyError, match="and the report beside it differ about toyfat_cc80"):
        gather(parts[:2], out=tmp_path / "whole")
    assert not (tmp_path / "whole").exists()


def test_a_split_and_a_build_are_not_one_release(parts: list[Path], tmp_path: Path) -> None:
    built = tmp_path / "built"
    built.mkdir()
    release = Release(project="p", version="1", build_id="", interface_hash="", wheels=())
    (built / REPORT_FILE).write_text(release.as_json())
    with pytest.raises(VerifyError, match="the wheels of a split, others the wheels of a build"):
        gather([*parts, built], out=tmp_path / "whole")
