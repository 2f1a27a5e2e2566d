"""Jobs that write the wheels of a split, several at a time.

In: the plan of a release, and libraries that are still being packed. Out: a row of the report for
each wheel. Packs and cores are packed at the same time, by the same threads; each wheel is read
again, for the check of the release, as soon as it is written.
"""

from __future__ import annotations

import hashlib
import io
import os
import time
from concurrent.futures import FIRST_EXCEPTION, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from archsplit.release.report import Plugin, ReleaseWheel, Role
from archsplit.split.model import InstallDefaults
from archsplit.split.output_wheels import ImageSpace, PackWriter, meta_draft, write_core
from archsplit.system.fs import output_errors
from archsplit.system.parallel import BlockSinks, ThreadPool
from archsplit.system.resources import available_cores
from archsplit.system.units import BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Future
    from pathlib import Path

    from _typeshed import ReadableBuffer

    from archsplit.devicecode.partition import PackFile
    from archsplit.release.wheel_set import WheelReads
    from archsplit.split.model import Core
    from archsplit.system.terminal import ProgressSink
    from archsplit.wheels.zip_writer import ParallelDeflater

_MANY_WORKERS, _MANY_CORES = 4, 8
"""Wheels written at a time, on a machine where two would leave most cores idle."""


@contextmanager
def wheel_workers() -> Iterator[ThreadPool]:
    """Yield a pool of two or four threads; after an error its waiting jobs are dropped."""
    # Each pack is unpacked beside the others, so more workers take more space.
    with ThreadPool(_MANY_WORKERS if available_cores() >= _MANY_CORES else 2) as workers:
        try:
            yield workers
        except BaseException:
            # Jobs that wait are dropped; the pool's own exit would run them all first.
            workers.shutdown(wait=False, cancel_futures=True)
            raise


class HashedFile(io.BufferedWriter):
    """A new file, written and hashed by threads, while the next block is made."""

    def __init__(self, file: io.FileIO) -> None:
        self._small = bytearray()
        self._size = 0
        self._digest = hashlib.sha256()
        self._sinks = BlockSinks(self._digest.update, super().write)
        # Last: after Ctrl-C before it, Python doesn't close what has no threads yet.
        super().__init__(file)

    def write(self, content: ReadableBuffer, /) -> int:
        """Begin to write and hash; the content must stay as it is."""
        view = memoryview(content)
        self._size += view.nbytes
        # A wheel has thousands of headers: threads for each of them would take longer.
        if view.nbytes < BLOCK:
            self._small += view
        else:
            self._write_small()
            self._sinks.feed(view)
        if len(self._small) >= BLOCK:
            self._write_small()
        return view.nbytes

    def _write_small(self) -> None:
        if self._small:
            self._sinks.feed(self._small)
            self._small = bytearray()

    def tell(self) -> int:
        """Return the bytes that were given to `write`."""
        return self._size

    def seek(self, target: int, whence: int = os.SEEK_SET, /) -> int:
        """Stay at the end."""
        # What was written stays, or the hash would describe another file.
        if (target, whence) != (self.tell(), os.SEEK_SET):
            raise io.UnsupportedOperation("the file is written from its beginning to its end")
        return target

    def flush(self) -> None:
        """Write all that was given to `write`."""
        self._write_small()
        self._sinks.wait()
        super().flush()

    def close(self) -> None:
        """Flush and close the file."""
        try:
            super().close()
        finally:
            self._sinks.close()

    def sha256(self) -> str:
        """Return the SHA-256 of the closed file, as hexadecimal digits."""
        return self._digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelJobs:
    """The jobs that write the wheels of one release.

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
        number = len(self.writer.cores) + len(contents.files)
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
        # Otherwise the core itself names all packs: in extras, or as requirements.
        if self.writer.core.install is InstallDefaults.META:
            wheels.append(self._write_meta())
        return (*wheels, *(job.result() for job in packs))

    def _write_core(
        self,
        core: Core,
        loaders: Mapping[str, Future[tuple[Path, Path]]],
    ) -> ReleaseWheel:
        path, began = self.staging / core.file, time.monotonic()
        loader, stub = loaders[core.machine].result()
        with output_errors(path), HashedFile(io.FileIO(path, "w")) as file:
            write_core(file, core, loader=loader, stub=stub)
        self.progress.finish_step(path.name, time.monotonic() - began)
        return self._finish(path, file.sha256(), role="core", distribution=core.name.project)

    def _write_pack(self, file: PackFile, space: ImageSpace) -> ReleaseWheel:
        writer, contents = self.writer, file.pack
        path, began = self.staging / str(writer.name(file)), time.monotonic()
        packed = writer.pack_images(file, self.deflater)
        with output_errors(path), HashedFile(io.FileIO(path, "w")) as stream:
            # Before the wheel takes space.
            space.release(contents)
            writer.draft(file, packed).write(stream, deflater=self.deflater)
        targets = {
            str(image.target)
            for library in writer.libraries(file)
            for container in library.containers
            for image in container.images
        }
        self.progress.finish_step(path.name, time.monotonic() - began)
        distribution = writer.core.distribution(contents.name)
        return replace(
            self._finish(path, stream.sha256(), role="plugin", distribution=distribution),
            plugin=Plugin(
                kind="pack",
                name=contents.name,
                targets=tuple(sorted(targets)),
                serves=tuple(map(str, contents.serves)),
            ),
        )

    def _write_meta(self) -> ReleaseWheel:
        draft = meta_draft(self.writer.core, self.writer.generator)
        path = self.staging / str(draft.name)
        with output_errors(path), HashedFile(io.FileIO(path, "w")) as file:
            draft.write(file, deflater=self.deflater)
        return self._finish(path, file.sha256(), role="meta", distribution=draft.name.project)

    def _finish(self, path: Path, digest: str, *, role: Role, distribution: str) -> ReleaseWheel:
        """Begin to check a written wheel; return its row of the report."""
        # Its packs are unpacked beside the images, which only then are in memory.
        if not self.is_memory_short:
            self.reads.begin(path)
        return ReleaseWheel(
            file=path.name,
            size=path.stat().st_size,
            sha256=digest,
            role=role,
            distribution=distribution,
        )
