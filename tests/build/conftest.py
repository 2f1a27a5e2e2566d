"""One small release, built once with the real tools, and shared by everything that reads wheels."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from archsplit.build.pipeline import build_recipe
from archsplit.build.plan import BuildRequest
from archsplit.release.context import Effects
from archsplit.system.progress import SilentProgress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.release.report import Release

TINYVEC = Path(__file__).parents[1] / "tinyvec"


@pytest.fixture(scope="session")
def zig(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package that runs the real zig, and has it remember what it compiled.

    Each build compiles the same loader, with nothing known, which takes 3 s.
    """
    found = find_spec("ziglang")
    assert found is not None, "the test environment has it"
    real = Path(found.origin or "").with_name("zig")
    folder, memory = tmp_path_factory.mktemp("zig"), tmp_path_factory.mktemp("memory")
    (folder / "ziglang").mkdir()
    (folder / "ziglang" / "__init__.py").touch()
    run = folder / "ziglang" / "zig"
    places = " ".join(f"ZIG_{name}_CACHE_DIR={memory}" for name in ("GLOBAL", "LOCAL"))
    run.write_text(f'#!/bin/sh\n{places} exec {real} "$@"\n')
    run.chmod(0o755)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _zig_remembers(zig: Path) -> Iterator[None]:
    """For builds in this process and in those that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(zig)
        patch.setenv("PYTHONPATH", str(zig), prepend=os.pathsep)
        yield


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
    folder = tmp_path_factory.mktemp("dist")
    effects = Effects(progress=SilentProgress(), environment=environment, jobs=2)
    return folder, build_recipe(BuildRequest(recipe=TINYVEC), effects, out=folder)


@pytest.fixture
def dist(built: tuple[Path, Release], tmp_path: Path) -> Path:
    """A copy of the wheels, to be changed."""
    return Path(shutil.copytree(built[0], tmp_path / "dist"))
