"""``build`` and ``plan`` of a recipe that has no sources, but something finished to split."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from archsplit.cli import options
from archsplit.cli.variants import write_split_variants
from archsplit.errors import UsageError
from archsplit.system.epoch import build_day

if TYPE_CHECKING:
    import argparse

    from rich.console import Console

    from archsplit.recipe.prebuilt import SplitRecipe

_OF_SOURCES = ("nvcc", "no_core", "core_only")
"""Options that say how sources are compiled, or that leave out what a split makes at once."""


def build_prebuilt(recipe: SplitRecipe, arguments: argparse.Namespace, console: Console) -> int:
    """Split, and say what came of it."""
    from archsplit.split.by_recipe import split_by_recipe

    _refuse_others(recipe, arguments)
    targets = options.targets(arguments.targets)
    recipe = _by_policy(recipe, arguments)
    with options.effects(console, quiet=arguments.quiet) as workshop:
        report = split_by_recipe(recipe, workshop, out=arguments.out, targets=targets)
    if arguments.variants:
        write_split_variants(report, arguments.out, console)
    print(report.as_json() if arguments.json else report.text())  # noqa: T201 - data goes to stdout
    return 0


def plan_prebuilt(recipe: SplitRecipe, arguments: argparse.Namespace) -> int:
    """Say what would be done."""
    from archsplit.split.from_recipe import plan_split

    _refuse_others(recipe, arguments)
    plan = plan_split(_by_policy(recipe, arguments), options.targets(arguments.targets))
    print(plan.as_json() if arguments.json else plan.text())  # noqa: T201 - data goes to stdout
    return 0


def _by_policy(recipe: SplitRecipe, arguments: argparse.Namespace) -> SplitRecipe:
    from archsplit.recipe.finished_policies import apply_policy_to_prebuilt

    if arguments.policy is None:
        return recipe
    return apply_policy_to_prebuilt(recipe, arguments.policy, day=build_day(os.environ))


def _refuse_others(recipe: SplitRecipe, arguments: argparse.Namespace) -> None:
    for name in _OF_SOURCES:
        if getattr(arguments, name, None):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{option} is for recipes with sources; {recipe.file} has something finished",
                hint="--targets, --policy, --out, --variants, --json, --quiet have a meaning here",
            )
