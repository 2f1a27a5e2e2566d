"""Stages of a build, in their order; and builds of one recipe for several majors.

In: a `BuildRequest` and the effects. Out: the wheels, the manifest and the report in one folder.
The stages are: plan, compile and link, write the wheels, check them. All files are written into a
staging folder, and move to the output folder at the end: a failed build changes nothing.

A recipe with ``[cuda] majors`` has a release for each major, ``foo-cu12`` in ``cu12/``, and the
front package ``foo``. All folders are written, or none. A target that one toolkit doesn't know is
left out of its release, and is an error if no toolkit knows it.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from archsplit.build.context import find_recipe_toolkits
from archsplit.build.engine import build_history, open_farm
from archsplit.build.link import check_library
from archsplit.build.plan import plan_build
from archsplit.build.provenance import add_bill, built_manifest, read_origins
from archsplit.compiler.cache_session import open_build_session
from archsplit.errors import InputError, OutputError
from archsplit.nvcc.warnings import fold_warnings
from archsplit.release.checks import CheckScope
from archsplit.release.identity import ReleaseKind
from archsplit.release.loader import copy_loader
from archsplit.release.manifest import MANIFEST_FILE
from archsplit.release.merge import core_platforms
from archsplit.release.report import (
    REPORT_FILE,
    BuildDetails,
    Plugin,
    Release,
    ReleaseWheel,
    find_report,
)
from archsplit.release.verify import tag_cache, verify_wheel_set
from archsplit.release.wheel_plans import (
    CudaReleases,
    WheelPlanner,
    core_metadata,
    pack_source,
    write_cuda_releases,
)
from archsplit.release.wheel_set import read_wheel_set
from archsplit.scheduler.outcome import format_chrome_trace
from archsplit.scheduler.pool_choice import find_pool
from archsplit.scheduler.runner import RunOptions, check_outcome, run_graph
from archsplit.system.env import source_date_epoch
from archsplit.system.file_lock import LockedFolder
from archsplit.system.fs import (
    check_output_names,
    output_dir,
    output_errors,
    replace_all,
    sha256,
    temporary_dir,
    write_file,
)
from archsplit.wheels.writer import write_wheels

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from archsplit.arch.target import Target
    from archsplit.build.plan import BuildPlan, BuildRequest
    from archsplit.build.provenance import Origins
    from archsplit.compiler.cache_session import CacheSession
    from archsplit.recipe.model import Recipe
    from archsplit.release.context import Effects
    from archsplit.release.identity import Identity
    from archsplit.scheduler.graph import Graph
    from archsplit.scheduler.outcome import FinishedStep
    from archsplit.scheduler.pool import Pool
    from archsplit.wheels.platform_tags import PlatformTagCache
    from archsplit.wheels.writer import WheelDraft


def build_recipe(request: BuildRequest, effects: Effects, *, out: Path) -> Release:
    """Build the wheels and their report into ``out``; all files or none.

    Raises:
        BudgetError: a wheel is larger than the policy allows.
        ArchsplitError: any other stage failed; ``out`` is unchanged.
    """
    with (
        open_session(effects) as session,
        plan_build(request, effects, session=session) as plan,
        output_dir(out) as folder,
        temporary_dir(folder) as staging,
    ):
        # Checked before the compilation, which may take hours.
        check_output_names(folder, [MANIFEST_FILE, REPORT_FILE])
        _refuse_split(folder)
        compile_plan(plan, effects, session)
        effects.progress.begin_stage("tagging wheels", 0, "Tagged the wheels")
        origins = read_origins(plan.context)
        tags = tag_cache(effects, plan.context.folder)
        if len(plan.targets) not in {0, len(plan.identity.targets)}:
            effects.progress.note(
                f"a part of a release: {len(plan.targets)} of {len(plan.identity.targets)} targets."
                " archsplit gather joins the parts; --release makes a release of these targets"
            )
        if plan.core and not plan.targets:
            effects.progress.note(
                "a core without digests of its plugins: it compares only their version and build"
                " id. archsplit build of all targets, or gather, makes a core with digests"
            )
        report = _report(plan, _write_wheels(plan, origins, tags, effects, staging))
        # Limits belong to policies: a release may be as large as its targets need.
        if policy := plan.context.recipe.policy:
            report.together_with(folder).check_budget(policy, plan.context.recipe.applied)
        names = [wheel.file for wheel in report.wheels]
        effects.progress.begin_stage("checking all wheels", 0, "Checked all wheels")
        with temporary_dir(plan.context.folder) as scratch:
            written = read_wheel_set(
                staging, scratch, platforms=tags.platforms, identity=plan.identity
            )
            verify_wheel_set(written, CheckScope(targets=plan.targets))
        libraries = {str(target): path for target, path in plan.libraries.items()}
        manifest = built_manifest(report, plan.identity, origins, libraries)
        # Two parts that are built at once would each write lists without the other's wheels.
        with LockedFolder(folder):
            write_file(
                staging / MANIFEST_FILE, manifest.together_with(folder / MANIFEST_FILE).as_json()
            )
            write_file(staging / REPORT_FILE, report.together_with(folder).as_json())
            replace_all([*names, MANIFEST_FILE, REPORT_FILE], source=staging, target=folder)
    return report


def _refuse_split(folder: Path) -> None:
    """Refuse a folder with the wheels of a split; wheels of an older build may be replaced.

    Raises:
        OutputError: the folder has a split.
    """
    # A damaged report is reported later, by the merge with the new one.
    with contextlib.suppress(InputError):
        earlier = find_report(folder)
        if earlier is not None and earlier.kind is ReleaseKind.SPLIT:
            raise OutputError(
                f"{folder} has the wheels of a split", hint="choose another folder with --out"
            )


def write_source(recipe: Recipe, effects: Effects, *, out: Path) -> Path:
    """Write the source distribution of a recipe.

    Raises:
        ArchsplitError: a file can't be read or written.
    """
    epoch = source_date_epoch(effects.environment)
    with output_dir(out) as target:
        return pack_source(recipe, core_metadata(recipe), folder=target, epoch=epoch)


def compile_plan(plan: BuildPlan, effects: Effects, session: CacheSession | None) -> None:
    """Run the commands of a plan, and check the libraries that they make.

    Raises:
        ArchsplitError: a command failed, or a library is not the planned one.
    """
    for line in (*map(str, plan.context.tried), *fold_warnings(plan.warnings)):
        effects.progress.note(line)
    for path, text in plan.texts.items():
        write_file(path, text)
    effects.progress.begin_stage("compiling", len(plan.graph.steps), "Ran {} steps")
    if effects.engine is not None:
        cache = None if session is None else session.cache
        opened = open_farm(plan, effects, effects.engine, cache)
        with opened as (graph, slots, executor, results):
            options = _options(slots, effects)._replace(executor=executor, result_cache=results)
            done = _run(graph, options, effects)
    else:
        done = _execute_here(plan, effects, session)
    for text in fold_warnings(step.output for step in done if step.output):
        effects.progress.note(text)
    for target, library in plan.libraries.items():
        symbols = plan.context.recipe.interface.symbols
        check_library(library, target, identity=plan.identity, symbols=symbols)


def _options(pool: Pool, effects: Effects) -> RunOptions:
    return RunOptions(
        pool=pool,
        runner=effects.runner,
        progress=effects.progress,
        parallel=False,
        keep_going=effects.keep_going,
    )


def _run(graph: Graph, options: RunOptions, effects: Effects) -> tuple[FinishedStep, ...]:
    outcome = run_graph(graph, options)
    # Also of a run with failures.
    if effects.trace is not None:
        with output_errors(effects.trace):
            write_file(effects.trace, format_chrome_trace(outcome))
    return check_outcome(graph, outcome, keep_going=effects.keep_going)


def _execute_here(
    plan: BuildPlan, effects: Effects, session: CacheSession | None
) -> tuple[FinishedStep, ...]:
    found = find_pool(effects.environment, jobs=effects.jobs, memory=effects.memory)
    for text in found.notes:
        effects.progress.note(text)
    root, private = plan.context.recipe.root, plan.context.folder
    graph, step_cache = plan.graph, None
    if session is not None:
        graph, step_cache = session.begin(plan.graph, cwd=root, private=private)
    with contextlib.closing(found.pool) as pool:
        history = build_history(plan, effects.environment)
        options = _options(pool, effects)._replace(history=history, result_cache=step_cache)
        done = _run(graph, options, effects)
    # Only now: a result of a failed build must not get into the cache.
    if session is not None:
        session.store_objects(plan.units, done)
    return done


def open_session(
    effects: Effects,
) -> contextlib.AbstractContextManager[CacheSession | None]:
    """Open the compile cache as the effects set it; None without a cache."""
    return open_build_session(
        effects.cache,
        runner=effects.runner,
        progress=effects.progress,
        explain=effects.explain,
    )


def _write_wheels(
    plan: BuildPlan, origins: Origins, tags: PlatformTagCache, effects: Effects, folder: Path
) -> tuple[ReleaseWheel, ...]:
    planner = WheelPlanner(
        recipe=plan.context.recipe,
        identity=_with_digests(plan.identity, plan.libraries),
        plugin_requires=plan.context.plugin_requires,
    )
    drafts = list(_drafts(plan, planner, tags, effects))
    effects.progress.begin_stage("writing wheels", len(drafts), "Wrote {} wheels")
    paths = write_wheels(
        folder,
        [add_bill(draft, origins, epoch=plan.context.epoch) for _, draft in drafts],
        epoch=plan.context.epoch,
        threads=effects.jobs,
        on_written=lambda path, seconds: effects.progress.finish_step(path.name, seconds),
    )
    return tuple(
        ReleaseWheel(
            file=path.name,
            size=path.stat().st_size,
            sha256=sha256(path),
            role="plugin" if isinstance(role, Plugin) else role,
            distribution=draft.metadata.name,
            plugin=role if isinstance(role, Plugin) else None,
        )
        for (role, draft), path in zip(drafts, paths, strict=True)
    )


def _with_digests(identity: Identity, libraries: Mapping[Target, Path]) -> Identity:
    """Return the identity with the libraries' digests, if all were built now.

    The core of a part is the same on all machines that build parts of one release, whichever
    targets they build: so that core has no digests.
    """
    built = {str(target): library for target, library in libraries.items()}
    if built.keys() != identity.targets.keys():
        return identity
    return replace(identity, digests={name: sha256(built[name]) for name in identity.targets})


def _drafts(
    plan: BuildPlan, planner: WheelPlanner, tags: PlatformTagCache, effects: Effects
) -> Iterator[tuple[Plugin | Literal["core", "meta"], WheelDraft]]:
    policy = plan.context.recipe.targets.manylinux
    promised = []
    for target, library in plan.libraries.items():
        promised.append(tags.promised({library.name: library}, plan.identity.provided, policy))
        plugin = Plugin(kind="library", name=str(target), targets=(str(target),))
        yield plugin, planner.plugin(target, library, promised[-1])
    if plan.core:
        loader = copy_loader(folder=plan.context.folder, machine=effects.elf_machine)
        platforms = tags.promised(planner.core_libraries(loader), (), policy)
        # The core of a part is the same on all machines, whichever targets they build.
        if len(promised) == len(plan.identity.targets):
            platforms = core_platforms(platforms, promised)
        yield "core", planner.core(loader, platforms)
        if plan.context.recipe.install.mode == "meta":
            yield "meta", planner.meta()


def _report(plan: BuildPlan, wheels: tuple[ReleaseWheel, ...]) -> Release:
    return Release(
        project=plan.identity.package,
        version=plan.identity.version,
        build_id=plan.identity.build_id,
        interface_hash=plan.identity.interface_hash,
        wheels=tuple(sorted(wheels, key=lambda entry: entry.file)),
        build=BuildDetails(epoch=plan.context.epoch, targets=tuple(plan.identity.targets)),
    )


def build_cuda_majors(request: BuildRequest, effects: Effects, *, out: Path) -> CudaReleases:
    """Build the releases of all majors of a recipe, and the front package; all files or none.

    Raises:
        ToolNotFoundError: no toolkit of a major was found.
        ArchsplitError: see `build_recipe`.
    """
    recipe = request.recipe
    toolkits = find_recipe_toolkits(recipe, request.nvcc, effects)
    for major, toolkit in sorted(toolkits.items()):
        if left_out := [str(one) for one in recipe.release if one not in toolkit.targets]:
            effects.progress.note(
                f"CUDA {toolkit.release} has no {', '.join(left_out)}: not in the release cu{major}"
            )

    def write(major: int, folder: Path) -> Release:
        part = replace(request, cuda_major=major, nvcc=(toolkits[major].nvcc,))
        return build_recipe(part, effects, out=folder)

    return write_cuda_releases(
        out,
        toolkits,
        write,
        project=recipe.project.name,
        requires_python=recipe.project.requires_python,
        epoch=source_date_epoch(effects.environment),
    )
