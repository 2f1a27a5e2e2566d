from __future__ import annotations

import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING

import pytest

from splitter.system.files import sha256

if TYPE_CHECKING:
    from pathlib import Path

    from splitter.report import Report

pytestmark = pytest.mark.nvcc


def run_build(folder: Path, out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check"]
    return subprocess.run(
        [*command, "--outdir", str(out), *arguments, str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )


def digests(report: Report) -> dict[str, str]:
    return {wheel.file: wheel.sha256 for wheel in report.wheels}


def test_the_backend_makes_the_core(
    built: tuple[Path, Report], recipe: Path, tmp_path: Path
) -> None:
    done = run_build(recipe, tmp_path / "out", "--wheel")
    assert done.returncode == 0, done.stdout + done.stderr
    (core,) = (tmp_path / "out").iterdir()
    assert digests(built[1])[core.name] == sha256(core)


def test_a_setting_makes_a_plugin_from_the_source_distribution(
    built: tuple[Path, Report], recipe: Path, tmp_path: Path
) -> None:
    # Without --wheel, build makes the source distribution first, and the wheel from that.
    done = run_build(recipe, tmp_path / "out", "--config-setting", "target=sm_90")
    assert done.returncode == 0, done.stdout + done.stderr
    source, plugin = sorted((tmp_path / "out").iterdir(), key=lambda path: path.suffix)
    assert source.name == "tinyvec-1.2.3.tar.gz"
    assert digests(built[1])[plugin.name] == sha256(plugin)
    with tarfile.open(source) as archive:
        names = archive.getnames()
    assert "tinyvec-1.2.3/PKG-INFO" in names
    assert "tinyvec-1.2.3/src/add.cu" in names


def test_source_distributions_are_reproducible(recipe: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for out in (first, second):
        assert run_build(recipe, out, "--sdist").returncode == 0
        (recipe / "src" / "add.cu").touch()
    name = "tinyvec-1.2.3.tar.gz"
    assert sha256(first / name) == sha256(second / name)


def test_an_unknown_setting_is_refused(recipe: Path, tmp_path: Path) -> None:
    done = run_build(recipe, tmp_path / "out", "--wheel", "--config-setting", "arch=sm_90")
    assert done.returncode != 0
    assert "unknown --config-setting arch" in done.stdout + done.stderr
    assert "hint: there are target, nvcc, jobs" in done.stdout + done.stderr
