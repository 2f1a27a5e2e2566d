"""Plan of a build.

In: a `BuildRequest`. Out: a `BuildPlan` with the graph of all commands and the expected libraries.
All decisions of a build are made here: recipe, policy, toolkit, targets, identity, cached objects.
Only ``nvcc --dryrun`` and the preprocessor run before the plan is complete.
"""

from __future__ import annotations

import contextlib
import platform
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from archsplit import __version__
from archsplit.build.compile import ObjectPlanner
from archsplit.build.context import BuildContext, identify, open_digests, probe_nvcc
from archsplit.build.link import DeviceLinkPlanner, LibraryPlanner, check_link_libraries
from archsplit.errors import TargetError, UsageError
from archsplit.nvcc.cuda_libraries import find_cuda_libraries
from archsplit.nvcc.toolkit import choose_toolkit, find_host_tools
from archsplit.recipe.single_build import (
    apply_policy,
    check_cuda_major,
    keep_targets,
    select_cuda_major,
)
from archsplit.scheduler.graph import Graph
from archsplit.system.env import build_date, clean_environment, has_epoch, source_date_epoch
from archsplit.system.fs import temporary_dir

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from archsplit.arch.target import Target
    from archsplit.compiler.cache_session import CacheSession
    from archsplit.compiler.object_cache import SourceUnit
    from archsplit.nvcc.toolkit import Toolkit
    from archsplit.recipe.model import Recipe
    from archsplit.release.context import Effects
    from archsplit.release.identity import Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """A request to build the wheels of a recipe.

    Attributes:
        recipe: the recipe as its file has it.
        targets: the targets to build plugins for; None for all targets of the recipe.
        core: True to build the core too, and the meta wheel if the recipe has one.
        nvcc: the values of ``--nvcc``; several only for a recipe with several majors of CUDA.
        is_release: True for a release of ``targets`` only; False if they are a part of the
            recipe's release, whose core names all targets.
        policy: the name of the policy to apply; None for a release.
        cuda_major: the major to build of a recipe for several; None for a recipe without majors.
    """

    recipe: Recipe
    targets: tuple[Target, ...] | None = None
    core: bool = True
    is_release: bool = False
    nvcc: tuple[Path, ...] = ()
    policy: str | None = None
    cuda_major: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan:
    """Plan of a build: all decisions are made.

    Attributes:
        targets: the targets to build.
        core: see `BuildRequest.core`.
        graph: the commands to run.
        texts: the content of files that must exist before the graph runs.
        libraries: the library that the graph makes for each target.
        units: the sources that are compiled, if the cache can store them.
        warnings: the warnings of ``nvcc --dryrun``, and one for a version with today's date.
    """

    context: BuildContext
    identity: Identity
    targets: tuple[Target, ...]
    core: bool
    graph: Graph
    texts: Mapping[Path, str]
    libraries: Mapping[Target, Path]
    units: tuple[SourceUnit, ...]
    warnings: tuple[str, ...]


@contextlib.contextmanager
def plan_build(
    request: BuildRequest,
    effects: Effects,
    *,
    session: CacheSession | None = None,
    keeps_text: bool = True,
) -> Iterator[BuildPlan]:
    """Make the plan of a build; its private folder exists as long as the context.

    Args:
        session: the cache that objects are restored from; None to compile all sources.
        keeps_text: see `ObjectPlanner`; a farm's plan never does.

    Raises:
        ArchsplitError: the recipe, a tool or a target is not usable.
    """
    with open_context(request, effects) as context:
        targets = select_targets(context.recipe, request.targets)
        identity = identify(context, version=__version__)
        root = context.recipe.root
        cache = None if session is None else session.open_objects(root, context.environment)
        planner = ObjectPlanner(
            context=context,
            runner=effects.runner,
            cache=cache,
            keeps_text=keeps_text and effects.engine is None,
        )
        # Without plugins a core links none.
        if targets:
            check_link_libraries(context, effects.runner)
        objects = planner.plan(targets, jobs=effects.jobs)
        device_planner = DeviceLinkPlanner(context=context, runner=effects.runner)
        links = device_planner.plan(objects.relocatable, jobs=effects.jobs)
        inputs = {
            target: (*files, *links.files.get(target, ()))
            for target, files in objects.files.items()
        }
        libraries = LibraryPlanner(context=context, identity=identity).plan(inputs)
        dated = _date_warnings(request, effects, identity)
        yield BuildPlan(
            context=context,
            identity=identity,
            targets=targets,
            core=request.core,
            graph=Graph(steps=objects.steps + links.steps + libraries.steps),
            texts={**objects.texts, **libraries.texts},
            libraries={target: libraries.files[target] for target in targets},
            units=objects.units,
            warnings=tuple(dict.fromkeys((*dated, *objects.warnings, *links.warnings))),
        )


