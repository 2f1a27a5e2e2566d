"""Write all wheels of a split, two files at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from archsplit.release.request import InstallDefaults
from archsplit.release.split_report import SplitWheel
from archsplit.split.meta import meta_name, write_meta
from archsplit.system.fs import output_errors, sha256
from archsplit.wheels.zip_writer import packed_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from archsplit.devicecode.partition import PackContents
    from archsplit.split.pack_wheel import PackWriter
    from archsplit.system.process import Runner


@contextmanager
def two_workers(runner: Runner) -> Iterator[ThreadPoolExecutor]:
    """Two threads; what has not begun is dropped when something goes wrong.

    Args:
        runner: what they have it run is ended after Ctrl-C.
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
    """Writes the wheels of one core.

    Attributes:
        scratch: a folder for what is gone afterwards.
        finished: the folder for the wheels.
    """

    packer: PackWriter
    scratch: Path
    finished: Path
    workers: ThreadPoolExecutor = field(repr=False)

    def wheels(self, tools: Future[tuple[Path, Path]]) -> tuple[SplitWheel, ...]:
        """Write them all; ``tools`` will be the loader, and what stubs are made from."""
        core, submit = self.packer.core, self.workers.submit
        # Packing leaves the interpreter to others.
        libraries = {part.member: submit(packed_file, part.path) for part in core.parts}
        packs = [submit(self._pack, share) for share in core.shares.packs]
        path = self.finished / str(core.name)
        contents = {name: job.result() for name, job in libraries.items()}
        loader, stub = tools.result()
        with output_errors(path), path.open("wb") as file:
            core.write(file, contents, loader=loader, stub=stub)
        wheels = [_written(path, role="core", distribution=core.name.project)]
        if core.install is InstallDefaults.META:
            wheels.append(self._meta())
        return (*wheels, *(job.result() for job in packs))

    def _pack(self, share: PackContents) -> SplitWheel:
        packer = self.packer
        pack = self.scratch / f"{share.name}.pack"
        path = self.finished / str(packer.name(share))
        with output_errors(pack):
            packer.write_pack(share, pack)
        with output_errors(path), path.open("wb") as file:
            packer.write_wheel(file, share, pack)
        images = [
            image
            for library in packer.libraries(share)
            for container in library.containers
            for image in container.images
        ]
        pack.unlink()
        return replace(
            _written(path, role="pack", distribution=packer.core.distribution(share.name)),
            pack=share.name,
            serves=tuple(map(str, share.serves)),
            images=len(images),
            image_bytes=sum(image.size for image in images),
        )

    def _meta(self) -> SplitWheel:
        name = meta_name(self.packer.core.name)
        path = self.finished / str(name)
        with output_errors(path), path.open("wb") as file:
            write_meta(file, self.packer.core, self.packer.generator)
        return _written(path, role="meta", distribution=name.project)


def _written(path: Path, *, role: Literal["core", "pack", "meta"], distribution: str) -> SplitWheel:
    return SplitWheel(
        file=path.name,
        size=path.stat().st_size,
        sha256=sha256(path),
        role=role,
        distribution=distribution,
    )
