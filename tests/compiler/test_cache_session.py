"""The cache behind ``archsplit build``."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from in_process import run_archsplit

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit

TINYVEC = Path(__file__).parents[1] / "tinyvec"


def build(recipe: Path, out: Path, store: Path, toolkit: Toolkit, *more: str) -> list[str]:
    """The steps that ran."""
    words = ("build", recipe, "--out", out, "--nvcc", toolkit.nvcc, "--explain", "--no-core")
    done = run_archsplit(
        *words,
        *more,
        environment={
            # Cores aren't shared with whatever else runs on the machine.
            "XDG_RUNTIME_DIR": str(store.parent),
            "ARCHSPLIT_CACHE": "on",
            "ARCHSPLIT_CACHE_DIR": str(store),
            "ARCHSPLIT_CACHE_MIN_SECONDS": "0",
        },
    )
    assert done.returncode == 0, done.stderr
    return sorted(re.findall(r"^(.+?): cache miss", done.stderr, re.MULTILINE))


@dataclass(frozen=True, kw_only=True)
class Filled:
    """A store that a build of all targets has filled, and where its wheels are."""

    store: Path
    wheels: Path


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, toolkit: Toolkit) -> Filled:
    """Tests only read it."""
    folder = tmp_path_factory.mktemp("filled")
    made = Filled(store=folder / "store", wheels=folder / "all")
    recipe = Path(shutil.copytree(TINYVEC, folder / "here" / "tinyvec"))
    ran = build(recipe, made.wheels, made.store, toolkit)
    assert {"add.cu: cudafe++", "add.cu: cicc compute_80", "scale.cu: ptxas sm_90"} <= set(ran)
    return made


@pytest.mark.nvcc
def test_another_plugin_of_the_list_compiles_nothing(
    tmp_path: Path, toolkit: Toolkit, filled: Filled
) -> None:
    store = Path(shutil.copytree(filled.store, tmp_path / "store"))
    other = Path(shutil.copytree(TINYVEC, tmp_path / "elsewhere" / "tinyvec"))
    assert build(other, tmp_path / "one", store, toolkit, "--targets", "sm_80", "-j", "1") == []
    (wheel,) = (tmp_path / "one").glob("*.whl")
    assert wheel.read_bytes() == (filled.wheels / wheel.name).read_bytes()


def through_backend(recipe: Path, out: Path, store: Path, toolkit: Toolkit, **more: str) -> str:
    """Return the output of the PEP 517 backend."""
    out.mkdir()
    settings = {"target": "sm_80", "nvcc": str(toolkit.nvcc), **more}
    code = f"import archsplit.backend as b; b.build_wheel({str(out)!r}, {settings!r})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "XDG_RUNTIME_DIR": str(store.parent),
            "ARCHSPLIT_CACHE": "on",
            "ARCHSPLIT_CACHE_DIR": str(store),
            "ARCHSPLIT_CACHE_MIN_SECONDS": "0",
        },
        cwd=recipe,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.nvcc
def test_the_backend_uses_the_cache_and_can_be_told_not_to(
    tmp_path: Path, toolkit: Toolkit, filled: Filled
) -> None:
    recipe = Path(shutil.copytree(TINYVEC, tmp_path / "tinyvec"))
    through_backend(recipe, tmp_path / "off", tmp_path / "none", toolkit, cache="off")
    assert not tmp_path.joinpath("none", "ac").exists()
    store = Path(shutil.copytree(filled.store, tmp_path / "store"))
    assert "3 objects" in through_backend(recipe, tmp_path / "on", store, toolkit)
    (wheel,) = (tmp_path / "on").iterdir()
    assert (tmp_path / "off" / wheel.name).read_bytes() == wheel.read_bytes()
