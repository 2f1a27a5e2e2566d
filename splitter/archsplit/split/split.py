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
        # Before any work: NVIDIA has no CUDA for musl, and the loader needs glibc.
        if any(platform.startswith("musllinux") for platform in wheel.name.platforms):
            raise InputError(f"{request.source} is for musl, and CUDA needs glibc")
        if foreign := [tag for tag in wheel.name.platforms if tag.startswith(_FOREIGN)]:
            raise NothingToDoError(
                f"{request.source} is for {', '.join(foreign)}: only Linux libraries can be split",
                hint="--copy writes the wheel as it is; `archsplit inspect` reads any wheel",
            )
        out = stack.enter_context(output_dir(request.out))
        folder = stack.enter_context(temporary_dir(out))
        # The core may have the fat wheel's file name and would replace it.
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
        # Nothing is moved from here to the output folder before `verify_release` has read it.
        staging = self.folder / "finished"
        with output_errors(staging):
            staging.mkdir()
        progress = self.effects.progress
        progress.begin_stage(f"reading {self.wheel.path.name}", 0)
        with two_workers(self.effects.runner) as workers:
            machine = tagged_machine(self.wheel.name.platforms)
            # If the tags name the machine, the loader is compiled while the wheel is read.
            loaders = {machine: workers.submit(self._copy_loader, machine)} if machine else {}
            # The wheel is hashed while it is unpacked.
            digest = workers.submit(sha256, self.wheel.path)
            scan = find_splittable(self.wheel, self.scratch)
            # `find_splittable` has refused libraries of several machines.
            machine = scan.libraries[0].machine
            if machine not in loaders:
                loaders[machine] = workers.submit(self._copy_loader, machine)
            core = self._make_core(scan.libraries, digest.result())
            jobs = WheelJobs(
                writer=self._pack_writer(core),
                scratch=self.scratch,
                staging=staging,
                workers=workers,
                progress=progress,
            )
            wheels = jobs.write(loaders[machine])
        report = self._report(core, wheels, scan.unmoved)
        with output_errors(staging):
            (staging / REPORT_FILE).write_text(report.as_json())
            (staging / MANIFEST).write_text(self._manifest(core, report.wheels).as_json())
        progress.begin_stage("checking all wheels", 0)
        originals = {library.table.name: library.original_images for library in core.libraries}
        scope = CheckScope(originals=originals, complete=self.request.targets is None)
        verify_release(staging, scope=scope)
        names = sorted(path.name for path in staging.iterdir())
        with output_errors(staging):
            for name in names:
                # The umask of whoever splits must not decide who can read a release.
                (staging / name).chmod(0o644)
        replace_all(names, source=staging, target=out)
        # The report of the same split by an older version: the new one replaces it.
        with output_errors(out):
            (out / OLD_SPLIT_REPORT_FILE).unlink(missing_ok=True)
        return report

    def _copy_loader(self, machine: ElfMachine) -> tuple[Path, Path]:
        folder = self.folder / machine
        with output_errors(folder):
            folder.mkdir()
        return copy_loader_and_stub(folder=folder, machine=machine)

    def _make_core(self, libraries: tuple[SplittableLibrary, ...], digest: str) -> Core:
        request = self.request
        name, package = core_name(request, self.wheel.name), import_package(self.wheel)
        build_id = split_build_id(request, digest, name)
        # Before the libraries are patched: a folder must not mix wheels of two builds.
        refuse_other_release(request.out, build_id)
        patcher = Patcher(runner=self.effects.runner, folder=self.folder)
        stripped = strip_libraries(
            libraries,
            build_id=build_id,
            loader_folder=f"{package}/{LOADER_PACKAGE}",
            patcher=patcher,
            scratch=self.scratch,
        )
        # All containers of all libraries, numbered through, as in the core's table.
        containers = [one.entries for library in stripped for one in library.moved]
        pack_plan = plan_packs(containers, request.by, request.targets)
        tables = tuple(library.table for library in stripped)
        core = Core(
            wheel=self.wheel,
            name=name,
            package=package,
            source=self.origin or SourceFile(path=self.wheel.path.name, sha256=digest),
            build_id=build_id,
            # A hash over all that packs must agree on: libraries, containers and images of the
            # core.
            interface_hash=hashlib.sha256(encode_index(tables)).hexdigest(),
            pack_plan=pack_plan,
            libraries=stripped,
            # Made of the core's own descriptor, so it comes last.
            table=b"",
            install=request.install,
        )
        targets = {
            # The table is no plugin; its descriptor lists what all packs have together.
            image.target
            for each in tables
            for row in each.containers
            for image in row.images
        }
        descriptor = core.descriptor(targets, cuda=OLDEST_CUDA)
        return replace(core, table=encode_table(descriptor, tables))

    def _pack_writer(self, core: Core) -> PackWriter:
        return PackWriter(
            core=core,
            generator=f"archsplit {version('archsplit')}",
            licenses=fat_wheel_licenses(self.wheel),
        )

    def _manifest(self, core: Core, wheels: tuple[ReleaseWheel, ...]) -> Manifest:
        writer = self._pack_writer(core)
        indexes = {contents.name: writer.libraries(contents) for contents in core.pack_plan.packs}
        return split_manifest(core, indexes, wheels, self.request)

    def _report(
        self, core: Core, wheels: tuple[ReleaseWheel, ...], unmoved: tuple[UnmovedCode, ...]
    ) -> Release:
        libraries = tuple(
            SplitLibrary(
                name=library.table.name,
                size_before=library.sizes[0],
                size_after=library.sizes[1],
                containers=len(library.moved),
                notes=library.notes,
            )
            for library in core.libraries
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
                needs={str(one): names for one, names in core.pack_plan.needs.items()},
                libraries=libraries,
                unmoved=(
                    *(code for library in core.libraries for code in library.unmoved),
                    *unmoved,
                ),
                notes=self.wheel.info.notes,
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelJobs:
    """The jobs that write the wheels of one core.

    Attributes:
        staging: the folder for the wheels, private until all are verified.
    """

    writer: PackWriter
    scratch: ScratchFiles
    staging: Path
    workers: ThreadPoolExecutor = field(repr=False)
    progress: ProgressSink = field(repr=False)

    def write(self, loader_files: Future[tuple[Path, Path]]) -> tuple[ReleaseWheel, ...]:
        """Write all wheels.

        Args:
            loader_files: the loader and the stub.
        """
        core, submit = self.writer.core, self.workers.submit
        self.progress.begin_stage("writing wheels", 1 + len(core.pack_plan.packs))
        # The compression releases the GIL.
        # The libraries first: they are the largest part of the core, which waits for them.
        libraries = {one.member: submit(pack_file, one.path) for one in core.libraries}
        space = ImageSpace(core)
        packs = [submit(self._write_pack, contents, space) for contents in core.pack_plan.packs]
        path, began = self.staging / str(core.name), time.monotonic()
        packed = {name: job.result() for name, job in libraries.items()}
        for library in core.libraries:
            self.scratch.remove(library.path)
        loader, stub = loader_files.result()
        with output_errors(path), path.open("wb") as file:
            write_core(file, core, packed, loader=loader, stub=stub)
        self.progress.finish_step(path.name, time.monotonic() - began)
        wheels = [_wheel_record(path, role="core", distribution=core.name.project)]
        # Otherwise the core itself names all packs: in extras, or as requirements.
        if core.install is InstallDefaults.META:
            wheels.append(self._write_meta())
        return (*wheels, *(job.result() for job in packs))

    def _write_pack(self, contents: PackContents, space: ImageSpace) -> ReleaseWheel:
        writer = self.writer
        pack = self.scratch.create(f"{contents.name}.pack", writer.image_bytes(contents))
        path, began = self.staging / str(writer.name(contents)), time.monotonic()
        with output_errors(pack):
            writer.write_pack(contents, pack)
            space.release(contents)
        with output_errors(path), path.open("wb") as file:
            writer.write_wheel(file, contents, pack)
        images = [
            image
            for library in writer.libraries(contents)
            for container in library.containers
            for image in container.images
        ]
        # The wheel has it now; all packs of a large wheel together may fill the disk or the memory.
        self.scratch.remove(pack)
        self.progress.finish_step(path.name, time.monotonic() - began)
        return replace(
            _wheel_record(
                path, role="plugin", distribution=writer.core.distribution(contents.name)
            ),
            plugin=Plugin(
                kind="pack",
                name=contents.name,
                targets=tuple(sorted({str(image.target) for image in images})),
                serves=tuple(map(str, contents.serves)),
                images=len(images),
                image_bytes=sum(image.size for image in images),
            ),
        )

    def _write_meta(self) -> ReleaseWheel:
        name = meta_name(self.writer.core.name)
        path = self.staging / str(name)
        with output_errors(path), path.open("wb") as file:
            write_meta(file, self.writer.core, self.writer.generator)
        return _wheel_record(path, role="meta", distribution=name.project)


def _wheel_record(path: Path, *, role: Role, distribution: str) -> ReleaseWheel:
    return ReleaseWheel(
        file=path.name,
        size=path.stat().st_size,
        sha256=sha256(path),
        role=role,
        distribution=distribution,
    )


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
            # Jobs that wait are dropped; the pool's own exit would run them all first.
            workers.shutdown(wait=False, cancel_futures=True)
            if isinstance(error, KeyboardInterrupt):
                # A running patchelf would otherwise be waited for.
                runner.cancel()
            raise


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


def minimal_project(name: str | None, version: str) -> LibraryProject:
    """Return a project with a name and a version only.

    Raises:
        UsageError: the name is missing.
    """
    if name is None:
        # Not made of the file name: `libfoo.so.1` is rarely what a project is called.
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


def split_library(request: SplitRequest, effects: Effects, project: LibraryProject) -> Release:
    """Split a library: put it into a wheel as ``<package>/lib/<file>``, and split the wheel.

    Raises:
        InputError: the library can't be read, or is for a machine without CUDA.
        ArchsplitError: see `split_wheel`.
    """
    with temporary_dir() as folder:
        wheel = _write_wheel(request.source, project, effects, folder)
        origin = SourceFile(path=request.source.name, sha256=sha256(request.source))
        # No fat wheel has this name, so pip can't prefer one: the core needs no build tag.
        request = replace(request, source=wheel, name=None, release=True)
        return split_wheel(request, effects, origin=origin)


def _write_wheel(library: Path, project: LibraryProject, effects: Effects, folder: Path) -> Path:
    """Write a wheel with the library and the files of its project; return its path."""
    name = WheelName(
        project=distribution_name(project.metadata.name),
        version=project.metadata.version,
        platforms=_platforms(library, effects, folder),
    )
    # A package, so that the loader's folder has a place in it.
    text = f'"""Has {library.name} in lib."""\n'.encode()
    members = {
        f"{project.package}/__init__.py": pack(text),
        **{member: pack_file(path) for member, path in project.files.items()},
        f"{project.package}/lib/{library.name}": pack_file(library),
        f"{name.dist_info}/METADATA": pack(encode_metadata(project.metadata)),
        f"{name.dist_info}/WHEEL": pack(WheelInfo(generator="archsplit", tags=name.tags).encode()),
        **{
            f"{name.dist_info}/licenses/{each}": pack_file(path)
            for each, path in project.licenses.items()
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
            # Only the library's own symbols count: what it needs is installed by other packages.
            provided=("*",),
        ).names
    except WheelError:
        # A usable wheel nevertheless, only not one for the public index.
        return (f"linux_{MACHINE_NAMES[machine]}",)
