"""``archsplit build``: from a recipe to wheels.

A recipe for a prebuilt file is split.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from typing import TYPE_CHECKING

from archsplit.cli import options
from archsplit.cli.files import check_path
from archsplit.cli.verbs import add_verb
from archsplit.errors import UsageError
from archsplit.system.env import build_date
from archsplit.system.resources import available_cores

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rich.console import Console

    from archsplit.recipe.model import Recipe
    from archsplit.recipe.prebuilt import SplitRecipe
    from archsplit.release.context import Effects
    from archsplit.release.report import Release
    from archsplit.release.wheel_plans import CudaReleases

    Build = Callable[[Effects, Path], Release | CudaReleases]


_OPTIONS = f"""{options.RECIPE}
{options.OUT}
{options.MEMORY}
{options.CACHE}
--keep-going -k  after a failure run all steps that don't depend on it, and report every failure
{options.EXPLAIN}
--trace FILE     start and end of each step, for Perfetto
--release        make a release of --targets only, whose core names no others (default: a part of
                 the recipe's release, for gather)
{options.VARIANTS}
{options.JSON}
{options.QUIET}
"""


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = add_verb(
        verbs,
        "build",
        "archsplit build recipes/vecsort --out dist",
        "archsplit build . --out dist --targets sm_90 --memory 24G",
    )
    options.add_options(parser, _OPTIONS, jobs=available_cores())
    options.add_options(
        parser.add_mutually_exclusive_group(),
        """
--no-core    build the plugins only
--core-only  build the core only, which compiles nothing
""",
    )
    options.add_engine_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Build, and print the report."""
    from archsplit.recipe.load import load
    from archsplit.recipe.prebuilt import SplitRecipe
    from archsplit.release.report import Release

    check_path(arguments.recipe)
    recipe = load(arguments.recipe)
    if isinstance(recipe, SplitRecipe):
        return build_prebuilt(recipe, arguments, console)
    for_all_majors = arguments.cuda is None and recipe.cuda.majors
    build = (_majors_build if for_all_majors else _release_build)(recipe, arguments)
    with _effects(arguments, console) as effects:
        done = build(effects, arguments.out)
    # Printed after the display of the progress has ended: it would draw over the table.
    if arguments.json:
        options.show(options.json_text(_document(done)))
    else:
        _print(done, arguments.out)
    if arguments.variants and isinstance(done, Release):
        options.write_built_variants(done, arguments.out, console)
    return 0


@contextlib.contextmanager
def _effects(arguments: argparse.Namespace, console: Console) -> Iterator[Effects]:
    """Open the effects of a build from sources."""
    from archsplit.cache.config import active_settings

    with options.effects(console, jobs=arguments.jobs, quiet=arguments.quiet) as effects:
        yield dataclasses.replace(
            options.for_machine(effects, arguments),
            memory=arguments.memory,
            # A farm has a cache of its own, for all machines that build there.
            cache=active_settings(effects.environment, mode=arguments.cache),
            explain=arguments.explain,
            trace=arguments.trace,
            engine=options.engine_choice(arguments, os.environ),
            keep_going=arguments.keep_going,
        )


def _release_build(recipe: Recipe, arguments: argparse.Namespace) -> Build:
    """Return the build of one release."""
    from archsplit.build.pipeline import build_recipe

    if arguments.release and arguments.targets is None:
        raise UsageError("--release needs --targets", hint="--targets sm_80,sm_90")
    request = dataclasses.replace(
        options.build_request(recipe, arguments),
        core=not arguments.no_core,
        is_release=arguments.release,
    )
    # Checked before the compilation, which may take hours.
    if arguments.variants and arguments.no_core:
        raise UsageError("--variants can't be combined with --no-core: it needs the core")
    if arguments.core_only:
        if request.targets is not None:
            raise UsageError("--core-only can't be combined with --targets: it builds no plugin")
        # An empty list of targets builds no plugin; None would mean all of them.
        request = dataclasses.replace(request, targets=())
    return lambda effects, out: build_recipe(request, effects, out=out)


def _majors_build(recipe: Recipe, arguments: argparse.Namespace) -> Build:
    """Return the build of a release for each CUDA major."""
    from archsplit.build.pipeline import build_cuda_majors

    chosen = {
        "--no-core": arguments.no_core,
        "--core-only": arguments.core_only,
        "--targets": arguments.targets is not None,
        "--release": arguments.release,
        "--variants": arguments.variants,
    }
    if wrong := [name for name, is_given in chosen.items() if is_given]:
        raise UsageError(
            f"{wrong[0]} is for one release, and this recipe makes one for each CUDA major",
            hint="choose the major, such as --cuda 12",
        )
    request = options.build_request(recipe, arguments)
    return lambda effects, out: build_cuda_majors(request, effects, out=out)


def _document(done: Release | CudaReleases) -> object:
    from archsplit.release.report import Release

    if isinstance(done, Release):
        return json.loads(done.as_json())
    reports = {str(major): json.loads(one.as_json()) for major, one in done.releases.items()}
    return {"schema": 1, "front": done.front, "majors": reports}


def _print(done: Release | CudaReleases, folder: Path) -> None:
    from archsplit.release.report import Release
    from archsplit.release.summary import build_summary

    if isinstance(done, Release):
        options.show(build_summary(done, folder))
        return
    for major, report in done.releases.items():
        options.show(build_summary(report, folder / f"cu{major}"))
    majors = ", ".join(f"cu{major}" for major in done.releases)
    options.show(f"{done.front}: the front package, with the extras {majors}")


_SOURCE_OPTIONS = ("nvcc", "no_core", "core_only", "release", "remote", "cuda", "machine")
"""Options of the compilation, without a meaning for a prebuilt file."""


def build_prebuilt(recipe: SplitRecipe, arguments: argparse.Namespace, console: Console) -> int:
    """Split the file of a recipe, and print the report."""
    from archsplit.build.plan import single_nvcc
    from archsplit.release.summary import split_summary
    from archsplit.split.from_recipe import split_by_recipe

    _refuse_others(recipe, arguments)
    targets = options.targets(arguments.targets)
    recipe = _by_policy(recipe, arguments)
    nvcc = single_nvcc(arguments.nvcc)
    with options.effects(console, quiet=arguments.quiet) as outer:
        # The command's compilers read the cache's mode from the environment.
        chosen = {} if arguments.cache is None else {"ARCHSPLIT_CACHE": arguments.cache}
        effects = dataclasses.replace(outer, environment={**outer.environment, **chosen})
        report = split_by_recipe(recipe, effects, out=arguments.out, targets=targets, nvcc=nvcc)
    if arguments.variants:
        options.write_split_variants(report, arguments.out, console)
    options.show(report.as_json() if arguments.json else split_summary(report))
    return 0


def plan_prebuilt(recipe: SplitRecipe, arguments: argparse.Namespace) -> int:
    """Print the plan of a split."""
    from archsplit.split.from_recipe import plan_split

    _refuse_others(recipe, arguments)
    plan = plan_split(_by_policy(recipe, arguments), options.targets(arguments.targets))
    options.show(plan.as_json() if arguments.json else plan.text())
    return 0


def _by_policy(recipe: SplitRecipe, arguments: argparse.Namespace) -> SplitRecipe:
    from archsplit.recipe.single_build import apply_policy_to_prebuilt

    if arguments.policy is None:
        return recipe
    return apply_policy_to_prebuilt(recipe, arguments.policy, day=build_date(os.environ))


def _refuse_others(recipe: SplitRecipe, arguments: argparse.Namespace) -> None:
    for name in _SOURCE_OPTIONS:
        # A command of the recipe compiles, too.
        if getattr(arguments, name, None) and not (name == "nvcc" and recipe.source.build):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{option} is for recipes with sources; {recipe.file} has a prebuilt file",
                hint="--targets, --policy, --out, --variants, --json, --quiet are valid here",
            )