def requested_recipe(request: BuildRequest, effects: Effects) -> Recipe:
    """Return the recipe of a request with its policy applied.

    Raises:
        UsageError: the recipe has no such policy or major of CUDA.
    """
    recipe = request.recipe
    check_cuda_major(recipe, request.cuda_major)
    if request.policy is not None:
        recipe = apply_policy(recipe, request.policy, day=build_date(effects.environment))
    if request.is_release and request.targets is not None:
        kept = frozenset(select_targets(recipe, request.targets))
        # nvcc still gets the whole list, so that device code is the same as in a whole release.
        recipe = replace(recipe, targets=keep_targets(recipe, kept).targets)
    return recipe


@contextlib.contextmanager
def open_context(request: BuildRequest, effects: Effects) -> Iterator[BuildContext]:
    """Find the tools for a recipe; yield the context of its build.

    Raises:
        ArchsplitError: the recipe or a tool is not usable.
    """
    recipe = requested_recipe(request, effects)
    tried = probe_nvcc(effects, single_nvcc(request.nvcc))
    toolkit = choose_toolkit(tried)
    if request.cuda_major is not None:
        _check_major(toolkit, request.cuda_major)
        # A core without any plugin would look like a release.
        if toolkit.targets.isdisjoint(recipe.targets.all):
            raise TargetError(
                f"CUDA {toolkit.release} ({toolkit.nvcc}) can't compile any target of the recipe",
                hint="use another toolkit with --nvcc, or take its major out of cuda.majors",
            )
        recipe = select_cuda_major(recipe, request.cuda_major, toolkit.targets)
    # All targets of the release, also those that are not built now: nvcc compiles for all.
    toolkit.check_targets(recipe.release)
    cross = "" if effects.machine == platform.machine() else effects.machine
    if cross:
        toolkit = _cross_toolkit(recipe, toolkit, cross)
    cuda_libraries = find_cuda_libraries(recipe.link.cuda_libraries, toolkit, effects.site_folders)
    host = find_host_tools(effects.environment, effects.runner, cross=cross)
    epoch = source_date_epoch(effects.environment)
    digests = open_digests(effects.environment)
    with temporary_dir() as folder:
        yield BuildContext(
            recipe=recipe,
            toolkit=toolkit,
            tried=tried,
            host=host,
            environment=clean_environment(effects.environment, temporary=folder, epoch=epoch),
            folder=folder,
            epoch=epoch,
            cuda_libraries=cuda_libraries,
            digests=digests,
        )
        digests.save()


def single_nvcc(nvcc: Sequence[Path]) -> Path | None:
    """Return the value of ``--nvcc`` of a build with one toolkit; None for none.

    Raises:
        UsageError: several are given.
    """
    if len(nvcc) > 1:
        raise UsageError(
            "a build of one release takes one --nvcc",
            hint="several are for a recipe with cuda.majors, without --cuda",
        )
    return nvcc[0] if nvcc else None


def _cross_toolkit(recipe: Recipe, toolkit: Toolkit, machine: str) -> Toolkit:
    # NVIDIA's wheels that are installed here are those for this machine.
    if recipe.link.cuda_libraries:
        raise TargetError(
            f"link.cuda-libraries can't be linked for {machine} on this machine",
            hint=f"build on a machine with {machine}, or leave it out with --machine",
        )
    return toolkit.for_machine(machine)


def _check_major(toolkit: Toolkit, major: int) -> None:
    if toolkit.cuda_version // 1000 != major:
        raise TargetError(
            f"{toolkit.nvcc} is of CUDA {toolkit.release}, not {major}",
            hint=f"name a toolkit of CUDA {major} with --nvcc",
        )


def _date_warnings(request: BuildRequest, effects: Effects, identity: Identity) -> tuple[str, ...]:
    # A release's version is written in the recipe, so the date doesn't matter.
    if request.policy is None or has_epoch(effects.environment):
        return ()
    return (
        f"SOURCE_DATE_EPOCH is not set: {identity.version} has today's date, and the same build"
        " gives other bytes tomorrow",
    )


def select_targets(recipe: Recipe, targets: tuple[Target, ...] | None) -> tuple[Target, ...]:
    """Return the targets of a recipe that are to be built, in the recipe's order.

    Raises:
        TargetError: the recipe doesn't have a target.
    """
    if targets is None:
        return recipe.targets.all
    unknown = sorted(set(targets) - set(recipe.targets.all))
    if unknown:
        policy = f"policy.{recipe.applied}" if recipe.applied else ""
        raise TargetError(
            f"[{policy or 'targets'}] of the recipe has no target {', '.join(map(str, unknown))}; "
            f"it has {', '.join(map(str, recipe.targets.all))}",
            hint=f"add it to [{policy or 'targets'}] in the recipe, or choose one that is there",
        )
    # In the recipe's order, so that equal builds have equal reports.
    return tuple(target for target in recipe.targets.all if target in targets)
