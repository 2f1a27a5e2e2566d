"""Split a wheel: a core without device code, and one wheel per pack."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import TYPE_CHECKING

from archsplit.devicecode.partition import plan_packs
from archsplit.errors import InputError, OutputError
from archsplit.formats.device_pack import encode_index, encode_table
from archsplit.release.earlier import refuse_another
from archsplit.release.identity import LOADER_PACKAGE
from archsplit.release.loader_build import build_loader_and_stub
from archsplit.release.manifest import MANIFEST_FILE as MANIFEST
from archsplit.release.manifest import SourceFile
from archsplit.release.split_checks import verify_split
from archsplit.release.split_report import SPLIT_REPORT_FILE, SplitLibrary, SplitReport
from archsplit.split.core_wheel import Core
from archsplit.split.find import apart, find_splittable, machine_of
from archsplit.split.making import WheelJobs, two_workers
from archsplit.split.origin import build_id_of, core_name, import_package, licenses_of
from archsplit.split.pack_wheel import OLDEST_CUDA, PackWriter, descriptor_of
from archsplit.split.provenance import split_manifest
from archsplit.split.stub import Patcher
from archsplit.system.fs import output_dir, output_errors, sha256, temporary_dir
from archsplit.system.moving import replace_all
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.formats.elf_header import ElfMachine
    from archsplit.release.context import Effects
    from archsplit.release.manifest import Manifest
    from archsplit.release.request import SplitRequest
    from archsplit.release.split_report import SplitWheel, UnmovedCode
    from archsplit.split.find import SplittableLibrary
    from archsplit.wheels.reader import Wheel


def split_wheel(
    request: SplitRequest, workshop: Effects, *, origin: SourceFile | None = None
) -> SplitReport:
    """Write all wheels, verified, or none.

    Args:
        origin: what is said to have been split; None for the wheel.

    Raises:
        InputError: the wheel can't be read.
        NothingToDoError: it has nothing to split.
        WheelError: it is not a sound one.
        BinaryFormatError: a library in it is damaged.
        ToolNotFoundError: patchelf or the loader's compiler is missing.
        ToolFailedError: one of them failed.
        VerifyError: what was written is not what was planned; it was removed.
        OutputError: the output can't be written.
    """
    with ExitStack() as stack:
        wheel = stack.enter_context(open_wheel(request.source, same_tags=False))
        if any(platform.startswith("musllinux") for platform in wheel.name.platforms):
            raise InputError(f"{request.source} is for musl, and CUDA needs glibc")
        out = stack.enter_context(output_dir(request.out))
        folder = stack.enter_context(temporary_dir(out))
        if request.source.resolve().parent == out:
            raise OutputError(f"{request.source} is in {out}", hint="choose another folder")
        work = _Work(request=request, workshop=workshop, wheel=wheel, origin=origin, folder=folder)
        return work.done(out)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """One wheel being split, in a private folder."""

    request: SplitRequest
    workshop: Effects
    wheel: Wheel = field(repr=False)
    origin: SourceFile | None
    folder: Path

    def done(self, out: Path) -> SplitReport:
        finished = self.folder / "finished"
        with output_errors(finished):
            finished.mkdir()
        with two_workers(self.workshop.runner) as workers:
            machine = machine_of(self.wheel.name.platforms)
            # The compiler works beside us from the start, where the tags tell what for.
            tools = {machine: workers.submit(self._tools, machine)} if machine else {}
            digest = workers.submit(sha256, self.wheel.path)
            found = find_splittable(self.wheel, self.folder)
            machine = found.fat[0].machine
            if machine not in tools:
                tools[machine] = workers.submit(self._tools, machine)
            core = self._core(found.fat, digest.result())
            maker = WheelJobs(
                packer=self._packer(core), scratch=self.folder, finished=finished, workers=workers
            )
            wheels = maker.wheels(tools[machine])
        report = self._report(core, wheels, found.stays)
        with output_errors(finished):
            (finished / SPLIT_REPORT_FILE).write_text(report.as_json())
            (finished / MANIFEST).write_text(self._manifest(core, report.wheels).as_json())
        originals = {one.place: one.path for one in found.fat}
        verify_split(finished, originals=originals, complete=self.request.targets is None)
        names = sorted(path.name for path in finished.iterdir())
        with output_errors(finished):
            for name in names:
                (finished / name).chmod(0o644)
        replace_all(names, source=finished, target=out)
        return report

    def _tools(self, machine: ElfMachine) -> tuple[Path, Path]:
        runner = self.workshop.runner
        folder = self.folder / machine
        with output_errors(folder):
            folder.mkdir()
        return build_loader_and_stub(folder=folder, runner=runner, machine=machine)

    def _core(self, fat: tuple[SplittableLibrary, ...], digest: str) -> Core:
        request = self.request
        name, package = core_name(request, self.wheel.name), import_package(self.wheel)
        build_id = build_id_of(request, digest, name)
        refuse_another(request.out, build_id)
        patcher = Patcher(runner=self.workshop.runner, folder=self.folder)
        parts = apart(fat, build_id=build_id, face=f"{package}/{LOADER_PACKAGE}", patcher=patcher)
        containers = [place.entries for part in parts for place in part.moved]
        shares = plan_packs(containers, request.by, request.targets)
        tables = tuple(part.table for part in parts)
        core = Core(
            wheel=self.wheel,
            name=name,
            package=package,
            source=self.origin or SourceFile(path=self.wheel.path.name, sha256=digest),
            build_id=build_id,
            interface_hash=hashlib.sha256(encode_index(tables)).hexdigest(),
            shares=shares,
            parts=parts,
            table=b"",
            install=request.install,
        )
        targets = {
            image.target for each in tables for row in each.containers for image in row.images
        }
        descriptor = descriptor_of(core, targets, cuda=OLDEST_CUDA)
        return replace(core, table=encode_table(descriptor, tables))

    def _packer(self, core: Core) -> PackWriter:
        return PackWriter(
            core=core,
            generator=f"archsplit {version('archsplit')}",
            licenses=licenses_of(self.wheel),
        )

    def _manifest(self, core: Core, wheels: tuple[SplitWheel, ...]) -> Manifest:
        return split_manifest(core, self._packer(core), wheels, self.request)

    def _report(
        self, core: Core, wheels: tuple[SplitWheel, ...], stays: tuple[UnmovedCode, ...]
    ) -> SplitReport:
        libraries = tuple(
            SplitLibrary(
                name=part.table.name,
                size_before=part.sizes[0],
                size_after=part.sizes[1],
                containers=len(part.moved),
                notes=part.notes,
            )
            for part in core.parts
        )
        return SplitReport(
            source=core.source.path,
            source_sha256=core.source.sha256,
            build_id=core.build_id,
            wheels=wheels,
            libraries=libraries,
            needs={str(one): names for one, names in core.shares.needs.items()},
            stays=(*(stay for part in core.parts for stay in part.stays), *stays),
            source_size=self.wheel.path.stat().st_size,
            notes=self.wheel.info.notes,
        )
