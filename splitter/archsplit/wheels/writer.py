"""Write wheels whose bytes depend on what is in them and on nothing else.

Members are sorted, the wheel's own folder last and RECORD at the very end; times come from an epoch
in UTC; modes, the host system and the deflate level are fixed. What is left is libdeflate, whose
release is pinned; `difference` tells wheels that another one packed from those that differ in
content.
"""

from __future__ import annotations

import contextlib
import stat
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO

from archsplit.errors import WheelError
from archsplit.system.env import ZIP_EPOCH
from archsplit.system.fs import atomic_replace
from archsplit.wheels import metadata, record
from archsplit.wheels.member_names import WheelMember, duplicate_names
from archsplit.wheels.metadata import WheelInfo
from archsplit.wheels.zip_writer import ArchiveWriter, HashingReader, ParallelDeflater

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from archsplit.wheels.filename import WheelName
    from archsplit.wheels.metadata import CoreMetadata
    from archsplit.wheels.zip_writer import DeflatePiece

__pure__ = True

DEFAULT_LEVEL = 6
"""Of libdeflate: no larger than what zlib makes at its default level, also 6."""

LATEST_ZIP_TIME = 4354819198
"""2107-12-31 23:59:58 UTC: the latest time that a zip member can carry (APPNOTE 4.4.6)."""

_UNIX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelPlan:
    """A wheel that can be written; METADATA, WHEEL, RECORD and the place of the licences follow.

    Attributes:
        name: of the file.
        metadata: of the same release as ``name``.
        generator: the program that makes it and its version, such as ``archsplit 1.0``.
        members: what installs.
        licenses: the files that ``metadata.license_files`` names, under those names.
        sboms: bills of materials (PEP 770).
        purelib: whether nothing in it is compiled.
        entry_points: the text of ``entry_points.txt``, or nothing.
    """

    name: WheelName
    metadata: CoreMetadata
    generator: str
    members: tuple[WheelMember, ...]
    licenses: tuple[WheelMember, ...] = ()
    sboms: tuple[WheelMember, ...] = ()
    purelib: bool = False
    entry_points: str = ""

    def __post_init__(self) -> None:
        findings = list(self._findings())
        if findings:
            raise WheelError("\n".join([f"{self.name} can't be written:", *findings]))

    @property
    def info(self) -> WheelInfo:
        """What WHEEL says."""
        return WheelInfo(
            generator=self.generator,
            tags=self.name.tags,
            purelib=self.purelib,
            build=self.name.build,
        )

    def contents(self) -> tuple[WheelMember, ...]:
        """All members but RECORD, in the archive's order."""
        own = f"{self.name.dist_info}/"
        texts = {"METADATA": metadata.encode_metadata(self.metadata), "WHEEL": self.info.encode()}
        if self.entry_points:
            texts["entry_points.txt"] = self.entry_points.encode()
        return (
            *_sorted(self.members),
            *_sorted(
                [
                    *(WheelMember(name=own + name, content=text) for name, text in texts.items()),
                    *(replace(file, name=f"{own}licenses/{file.name}") for file in self.licenses),
                    *(replace(file, name=f"{own}sboms/{file.name}") for file in self.sboms),
                ]
            ),
        )

    def _findings(self) -> Iterator[str]:
        if not self.name.is_of(self.metadata.name, self.metadata.version):
            yield f"its metadata is of {self.metadata.name} {self.metadata.version}"
        if sorted(file.name for file in self.licenses) != sorted(self.metadata.license_files):
            yield "the licence files are not those that its metadata names"
        for member in self.members:
            if member.name.partition("/")[0].endswith(".dist-info"):
                yield f"{member.name}: lies in a folder that is the installer's"
        yield from duplicate_names(member.name for member in self.contents())


