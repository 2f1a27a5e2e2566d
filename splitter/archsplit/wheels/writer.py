"""Write wheels whose bytes depend only on their contents.

In: a `WheelDraft`. Out: the file. Members are sorted, the wheel's own folder is last and RECORD at
the very end; times come from an epoch in UTC; modes, the host system and the deflate level are
fixed. So only libdeflate can change the bytes, and its release is pinned; `archsplit.wheels.diff`
tells wheels of another libdeflate from wheels with other contents.

Builds and splits write all new wheels this way. `archsplit.wheels.rewrite` changes an old wheel.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from archsplit import __version__
from archsplit.errors import WheelError
from archsplit.system.env import ZIP_EPOCH
from archsplit.system.fs import atomic_replace
from archsplit.system.parallel import ThreadPool
from archsplit.wheels import metadata
from archsplit.wheels.metadata import WheelInfo
from archsplit.wheels.record import FILE_MODE, PROGRAM_MODE, duplicate_names, member_fault
from archsplit.wheels.rewrite import write_members
from archsplit.wheels.zip_writer import PackedContent, ParallelDeflater, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from archsplit.wheels.filename import WheelName
    from archsplit.wheels.metadata import CoreMetadata

__pure__ = True

GENERATOR = f"archsplit {__version__}"
"""Program that writes wheels here, as their WHEEL file names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelMember:
    """A file of a wheel.

    Attributes:
        name: the path relative to site-packages, with "/".
        content: the bytes, packed or not, or the file that has them, which is packed in pieces.
        mode: permissions. A shared library needs no execute bit: ld.so asks for none, and a wheel
            that sets it on libraries in some builds and not in others can't be reproduced.
    """

    name: str
    content: bytes | Path | PackedContent = field(repr=False)
    mode: int = FILE_MODE

    def __post_init__(self) -> None:
        fault = member_fault(self.name)
        if fault is not None:
            # Refused when the plan is made, before anything is compressed.
            raise WheelError(f"{self.name!r} can't be a member of a wheel: {fault}")
        # Any other mode would be the umask of a build machine.
        if self.mode not in {FILE_MODE, PROGRAM_MODE}:
            raise WheelError(f"{self.name!r} has mode {self.mode:o}, neither 644 nor 755")


def wheel_members(contents: Mapping[str, bytes | Path]) -> tuple[WheelMember, ...]:
    """Return members of these contents by their names, without programs."""
    return tuple(WheelMember(name=name, content=one) for name, one in contents.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelDraft:
    """A wheel to be written; METADATA, WHEEL, RECORD and the license folder follow.

    Attributes:
        name: the file name.
        metadata: of the same release as ``name``.
        generator: the writing program and its version.
        members: the installed files.
        licenses: the files of ``metadata.license_files``, under these names.
        sboms: bills of materials (PEP 770).
        purelib: True if no member is compiled.
        entry_points: the text of ``entry_points.txt``, or "".
    """

    name: WheelName
    metadata: CoreMetadata
    generator: str = GENERATOR
    members: tuple[WheelMember, ...] = ()
    licenses: tuple[WheelMember, ...] = ()
    sboms: tuple[WheelMember, ...] = ()
    purelib: bool = False
    entry_points: str = ""

    def __post_init__(self) -> None:
        findings = list(self._findings())
        if findings:
            raise WheelError("\n".join([f"{self.name} can't be written:", *findings]))

    def contents(self) -> tuple[WheelMember, ...]:
        """Return all members but RECORD, in the archive's order."""
        dist_info = f"{self.name.dist_info}/"
        # RECORD isn't among them: it has the digests of all others.
        info = WheelInfo(
            generator=self.generator,
            tags=self.name.tags,
            purelib=self.purelib,
            build=self.name.build,
        )
        texts = {"METADATA": metadata.encode_metadata(self.metadata), "WHEEL": info.encode()}
        if self.entry_points:
            texts["entry_points.txt"] = self.entry_points.encode()
        own = [*wheel_members({dist_info + name: text for name, text in texts.items()})]
        for folder, files in (("licenses", self.licenses), ("sboms", self.sboms)):
            own += (replace(file, name=f"{dist_info}{folder}/{file.name}") for file in files)
        # Sorted, because a folder's order on disk differs between machines.
        return (*_sort_by_name(self.members), *_sort_by_name(own))

    def _findings(self) -> Iterator[str]:
        # The index refuses an upload whose METADATA and file name differ.
        if not self.name.is_release(self.metadata.name, self.metadata.version):
            yield f"its metadata is of {self.metadata.name} {self.metadata.version}"
        if sorted(file.name for file in self.licenses) != sorted(self.metadata.license_files):
            yield "its license files differ from License-File in its metadata"
        for member in self.members:
            # Installers refuse a wheel with two such folders.
            if member.name.partition("/")[0].endswith(".dist-info"):
                yield f"{member.name}: a .dist-info folder may have only METADATA, WHEEL and RECORD"
        yield from duplicate_names(member.name for member in self.contents())

    def write(
        self, file: BinaryIO, *, epoch: int = ZIP_EPOCH, deflater: ParallelDeflater | None = None
    ) -> None:
        """Write the bytes of the wheel into an open file; see `write_wheel`."""
        members = self.contents()
        packed = {
            one.name: one.content
            if isinstance(one.content, PackedContent)
            else pack(one.content, deflater)
            for one in members
        }
        programs = {one.name for one in members if one.mode == PROGRAM_MODE}
        write_members(file, self.name, packed, programs=programs, epoch=epoch)


def write_wheel(
    folder: Path, draft: WheelDraft, *, epoch: int, deflater: ParallelDeflater | None = None
) -> Path:
    """Write a wheel into ``folder``, completely or not at all.

    Args:
        folder: the output folder; it must exist.
        epoch: time of all members in seconds since 1970, brought into a zip's range.
        deflater: shared by several wheels; None makes one for this wheel.

    Returns:
        The path of the wheel.

    Raises:
        InputError: the file of a member can't be read, or changes meanwhile.
        OutputError: the folder can't be written.
    """
    path = folder / str(draft.name)
    # The name appears when the last byte is written.
    with atomic_replace(path) as temporary, temporary.open("wb") as file:
        draft.write(file, epoch=epoch, deflater=deflater)
    return path


def write_wheels(
    folder: Path,
    drafts: Sequence[WheelDraft],
    *,
    epoch: int,
    threads: int | None = None,
    on_written: Callable[[Path, float], None] | None = None,
) -> tuple[Path, ...]:
    """Write wheels on all cores; see `write_wheel`.

    Args:
        threads: number of cores; None for all.
        on_written: called with the path and the seconds of each wheel, from any thread.
    """

    def write(draft: WheelDraft) -> Path:
        started = time.monotonic()
        path = write_wheel(folder, draft, epoch=epoch, deflater=deflater)
        if on_written is not None:
            on_written(path, time.monotonic() - started)
        return path

    # Two at a time: while the last pieces of a wheel are packed, the next wheel begins.
    with (
        ThreadPool(2) as writers,
        contextlib.closing(ParallelDeflater(threads)) as deflater,
    ):
        return tuple(future.result() for future in [writers.submit(write, one) for one in drafts])


def _sort_by_name(members: Iterable[WheelMember]) -> list[WheelMember]:
    return sorted(members, key=lambda member: member.name)
