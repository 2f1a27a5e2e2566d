"""Split of a wheel or a library: a core without device code, and one wheel for each pack.

All wheels are written into a private folder, two at a time, read again and compared with the
original; only then they replace those in the output folder, all or none. A library that is in no
wheel is put into one first, in a package of its own.
"""

from __future__ import annotations

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import TYPE_CHECKING

from archsplit.devicecode.partition import plan_packs
from archsplit.errors import InputError, NothingToDoError, OutputError, UsageError, WheelError
from archsplit.formats.device_pack import encode_index, encode_table
from archsplit.formats.elf import MACHINE_NAMES, Elf
from archsplit.formats.reader import open_file
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
    refuse_other_release,
)
from archsplit.release.requirements import meta_name
from archsplit.split.core_wheel import write_core, write_meta
from archsplit.split.find import (
    core_name,
    fat_wheel_licenses,
    find_splittable,
    import_package,
    split_build_id,
    strip_libraries,
    tagged_machine,
)
from archsplit.split.model import Core, InstallDefaults
from archsplit.split.pack_wheel import OLDEST_CUDA, ImageSpace, PackWriter
from archsplit.split.provenance import split_manifest
from archsplit.split.stub import Patcher
from archsplit.system.env import ZIP_EPOCH, clean_environment
from archsplit.system.fs import output_dir, output_errors, replace_all, sha256, temporary_dir
from archsplit.system.resources import SystemMemory
from archsplit.system.scratch import ScratchFiles
from archsplit.wheels.filename import WheelName, distribution_name
from archsplit.wheels.metadata import CoreMetadata, WheelInfo, encode_metadata
from archsplit.wheels.platform_tags import find_platform_tags
from archsplit.wheels.reader import open_wheel
from archsplit.wheels.rewrite import write_members
from archsplit.wheels.zip_writer import pack, pack_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Future
    from pathlib import Path

    from archsplit.devicecode.partition import PackContents
    from archsplit.formats.elf import ElfMachine
    from archsplit.release.context import Effects
    from archsplit.release.manifest import Manifest
    from archsplit.release.report import UnmovedCode
    from archsplit.split.find import SplittableLibrary
    from archsplit.split.model import SplitRequest
    from archsplit.system.process import Runner
    from archsplit.system.progress import ProgressSink
    from archsplit.wheels.reader import Wheel


