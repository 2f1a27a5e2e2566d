"""``archsplit build`` on a full disk: exit code 11, and the earlier wheels are whole."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from full_disk import needs_mounts, run_on_full_disk

if TYPE_CHECKING:
    from archsplit.release.report import Release

pytestmark = [pytest.mark.nvcc, pytest.mark.stress, needs_mounts]


def test_earlier_wheels_survive_a_full_disk(
    built: tuple[Path, Release], recipe: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    (old := tmp_path / "old").mkdir()
    for path in built[0].iterdir():
        shutil.copy(path, old)
    source = recipe / "src" / "name.cpp"
    source.write_text(f"{source.read_text()}int changed_later;\n")
    archsplit = str(Path(sys.executable).with_name("archsplit"))
    argv = (archsplit, "build", str(recipe), "--out", "{out}", "--quiet")
    for free in (0, 8 << 10, 100 << 10, 4 << 20):
        done = run_on_full_disk(tmp_path, argv, outputs=old, free=free, **environment)
        assert done.code == 11, done.stderr
        assert "hint: " in done.stderr
        assert ("space left" in done.stderr) or ("disk is full" in done.stderr)
        assert "Traceback" not in done.stderr
        assert (done.after, done.left) == (done.before, ()), free
    done = run_on_full_disk(tmp_path, argv, outputs=old, free=20 << 20, **environment)
    assert done.code == 0, done.stderr
    assert done.after.keys() == done.before.keys()
    assert done.after != done.before


def test_full_folder_of_the_cache_costs_a_line(
    built: tuple[Path, Release], recipe: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    (none := tmp_path / "none").mkdir()
    (temporary := tmp_path / "temporary").mkdir()
    variables = {"ARCHSPLIT_CACHE": "on", "TMPDIR": str(temporary)}
    variables["ARCHSPLIT_CACHE_DIR"] = str(tmp_path / "disk/cache")
    archsplit = str(Path(sys.executable).with_name("archsplit"))
    argv = (archsplit, "build", str(recipe), "--out", str(tmp_path / "dist"))
    done = run_on_full_disk(tmp_path, argv, outputs=none, free=0, **{**environment, **variables})
    assert done.code == 0, done.stderr
    assert done.stderr.count("can't be written: No space left on device") == 1
    for path in built[0].glob("*.whl"):
        assert (tmp_path / "dist" / path.name).read_bytes() == path.read_bytes()
