"""The order of the stages, and nothing else."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from splitter.devicecode.library import read_library
from splitter.engine.execute import execute
from splitter.engine.graph import Graph
from splitter.errors import StepError, TargetError
from splitter.nvcc import toolkit as toolkits
from splitter.nvcc.host import find_host_tools
from splitter.promises import plugin_faults
from splitter.recipe import load_recipe
from splitter.report import FILE_NAME, Report, WheelEntry
from splitter.site import BuildSite
from splitter.stages.compile import Compiler
from splitter.stages.identify import identify
from splitter.stages.link import Linker
from splitter.stages.loader import build_loader
from splitter.stages.pack import Packer, core_metadata
from splitter.stages.repair import platform_tags
from splitter.stages.source import pack_source
from splitter.stages.verify import Release, Verifier
from splitter.system.environment import clean_environment
from splitter.system.epoch import ZIP_EPOCH, source_date_epoch
from splitter.system.files import output_folder, private_folder, sha256, write_file
from splitter.wheels.writer import write_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from splitter.arch.target import Target
    from splitter.identity import Identity
    from splitter.nvcc.toolkit import Attempt
    from splitter.recipe import Recipe
    from splitter.system.progress import ProgressSink
    from splitter.wheels.writer import WheelPlan
    from splitter.workshop import Workshop


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is asked for.

    Attributes:
        recipe: the file, or its folder.
        targets: whose plugins to build; None for all of the recipe's.
        core: whether the core (and the meta wheel, if the recipe wants one) is built too.
        nvcc: what ``--nvcc`` names.
    """

    recipe: Path
    targets: tuple[Target, ...] | None = None
    core: bool = True
    nvcc: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan:
    """Everything that a build will do; executing it decides nothing.

    Attributes:
        targets: those that are built now.
        core: see `Order.core`.
        graph: the programs to run.
        texts: files that must be there before, with their content.
        libraries: what the graph makes, per target.
        warnings: what nvcc said when it was asked for its plan.
    """

    site: BuildSite
    identity: Identity
    targets: tuple[Target, ...]
    core: bool
    graph: Graph
    texts: Mapping[Path, str]
    libraries: Mapping[Target, Path]
    warnings: tuple[str, ...]


def find_toolkit(workshop: Workshop, explicit: Path | None) -> tuple[Attempt, ...]:
    """Look for nvcc, and say what became of each place."""
    places = toolkits.candidates(
        explicit=explicit, environment=workshop.environment, site_folders=workshop.site_folders
    )
    return toolkits.probe_all(places, workshop.runner)


@contextlib.contextmanager
def planned(order: Order, workshop: Workshop) -> Iterator[BuildPlan]:
    """Make the plan; its private folder lives as long as the context.

    Raises:
        ArchsplitError: whatever is wrong with the recipe, the tools or the targets.
    """
    with _site(order, workshop) as site:
        targets = _wanted(site.recipe, order.targets)
        identity = identify(site, version=version("archsplit"))
        objects = Compiler(site=site, runner=workshop.runner).plan(targets, jobs=workshop.jobs)
        libraries = Linker(site=site, identity=identity).plan(objects.files)
        yield BuildPlan(
            site=site,
            identity=identity,
            targets=targets,
            core=order.core,
            graph=Graph(steps=objects.steps + libraries.steps),
            texts={**objects.texts, **libraries.texts},
            libraries=libraries.files,
            warnings=objects.warnings,
        )


def build(order: Order, workshop: Workshop, *, out: Path) -> Report:
    """Build the wheels into ``out``, all of them or none, and a report beside them.

    Raises:
        ArchsplitError: any stage failed; ``out`` is as it was.
    """
    out = output_folder(out)
    with planned(order, workshop) as plan, private_folder(out) as staging:
        _execute(plan, workshop)
        report = _report(plan, _write_wheels(plan, workshop, staging))
        check(staging, workshop, targets=plan.targets, identity=plan.identity)
        for entry in report.wheels:
            (staging / entry.file).replace(out / entry.file)
        write_file(out / FILE_NAME, report.as_json())
    return report


def write_source(folder: Path, workshop: Workshop, *, out: Path) -> Path:
    """Write the source distribution of the recipe in ``folder``.

    Raises:
        ArchsplitError: the recipe is wrong, or a file can't be read or written.
    """
    recipe = load_recipe(folder)
    epoch = source_date_epoch(workshop.environment)
    return pack_source(recipe, core_metadata(recipe), folder=output_folder(out), epoch=epoch)


def check(
    folder: Path,
    workshop: Workshop,
    *,
    targets: tuple[Target, ...] | None = None,
    identity: Identity | None = None,
) -> Release:
    """Re-read every wheel in ``folder``; see `splitter.stages.verify.Verifier.verify`.

    Raises:
        VerifyError: lists everything that is not as promised.
    """
    with private_folder() as scratch:
        platforms = partial(_platforms, workshop=workshop, folder=scratch)
        verifier = Verifier(scratch=scratch, platforms=platforms)
        return verifier.verify(folder, targets=targets, identity=identity)


