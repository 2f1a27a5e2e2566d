from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from warm_programs import run_pip

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.release.report import Release

pytestmark = pytest.mark.nvcc


class Environment:
    """A new virtual environment, into which the test's own pip installs."""

    def __init__(self, folder: Path, wheels: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        self.python = folder / "bin" / "python"
        self._wheels = wheels

    def pip(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_pip(("--python", str(self.python), *arguments))

    def install(self, *requirements: str) -> None:
        offline = ("--no-index", "--find-links", str(self._wheels), "--no-compile")
        done = self.pip("install", *offline, *requirements)
        assert done.returncode == 0, done.stderr

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        # A driver or a GPU of this machine must not decide what the tests see.
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        return subprocess.run(
            [str(self.python), *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            cwd=self.python.parent,
        )

    def files(self) -> set[str]:
        (site,) = self.python.parent.parent.glob("lib/python*/site-packages")
        return {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}


@pytest.fixture
def user(built: tuple[Path, Release], tmp_path: Path) -> Environment:
    return Environment(tmp_path / "venv", built[0])


def test_a_user_installs_the_core_and_one_plugin(user: Environment) -> None:
    user.install("tinyvec[sm90]")
    assert user.pip("check").returncode == 0
    done = user.run("-c", "import tinyvec; print(tinyvec.name('9.0'))")
    assert done.stdout == "tiny, vec\n", done.stderr
    refused = user.run("-c", "import tinyvec; tinyvec.name('8.6')")
    assert refused.returncode == 1
    assert 'pip install "tinyvec[sm80]==1.2.3"' in refused.stderr


def test_the_right_plugin_of_several_is_opened(user: Environment) -> None:
    user.install("tinyvec[all]")
    assert user.pip("check").returncode == 0
    script = (
        "import tinyvec\n"
        "for c in ('8.0', '8.9', '9.0', '12.0'):\n"
        "    print(c, tinyvec.load(capability=c)._name.split('/')[-2])\n"
    )
    done = user.run("-c", script)
    assert done.stdout.splitlines() == ["8.0 sm_80", "8.9 sm_80", "9.0 sm_90", "12.0 compute_90"]


def test_doctor_without_a_gpu_succeeds_and_lists_plugins(user: Environment) -> None:
    user.install("tinyvec[sm90]")
    done = user.run("-m", "tinyvec.doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sm_90" in done.stdout
    assert "9.0" in done.stdout
    content = json.loads(user.run("-m", "tinyvec.doctor", "--json").stdout)
    assert content["schema"] == 1


def test_core_without_plugins_names_the_missing_plugin(user: Environment) -> None:
    user.install("tinyvec")
    done = user.run("-c", "import tinyvec; tinyvec.load(capability='12.0')")
    assert done.returncode == 1
    assert 'pip install "tinyvec[compute90]==1.2.3"' in done.stderr


def test_uninstalling_leaves_nothing(user: Environment) -> None:
    before = user.files()
    user.install("tinyvec[all]")
    names = ("tinyvec", "tinyvec-sm80", "tinyvec-sm90", "tinyvec-compute90")
    assert user.pip("uninstall", "--yes", *names).returncode == 0
    assert user.files() == before


def test_uninstalling_the_core_leaves_no_importable_ghost(user: Environment) -> None:
    user.install("tinyvec[sm80]")
    user.pip("uninstall", "--yes", "tinyvec")
    assert user.run("-c", "import tinyvec").returncode == 1
    assert user.pip("check").returncode == 1


def test_metadata_passes_the_strict_twine_check(built: tuple[Path, Release]) -> None:
    wheels = sorted(map(str, built[0].glob("*.whl")))
    command = [sys.executable, "-m", "twine", "check", "--strict", *wheels]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
