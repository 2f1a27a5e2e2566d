"""A small release, built once with the real tools, shared by all tests that read wheels."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from archsplit.build.pipeline import build_recipe
from archsplit.build.plan import BuildRequest
from archsplit.recipe.load import load_recipe
from archsplit.release.context import Effects
from archsplit.system.terminal import SilentProgress
from made_once import made_once

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit
    from archsplit.release.report import Release

TINYVEC = Path(__file__).parents[1] / "tinyvec"


@pytest.fixture(scope="session")
def environment(environment: dict[str, str], small_toolkit: Toolkit) -> dict[str, str]:
    """Build with small headers: the recipes below tests/ use no others."""
    return {**environment, "CUDA_HOME": str(small_toolkit.root)}


@pytest.fixture
def effects(environment: dict[str, str]) -> Effects:
    return Effects(progress=SilentProgress(), environment=environment, jobs=2)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A copy of the recipe, to be changed."""
    return Path(shutil.copytree(TINYVEC, tmp_path / "tinyvec"))


@pytest.fixture(scope="session")
def built(
    tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]
) -> tuple[Path, Release]:
    """The wheels of tests/tinyvec; not to be changed."""
    effects = Effects(progress=SilentProgress(), environment=environment, jobs=2)

    def make(folder: Path) -> tuple[Path, Release]:
        return folder, build_recipe(BuildRequest(recipe=load_recipe(TINYVEC)), effects, out=folder)

    return made_once(tmp_path_factory, "built", make)


@pytest.fixture
def dist(built: tuple[Path, Release], tmp_path: Path) -> Path:
    """A copy of the wheels, to be changed."""
    return Path(shutil.copytree(built[0], tmp_path / "dist"))
