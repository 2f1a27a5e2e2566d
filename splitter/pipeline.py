"""The order of the stages, and nothing else."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING

from splitter.engine.execute import execute
from splitter.engine.history import History
from splitter.errors import BudgetError
from splitter.planning import planned
from splitter.provenance.bills import with_bill
from splitter.provenance.built import built_manifest
from splitter.provenance.manifest import FILE_NAME as MANIFEST
from splitter.provenance.origins import origins_of
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
from splitter.wheels.writer import DEFAULT_LEVEL, write_wheels

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from splitter.arch.target import Target
    from splitter.binfmt.elf_header import ElfMachine
    from splitter.cache.settings import Settings
    from splitter.identity import Identity
    from splitter.planning import BuildPlan, Order
    from splitter.provenance.origins import Origins
    from splitter.reuse.building import Remembering
    from splitter.workshop import Workshop


def build(order: Order, workshop: Workshop, *, out: Path) -> Report:
    """Build the wheels into ``out``, all of them or none, and a report beside them.

    Raises:
        BudgetError: the policy's limits are broken.
        ArchsplitError: that, or any stage failed; ``out`` is as it was.
    """
    with (
        _remembering(workshop) as memory,
        planned(order, workshop, memory=memory) as plan,
        output_folder(out) as folder,
        private_folder(folder) as staging,
    ):
        check_free(folder, [MANIFEST, FILE_NAME])
        _execute(plan, workshop, memory)
        origins = origins_of(plan.site)
        judge = _judge(workshop, plan.site.folder)
        report = _report(plan, _write_wheels(plan, origins, judge, workshop, staging))
        _check_budget(plan, report.together_with(folder / FILE_NAME))
        names = [wheel.file for wheel in report.wheels]
        Verifier(scratch=plan.site.folder, platforms=judge.platforms).verify(
            staging, targets=plan.targets, identity=plan.identity
        )
        libraries = {str(target): path for target, path in plan.libraries.items()}
        manifest = built_manifest(report, plan.identity, origins, libraries)
        write_file(staging / MANIFEST, manifest.together_with(folder / MANIFEST).as_json())
        write_file(staging / FILE_NAME, report.together_with(folder / FILE_NAME).as_json())
        move_all([*names, MANIFEST, FILE_NAME], source=staging, target=folder)
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


def _execute(plan: BuildPlan, workshop: Workshop, memory: Remembering | None) -> None:
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
    root, private = plan.site.recipe.root, plan.site.folder
    with contextlib.closing(found.pool) as pool:
        done = execute(
            plan.graph if memory is None else memory.listed(plan.graph, private),
            pool=pool,
            runner=workshop.runner,
            progress=workshop.progress,
            history=History(cache_folder(workshop.environment) / "history", str(root)),
            memo=None if memory is None else memory.memory(root, private),
        )
    if memory is not None:
        memory.remember(plan.units, done)
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
        [str(target) for target in recipe.release],
        sources=len(recipe.source.files) if at_once else 0,
        settings=settings,
    )


def _remembering(
    workshop: Workshop,
) -> contextlib.AbstractContextManager[Remembering | None]:
    return remembering(
        workshop.cache,
        runner=workshop.runner,
        progress=workshop.progress,
        explain=workshop.explain,
    )


def _write_wheels(
    plan: BuildPlan, origins: Origins, judge: PlatformJudge, workshop: Workshop, folder: Path
) -> tuple[WheelEntry, ...]:
    packer = Packer(
        recipe=plan.site.recipe,
        identity=plan.identity,
        generator=f"archsplit {version('archsplit')}",
    )
    products = list(_products(plan, packer, judge, workshop))
    workshop.progress.begin("wheels", len(products))
    policy = plan.site.recipe.policy
    paths = write_wheels(
        folder,
        [_with_bill(plan, product, origins).plan for product in products],
        epoch=plan.site.epoch,
        level=DEFAULT_LEVEL if policy is None else policy.wheel_compression,
        threads=workshop.jobs,
        written=lambda path, seconds: workshop.progress.finished(path.name, seconds),
    )
    return tuple(_entry(product, path) for product, path in zip(products, paths, strict=True))


def _with_bill(plan: BuildPlan, product: Product, origins: Origins) -> Product:
    return replace(product, plan=with_bill(product.plan, origins, epoch=plan.site.epoch))


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


def _entry(product: Product, path: Path) -> WheelEntry:
    return WheelEntry(
        file=path.name,
        role=product.role,
        distribution=product.plan.metadata.name,
        targets=tuple(map(str, product.targets)),
        size=path.stat().st_size,
        sha256=sha256(path),
    )


def _check_budget(plan: BuildPlan, report: Report) -> None:
    policy, name = plan.site.recipe.policy, plan.site.recipe.applied
    if policy is None:
        return
    sizes = {
        f"{wheel.file} ({', '.join(wheel.targets) or wheel.role})": wheel.size
        for wheel in report.wheels
    }
    if findings := list(policy.exceeded(sizes)):
        raise BudgetError(
            "\n  ".join([f"the wheels of policy {name} are too big:", *findings]),
            hint="`archsplit advise` says which targets fit; or raise the limit in the recipe",
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
        deflate=version("deflate"),
        epoch=plan.site.epoch,
        targets=tuple(plan.identity.targets),
        wheels=tuple(sorted(wheels, key=lambda entry: entry.file)),
    )
