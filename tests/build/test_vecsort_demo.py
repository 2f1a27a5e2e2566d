"""vecsort's demo script deletes nothing that it has not made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "recipes" / "vecsort" / "demo.py"


def demo(*arguments: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(DEMO), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder with a file that is called as a wheel, and that pip refuses."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    (folder / "vecsort-1.0.0-py3-none-any.whl").touch()
    return folder


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    file = tmp_path / "victim" / "precious"
    file.parent.mkdir()
    file.touch()
    return file


def test_a_folder_of_other_things_is_refused(wheels: Path, precious: Path) -> None:
    done = demo(wheels, precious.parent)
    assert done.returncode == 2
    assert f"{precious.parent} is neither empty nor an environment" in done.stderr
    assert precious.exists()


def test_a_file_is_refused(wheels: Path, precious: Path) -> None:
    done = demo(wheels, precious)
    assert done.returncode == 2
    assert f"{precious} is neither empty nor an environment" in done.stderr


@pytest.mark.parametrize("name", ["missing", "victim"])
def test_wheels_are_asked_for_first(tmp_path: Path, precious: Path, name: str) -> None:
    (precious.parent / "pyvenv.cfg").touch()
    done = demo(tmp_path / name, precious.parent)
    assert done.returncode == 2
    assert f"{tmp_path / name} has no wheel of vecsort" in done.stderr
    assert precious.exists()


@pytest.mark.parametrize(
    "name",
    [*(pytest.param(name, marks=pytest.mark.stress) for name in ("new", "empty")), "environment"],
)
def test_an_environment_is_made_anew(wheels: Path, tmp_path: Path, name: str) -> None:
    place = tmp_path / name
    if name != "new":
        place.mkdir()
    if name == "environment":
        (place / "pyvenv.cfg").touch()
        (place / "old").touch()
    done = demo(wheels, place)
    assert done.returncode == 1  # pip's, of the wheel that is none
    assert (place / "bin" / "python").exists()
    assert not (place / "old").exists()
