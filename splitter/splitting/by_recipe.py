"""Split what a recipe names, as the recipe says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from splitter.devicecode.shares import By
from splitter.errors import BudgetError
from splitter.splitting.earlier import refuse_another
from splitter.splitting.file import Owner, split_library
from splitter.splitting.product import product_of
from splitter.splitting.request import Install, SplitRequest
from splitter.splitting.wheel import split_wheel
from splitter.stages.pack import project_metadata
from splitter.system.files import output_folder, private_folder
from splitter.system.moving import move_all

if TYPE_CHECKING:
    from pathlib import Path

    from splitter.arch.target import Target
    from splitter.recipe import Policy, Project
    from splitter.recipe.finished import SplitRecipe
    from splitter.split_report import SplitReport
    from splitter.workshop import Workshop


def split_by_recipe(
    recipe: SplitRecipe,
    workshop: Workshop,
    *,
    out: Path,
    targets: tuple[Target, ...] | None = None,
) -> SplitReport:
    """Build what is to be split, if the recipe says how, and split it.

    Args:
        targets: these GPUs' packs alone, whatever the recipe says.

    Raises:
        BudgetError: the policy's limits are broken.
        ArchsplitError: that, or the build failed, or the split; ``out`` is as it was.
    """
    with product_of(recipe, workshop) as product:
        request = request_of(recipe, product, out=out, targets=targets)
        if recipe.policy is None or not recipe.policy.is_limited:
            return _split(recipe, request, workshop)
        with output_folder(out) as target, private_folder(target) as staging:
            report = _split(recipe, replace(request, out=staging), workshop)
            refuse_another(target, report.build_id)
            _check_budget(recipe, recipe.policy, report)
            names = sorted(path.name for path in staging.iterdir())
            move_all(names, source=staging, target=target)
        return report


def _split(recipe: SplitRecipe, request: SplitRequest, workshop: Workshop) -> SplitReport:
    if recipe.project is None:
        return split_wheel(request, workshop)
    return split_library(request, workshop, owner_of(recipe.project, recipe))


def _check_budget(recipe: SplitRecipe, policy: Policy, report: SplitReport) -> None:
    sizes = {f"{wheel.file} ({wheel.pack or wheel.role})": wheel.size for wheel in report.wheels}
    if findings := list(policy.exceeded(sizes)):
        raise BudgetError(
            "\n  ".join([f"the wheels of policy {recipe.applied} are too big:", *findings]),
            hint="`archsplit advise` says which targets fit; or raise the limit in the recipe",
        )


def owner_of(project: Project, recipe: SplitRecipe) -> Owner:
    """Who the core of a recipe's library is, and what is in it besides.

    Raises:
        InputError: the readme can't be read any more.
    """
    root, python = recipe.root, recipe.python
    metadata = project_metadata(
        project, root, project.name, summary=project.summary, requires=project.dependencies
    )
    return Owner(
        metadata=metadata,
        package=python.package if python else project.name.replace("-", "_"),
        files={str(path): root / python.root / path for path in python.files} if python else {},
        licenses={str(path): root / path for path in project.license_files},
    )


def request_of(
    recipe: SplitRecipe, product: Path, *, out: Path, targets: tuple[Target, ...] | None
) -> SplitRequest:
    """What a recipe asks for."""
    return SplitRequest(
        source=product,
        out=out,
        name=recipe.split.name,
        by=By(recipe.split.by),
        targets=recipe.targets if targets is None else targets,
        install=Install(recipe.install.mode),
        release=recipe.is_release,
    )
