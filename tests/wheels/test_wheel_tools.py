"""Wheels of archsplit, read by other programs."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest
from installer.sources import WheelFile
from wheel_samples import EPOCH, core_plan, plugin_plan

from archsplit.wheels.writer import write_wheel
from warm_programs import run_pip

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.wheels.writer import WheelDraft

PLANS = {"core": core_plan(), "plugin": plugin_plan()}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    for plan in PLANS.values():
        write_wheel(folder, plan, epoch=EPOCH)
    return folder


def run(*argv: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, argv)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_twine_has_nothing_to_say(dist: Path) -> None:
    assert (
        run("-m", "twine", "--no-color", "check", "--strict", *dist.iterdir()).count("PASSED") == 2
    )


def test_pip_installs_the_core_with_its_plugin(dist: Path, tmp_path: Path) -> None:
    run("-m", "venv", "--without-pip", tmp_path / "new")

    def pip(*argv: str | Path) -> str:
        done = run_pip(("--python", *map(str, (tmp_path / "new", *argv))))
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    pip("install", "-q", "--no-index", "--find-links", dist, "VecSort[sm90]")
    assert pip("check") == "No broken requirements found.\n"
    shown = pip("show", "--files", "vecsort-sm90")
    assert "vecsort_plugins/cuda/sm_90/libvecsort.so" in shown
    pip("uninstall", "-q", "-y", "vecsort")
    assert not [*(tmp_path / "new").rglob("vecsort/*")]


def test_pip_installs_into_a_folder(dist: Path, tmp_path: Path) -> None:
    wheel = dist / str(PLANS["core"].name)
    run("-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", tmp_path, wheel)
    assert (tmp_path / "vecsort" / "__init__.py").read_text() == "VERSION = '1.2.3'\n"
    assert (tmp_path / "vecsort" / "ünï, 'cödé'.txt").read_bytes() == b""


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_installer_finds_record_right(dist: Path, plan: WheelDraft) -> None:
    with WheelFile.open(dist / str(plan.name)) as source:
        source.validate_record(validate_contents=True)
        assert source.dist_info_dir == plan.name.dist_info
        assert len([*source.get_contents()]) == len(plan.contents()) + 1


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_wheel_unpacks_and_finds_the_hashes_right(
    dist: Path, plan: WheelDraft, tmp_path: Path
) -> None:
    run("-m", "wheel", "unpack", "--dest", tmp_path, dist / str(plan.name))
    (folder,) = tmp_path.iterdir()
    assert sorted(
        file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()
    ) == sorted([*(member.name for member in plan.contents()), f"{plan.name.dist_info}/RECORD"])


def test_standard_library_finds_no_damage(dist: Path) -> None:
    for wheel in dist.iterdir():
        assert zipfile.ZipFile(wheel).testzip() is None
        assert run("-m", "zipfile", "-t", wheel) == "Done testing\n"
