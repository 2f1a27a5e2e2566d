"""Merge of a release that was built part by part."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from archsplit.cli.main import main
from archsplit.errors import InputError, VerifyError
from archsplit.release.merge import gather

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("archsplit-report.json", "archsplit-manifest.json")


def part(dist: Path, folder: Path, *keep: str, **changes: object) -> Path:
    """Make a folder as a job leaves it that builds only these wheels."""
    folder.mkdir()
    for name in NAMES:
        content = json.loads((dist / name).read_text())
        wheels = [each for each in content["wheels"] if each["file"].startswith(keep)]
        details = content.get("build")
        for key, value in changes.items():
            # The report has what only a build knows in a part of its own.
            (details if details and key in details else content)[key] = value
        (folder / name).write_text(json.dumps({**content, "wheels": wheels}))
        for wheel in wheels:
            shutil.copyfile(dist / wheel["file"], folder / wheel["file"])
    return folder


@pytest.fixture
def parts(dist: Path, tmp_path: Path) -> list[Path]:
    prefixes = ("tinyvec-", "tinyvec_sm80", "tinyvec_sm90", "tinyvec_compute90")
    return [part(dist, tmp_path / f"part{prefix}", prefix) for prefix in prefixes]


def test_the_parts_are_the_whole(dist: Path, parts: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "whole"
    assert main(["gather", *map(str, parts), "--out", str(out)]) == 0
    assert sorted(os.listdir(out)) == sorted(os.listdir(dist))
    assert all((out / name).read_bytes() == (dist / name).read_bytes() for name in os.listdir(dist))


def test_a_part_of_another_build_is_refused(dist: Path, parts: list[Path], tmp_path: Path) -> None:
    other = part(dist, tmp_path / "other", "tinyvec_sm90", build_id="0" * 64, epoch=1)
    with pytest.raises(VerifyError, match="different builds: build_id, epoch differ"):
        gather([*parts, other], out=tmp_path / "whole")
    assert not (tmp_path / "whole").exists()


def test_two_wheels_of_one_name_must_be_the_same(
    dist: Path, parts: list[Path], tmp_path: Path
) -> None:
    again = part(dist, tmp_path / "again", "tinyvec_sm90")
    assert gather([*parts, again], out=tmp_path / "whole").wheels
    path = again / NAMES[0]
    content = json.loads(path.read_text())
    content["wheels"][0]["sha256"] = "0" * 64
    path.write_text(json.dumps(content))
    with pytest.raises(VerifyError, match="differs from the wheel of that name in another"):
        gather([*parts, again], out=tmp_path / "whole")


def test_a_wheel_that_is_not_what_its_report_says(parts: list[Path], tmp_path: Path) -> None:
    (wheel,) = parts[1].glob("*.whl")
    wheel.write_bytes(wheel.read_bytes()[:-1])
    with pytest.raises(VerifyError, match=r"is not the file that archsplit-report\.json lists"):
        gather(parts, out=tmp_path / "whole")
    wheel.unlink()
    with pytest.raises(InputError, match=r"which its archsplit-report\.json lists"):
        gather(parts, out=tmp_path / "whole")
    assert not (tmp_path / "whole").exists()


def test_builds_for_two_machines_are_two_releases(dist: Path, tmp_path: Path) -> None:
    other = part(dist, tmp_path / "other", "tinyvec", build_id="0" * 64)
    for name in NAMES:
        text = (other / name).read_text()
        (other / name).write_text(text.replace("_x86_64.whl", "_aarch64.whl"))
    with pytest.raises(VerifyError, match="different builds") as caught:
        gather([dist, other], out=tmp_path / "out")
    assert caught.value.hint is not None
    assert "builds for aarch64 and x86_64 are a release each" in caught.value.hint
