"""Split of the wheels of a release, or of a library: cores without device code, and packs.

All wheels are written into a private folder, two at a time, read again and compared with the
original; only then they replace those in the output folder, all or none. A library that is in no
wheel is put into one first, in a package of its own.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import TYPE_CHECKING

from archsplit.errors import InputError, OutputError
from archsplit.formats.device_pack import encode_table
from archsplit.release.checks import CheckScope, verify_release
from archsplit.release.identity import LOADER_PACKAGE
from archsplit.release.loader_files import copy_loader_and_stub
from archsplit.release.manifest import MANIFEST_FILE as MANIFEST
from archsplit.release.manifest import SourceFile
from archsplit.release.report import (
    OLD_SPLIT_REPORT_FILE,
    REPORT_FILE,
    Plugin,
    Release,
    ReleaseWheel,
    Role,
    SplitDetails,
    SplitLibrary,
    SplitSource,
    find_report,
    refuse_other_release,
)
from archsplit.release.requirements import meta_name
from archsplit.split.contents import contents_build_id, plan_contents
from archsplit.split.core_wheel import write_core, write_meta
from archsplit.split.find import (
    core_key,
    core_name,
    fat_wheel_licenses,
    find_splittable,
    import_package,
    strip_libraries,
    tagged_machine,
)
from archsplit.split.model import Core, InstallDefaults
from archsplit.split.pack_wheel import OLDEST_CUDA, PackWriter
from archsplit.split.provenance import split_manifest
from archsplit.split.stub import Patcher
from archsplit.system.fs import output_dir, output_errors, replace_all, sha256, temporary_dir
from archsplit.wheels.reader import open_wheel
from archsplit.wheels.zip_writer import pack_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from archsplit.devicecode.pack_files import PackFile
    from archsplit.formats.elf import ElfMachine
    from archsplit.release.context import Effects
    from archsplit.release.manifest import Manifest
    from archsplit.release.report import UnmovedCode
    from archsplit.split.contents import ReleaseContents
    from archsplit.split.find import SplittableLibrary
    from archsplit.split.model import SplitRequest
    from archsplit.split.take_apart import StrippedLibrary
    from archsplit.system.process import Runner
    from archsplit.wheels.filename import WheelName
    from archsplit.wheels.reader import Wheel


@contextmanager
def two_workers(runner: Runner) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of two threads; after an error its waiting jobs are dropped.

    Args:
        runner: the runner of the jobs' programs, which end after Ctrl-C.
    """
    with ThreadPoolExecutor(2) as workers:
        try:
            yield workers
        except BaseException as error:
            workers.shutdown(wait=False, cancel_futures=True)
            if isinstance(error, KeyboardInterrupt):
                runner.cancel()
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelJobs:
    """The jobs that write the wheels of one release.

    Attributes:
        scratch: a folder for temporary files.
        finished: the folder for the wheels.
    """

    packer: PackWriter
    scratch: Path
    finished: Path
    workers: ThreadPoolExecutor = field(repr=False)

    def write(self, tools: Mapping[str, Future[tuple[Path, Path]]]) -> tuple[ReleaseWheel, ...]:
        """Write all wheels.

        Args:
            tools: the loader and the stub for each machine, when they are compiled.
        """
        submit = self.workers.submit
        # The compression releases the GIL.
        packs = [
            submit(self._pack, number, file)
            for number, file in enumerate(self.packer.contents.files)
        ]
        wheels = [self._core(core, tools[core.machine]) for core in self.packer.cores]
        if self.packer.core.install is InstallDefaults.META:
            wheels.append(self._meta())
        return (*wheels, *(job.result() for job in packs))

    def _core(self, core: Core, tools: Future[tuple[Path, Path]]) -> ReleaseWheel:
        jobs = {part.member: self.workers.submit(pack_file, part.path) for part in core.parts}
        contents = {name: job.result() for name, job in jobs.items()}
        path = self.finished / str(core.name)
        loader, stub = tools.result()
        with output_errors(path), path.open("wb") as file:
            write_core(file, core, contents, loader=loader, stub=stub)
        return _written(path, role="core", distribution=core.name.project)

    def _pack(self, number: int, file: PackFile) -> ReleaseWheel:
        packer, contents = self.packer, file.pack
        pack = self.scratch / f"{number}.pack"
        path = self.finished / str(packer.name(file))
        with output_errors(pack):
            packer.write_pack(file, pack)
        with output_errors(path), path.open("wb") as stream:
            packer.write_wheel(stream, file, pack)
        images = [
            image
            for library in packer.libraries(file)
            for container in library.containers
            for image in container.images
        ]
        pack.unlink()
        return replace(
            _written(path, role="plugin", distribution=packer.core.distribution(contents.name)),
            plugin=Plugin(
                kind="pack",
                name=contents.name,
                targets=tuple(sorted({str(image.target) for image in images})),
                serves=tuple(map(str, contents.serves)),
                images=len(images),
                image_bytes=sum(image.size for image in images),
            ),
        )

    def _meta(self) -> ReleaseWheel:
        name = meta_name(self.packer.core.name)
        path = self.finished / str(name)
        with output_errors(path), path.open("wb") as file:
            write_meta(file, self.packer.core, self.packer.generator)
        return _written(path, role="meta", distribution=name.project)


