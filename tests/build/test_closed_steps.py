"""Steps that declare all that they open: each runs in folders that hold nothing else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from archsplit.arch.target import Target
from archsplit.build.plan import BuildPlan, BuildRequest, plan_build
from archsplit.recipe.load import load_recipe
from archsplit.release.context import Effects
from archsplit.system.process import SubprocessRunner
from archsplit.system.terminal import SilentProgress

if TYPE_CHECKING:
    from archsplit.scheduler.graph import Step

ROOT = Path(__file__).parents[2]


class Store:
    """The files of a recipe and of its private folder, kept where no step finds them."""

    def __init__(self, plan: BuildPlan, folder: Path) -> None:
        self._folder = folder
        self._places = (plan.context.recipe.root, plan.context.folder)
        for number, place in enumerate(self._places):
            shutil.move(place, folder / str(number))

    def path(self, path: Path) -> Path:
        for number, place in enumerate(self._places):
            if path.is_relative_to(place):
                return self._folder / str(number) / path.relative_to(place)
        raise AssertionError(f"{path} is in neither folder")

    def run(self, step: Step) -> None:
        """Run a step with only its reads, and keep what it writes."""
        for place in self._places:
            place.mkdir()
        for path in step.reads:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(self.path(path), path)
        for path in step.writes:
            path.parent.mkdir(parents=True, exist_ok=True)
        done = SubprocessRunner().run(step.command)
        assert done.returncode == 0, f"{step.name}: {step.command.text()}\n{done.tail()}"
        for path in step.writes:
            shutil.copyfile(path, self.path(path))
        for place in self._places:
            shutil.rmtree(place)


def run_closed(
    recipe: Path, environment: dict[str, str], tmp_path: Path, targets: tuple[Target, ...]
) -> None:
    shutil.copytree(recipe, tmp_path / "recipe")
    effects = Effects(progress=SilentProgress(), environment=environment, jobs=2)
    order = BuildRequest(recipe=load_recipe(tmp_path / "recipe"), targets=targets)
    with plan_build(order, effects) as plan:
        for path, text in plan.texts.items():
            path.write_text(text)
        (tmp_path / "store").mkdir()
        store = Store(plan, tmp_path / "store")
        for position in plan.graph.order:
            store.run(plan.graph.steps[position])
        for library in plan.libraries.values():
            assert store.path(library).stat().st_size
        # The context removes the folder at its end.
        plan.context.folder.mkdir()


@pytest.mark.nvcc
@pytest.mark.parametrize("name", ["tests/tinyvec", "tests/tinyrdc"])
def test_step_reads_only_declared_files(
    name: str, environment: dict[str, str], tmp_path: Path
) -> None:
    run_closed(ROOT / name, environment, tmp_path, (Target.parse("sm_80"),))


@pytest.mark.nvcc
@pytest.mark.stress
def test_step_of_a_large_recipe_reads_only_declared_files(
    environment: dict[str, str], tmp_path: Path
) -> None:
    targets = (Target.parse("sm_90"), Target.parse("compute_120"))
    run_closed(ROOT / "recipes/vecsort", environment, tmp_path, targets)