def write_wheel(
    folder: Path,
    plan: WheelPlan,
    *,
    epoch: int,
    level: int = DEFAULT_LEVEL,
    press: ParallelDeflater | None = None,
) -> Path:
    """Write a wheel into ``folder``, whole or not at all.

    Args:
        folder: where; it must exist.
        plan: what.
        epoch: seconds since 1970 that every member carries, brought into a zip's range.
        level: of libdeflate, 1 to 12; 0 stores.
        press: what packs; several wheels may share one. When None it is one for this wheel.

    Returns:
        The wheel's path.

    Raises:
        InputError: a member's file can't be read, or changes meanwhile.
        OutputError: the folder can't be written.
    """
    path = folder / str(plan.name)
    with contextlib.ExitStack() as stack:
        shared = press or stack.enter_context(contextlib.closing(ParallelDeflater()))
        temporary = stack.enter_context(atomic_replace(path))
        with temporary.open("wb") as file:
            write_archive(file, plan, epoch=epoch, level=level, press=shared)
    return path


def write_wheels(
    folder: Path,
    plans: Sequence[WheelPlan],
    *,
    epoch: int,
    level: int = DEFAULT_LEVEL,
    threads: int | None = None,
    written: Callable[[Path, float], None] | None = None,
) -> tuple[Path, ...]:
    """Write some wheels on all cores; see `write_wheel`.

    Args:
        threads: how many cores to use; all that there are, when None.
        written: is told of each wheel and the seconds it took, from any thread.
    """

    def write(plan: WheelPlan) -> Path:
        started = time.monotonic()
        path = write_wheel(folder, plan, epoch=epoch, level=level, press=press)
        if written is not None:
            written(path, time.monotonic() - started)
        return path

    # While the last pieces of one are packed, the next one is begun.
    with ThreadPoolExecutor(2) as writers, contextlib.closing(ParallelDeflater(threads)) as press:
        return tuple(future.result() for future in [writers.submit(write, one) for one in plans])


def write_archive(
    file: BinaryIO, plan: WheelPlan, *, epoch: int, level: int, press: ParallelDeflater
) -> None:
    """Write a wheel's bytes into an open file; see `write_wheel`."""
    writing = _Writing(
        archive=ArchiveWriter(file),
        moment=min(max(epoch, ZIP_EPOCH), LATEST_ZIP_TIME),
        level=level,
        press=press,
    )
    rows = writing.add(plan.contents())
    name = f"{plan.name.dist_info}/RECORD"
    text = record.encode_record([*rows, record.RecordRow(path=name)])
    writing.add([WheelMember(name=name, content=text)])
    writing.archive.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writing:
    """An archive that is being written."""

    archive: ArchiveWriter
    moment: int
    level: int
    press: ParallelDeflater

    def add(self, members: Sequence[WheelMember]) -> list[record.RecordRow]:
        """Write some members; they are packed side by side."""
        taken = [
            HashingReader(member.content, where=f"the file for {member.name}") for member in members
        ]
        pieces = (piece for number, one in enumerate(taken) for piece in one.pieces(number))
        begun = -1
        for piece, content in self._packed(pieces):
            if begun < piece.owner:
                begun = piece.owner
                self.archive.begin(self._header(members[begun], taken[begun].size))
            self.archive.extend(content)
            if piece.is_last:
                self.archive.end(taken[begun].crc)
        return [
            record.RecordRow(path=member.name, digest=one.digest, size=one.size)
            for member, one in zip(members, taken, strict=True)
        ]

    def _packed(
        self, pieces: Iterator[DeflatePiece]
    ) -> Iterator[tuple[DeflatePiece, bytes | bytearray]]:
        if self.level:
            return self.press.packed(pieces, self.level)
        return ((piece, piece.content) for piece in pieces)

    def _header(self, member: WheelMember, size: int) -> zipfile.ZipInfo:
        year, month, day, hour, minute, second = time.gmtime(self.moment)[:6]
        info = zipfile.ZipInfo(member.name, (year, month, day, hour, minute, second))
        info.create_system = _UNIX
        info.external_attr = (stat.S_IFREG | member.mode) << 16
        info.compress_type = zipfile.ZIP_DEFLATED if self.level else zipfile.ZIP_STORED
        info.CRC = info.compress_size = 0
        info.file_size = size
        return info


def _sorted(members: Iterable[WheelMember]) -> list[WheelMember]:
    return sorted(members, key=lambda member: member.name)
