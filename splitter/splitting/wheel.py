"""Split a wheel: a core without device code, and one wheel per pack."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import TYPE_CHECKING

from splitter.binfmt.device_pack import encode_index, encode_table
from splitter.devicecode.shares import shared
from splitter.errors import InputError, OutputError
from splitter.identity import FACE_FOLDER
from splitter.provenance.manifest import FILE_NAME as MANIFEST
from splitter.provenance.manifest import Source
from splitter.split_report import REPORT, SplitLibrary, SplitReport
from splitter.splitting.core import Core
from splitter.splitting.device import OLDEST_CUDA, Packer, descriptor_of
from splitter.splitting.earlier import refuse_another
from splitter.splitting.fat import apart, find_fat, machine_of
from splitter.splitting.making import Maker, two_workers
from splitter.splitting.origin import build_id_of, core_name, import_package, licenses_of
from splitter.splitting.provenance import split_manifest
from splitter.splitting.stubs import Patcher
from splitter.splitting.verify import verify_split
from splitter.stages.loader import build_loader_and_stub
from splitter.system.files import output_folder, private_folder, sha256, writing
from splitter.system.moving import move_all
from splitter.wheels.reader import open_wheel

if TYPE_CHECKING:
    from pathlib import Path

    from splitter.binfmt.elf_header import ElfMachine
    from splitter.provenance.manifest import Manifest
    from splitter.split_report import SplitWheel, Stay
    from splitter.splitting.fat import Fat
    from splitter.splitting.request import SplitRequest
    from splitter.wheels.reader import Wheel
    from splitter.workshop import Workshop


def split_wheel(
    request: SplitRequest, workshop: Workshop, *, origin: Source | None = None
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
        out = stack.enter_context(output_folder(request.out))
        folder = stack.enter_context(private_folder(out))
        if request.source.resolve().parent == out:
            raise OutputError(f"{request.source} is in {out}", hint="choose another folder")
        work = _Work(request=request, workshop=workshop, wheel=wheel, origin=origin, folder=folder)
        return work.done(out)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """One wheel being split, in a private folder."""

    request: SplitRequest
    workshop: Workshop
    wheel: Wheel = field(repr=False)
    origin: Source | None
    folder: Path

    def done(self, out: Path) -> SplitReport:
        finished = self.folder / "finished"
        with writing(finished):
            finished.mkdir()
        with two_workers(self.workshop.runner) as workers:
            machine = machine_of(self.wheel.name.platforms)
            # The compiler works beside us from the start, where the tags tell what for.
            tools = {machine: workers.submit(self._tools, machine)} if machine else {}
            digest = workers.submit(sha256, self.wheel.path)
            found = find_fat(self.wheel, self.folder)
            machine = found.fat[0].machine
            if machine not in tools:
                tools[machine] = workers.submit(self._tools, machine)
            core = self._core(found.fat, digest.result())
            maker = Maker(
                packer=self._packer(core), scratch=self.folder, finished=finished, workers=workers
            )
            wheels = maker.wheels(tools[machine])
        report = self._report(core, wheels, found.stays)
        with writing(finished):
            (finished / REPORT).write_text(report.as_json())
            (finished / MANIFEST).write_text(self._manifest(core, report.wheels).as_json())
        originals = {one.place: one.path for one in found.fat}
        verify_split(finished, originals=originals, complete=self.request.targets is None)
        names = sorted(path.name for path in finished.iterdir())
        with writing(finished):
            for name in names:
                (finished / name).chmod(0o644)
        move_all(names, source=finished, target=out)
        return report

    def _tools(self, machine: ElfMachine) -> tuple[Path, Path]:
        runner = self.workshop.runner
        folder = self.folder / machine
        with writing(folder):
            folder.mkdir()
        return build_loader_and_stub(folder=folder, runner=runner, machine=machine)

    def _core(self, fat: tuple[Fat, ...], digest: str) -> Core:
        request = self.request
        name, package = core_name(request, self.wheel.name), import_package(self.wheel)
        build_id = build_id_of(request, digest, name)
        refuse_another(request.out, build_id)
        patcher = Patcher(runner=self.workshop.runner, folder=self.folder)
        parts = apart(fat, build_id=build_id, face=f"{package}/{FACE_FOLDER}", patcher=patcher)
        containers = [place.entries for part in parts for place in part.moved]
        shares = shared(containers, request.by, request.targets)
        tables = tuple(part.table for part in parts)
        core = Core(
            wheel=self.wheel,
            name=name,
            package=package,
            source=self.origin or Source(path=self.wheel.path.name, sha256=digest),
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

    def _packer(self, core: Core) -> Packer:
        return Packer(
            core=core,
            generator=f"archsplit {version('archsplit')}",
            licenses=licenses_of(self.wheel),
        )

    def _manifest(self, core: Core, wheels: tuple[SplitWheel, ...]) -> Manifest:
        return split_manifest(core, self._packer(core), wheels, self.request)

    def _report(
        self, core: Core, wheels: tuple[SplitWheel, ...], stays: tuple[Stay, ...]
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