_FOREIGN = ("win", "macosx")
"""Beginnings of the platform tags of other systems."""


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
    """The jobs that write the wheels of one core.

    Attributes:
        finished: the folder for the wheels.
    """

    packer: PackWriter
    scratch: ScratchFiles
    finished: Path
    workers: ThreadPoolExecutor = field(repr=False)
    progress: ProgressSink = field(repr=False)

    def write(self, tools: Future[tuple[Path, Path]]) -> tuple[ReleaseWheel, ...]:
        """Write all wheels.

        Args:
            tools: the loader and the stub, when they are compiled.
        """
        core, submit = self.packer.core, self.workers.submit
        self.progress.begin_stage("writing wheels", 1 + len(core.shares.packs))
        # The compression releases the GIL.
        libraries = {part.member: submit(pack_file, part.path) for part in core.parts}
        space = ImageSpace(core)
        packs = [submit(self._pack, share, space) for share in core.shares.packs]
        path, began = self.finished / str(core.name), time.monotonic()
        contents = {name: job.result() for name, job in libraries.items()}
        for part in core.parts:
            self.scratch.remove(part.path)
        loader, stub = tools.result()
        with output_errors(path), path.open("wb") as file:
            write_core(file, core, contents, loader=loader, stub=stub)
        self.progress.finish_step(path.name, time.monotonic() - began)
        wheels = [_written(path, role="core", distribution=core.name.project)]
        if core.install is InstallDefaults.META:
            wheels.append(self._meta())
        return (*wheels, *(job.result() for job in packs))

    def _pack(self, share: PackContents, space: ImageSpace) -> ReleaseWheel:
        packer = self.packer
        pack = self.scratch.create(f"{share.name}.pack", packer.image_bytes(share))
        path, began = self.finished / str(packer.name(share)), time.monotonic()
        with output_errors(pack):
            packer.write_pack(share, pack)
            space.release(share)
        with output_errors(path), path.open("wb") as file:
            packer.write_wheel(file, share, pack)
        images = [
            image
            for library in packer.libraries(share)
            for container in library.containers
            for image in container.images
        ]
        self.scratch.remove(pack)
        self.progress.finish_step(path.name, time.monotonic() - began)
        return replace(
            _written(path, role="plugin", distribution=packer.core.distribution(share.name)),
            plugin=Plugin(
                kind="pack",
                name=share.name,
                targets=tuple(sorted({str(image.target) for image in images})),
                serves=tuple(map(str, share.serves)),
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
    """Split a wheel: write all wheels, verified, or none.

    Args:
        origin: the source to name in manifest and report; None for the wheel.

    Raises:
        InputError: the wheel can't be read.
        NothingToDoError: the wheel has nothing to split.
        WheelError: the wheel is invalid.
        BinaryFormatError: a library in the wheel is damaged.
        ToolNotFoundError: patchelf or the loader's compiler is missing.
        ToolFailedError: patchelf or the loader's compiler failed.
        VerifyError: a written wheel differs from the plan; all wheels were removed.
        OutputError: the output can't be written.
    """
    with ExitStack() as stack:
        wheel = stack.enter_context(open_wheel(request.source, same_tags=False))
        if any(platform.startswith("musllinux") for platform in wheel.name.platforms):
            raise InputError(f"{request.source} is for musl, and CUDA needs glibc")
        if foreign := [tag for tag in wheel.name.platforms if tag.startswith(_FOREIGN)]:
            raise NothingToDoError(
                f"{request.source} is for {', '.join(foreign)}: only Linux libraries can be split",
                hint="--copy writes the wheel as it is; `archsplit inspect` reads any wheel",
            )
        out = stack.enter_context(output_dir(request.out))
        folder = stack.enter_context(temporary_dir(out))
        if request.source.resolve().parent == out:
            raise OutputError(f"{request.source} is in {out}", hint="choose another folder")
        # A quarter of the free memory: patchelf holds a library in memory too, and others work.
        memory = SystemMemory().available() // 4
        scratch = stack.enter_context(ScratchFiles(folder, memory=memory))
        split = _Split(
            request=request, effects=effects, wheel=wheel, origin=origin, scratch=scratch
        )
        return split.run(out)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """The split of one wheel, in a private folder."""

    request: SplitRequest
    effects: Effects
    wheel: Wheel = field(repr=False)
    origin: SourceFile | None
    scratch: ScratchFiles = field(repr=False)

    @property
    def folder(self) -> Path:
        """The private folder."""
        return self.scratch.folder

    def run(self, out: Path) -> Release:
        finished = self.folder / "finished"
        with output_errors(finished):
            finished.mkdir()
        progress = self.effects.progress
        progress.begin_stage(f"reading {self.wheel.path.name}", 0)
        with two_workers(self.effects.runner) as workers:
            machine = tagged_machine(self.wheel.name.platforms)
            # If the tags name the machine, the loader is compiled while the wheel is read.
            tools = {machine: workers.submit(self._tools, machine)} if machine else {}
            digest = workers.submit(sha256, self.wheel.path)
            found = find_splittable(self.wheel, self.scratch)
            machine = found.fat[0].machine
            if machine not in tools:
                tools[machine] = workers.submit(self._tools, machine)
            core = self._core(found.fat, digest.result())
            jobs = WheelJobs(
                packer=self._packer(core),
                scratch=self.scratch,
                finished=finished,
                workers=workers,
                progress=progress,
            )
            wheels = jobs.write(tools[machine])
        report = self._report(core, wheels, found.stays)
        with output_errors(finished):
            (finished / REPORT_FILE).write_text(report.as_json())
            (finished / MANIFEST).write_text(self._manifest(core, report.wheels).as_json())
        progress.begin_stage("checking all wheels", 0)
        originals = {part.table.name: part.original_images for part in core.parts}
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

    def _tools(self, machine: ElfMachine) -> tuple[Path, Path]:
        folder = self.folder / machine
        with output_errors(folder):
            folder.mkdir()
        return copy_loader_and_stub(folder=folder, machine=machine)

    def _core(self, fat: tuple[SplittableLibrary, ...], digest: str) -> Core:
        request = self.request
        name, package = core_name(request, self.wheel.name), import_package(self.wheel)
        build_id = split_build_id(request, digest, name)
        refuse_other_release(request.out, build_id)
        patcher = Patcher(runner=self.effects.runner, folder=self.folder)
        parts = strip_libraries(
            fat,
            build_id=build_id,
            face=f"{package}/{LOADER_PACKAGE}",
            patcher=patcher,
            scratch=self.scratch,
        )
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
        descriptor = core.descriptor(targets, cuda=OLDEST_CUDA)
        return replace(core, table=encode_table(descriptor, tables))

    def _packer(self, core: Core) -> PackWriter:
        return PackWriter(
            core=core,
            generator=f"archsplit {version('archsplit')}",
            licenses=fat_wheel_licenses(self.wheel),
        )

    def _manifest(self, core: Core, wheels: tuple[ReleaseWheel, ...]) -> Manifest:
        packer = self._packer(core)
        indexes = {share.name: packer.libraries(share) for share in core.shares.packs}
        return split_manifest(core, indexes, wheels, self.request)

    def _report(
        self, core: Core, wheels: tuple[ReleaseWheel, ...], stays: tuple[UnmovedCode, ...]
    ) -> Release:
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
        return Release(
            project=core.name.project,
            version=core.name.version,
            build_id=core.build_id,
            interface_hash=core.interface_hash,
            wheels=wheels,
            split=SplitDetails(
                source=core.source.path,
                source_sha256=core.source.sha256,
                source_size=self.wheel.path.stat().st_size,
                needs={str(one): names for one, names in core.shares.needs.items()},
                libraries=libraries,
                unmoved=(*(stay for part in core.parts for stay in part.stays), *stays),
                notes=self.wheel.info.notes,
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryProject:
    """The project of a library without a wheel.

    Attributes:
        metadata: the metadata of the core.
        package: the import package that gets the library, in ``lib``.
        files: the other files of the core, by their name in its wheel.
        licenses: the license files, by their name below ``licenses/``.
    """

    metadata: CoreMetadata
    package: str
    files: Mapping[str, Path] = field(default_factory=dict)
    licenses: Mapping[str, Path] = field(default_factory=dict)


def named_project(name: str | None, version: str) -> LibraryProject:
    """Return a project with a name and a version only.

    Raises:
        UsageError: the name is missing.
    """
    if name is None:
        raise UsageError("a library has no name as a project", hint="add --name")
    project = distribution_name(name)
    metadata = CoreMetadata(
        name=project,
        version=version,
        # `twine check --strict` refuses a wheel without a description.
        description=f"Libraries of {project}, split by archsplit.\n",
        description_content_type="text/plain",
    )
    return LibraryProject(metadata=metadata, package=project.replace("-", "_"))


def split_library(request: SplitRequest, effects: Effects, owner: LibraryProject) -> Release:
    """Split a library: put it into a wheel as ``<package>/lib/<file>``, and split the wheel.

    Raises:
        InputError: the library can't be read, or is for a machine without CUDA.
        ArchsplitError: see `split_wheel`.
    """
    with temporary_dir() as folder:
        wheel = _write_wheel(request.source, owner, effects, folder)
        origin = SourceFile(path=request.source.name, sha256=sha256(request.source))
        # No fat wheel has this name, so pip can't prefer one: the core needs no build tag.
        request = replace(request, source=wheel, name=None, release=True)
        return split_wheel(request, effects, origin=origin)


def _write_wheel(library: Path, owner: LibraryProject, effects: Effects, folder: Path) -> Path:
    """Write a wheel with the library and the files of its project; return its path."""
    name = WheelName(
        project=distribution_name(owner.metadata.name),
        version=owner.metadata.version,
        platforms=_platforms(library, effects, folder),
    )
    text = f'"""Has {library.name} in lib."""\n'.encode()
    members = {
        f"{owner.package}/__init__.py": pack(text),
        **{place: pack_file(path) for place, path in owner.files.items()},
        f"{owner.package}/lib/{library.name}": pack_file(library),
        f"{name.dist_info}/METADATA": pack(encode_metadata(owner.metadata)),
        f"{name.dist_info}/WHEEL": pack(WheelInfo(generator="archsplit", tags=name.tags).encode()),
        **{
            f"{name.dist_info}/licenses/{each}": pack_file(path)
            for each, path in owner.licenses.items()
        },
    }
    path = folder / str(name)
    with output_errors(path), path.open("wb") as file:
        write_members(file, name, members)
    return path


def _platforms(library: Path, effects: Effects, folder: Path) -> tuple[str, ...]:
    """Return the platform tag of the oldest Linux that the library's symbols allow.

    Its needed libraries are not checked. If no policy allows its symbols, the tag is ``linux_…``,
    which the public index refuses.
    """
    machine = Elf(open_file(library)).header.machine
    if machine not in MACHINE_NAMES:
        raise InputError(f"{library} is for ELF machine {machine}, which has no CUDA")
    environment = clean_environment(effects.environment, temporary=folder, epoch=ZIP_EPOCH)
    environment["PYTHONPATH"] = effects.python_path
    try:
        return find_platform_tags(
            {library.name: library},
            runner=effects.runner,
            environment=environment,
            provided=("*",),
        ).names
    except WheelError:
        return (f"linux_{MACHINE_NAMES[machine]}",)
