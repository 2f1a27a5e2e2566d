"""Split of the wheels of a release: cores without device code, and packs.

All wheels are written into a private folder, two to four at a time, read again and compared with
the originals; only then they replace those in the output folder, all or none.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from archsplit.errors import InputError, NothingToDoError, OutputError, UsageError
from archsplit.release.checks import CheckScope
from archsplit.release.identity import LOADER_PACKAGE, ReleaseKind
from archsplit.release.loader import copy_loader_and_stub
from archsplit.release.manifest import MANIFEST_FILE, SourceFile
from archsplit.release.report import (
    REPORT_FILE,
    Release,
    ReleaseWheel,
    SplitDetails,
    SplitLibrary,
    SplitSource,
    find_report,
    refuse_other_release,
)
from archsplit.release.verify import verify_release
from archsplit.release.wheel_set import WheelReads
from archsplit.split.find import (
    core_key,
    core_name,
    fat_wheel_licenses,
    find_splittable,
    import_package,
    strip_libraries,
    tagged_machine,
)
from archsplit.split.model import Core, contents_build_id, plan_contents, planned_extras
from archsplit.split.output_wheels import PackWriter, split_manifest
from archsplit.split.stored_images import store_images, stored_notes
from archsplit.split.take_apart import StripTools
from archsplit.split.wheel_jobs import WheelJobs, wheel_workers
from archsplit.system.file_lock import LockedFolder
from archsplit.system.fs import output_dir, output_errors, replace_all, sha256, temporary_dir
from archsplit.system.parallel import ThreadPool
from archsplit.system.resources import SystemMemory
from archsplit.system.scratch import ScratchFiles
from archsplit.wheels.reader import open_wheel
from archsplit.wheels.zip_writer import ParallelDeflater

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from archsplit.formats.elf import ElfMachine
    from archsplit.release.context import Effects
    from archsplit.release.report import UnmovedCode
    from archsplit.split.model import ReleaseContents, SplitRequest, StoredImages
    from archsplit.split.take_apart import StrippedLibrary
    from archsplit.wheels.filename import WheelName
    from archsplit.wheels.reader import Wheel


_MOST_MEMORY = 384 << 20
"""Bytes of scratch files in memory. A packed library and pieces to pack are there too."""

_FOREIGN = ("win", "macosx")
"""Beginnings of the platform tags of other systems."""


def split_wheel(
    request: SplitRequest, effects: Effects, *, origin: SourceFile | None = None
) -> Release:
    """Split the wheels of a release: write all wheels, verified, or none.

    Args:
        origin: the source to name in manifest and report; None for the wheel.

    Raises:
        InputError: a wheel can't be read, or the wheels are not of one release.
        NothingToDoError: a wheel has nothing to split.
        UsageError: a dropped extra has packs.
        WheelError: a wheel is invalid.
        BinaryFormatError: a library in a wheel is damaged.
        ToolFailedError: the compiled loader of archsplit is damaged.
        VerifyError: a written wheel differs from the plan; all wheels were removed.
        OutputError: the output can't be written.
    """
    with ExitStack() as stack:
        paths = (request.source, *request.others)
        wheels = [
            stack.enter_context(
                open_wheel(path, same_tags=False, ignore_record=request.ignore_record)
            )
            for path in paths
        ]
        _check_one_release(wheels)
        out = stack.enter_context(output_dir(request.out))
        folder = stack.enter_context(temporary_dir(out))
        for path in paths:
            # The core may have the fat wheel's file name and would replace it.
            if path.resolve().parent == out:
                raise OutputError(f"{path} is in {out}", hint="choose another folder")
        # A quarter of the free memory: others work, too.
        free = SystemMemory().available() // 4
        memory = min(free, _MOST_MEMORY)
        scratch = stack.enter_context(ScratchFiles(folder, memory=memory))
        split = _Split(
            request=request,
            effects=effects,
            # The order of the command line must not change a byte.
            wheels=tuple(sorted(wheels, key=lambda wheel: str(wheel.name))),
            origin=origin,
            scratch=scratch,
            is_memory_short=free < _MOST_MEMORY,
        )
        return split.run(out)


def _check_one_release(wheels: Sequence[Wheel]) -> None:
    """Refuse wheels that can't share packs, and two for the same tag."""
    first, wheel_by_tag = wheels[0], {wheels[0].name.tags[0]: wheels[0]}
    for wheel in wheels:
        # Before any work: NVIDIA has no CUDA for musl, and the loader needs glibc.
        if any(platform.startswith("musllinux") for platform in wheel.name.platforms):
            raise InputError(f"{wheel.path} is for musl, and CUDA needs glibc")
        if foreign := [tag for tag in wheel.name.platforms if tag.startswith(_FOREIGN)]:
            raise NothingToDoError(
                f"{wheel.path} is for {', '.join(foreign)}: only Linux libraries can be split",
                hint="--copy writes the wheel as it is; `archsplit inspect` reads any wheel, and"
                " `archsplit slim --mode in-place` takes code out of Windows libraries",
            )
        for field_name, found, expected in (
            ("project", wheel.name.project, first.name.project),
            ("version", wheel.name.version, first.name.version),
            ("build tag", wheel.name.build, first.name.build),
            # Packs lie next to the core, and some systems have two places.
            ("Root-Is-Purelib", wheel.info.purelib, first.info.purelib),
        ):
            if found != expected:
                raise InputError(
                    f"{wheel.path.name} and {first.path.name} are from different releases: "
                    f"{field_name} is {found or 'none'} and {expected or 'none'}",
                    hint="split each release by itself",
                )
        for tag in wheel.name.tags:
            other = wheel_by_tag.setdefault(tag, wheel)
            if other is not wheel:
                raise InputError(
                    f"{other.path} and {wheel.path} are both for {tag}", hint="name one of them"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A fat wheel, and its libraries without their images."""

    wheel: Wheel = field(repr=False)
    name: WheelName
    package: str
    digest: str
    machine: ElfMachine
    libraries: tuple[StrippedLibrary, ...] = field(repr=False)
    unmoved: tuple[UnmovedCode, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """Split of one release, in a private folder."""

    request: SplitRequest
    effects: Effects
    wheels: tuple[Wheel, ...] = field(repr=False)
    origin: SourceFile | None
    scratch: ScratchFiles = field(repr=False)
    is_memory_short: bool
    loaders: dict[str, Future[tuple[Path, Path]]] = field(default_factory=dict, repr=False)

    @property
    def folder(self) -> Path:
        """Private folder of the split."""
        return self.scratch.folder

    def run(self, out: Path) -> Release:
        # Nothing is moved from here to the output folder before `verify_release` has read it.
        staging = self.folder / "finished"
        with output_errors(staging):
            staging.mkdir()
        progress = self.effects.progress
        files = ", ".join(one.path.name for one in self.wheels)
        progress.begin_stage(f"reading {files}", 0, f"Read {files}")
        with (
            # Each wheel is read again as soon as it is written.
            closing(
                WheelReads(self.scratch, ReleaseKind.SPLIT, keep_packs=False, are_new=True)
            ) as reads,
            wheel_workers() as workers,
            ThreadPool(2) as readers,
            # One for all files: the pieces in its queue are the memory that packing takes. The
            # first to close: after an error or Ctrl-C, no thread packs the rest of a library.
            closing(ParallelDeflater(level=self.request.deflate_level)) as deflater,
        ):
            tools = StripTools(
                scratch=self.scratch, deflater=deflater, workers=workers, readers=readers
            )
            # If the tags name the machine, the loader is copied while the wheel is read.
            for wheel in self.wheels:
                if machine := tagged_machine(wheel.name.platforms):
                    self._load(machine, workers)
            sources = [self._source(wheel, tools) for wheel in self.wheels]
            parts = [(one.machine, one.libraries) for one in sources]
            subject = files if self.origin is None else self.origin.path
            contents = plan_contents(parts, self.request, subject)
            stored = store_images(contents, self.request.recompress, progress)
            cores = self._cores(sources, contents, stored)
            _refuse_other_split(out, cores)
            writer = PackWriter(
                cores=cores,
                contents=contents,
                licenses=fat_wheel_licenses(self.wheels[0]),
            )
            jobs = WheelJobs(
                writer=writer,
                is_memory_short=self.is_memory_short,
                deflater=deflater,
                staging=staging,
                workers=workers,
                reads=reads,
                progress=progress,
            )
            cuda = writer.descriptor(contents.files[0]).cuda_version
            report = self._report(cores, jobs.write(self.loaders), sources, cuda)
            with output_errors(staging):
                (staging / REPORT_FILE).write_text(report.as_json())
                (staging / MANIFEST_FILE).write_text(
                    split_manifest(writer, report, self.request).as_json()
                )
            self._verify(staging, cores, reads)
        if self.request.check is not None:
            self.request.check(report)
        names = sorted(path.name for path in staging.iterdir())
        with output_errors(staging):
            for name in names:
                # The umask of the user who splits must not decide who can read a release.
                (staging / name).chmod(0o644)
        # Two splits at once have both passed the check before the work: the second is refused here.
        with LockedFolder(out):
            _refuse_other_split(out, cores)
            replace_all(names, source=staging, target=out)
        return report

    def _verify(self, staging: Path, cores: Sequence[Core], reads: WheelReads) -> None:
        self.effects.progress.begin_stage("checking all wheels", 0, "Checked all wheels")
        originals = {
            core.file: {one.name: one.original_images for one in core.libraries} for core in cores
        }
        scope = CheckScope(originals=originals, complete=self.request.targets is None)
        verify_release(staging, scope=scope, begun=reads)

    def _load(self, machine: ElfMachine, workers: ThreadPool) -> None:
        if machine not in self.loaders:
            self.loaders[machine] = workers.submit(self._copy_loader, machine)

    def _copy_loader(self, machine: ElfMachine) -> tuple[Path, Path]:
        folder = self.folder / machine
        with output_errors(folder):
            folder.mkdir()
        return copy_loader_and_stub(folder=folder, machine=machine)

    def _source(self, wheel: Wheel, tools: StripTools) -> _Source:
        # The wheel is hashed while it is unpacked.
        digest = tools.workers.submit(sha256, wheel.path)
        prefix = f"{self.wheels.index(wheel)}-" if len(self.wheels) > 1 else ""
        scan = find_splittable(wheel, self.scratch, prefix=prefix)
        # `find_splittable` has refused libraries of several machines.
        machine = scan.libraries[0].machine
        self._load(machine, tools.workers)
        name, package = core_name(self.request, wheel.name), import_package(wheel)
        libraries = strip_libraries(
            scan.libraries,
            key=lambda: core_key(self.request, digest.result(), name),
            loader_folder=f"{package}/{LOADER_PACKAGE}",
            tools=tools,
        )
        return _Source(
            wheel=wheel,
            name=name,
            package=package,
            digest=digest.result(),
            machine=machine,
            libraries=libraries,
            unmoved=scan.unmoved,
        )

    def _cores(
        self, sources: Sequence[_Source], contents: ReleaseContents, stored: StoredImages
    ) -> tuple[Core, ...]:
        build_id = contents_build_id(contents, self.request, sources[0].name)
        again = planned_extras(contents.plan).keys() & self.request.dropped
        if again:
            raise UsageError(
                f"{', '.join(sorted(again))} can't be dropped: this split has packs for it",
                hint="leave it out of --dropped",
            )
        return tuple(
            Core(
                wheel=one.wheel,
                name=one.name,
                package=one.package,
                machine=one.machine,
                source=self.origin or SourceFile(path=one.wheel.path.name, sha256=one.digest),
                build_id=build_id,
                interface_hash=contents.interface_hash,
                pack_plan=contents.plan,
                libraries=one.libraries,
                stored=stored,
                install=self.request.install,
                dropped=self.request.dropped,
            )
            for one in sources
        )

    def _report(
        self,
        cores: Sequence[Core],
        wheels: tuple[ReleaseWheel, ...],
        sources: Sequence[_Source],
        cuda: int,
    ) -> Release:
        first = cores[0]
        details = [_details(*each, cuda) for each in zip(cores, sources, strict=True)]
        return Release(
            project=first.name.project,
            version=first.name.version,
            build_id=first.build_id,
            interface_hash=first.interface_hash,
            wheels=wheels,
            split=SplitDetails(
                sources=tuple(each.sources[0] for each in details),
                needs={str(one): names for one, names in first.pack_plan.needs.items()},
                libraries=tuple(one for each in details for one in each.libraries),
                unmoved=tuple(one for each in details for one in each.unmoved),
                notes=tuple(note for each in details for note in each.notes),
            ),
        )


def _details(core: Core, source: _Source, cuda: int) -> SplitDetails:
    """Return the part of a report that is about one core.

    Args:
        cuda: the CUDA version of the packs.
    """
    libraries = tuple(
        SplitLibrary(
            name=part.name,
            size_before=part.sizes[0],
            size_after=part.sizes[1],
            containers=len(part.moved),
            notes=part.notes,
            core=core.file,
        )
        for part in core.libraries
    )
    of_libraries = (code for part in core.libraries for code in part.unmoved.result())
    unmoved = (*of_libraries, *source.unmoved)
    own = SplitSource(
        core=core.file,
        file=core.source.path,
        size=source.wheel.path.stat().st_size,
        sha256=core.source.sha256,
    )
    rows = (row for part in core.libraries for row in part.rows)
    notes = (*source.wheel.info.notes, *stored_notes(core.stored, rows, cuda))
    return SplitDetails(
        sources=(own,),
        libraries=libraries,
        unmoved=tuple(replace(one, core=core.file) for one in unmoved),
        notes=tuple(f"{core.file}: {note}" for note in notes),
    )


def _refuse_other_split(out: Path, cores: Sequence[Core]) -> None:
    """Refuse an output folder with another split or with other cores.

    Raises:
        OutputError: the folder has one; packs of the same images are no reason to mix them.
    """
    refuse_other_release(out, cores[0].build_id)
    earlier = find_report(out)
    names = {core.file for core in cores}
    others = () if earlier is None else [one.file for one in earlier.cores if one.file not in names]
    if others:
        raise OutputError(
            f"{out} has {', '.join(others)} of the same release",
            hint="split all wheels of a release at once, or `archsplit gather` the folders",
        )
