"""The order of the stages, and nothing else."""

from __future__ import annotations

import contextlib
import time
import zlib
from importlib.metadata import version
from typing import TYPE_CHECKING

from splitter.engine.execute import execute
from splitter.engine.history import History
from splitter.planning import planned
from splitter.recipe import load_recipe
from splitter.report import FILE_NAME, Report, WheelEntry
from splitter.reuse.announcing import announcement
from splitter.reuse.building import remembering
from splitter.stages.link import check_library
from splitter.stages.loader import build_loader
from splitter.stages.pack import Packer, Product, core_metadata
from splitter.stages.repair import PlatformJudge
from splitter.stages.source import pack_source
from splitter.stages.verify import Release, Verifier
from splitter.system.environment import clean_environment
from splitter.system.epoch import ZIP_EPOCH, source_date_epoch
from splitter.system.files import output_folder, private_folder, sha256, write_file
from splitter.system.find_pool import find_pool
from splitter.system.moving import check_free, move_all
from splitter.system.places import cache_folder
from splitter.wheels.writer import write_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from splitter.arch.target import Target
    from splitter.cache.settings import Settings
    from splitter.identity import Identity
    from splitter.planning import BuildPlan, Order
    from splitter.reuse.building import Remembering
    from splitter.stages.loader import ElfMachine
    from splitter.system.progress import ProgressSink
    from splitter.workshop import Workshop


def build(order: Order, workshop: Workshop, *, out: Path) -> Report:
    """Build the wheels into ``out``, all of them or none, and a report beside them.

    Raises:
        ArchsplitError: any stage failed; ``out`` is as it was.
    """
    with (
        planned(order, workshop) as plan,
        output_folder(out) as folder,
        private_folder(folder) as staging,
    ):
        check_free(folder, [FILE_NAME])
        _execute(plan, workshop)
        judge = _judge(workshop, plan.site.folder)
        report = _report(plan, _write_wheels(plan, judge, workshop, staging))
        names = [wheel.file for wheel in report.wheels]
        Verifier(scratch=plan.site.folder, platforms=judge.platforms).verify(
            staging, targets=plan.targets, identity=plan.identity
        )
        write_file(staging / FILE_NAME, report.together_with(folder / FILE_NAME).as_json())
        move_all([*names, FILE_NAME], source=staging, target=folder)
    return report


def write_source(folder: Path, workshop: Workshop, *, out: Path) -> Path:
    """Write the source distribution of the recipe in ``folder``.

    Raises:
        ArchsplitError: the recipe is wrong, or a file can't be read or written.
    """
    recipe = load_recipe(folder)
    epoch = source_date_epoch(workshop.environment)
    with output_folder(out) as target:
        return pack_source(recipe, core_metadata(recipe), folder=target, epoch=epoch)


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
        judge = _judge(workshop, scratch)
        verifier = Verifier(scratch=scratch, platforms=judge.platforms)
        return verifier.verify(folder, targets=targets, identity=identity)


def _execute(plan: BuildPlan, workshop: Workshop) -> None:
    for line in (*map(str, plan.site.tried), *plan.warnings):
        workshop.progress.note(line)
    for path, text in plan.texts.items():
        write_file(path, text)
    if workshop.cache is not None and (news := _announcement(plan, workshop.cache)):
        workshop.progress.note(news)
    workshop.progress.begin("compile and link", len(plan.graph.steps))
    found = find_pool(workshop.environment, jobs=workshop.jobs, memory=workshop.memory)
    for text in found.notes:
        workshop.progress.note(text)
    with contextlib.closing(found.pool) as pool, _remembering(plan, workshop) as known:
        done = execute(
            known.graph,
            pool=pool,
            runner=workshop.runner,
            progress=workshop.progress,
            history=History(
                cache_folder(workshop.environment) / "history", str(plan.site.recipe.root)
            ),
            memo=known.memory,
        )
    for text in dict.fromkeys(step.output for step in done if step.output):
        workshop.progress.note(text)
    for target, library in plan.libraries.items():
        symbols = plan.site.recipe.interface.symbols
        check_library(library, target, identity=plan.identity, symbols=symbols)


def _announcement(plan: BuildPlan, settings: Settings) -> str | None:
    recipe = plan.site.recipe
    at_once = recipe.compile.host_pass == "once"
    return announcement(
        recipe.project.name,
        [str(target) for target in recipe.targets.all],
        sources=len(recipe.source.files) if at_once else 0,
        settings=settings,
    )


def _remembering(
    plan: BuildPlan, workshop: Workshop
) -> contextlib.AbstractContextManager[Remembering]:
    return remembering(
        plan.graph,
        settings=workshop.cache,
        private=plan.site.folder,
        cwd=plan.site.recipe.root,
        runner=workshop.runner,
        progress=workshop.progress,
        explain=workshop.explain,
    )


def _write_wheels(
    plan: BuildPlan, judge: PlatformJudge, workshop: Workshop, folder: Path
) -> tuple[WheelEntry, ...]:
    packer = Packer(
        recipe=plan.site.recipe,
        identity=plan.identity,
        generator=f"archsplit {version('archsplit')}",
    )
    products = list(_products(plan, packer, judge, workshop))
    workshop.progress.begin("wheels", len(products))
    return tuple(_write(plan, product, folder, workshop.progress) for product in products)


def _products(
    plan: BuildPlan, packer: Packer, judge: PlatformJudge, workshop: Workshop
) -> Iterator[Product]:
    for target, library in plan.libraries.items():
        platforms = judge.platforms({library.name: library}, plan.identity.provided)
        yield packer.plugin(target, library, platforms)
    if plan.core:
        # nvcc exists for these two alone.
        machine: ElfMachine = "aarch64" if workshop.machine == "aarch64" else "x86_64"
        folder = plan.site.folder
        loader = build_loader(folder=folder, runner=workshop.runner, machine=machine)
        platforms = judge.platforms(packer.core_libraries(loader), ())
        yield packer.core(loader, platforms)
        if plan.site.recipe.install.mode == "meta":
            yield packer.meta()


def _write(plan: BuildPlan, product: Product, folder: Path, progress: ProgressSink) -> WheelEntry:
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


def _judge(workshop: Workshop, folder: Path) -> PlatformJudge:
    environment = clean_environment(workshop.environment, temporary=folder, epoch=ZIP_EPOCH)
    environment["PYTHONPATH"] = workshop.python_path
    return PlatformJudge(runner=workshop.runner, environment=environment)


def _report(plan: BuildPlan, wheels: tuple[WheelEntry, ...]) -> Report:
    return Report(
        project=plan.identity.package,
        version=plan.identity.version,
        build_id=plan.identity.build_id,
        interface_hash=plan.identity.interface_hash,
        toolkit=plan.site.toolkit.release,
        host=plan.site.host.versions,
        zlib=zlib.ZLIB_RUNTIME_VERSION,
        epoch=plan.site.epoch,
        targets=tuple(plan.identity.targets),
        wheels=tuple(sorted(wheels, key=lambda entry: entry.file)),
    )
