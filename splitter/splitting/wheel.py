"""Split a wheel: a core without device code, and one wheel per pack."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import TYPE_CHECKING

from splitter.devicecode.packing import encode_index, encode_table
from splitter.devicecode.shares import selected, shared
from splitter.errors import InputError, OutputError
from splitter.identity import FACE_FOLDER
from splitter.splitting.core import Core
from splitter.splitting.device import OLDEST_CUDA, Packer, descriptor_of
from splitter.splitting.fat import apart, fat_libraries
from splitter.splitting.origin import build_id_of, import_package, licenses_of
from splitter.splitting.request import REPORT, SplitLibrary, SplitReport, SplitWheel
from splitter.splitting.stubs import Patcher
from splitter.splitting.verify import verify_split
from splitter.stages.loader import build_loader_and_stub
from splitter.system.files import output_folder, private_folder, sha256, writing
from splitter.wheels.names import distribution_name
from splitter.wheels.reader import open_wheel

if TYPE_CHECKING:
    from pathlib import Path

    from splitter.devicecode.shares import Share
    from splitter.splitting.fat import Fat
    from splitter.splitting.request import SplitRequest
    from splitter.stages.loader import ElfMachine
    from splitter.wheels.reader import Wheel
    from splitter.workshop import Workshop


def split_wheel(request: SplitRequest, workshop: Workshop) -> SplitReport:
    """Write all wheels, verified, or none.

    Raises:
        InputError: the wheel can't be read, or has nothing to split.
        WheelError: it is not a sound one.
        BinaryFormatError: a library in it is damaged.
        ToolNotFoundError: patchelf or the loader's compiler is missing.
        ToolFailedError: one of them failed.
        VerifyError: what was written is not what was planned; it was removed.
        OutputError: the output can't be written.
    """
    with ExitStack() as stack:
        wheel = stack.enter_context(open_wheel(request.source, same_tags=False))
        out = stack.enter_context(output_folder(request.out))
        folder = stack.enter_context(private_folder(out))
        if request.source.resolve().parent == out:
            raise OutputError(f"{request.source} is in {out}", hint="choose another folder")
        work = _Work(request=request, workshop=workshop, wheel=wheel, folder=folder)
        return work.done(out)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """One wheel being split, in a private folder."""

    request: SplitRequest
    workshop: Workshop
    wheel: Wheel = field(repr=False)
    folder: Path

    def done(self, out: Path) -> SplitReport:
        finished = self.folder / "finished"
        with writing(finished):
            finished.mkdir()
        with ThreadPoolExecutor(2) as workers:
            source = workers.submit(sha256, self.wheel.path)
            fat = fat_libraries(self.wheel, self.folder)
            tools = workers.submit(self._tools, fat[0].machine)
            core = self._core(fat, source.result())
            wheels = self._packs(core, finished, workers)
            loader, stub = tools.result()
            path = finished / str(core.name)
            with writing(path), path.open("wb") as file:
                core.write(file, loader=loader, stub=stub)
        report = self._report(core, (_written(path), *wheels))
        with writing(finished):
            (finished / REPORT).write_text(report.as_json())
        originals = {one.name: one.path for one in fat}
        verify_split(finished, originals=originals, complete=self.request.targets is None)
        for each in sorted(finished.iterdir()):
            with writing(out / each.name):
                each.chmod(0o644)
                each.replace(out / each.name)
        return report

    def _tools(self, machine: ElfMachine) -> tuple[Path, Path]:
        runner = self.workshop.runner
        return build_loader_and_stub(folder=self.folder, runner=runner, machine=machine)

    def _core(self, fat: tuple[Fat, ...], source: str) -> Core:
        request = self.request
        project = distribution_name(request.name or self.wheel.name.project)
        package = import_package(self.wheel)
        build_id = build_id_of(request, source, project)
        patcher = Patcher(runner=self.workshop.runner, folder=self.folder)
        parts = apart(fat, build_id=build_id, face=f"{package}/{FACE_FOLDER}", patcher=patcher)
        shares = shared([place.entries for part in parts for place in part.moved], request.by)
        if request.targets is not None:
            shares = selected(shares, request.targets)
        if not shares.packs:
            raise InputError("no pack has anything for these targets")
        tables = tuple(part.table for part in parts)
        core = Core(
            wheel=self.wheel,
            name=replace(self.wheel.name, project=project),
            package=package,
            source=source,
            build_id=build_id,
            interface_hash=hashlib.sha256(encode_index(tables)).hexdigest(),
            shares=shares,
            parts=parts,
            table=b"",
            install_all=request.install_all,
        )
        targets = {
            image.target for each in tables for row in each.containers for image in row.images
        }
        descriptor = descriptor_of(core, targets, cuda=OLDEST_CUDA)
        return replace(core, table=encode_table(descriptor, tables))

    def _packs(
        self, core: Core, finished: Path, workers: ThreadPoolExecutor
    ) -> tuple[SplitWheel, ...]:
        packer = Packer(
            core=core,
            generator=f"archsplit {version('archsplit')}",
            licenses=licenses_of(self.wheel),
        )
        # Packing leaves the interpreter to others, so two packs are packed at a time.
        jobs = [workers.submit(self._pack, packer, share, finished) for share in core.shares.packs]
        return tuple(job.result() for job in jobs)

    def _pack(self, packer: Packer, share: Share, finished: Path) -> SplitWheel:
        pack = self.folder / f"{share.name}.pack"
        path = finished / str(packer.name(share))
        with writing(pack):
            packer.write_pack(share, pack)
        with writing(path), path.open("wb") as file:
            packer.write_wheel(file, share, pack)
        images = [
            image
            for library in packer.libraries(share)
            for container in library.containers
            for image in container.images
        ]
        pack.unlink()
        return replace(
            _written(path),
            pack=share.name,
            serves=tuple(map(str, share.serves)),
            images=len(images),
            image_bytes=sum(image.size for image in images),
        )

    def _report(self, core: Core, wheels: tuple[SplitWheel, ...]) -> SplitReport:
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
            source=self.wheel.path.name,
            source_sha256=core.source,
            build_id=core.build_id,
            wheels=wheels,
            libraries=libraries,
            needs={str(one): names for one, names in core.shares.needs.items()},
        )


def _written(path: Path) -> SplitWheel:
    return SplitWheel(file=path.name, size=path.stat().st_size, sha256=sha256(path))
