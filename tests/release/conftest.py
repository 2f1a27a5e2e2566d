"""A small release built from sources and a split one, shared by all tests that read them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from release_samples import OLD_BILL, TINYVEC, fat_wheel, ptx

from archsplit.build.pipeline import build_recipe
from archsplit.build.plan import BuildRequest
from archsplit.cache.config import resolve_settings
from archsplit.recipe.load import load_recipe
from archsplit.release.context import Effects
from archsplit.split.model import SplitRequest
from archsplit.split.split import split_wheel
from archsplit.system.terminal import SilentProgress
from made_once import made_once

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit
    from archsplit.release.report import Release


@pytest.fixture(scope="session")
def environment(environment: dict[str, str], small_toolkit: Toolkit) -> dict[str, str]:
    """Build with small headers: the recipes below tests/ use no others."""
    return {**environment, "CUDA_HOME": str(small_toolkit.root)}


@pytest.fixture(scope="session")
def effects(environment: dict[str, str]) -> Effects:
    # One and the same recipe is built in several ways; compiling it once is enough.
    known = resolve_settings(environment, mode="on")
    return Effects(progress=SilentProgress(), environment=environment, jobs=2, cache=known)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, effects: Effects) -> tuple[Path, Release]:
    """The wheels of tests/tinyvec; not to be changed."""

    def make(folder: Path) -> tuple[Path, Release]:
        return folder, build_recipe(BuildRequest(recipe=load_recipe(TINYVEC)), effects, out=folder)

    return made_once(tmp_path_factory, "built", make)


@pytest.fixture
def dist(built: tuple[Path, Release], tmp_path: Path) -> Path:
    """A copy of the wheels, to be changed."""
    return Path(shutil.copytree(built[0], tmp_path / "dist"))


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A copy of the recipe, to be changed."""
    return Path(shutil.copytree(TINYVEC, tmp_path / "tinyvec"))


@pytest.fixture(scope="session")
def fat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fat wheel with PTX for two capabilities, of which the later one lacks a kernel."""
    images = (ptx("compute_80", "first", "second"), ptx("compute_90", "first"))
    bills = {"sboms/auditwheel.cdx.json": OLD_BILL}
    return fat_wheel(tmp_path_factory.mktemp("fat"), *images, more=bills)


@pytest.fixture(scope="session")
def split(fat: Path, tmp_path_factory: pytest.TempPathFactory, effects: Effects) -> Path:
    """Split the fat wheel; tests don't change the folder."""
    out = tmp_path_factory.mktemp("split") / "out"
    split_wheel(SplitRequest(source=fat, out=out, release=True), effects)
    return out


@pytest.fixture
def packs(split: Path, tmp_path: Path) -> Path:
    """A copy of those wheels, to be changed."""
    return Path(shutil.copytree(split, tmp_path / "packs"))
