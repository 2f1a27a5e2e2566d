"""Split what a recipe names, as the recipe says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from archsplit.devicecode.partition import PackBy
from archsplit.errors import BudgetError
from archsplit.release.earlier import refuse_another
from archsplit.release.plugin_wheels import project_metadata
from archsplit.release.request import InstallDefaults, SplitRequest
from archsplit.split.file import LibraryProject, split_library
from archsplit.split.product import find_product
from archsplit.split.split import split_wheel
from archsplit.system.fs import output_dir, temporary_dir
from archsplit.system.moving import replace_all

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.arch.target import Target
    from archsplit.recipe.policy import Policy
    from archsplit.recipe.prebuilt import SplitRecipe
    from archsplit.recipe.project import Project
    from archsplit.release.context import Effects
    from archsplit.release.split_report import SplitReport


def split_by_recipe(
    recipe: SplitRecipe,
    workshop: Effects,
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
    with find_product(recipe, workshop) as product:
        request = request_of(recipe, product, out=out, targets=targets)
        if recipe.policy is None or not recipe.policy.is_limited:
            return _split(recipe, request, workshop)
        with output_dir(out) as target, temporary_dir(target) as staging:
            report = _split(recipe, replace(request, out=staging), workshop)
            refuse_another(target, report.build_id)
            _check_budget(recipe, recipe.policy, report)
            names = sorted(path.name for path in staging.iterdir())
            replace_all(names, source=staging, target=target)
        return report


def _split(recipe: SplitRecipe, request: SplitRequest, workshop: Effects) -> SplitReport:
    if recipe.project is None:
        return split_wheel(request, workshop)
    return split_library(request, workshop, project_of(recipe.project, recipe))


def _check_budget(recipe: SplitRecipe, policy: Policy, report: SplitReport) -> None:
    sizes = {f"{wheel.file} ({wheel.pack or wheel.role})": wheel.size for wheel in report.wheels}
    if findings := list(policy.exceeded(sizes)):
        raise BudgetError(
            "\n  ".join([f"the wheels of policy {recipe.applied} are too big:", *findings]),
            hint="`archsplit advise` says which targets fit; or raise the limit in the recipe",
        )


def project_of(project: Project, recipe: SplitRecipe) -> LibraryProject:
    """Who the core of a recipe's library is, and what is in it besides.

    Raises:
        InputError: the readme can't be read any more.
    """
    root, python = recipe.root, recipe.python
    metadata = project_metadata(
        project, root, project.name, summary=project.summary, requires=project.dependencies
    )
    return LibraryProject(
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
        by=PackBy(recipe.split.by),
        targets=recipe.targets if targets is None else targets,
        install=InstallDefaults(recipe.install.mode),
        release=recipe.is_release,
    )
