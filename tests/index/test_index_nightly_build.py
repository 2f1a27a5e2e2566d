"""Real nightlies, three days of them, beside the release of the same recipe."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from index_http_server import serving
from index_installers import installed, pip, uv
from index_samples import DAY, EPOCH

from archsplit.cli.main import main
from archsplit.release.report import read_report

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit

pytestmark = pytest.mark.nvcc

POLICY = """
[policy.nightly]
sass = ["sm_90"]
max-wheel = "1MB"
budget = "2MB"
"""
NAMES = {"tinyvec", "tinyvec_sm90"}


@pytest.mark.stress
def test_three_days_of_builds(
    tmp_path: Path, toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Path(shutil.copytree(Path(__file__).parents[1] / "tinyvec", tmp_path / "tinyvec"))
    with (recipe / "recipe.toml").open("a") as file:
        file.write(POLICY)

    def build(name: str, epoch: int, *more: str) -> Path:
        code = "from archsplit.cli.main import entry_point; entry_point()"
        words = ("build", str(recipe), "--out", str(tmp_path / name), "--nvcc", str(toolkit.nvcc))
        environment = {**os.environ, "ARCHSPLIT_CACHE": "on", "SOURCE_DATE_EPOCH": str(epoch)}
        command = [sys.executable, "-c", code, *words, *more]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        return tmp_path / name

    def weight(folder: Path) -> int:
        return sum(wheel.size for wheel in read_report(folder / "archsplit-report.json").wheels)

    index = tmp_path / "index"
    release = build("release", EPOCH)
    with serving(index) as (url, _):
        for number in range(3):
            epoch = EPOCH + number * DAY
            nightly = build(f"nightly-{number}", epoch, "--policy", "nightly")
            assert weight(nightly) < weight(release)
            monkeypatch.setenv("SOURCE_DATE_EPOCH", str(epoch))
            update = ("--add", str(nightly), "--prune", "age=1d", "--grace", "0s", "--check")
            assert main(["index", str(index), *update]) == 0
            version = f"1.2.4.dev{20261121 + number}"
            expected = {f"{name}-{version}" for name in NAMES}
            by_pip, by_uv = tmp_path / f"pip-{number}", tmp_path / f"uv-{number}"
            done = pip(url, "install", "--pre", "--target", str(by_pip), "tinyvec[sm90]")
            assert done.returncode == 0, done.stderr
            options = ("--prerelease", "allow", "--target", str(by_uv))
            done = uv(url, "install", *options, "tinyvec[sm90]")
            assert done.returncode == 0, done.stderr
            assert installed(by_pip) == expected == installed(by_uv)
    days = {path.name.split("-")[1] for path in index.glob("*/*.whl")}
    assert days == {"1.2.4.dev20261122", "1.2.4.dev20261123"}