@contextlib.contextmanager
def _site(order: Order, workshop: Workshop) -> Iterator[BuildSite]:
    recipe = load_recipe(order.recipe)
    toolkit = toolkits.chosen(find_toolkit(workshop, order.nvcc))
    toolkit.check_targets(recipe.targets.all)
    host = find_host_tools(workshop.environment, workshop.runner)
    epoch = source_date_epoch(workshop.environment)
    with private_folder() as folder:
        yield BuildSite(
            recipe=recipe,
            toolkit=toolkit,
            host=host,
            environment=clean_environment(workshop.environment, temporary=folder, epoch=epoch),
            folder=folder,
            epoch=epoch,
        )


def _wanted(recipe: Recipe, targets: tuple[Target, ...] | None) -> tuple[Target, ...]:
    if targets is None:
        return recipe.targets.all
    unknown = sorted(set(targets) - set(recipe.targets.all))
    if unknown:
        raise TargetError(
            f"the recipe has no target {', '.join(map(str, unknown))}; "
            f"it has {', '.join(map(str, recipe.targets.all))}",
            hint="add it to [targets] in the recipe, or choose one that is there",
        )
    return tuple(target for target in recipe.targets.all if target in targets)


def _execute(plan: BuildPlan, workshop: Workshop) -> None:
    for line in plan.warnings:
        workshop.progress.note(line)
    for path, text in plan.texts.items():
        write_file(path, text)
    workshop.progress.begin("compile and link", len(plan.graph.steps))
    done = execute(
        plan.graph, jobs=workshop.jobs, runner=workshop.runner, progress=workshop.progress
    )
    for text in dict.fromkeys(step.output for step in done if step.output):
        workshop.progress.note(text)
    for target, library in plan.libraries.items():
        _check_library(library, target, plan)


def _check_library(path: Path, target: Target, plan: BuildPlan) -> None:
    """Read what the linker made, and compare it with what was planned."""
    library = read_library(path)
    faults = list(plugin_faults(library, target, plan.identity))
    symbols = set(plan.site.recipe.interface.symbols)
    faults += [f"doesn't define {name}" for name in sorted(symbols - library.exports)]
    faults += [f"exports {name}" for name in sorted(library.exports - symbols)]
    if faults:
        raise StepError(
            f"the library for {target} is not as planned:\n  " + "\n  ".join(faults),
            hint="each of [interface] symbols must be defined by a source, and visible: everything"
            ' is hidden but what has __attribute__((visibility("default")))',
        )


def _write_wheels(plan: BuildPlan, workshop: Workshop, folder: Path) -> tuple[WheelEntry, ...]:
    packer = Packer(
        recipe=plan.site.recipe,
        identity=plan.identity,
        generator=f"archsplit {version('archsplit')}",
    )
    products = list(_products(plan, packer, workshop))
    workshop.progress.begin("wheels", len(products))
    return tuple(_write(plan, product, folder, workshop.progress) for product in products)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    """A wheel to write, and what the report says of it."""

    role: str
    targets: tuple[Target, ...]
    plan: WheelPlan


def _products(plan: BuildPlan, packer: Packer, workshop: Workshop) -> Iterator[_Product]:
    folder = plan.site.folder
    for target, library in plan.libraries.items():
        platforms = _platforms({library.name: library}, workshop=workshop, folder=folder)
        wheel = packer.plugin(target, library, platforms)
        yield _Product(role="plugin", targets=(target,), plan=wheel)
    if plan.core:
        loader = build_loader(folder=folder, runner=workshop.runner)
        platforms = _platforms({loader.name: loader}, workshop=workshop, folder=folder)
        yield _Product(role="core", targets=(), plan=packer.core(loader, platforms))
        if plan.site.recipe.install.mode == "meta":
            yield _Product(role="meta", targets=(), plan=packer.meta())


def _write(plan: BuildPlan, product: _Product, folder: Path, progress: ProgressSink) -> WheelEntry:
    started = time.monotonic()
    path = write_wheel(folder, product.plan, epoch=plan.site.epoch)
    progress.finished(path.name, time.monotonic() - started)
    return WheelEntry(
        file=path.name,
        role=product.role,
        distribution=product.plan.metadata.name,
        targets=tuple(map(str, product.targets)),
        size=path.stat().st_size,
        sha256=sha256(path),
    )


def _platforms(
    libraries: Mapping[str, Path], *, workshop: Workshop, folder: Path
) -> tuple[str, ...]:
    environment = clean_environment(workshop.environment, temporary=folder, epoch=ZIP_EPOCH)
    return platform_tags(libraries, runner=workshop.runner, environment=environment).names


def _report(plan: BuildPlan, wheels: tuple[WheelEntry, ...]) -> Report:
    return Report(
        project=plan.identity.package,
        version=plan.identity.version,
        build_id=plan.identity.build_id,
        interface_hash=plan.identity.interface_hash,
        toolkit=plan.site.toolkit.release,
        host=plan.site.host.versions,
        epoch=plan.site.epoch,
        targets=tuple(plan.identity.targets),
        wheels=tuple(sorted(wheels, key=lambda entry: entry.file)),
    )
