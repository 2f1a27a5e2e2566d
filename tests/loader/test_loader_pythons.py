"""Cores on each Python that they may be installed for, with a release of pip of that time."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from loader_packs import SplitSite, split_site
from loader_stubs import interpreter
from loader_wheels import wheel_of

if TYPE_CHECKING:
    from pathlib import Path

    from loader_stubs import Workbench

VERSIONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")

USE = """
import ctypes, json, os, runpy, sys
import vecsort, toy._archsplit as packs
toy = ctypes.CDLL(os.path.join(os.path.dirname(packs.__file__), "..", "lib", "libtoy.so"))
assert vecsort.load(verify="full") is vecsort.load()
for each in (vecsort._archsplit, packs):
    each.require(verify="index")
    found = each.explain()
    assert found.healthy, found.text()
    assert json.loads(found.as_json())["healthy"]
print(vecsort.load().stub_answer(), chr(toy.first_letter(0)))
"""


@pytest.fixture(scope="module")
def wheels(workbench: Workbench, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A core with a library plugin, a split core with a pack: four wheels."""
    folder = tmp_path_factory.mktemp("pythons")
    split: SplitSite = split_site(workbench, folder / "site")
    split.add("cc90", "sm_90")
    workbench.core(folder / "site")
    workbench.plugin(folder / "site", "sm_90")
    (folder / "site" / "toy" / "doctor.py").write_bytes(
        (folder / "site" / "vecsort" / "doctor.py").read_bytes()
    )
    return [
        wheel_of(folder, name, folder / "site" / part)
        for name, part in (
            ("vecsort", "vecsort"),
            ("vecsort-sm90", "vecsort_plugins"),
            ("toy", "toy"),
            ("toy-cc90", "toy_plugins"),
        )
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_core_runs_on_each_python(
    workbench: Workbench, wheels: list[Path], version: str, tmp_path: Path
) -> None:
    base, place = interpreter(version), tmp_path / "environment"
    subprocess.run([base, "-m", "venv", "--without-pip", place], check=True)
    python = str(place / "bin" / "python")
    install = ("install", "--no-index", "--no-cache-dir", *map(str, wheels))
    run(base, "-m", "pip", "--python", python, *install)
    gpu = workbench.environment("9.0")
    assert run(python, "-W", "error", "-c", USE, **gpu) == "42 h\n"
    for package in ("vecsort", "toy"):
        assert "verdict: 1 of 1 device served" in run(python, "-m", f"{package}.doctor", **gpu)
        text = run(python, "-m", f"{package}.doctor", "--full", "--json", **gpu)
        assert '"healthy": true' in text


def run(*command: str, **environment: str) -> str:
    child = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **environment}
    done = subprocess.run(command, env=child, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
