"""``archsplit plan``: the steps of a build, without running them."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from archsplit.cli import options
from archsplit.cli.files import check_path
from archsplit.cli.verbs import add_verb
from archsplit.system.resources import available_cores

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from rich.console import Console

    from archsplit.build.plan import BuildPlan

PLAN_DOCUMENT_SCHEMA = 1


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = add_verb(
        verbs, "plan", "archsplit plan recipes/vecsort", "archsplit plan . --targets sm_90 --json"
    )
    table = f"""{options.RECIPE}
--check  read the recipe strictly, and plan nothing
{options.JSON}
"""
    options.add_options(parser, table, jobs=available_cores())
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Plan, and print the plan."""
    from archsplit.build.plan import plan_build
    from archsplit.cache.config import active_settings
    from archsplit.recipe.load import load
    from archsplit.recipe.model import Recipe
    from archsplit.recipe.prebuilt import SplitRecipe
    from archsplit.recipe.pyproject_table import check_project_table, names_backend

    check_path(arguments.recipe)
    recipe = load(arguments.recipe)
    if arguments.check:
        # Only a project with this backend has a table that must agree with the recipe.
        if isinstance(recipe, Recipe) and names_backend(recipe.root):
            check_project_table(recipe.project, recipe.root)
        options.show(f"{arguments.recipe}: ok")
        return 0
    if isinstance(recipe, SplitRecipe):
        # Imported here: a recipe with sources doesn't need it.
        from archsplit.cli.build import plan_prebuilt

        return plan_prebuilt(recipe, arguments)
    with (
        options.effects(console, jobs=arguments.jobs, quiet=True) as effects,
        plan_build(
            options.build_request(recipe, arguments),
            replace(
                options.for_machine(effects, arguments),
                cache=active_settings(os.environ),
            ),
            # The same steps, whether or not an earlier plan has preprocessed the sources.
            keeps_text=False,
        ) as plan,
    ):
        text = _as_json(plan) if arguments.json else _as_text(plan)
    options.show(text)
    return 0


def _as_text(plan: BuildPlan) -> str:
    toolkit = plan.context.toolkit
    lines = [
        f"{plan.identity.package} {plan.identity.version}, build {plan.identity.build_id[:16]}",
        f"CUDA {toolkit.release} from {toolkit.origin} ({toolkit.nvcc})",
        f"{plan.context.host.versions[0]} ({plan.context.host.compiler})",
        f"targets: {', '.join(map(str, plan.targets))}",
        "private folder: $BUILD; files written before the first step:",
        *(f"   {_shown(str(path), plan)}" for path in plan.texts),
        f"{len(plan.graph.steps)} steps, with PATH={_search_path(plan)}",
    ]
    for number, step in enumerate(plan.graph.steps):
        earlier = sorted(plan.graph.dependencies[number])
        after = f" (after {', '.join(map(str, earlier))})" if earlier else ""
        lines += [f"{number}. {step.name}{after}", f"   {_shown(step.command.text(), plan)}"]
    lines.append(f"then wheels, tagged as auditwheel says: {', '.join(_distributions(plan))}")
    return "\n".join(lines)


def _distributions(plan: BuildPlan) -> list[str]:
    from archsplit.wheels.filename import ALL_EXTRA

    plugins = [plan.identity.targets[str(target)] for target in plan.targets]
    meta = plan.context.recipe.install.mode == "meta"
    names = [plan.identity.distribution, *plugins]
    return [*names, f"{plan.identity.distribution}-{ALL_EXTRA}"] if meta else names


def _search_path(plan: BuildPlan) -> str:
    paths = {step.command.env.get("PATH", "") for step in plan.graph.steps}
    # Some steps have a shorter PATH, or none; the longest has all folders.
    return max(paths, key=len, default="")


def _as_json(plan: BuildPlan) -> str:
    steps = [
        {
            "name": step.name,
            "argv": [_shown(word, plan) for word in step.command.argv],
            "reads": [_shown_path(path, plan) for path in step.reads],
            "writes": [_shown_path(path, plan) for path in step.writes],
            "waits_for": sorted(plan.graph.dependencies[number]),
        }
        for number, step in enumerate(plan.graph.steps)
    ]
    content = {
        "schema": PLAN_DOCUMENT_SCHEMA,
        "project": plan.identity.package,
        "version": plan.identity.version,
        "build_id": plan.identity.build_id,
        "toolkit": plan.context.toolkit.release,
        "targets": [str(target) for target in plan.targets],
        "texts": {_shown(str(path), plan): text for path, text in plan.texts.items()},
        "path": _search_path(plan),
        "steps": steps,
        "wheels": _distributions(plan),
    }
    return options.json_text(content)


def _shown_path(path: Path, plan: BuildPlan) -> str:
    # As in the commands, which run in the recipe's folder.
    root = plan.context.recipe.root
    return _shown(str(path.relative_to(root) if path.is_relative_to(root) else path), plan)


def _shown(text: str, plan: BuildPlan) -> str:
    # The private folder's name is new each time, and gone when this is read.
    return text.replace(str(plan.context.folder), "$BUILD")
