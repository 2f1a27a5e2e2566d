"""Programs that PyInstaller makes: the core finds its table and its packs in them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from split_samples import PACKAGE, Sample, environment, fat_wheel, library, python, split, unpacked

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.release.context import Effects

HOOK = """
import sys, runpy
from importlib.metadata import entry_points
hooks = entry_points(group="pyinstaller40", name="hook-dirs")
(found,) = (each for each in hooks if each.value.startswith("toyfat"))
(folder,) = found.load()()
assert "toyfat" not in sys.modules, "its libraries may not load here"
names = runpy.run_path(folder + "/hook-toyfat.py")
print(*sorted(place for _, place in names["datas"] + names["binaries"]))
print(*names["hiddenimports"])
"""
PROGRAM = """
import toyfat, toyfat._archsplit
toyfat._archsplit.require()
print(*toyfat.sizes())
"""


def test_the_hook_is_found_without_the_core_and_names_all(sample: Sample, tmp_path: Path) -> None:
    site = sample.site(tmp_path, "cc90")
    done = python(sample.folder, "9.0", "-c", HOOK, PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr
    places, modules = done.stdout.splitlines()
    assert set(places.split()) == {"toyfat/_archsplit", "toyfat_plugins/cuda/cc90"}
    assert places.split().count("toyfat/_archsplit") == 5, "loader, two stubs, table, identity"
    assert {"toyfat._archsplit", "toyfat._archsplit._explain"} <= set(modules.split())


@pytest.mark.download
@pytest.mark.parametrize("form", ["--onedir", "--onefile"])
def test_a_program_has_the_device_code(form: str, tmp_path: Path, effects: Effects) -> None:
    members: dict[str, Path | bytes] = {
        "toyfat/__init__.py": PACKAGE,
        "toyfat/lib/liba.so": library(tmp_path, "liba", 0),
    }
    out = split(fat_wheel(tmp_path / "fat", members), tmp_path / "out", effects)
    place = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    pip = (sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), "install", "-q")
    subprocess.run([*pip, "pyinstaller==6.22.3"], check=True)
    wheels = [str(next(out.glob(f"{name}-1.0-*.whl"))) for name in ("toyfat", "toyfat_cc90")]
    subprocess.run([*pip, "--no-deps", *wheels], check=True)
    (tmp_path / "program.py").write_text(PROGRAM)
    options = ("--log-level", "ERROR", form, "--collect-binaries", "toyfat", "program.py")
    command = [str(place / "bin" / "pyinstaller"), *options]
    subprocess.run(command, cwd=tmp_path, check=True)
    made = tmp_path / "dist" / "program"
    child = environment(tmp_path, "9.0")
    child["PATH"] = os.defpath
    program = made / "program" if form == "--onedir" else made
    done = subprocess.run([program], env=child, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "8256 9280 10304\n"
    assert done.stderr == ""


def test_a_hook_of_the_project_is_left_alone(
    sample: Sample, tmp_path: Path, effects: Effects
) -> None:
    own = b"[pyinstaller40]\nhook-dirs = toyfat:hooks\n"
    members: dict[str, Path | bytes] = {
        "toyfat/__init__.py": b"",
        "toyfat/lib/liba.so": library(tmp_path, "liba", 0),
        "toyfat-1.0.dist-info/entry_points.txt": own,
    }
    del sample
    out = split(fat_wheel(tmp_path / "fat", members), tmp_path / "out", effects)
    site = unpacked(tmp_path / "site", next(out.glob("toyfat-1.0-*.whl")))
    assert not (site / "toyfat_pyinstaller").exists()
