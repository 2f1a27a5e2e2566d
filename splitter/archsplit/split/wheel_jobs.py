"""Jobs that write the wheels of a split, several at a time.

In: the plan of a release, and libraries that are still being packed. Out: a row of the report for
each wheel. Packs and cores are packed at the same time, by the same threads; each wheel is read
again, for the check of the release, as soon as it is written.
"""

from __future__ import annotations

import time
from concurrent.futures import FIRST_EXCEPTION, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.release.report import Plugin, ReleaseWheel, Role
from archsplit.split.model import InstallDefaults
from archsplit.split.output_wheels import ImageSpace, PackWriter, meta_draft, write_core
from archsplit.system.fs import output_errors, sha256
from archsplit.system.parallel import ThreadPool
from archsplit.system.resources import available_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Future
    from pathlib import Path
    from typing import BinaryIO

    from archsplit.devicecode.partition import PackFile
    from archsplit.release.wheel_set import WheelReads
    from archsplit.split.model import Core
    from archsplit.system.terminal import ProgressSink
    from archsplit.wheels.zip_writer import ParallelDeflater

_MANY_WORKERS, _MANY_CORES = 4, 8
"""Wheels written at a time if two would leave most cores idle."""


@contextmanager
def wheel_workers() -> Iterator[ThreadPool]:
    """Yield a pool of two or four threads; after an error its waiting jobs are dropped."""
    # Packs are unpacked at the same time, so more workers take more space.
    with ThreadPool(_MANY_WORKERS if available_cores() >= _MANY_CORES else 2) as workers:
        try:
            yield workers
        except BaseException:
            # Jobs that wait are dropped; the pool's own exit would run them all first.
            workers.shutdown(wait=False, cancel_futures=True)
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelJobs:
    """Jobs that write the wheels of one release.

    Attributes:
        is_memory_short: True if the unpacked libraries are on the disk.
        staging: the folder for the wheels, private until all are verified.
    """

    writer: PackWriter
    is_memory_short: bool
    deflater: ParallelDeflater = field(repr=False)
    staging: Path
    workers: ThreadPool = field(repr=False)
    reads: WheelReads = field(repr=False)
    progress: ProgressSink = field(repr=False)

    def write(self, loaders: Mapping[str, Future[tuple[Path, Path]]]) -> tuple[ReleaseWheel, ...]:
        """Write all wheels.

        Args:
            loaders: the loader and the stub for each machine.
        """
        submit, contents = self.workers.submit, self.writer.contents
        # Otherwise the core itself names all packs: in extras, or as requirements.
        has_meta = self.writer.core.install is InstallDefaults.META
        number = len(self.writer.cores) + len(contents.files) + has_meta
        self.progress.begin_stage("writing wheels", number, "Wrote {} wheels")
        space = ImageSpace(contents)
        if self.is_memory_short:
            wait(library.packed for core in self.writer.cores for library in core.libraries)
        # The compression releases the GIL.
        packs = [submit(self._write_pack, file, space) for file in contents.files]
        if self.is_memory_short:
            # Packs free the space of their images, and cores free none.
            wait(packs, return_when=FIRST_EXCEPTION)
        wheels = [self._write_core(core, loaders) for core in self.writer.cores]
        if has_meta:
            wheels.append(self._write_meta())
        return (*wheels, *(job.result() for job in packs))

    def _write_core(
        self,
        core: Core,
        loaders: Mapping[str, Future[tuple[Path, Path]]],
    ) -> ReleaseWheel:
        loader, stub = loaders[core.machine].result()
        return self._write(
            core.file,
            lambda file: write_core(file, core, loader=loader, stub=stub),
            role="core",
            distribution=core.name.project,
        )

    def _write_pack(self, file: PackFile, space: ImageSpace) -> ReleaseWheel:
        writer, contents = self.writer, file.pack

        def write(stream: BinaryIO) -> None:
            packed = writer.pack_images(file, self.deflater)
            # Before the wheel takes space.
            space.release(contents)
            writer.draft(file, packed).write(stream, deflater=self.deflater)

        targets = {
            str(image.target)
            for library in writer.libraries(file)
            for container in library.containers
            for image in container.images
        }
        plugin = Plugin(
            kind="pack",
            name=contents.name,
            targets=tuple(sorted(targets)),
            serves=tuple(map(str, contents.serves)),
        )
        distribution = writer.core.distribution(contents.name)
        return self._write(
            str(writer.name(file)), write, role="plugin", distribution=distribution, plugin=plugin
        )

    def _write_meta(self) -> ReleaseWheel:
        draft = meta_draft(self.writer.core)
        return self._write(
            str(draft.name), draft.write, role="meta", distribution=draft.name.project
        )

    def _write(
        self,
        name: str,
        write: Callable[[BinaryIO], None],
        *,
        role: Role,
        distribution: str,
        plugin: Plugin | None = None,
    ) -> ReleaseWheel:
        """Write a wheel, and begin to check it; return its row of the report."""
        path, began = self.staging / name, time.monotonic()
        with output_errors(path), path.open("wb") as file:
            write(file)
        # Its packs are unpacked beside the images, which only then are in memory.
        if not self.is_memory_short:
            self.reads.begin(path)
        self.progress.finish_step(name, time.monotonic() - began)
        return ReleaseWheel(
            file=name,
            size=path.stat().st_size,
            sha256=sha256(path),
            role=role,
            distribution=distribution,
            plugin=plugin,
        )