def _written(path: Path, *, role: Role, distribution: str) -> ReleaseWheel:
    return ReleaseWheel(
        file=path.name,
        size=path.stat().st_size,
        sha256=sha256(path),
        role=role,
        distribution=distribution,
    )


def split_wheel(
    request: SplitRequest, effects: Effects, *, origin: SourceFile | None = None
) -> Release:
    """Split the wheels of a release: write all wheels, verified, or none.

    Args:
        origin: the source to name in manifest and report; None for the wheel.

    Raises:
        InputError: a wheel can't be read, or the wheels are not of one release.
        NothingToDoError: a wheel has nothing to split.
        WheelError: a wheel is invalid.
        BinaryFormatError: a library in a wheel is damaged.
        ToolNotFoundError: patchelf or the loader's compiler is missing.
        ToolFailedError: patchelf or the loader's compiler failed.
        VerifyError: a written wheel differs from the plan; all wheels were removed.
        OutputError: the output can't be written.
    """
    with ExitStack() as stack:
        paths = (request.source, *request.others)
        wheels = [stack.enter_context(open_wheel(path, same_tags=False)) for path in paths]
        _check_one_release(wheels)
        out = stack.enter_context(output_dir(request.out))
        folder = stack.enter_context(temporary_dir(out))
        for path in paths:
            if path.resolve().parent == out:
                raise OutputError(f"{path} is in {out}", hint="choose another folder")
        split = _Split(
            request=request,
            effects=effects,
            # The order of the command line must not change a byte.
            wheels=tuple(sorted(wheels, key=lambda wheel: str(wheel.name))),
            origin=origin,
            folder=folder,
        )
        return split.run(out)


