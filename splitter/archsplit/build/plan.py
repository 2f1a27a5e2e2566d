"""From an order to a plan: everything is decided here, and nothing but nvcc's dryrun is run."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit import __version__
from archsplit.build.build_id import identify
from archsplit.build.compile import Compiler
from archsplit.build.context import BuildContext
from archsplit.build.link import DeviceLinker, Linker
from archsplit.errors import TargetError
from archsplit.nvcc import toolkit as toolkits
from archsplit.nvcc.driver_search import nvcc_candidates
from archsplit.nvcc.host_tools import find_host_tools
from archsplit.recipe.apply_policy import apply_policy
from archsplit.recipe.load import load_recipe
from archsplit.scheduler.graph import Graph
from archsplit.system.env import build_date, clean_environment, has_epoch, source_date_epoch
from archsplit.system.fs import temporary_dir

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from archsplit.arch.target import Target
    from archsplit.compiler.cache_session import CacheSession
    from archsplit.compiler.object_cache import SourceUnit
    from archsplit.nvcc.toolkit import ToolkitProbe
    from archsplit.recipe.model import Recipe
    from archsplit.release.context import Effects
    from archsplit.release.identity import Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """What is asked for.

    Attributes:
        recipe: the file, or its folder.
        targets: whose plugins to build; None for all of the recipe's.
        core: whether the core (and the meta wheel, if the recipe wants one) is built too.
        nvcc: what ``--nvcc`` names.
        policy: the recipe's policy to build by; None for a release.
    """

    recipe: Path
    targets: tuple[Target, ...] | None = None
    core: bool = True
    nvcc: Path | None = None
    policy: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan:
    """Everything that a build will do; executing it decides nothing.

    Attributes:
        targets: those that are built now.
        core: see `BuildRequest.core`.
        graph: the programs to run.
        texts: files that must be there before, with their content.
        libraries: what the graph makes, per target.
        units: the sources that it compiles, as far as they can be known the next time.
        warnings: what nvcc said when it was asked for its plan, and whose day the version has.
    """

    site: BuildContext
    identity: Identity
    targets: tuple[Target, ...]
    core: bool
    graph: Graph
    texts: Mapping[Path, str]
    libraries: Mapping[Target, Path]
    units: tuple[SourceUnit, ...]
    warnings: tuple[str, ...]


def find_toolkit(workshop: Effects, explicit: Path | None) -> tuple[ToolkitProbe, ...]:
    """Look for nvcc, and say what became of each place."""
    places = nvcc_candidates(
        explicit=explicit, environment=workshop.environment, site_folders=workshop.site_folders
    )
    return toolkits.probe_toolkits(places, workshop.runner)


@contextlib.contextmanager
def plan_build(
    order: BuildRequest, workshop: Effects, *, session: CacheSession | None = None
) -> Iterator[BuildPlan]:
    """Make the plan; its private folder lives as long as the context.

    Args:
        session: the cache, whose objects are put in place.

    Raises:
        ArchsplitError: whatever is wrong with the recipe, the tools or the targets.
    """
    with _site(order, workshop) as site:
        targets = _wanted(site.recipe, order.targets)
        identity = identify(site, version=__version__)
        root = site.recipe.root
        units = None if session is None else session.open_objects(root, site.environment)
        compiler = Compiler(site=site, runner=workshop.runner, units=units)
        objects = compiler.plan(targets, jobs=workshop.jobs)
        linker = DeviceLinker(site=site, runner=workshop.runner)
        links = linker.plan(objects.relocatable, jobs=workshop.jobs)
        inputs = {
            target: (*files, *links.files.get(target, ()))
            for target, files in objects.files.items()
        }
        libraries = Linker(site=site, identity=identity).plan(inputs)
        yield BuildPlan(
            site=site,
            identity=identity,
            targets=targets,
            core=order.core,
            graph=Graph(steps=objects.steps + links.steps + libraries.steps),
            texts={**objects.texts, **libraries.texts},
            libraries=libraries.files,
            units=objects.units,
            warnings=tuple(
                dict.fromkeys(
                    (*_dated(order, workshop, identity), *objects.warnings, *links.warnings)
                )
            ),
        )


@contextlib.contextmanager
def _site(order: BuildRequest, workshop: Effects) -> Iterator[BuildContext]:
    recipe = load_recipe(order.recipe)
    if order.policy is not None:
        recipe = apply_policy(recipe, order.policy, day=build_date(workshop.environment))
    tried = find_toolkit(workshop, order.nvcc)
    toolkit = toolkits.choose_toolkit(tried)
    toolkit.check_targets(recipe.release)
    host = find_host_tools(workshop.environment, workshop.runner)
    epoch = source_date_epoch(workshop.environment)
    with temporary_dir() as folder:
        yield BuildContext(
            recipe=recipe,
            toolkit=toolkit,
            tried=tried,
            host=host,
            environment=clean_environment(workshop.environment, temporary=folder, epoch=epoch),
            folder=folder,
            epoch=epoch,
        )


def _dated(order: BuildRequest, workshop: Effects, identity: Identity) -> tuple[str, ...]:
    if order.policy is None or has_epoch(workshop.environment):
        return ()
    return (
        f"SOURCE_DATE_EPOCH is not set: {identity.version} has today's date, and the same build has"
        " other bytes tomorrow",
    )


def _wanted(recipe: Recipe, targets: tuple[Target, ...] | None) -> tuple[Target, ...]:
    if targets is None:
        return recipe.targets.all
    unknown = sorted(set(targets) - set(recipe.targets.all))
    if unknown:
        raise TargetError(
            f"the {_list(recipe)} has no target {', '.join(map(str, unknown))}; "
            f"it has {', '.join(map(str, recipe.targets.all))}",
            hint=f"add it to [{_table(recipe)}] in the recipe, or choose one that is there",
        )
    return tuple(target for target in recipe.targets.all if target in targets)


def _list(recipe: Recipe) -> str:
    return f"policy {recipe.applied}" if recipe.applied else "recipe"


def _table(recipe: Recipe) -> str:
    return f"policy.{recipe.applied}" if recipe.applied else "targets"