def _check_one_release(wheels: Sequence[Wheel]) -> None:
    """Refuse wheels that can't have the same packs, and two for the same Python and platform."""
    first, seen = wheels[0], {wheels[0].name.tags[0]: wheels[0]}
    for wheel in wheels:
        if any(platform.startswith("musllinux") for platform in wheel.name.platforms):
            raise InputError(f"{wheel.path} is for musl, and CUDA needs glibc")
        for what, own, expected in (
            ("project", wheel.name.project, first.name.project),
            ("version", wheel.name.version, first.name.version),
            ("build tag", wheel.name.build, first.name.build),
            # Packs lie beside the core, and some systems have two places.
            ("Root-Is-Purelib", wheel.info.purelib, first.info.purelib),
        ):
            if own != expected:
                raise InputError(
                    f"{wheel.path.name} and {first.path.name} are not of one release: {what} is"
                    f" {own or 'none'} and {expected or 'none'}",
                    hint="split each release by itself",
                )
        for tag in wheel.name.tags:
            other = seen.setdefault(tag, wheel)
            if other is not wheel:
                raise InputError(
                    f"{other.path} and {wheel.path} are both for {tag}", hint="give one of them"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """One fat wheel, and its libraries without their images."""

    wheel: Wheel = field(repr=False)
    name: WheelName
    digest: str
    machine: ElfMachine
    fat: tuple[SplittableLibrary, ...]
    parts: tuple[StrippedLibrary, ...] = field(repr=False)
    stays: tuple[UnmovedCode, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """The split of one release, in a private folder."""

    request: SplitRequest
    effects: Effects
    wheels: tuple[Wheel, ...] = field(repr=False)
    origin: SourceFile | None
    folder: Path
    tools: dict[str, Future[tuple[Path, Path]]] = field(default_factory=dict, repr=False)

    def run(self, out: Path) -> Release:
        finished = self.folder / "finished"
        with output_errors(finished):
            finished.mkdir()
        with two_workers(self.effects.runner) as workers:
            # If the tags name the machine, the loader is compiled while the wheel is read.
            for wheel in self.wheels:
                if machine := tagged_machine(wheel.name.platforms):
                    self._compile(machine, workers)
            sources = [self._source(wheel, workers) for wheel in self.wheels]
            contents = plan_contents([(one.machine, one.parts) for one in sources], self.request)
            cores = self._cores(sources, contents)
            _refuse_other_cores(out, cores)
            packer = PackWriter(
                cores=cores,
                contents=contents,
                generator=f"archsplit {version('archsplit')}",
                licenses=fat_wheel_licenses(self.wheels[0]),
            )
            jobs = WheelJobs(packer=packer, scratch=self.folder, finished=finished, workers=workers)
            wheels = jobs.write(self.tools)
        report = self._report(cores, wheels, sources)
        with output_errors(finished):
            (finished / REPORT_FILE).write_text(report.as_json())
            (finished / MANIFEST).write_text(self._manifest(packer, report.wheels).as_json())
        originals = {
            str(core.name): {one.place: one.path for one in source.fat}
            for core, source in zip(cores, sources, strict=True)
        }
        scope = CheckScope(originals=originals, complete=self.request.targets is None)
        verify_release(finished, scope=scope)
        names = sorted(path.name for path in finished.iterdir())
        with output_errors(finished):
            for name in names:
                (finished / name).chmod(0o644)
        replace_all(names, source=finished, target=out)
        # The report of the same split by an older version: the new one replaces it.
        with output_errors(out):
            (out / OLD_SPLIT_REPORT_FILE).unlink(missing_ok=True)
        return report

    def _compile(self, machine: ElfMachine, workers: ThreadPoolExecutor) -> None:
        if machine not in self.tools:
            self.tools[machine] = workers.submit(self._tools, machine)

    def _tools(self, machine: ElfMachine) -> tuple[Path, Path]:
        folder = self.folder / machine
        with output_errors(folder):
            folder.mkdir()
        return copy_loader_and_stub(folder=folder, machine=machine)

    def _source(self, wheel: Wheel, workers: ThreadPoolExecutor) -> _Source:
        folder = self.folder / f"{self.wheels.index(wheel)}.wheel"
        with output_errors(folder):
            folder.mkdir()
        digest = workers.submit(sha256, wheel.path)
        found = find_splittable(wheel, folder)
        self._compile(found.fat[0].machine, workers)
        name = core_name(self.request, wheel.name)
        parts = strip_libraries(
            found.fat,
            key=core_key(self.request, digest.result(), name),
            face=f"{import_package(wheel)}/{LOADER_PACKAGE}",
            patcher=Patcher(runner=self.effects.runner, folder=folder),
        )
        return _Source(
            wheel=wheel,
            name=name,
            digest=digest.result(),
            machine=found.fat[0].machine,
            fat=found.fat,
            parts=parts,
            stays=found.stays,
        )

    def _cores(self, sources: Sequence[_Source], contents: ReleaseContents) -> tuple[Core, ...]:
        build_id = contents_build_id(contents, self.request, sources[0].name)
        refuse_other_release(self.request.out, build_id)
        return tuple(self._core(source, contents, build_id) for source in sources)

    def _core(self, source: _Source, contents: ReleaseContents, build_id: str) -> Core:
        tables = tuple(part.table for part in source.parts)
        core = Core(
            wheel=source.wheel,
            name=source.name,
            package=import_package(source.wheel),
            machine=source.machine,
            source=self.origin or SourceFile(path=source.wheel.path.name, sha256=source.digest),
            build_id=build_id,
            interface_hash=contents.interface_hash,
            plan=contents.plan,
            parts=source.parts,
            table=b"",
            install=self.request.install,
        )
        targets = {
            image.target for each in tables for row in each.containers for image in row.images
        }
        descriptor = core.descriptor(targets, cuda=OLDEST_CUDA)
        return replace(core, table=encode_table(descriptor, tables))

    def _manifest(self, packer: PackWriter, wheels: tuple[ReleaseWheel, ...]) -> Manifest:
        indexes = {str(packer.name(file)): packer.libraries(file) for file in packer.contents.files}
        return split_manifest(packer.cores, indexes, wheels, self.request)

    def _report(
        self,
        cores: Sequence[Core],
        wheels: tuple[ReleaseWheel, ...],
        sources: Sequence[_Source],
    ) -> Release:
        first = cores[0]
        details = [
            _details(core, source, several=len(cores) > 1)
            for core, source in zip(cores, sources, strict=True)
        ]
        return Release(
            project=first.name.project,
            version=first.name.version,
            build_id=first.build_id,
            interface_hash=first.interface_hash,
            wheels=wheels,
            split=SplitDetails(
                source=first.source.path,
                source_sha256=first.source.sha256,
                source_size=first.wheel.path.stat().st_size,
                sources=tuple(each.sources[0] for each in details),
                needs={str(one): names for one, names in first.plan.needs.items()},
                libraries=tuple(one for each in details for one in each.libraries),
                unmoved=tuple(one for each in details for one in each.unmoved),
                notes=tuple(dict.fromkeys(note for each in details for note in each.notes)),
            ),
        )


def _details(core: Core, source: _Source, *, several: bool) -> SplitDetails:
    """Return the part of a report that is about one core."""
    file = str(core.name) if several else ""
    libraries = tuple(
        SplitLibrary(
            name=part.table.name,
            size_before=part.sizes[0],
            size_after=part.sizes[1],
            containers=len(part.moved),
            notes=part.notes,
            core=file,
        )
        for part in core.parts
    )
    unmoved = (*(stay for part in core.parts for stay in part.stays), *source.stays)
    own = SplitSource(
        core=str(core.name),
        file=core.source.path,
        size=source.wheel.path.stat().st_size,
        sha256=core.source.sha256,
    )
    notes = source.wheel.info.notes
    return SplitDetails(
        source=own.file,
        source_sha256=own.sha256,
        sources=(own,),
        libraries=libraries,
        unmoved=tuple(replace(one, core=file) for one in unmoved),
        notes=tuple(f"{file}: {note}" for note in notes) if several else notes,
    )


def _refuse_other_cores(out: Path, cores: Sequence[Core]) -> None:
    """Refuse an output folder with cores that this split doesn't write again.

    Raises:
        OutputError: the folder has one; packs of the same images are no reason to mix them.
    """
    earlier = find_report(out)
    names = {str(core.name) for core in cores}
    others = () if earlier is None else [one.file for one in earlier.cores if one.file not in names]
    if others:
        raise OutputError(
            f"{out} has {', '.join(others)} of the same release",
            hint="split all wheels of a release at once, or `archsplit gather` the folders",
        )
