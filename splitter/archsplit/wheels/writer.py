"""Write wheels whose bytes depend only on their contents.

In: a `WheelPlan`. Out: the file. Members are sorted, the wheel's own folder is last and RECORD at
the very end; times come from an epoch in UTC; modes, the host system and the deflate level are
fixed. So only libdeflate can change the bytes, and its release is pinned; `archsplit.wheels.diff`
tells wheels of another libdeflate from wheels with other contents.
"""

from __future__ import annotations

import contextlib
import stat
import time
import zipfile
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO

from archsplit.errors import WheelError
from archsplit.system.env import ZIP_EPOCH
from archsplit.system.fs import atomic_replace
from archsplit.system.parallel import ThreadPool
from archsplit.wheels import metadata, record
from archsplit.wheels.metadata import WheelInfo
from archsplit.wheels.record import WheelMember, duplicate_names
from archsplit.wheels.zip_writer import ArchiveWriter, HashingReader, ParallelDeflater

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from archsplit.wheels.filename import WheelName
    from archsplit.wheels.metadata import CoreMetadata
    from archsplit.wheels.zip_writer import DeflatePiece

__pure__ = True

DEFAULT_LEVEL = 6
"""Level of libdeflate: no larger than zlib's output at its default level, also 6."""

LATEST_ZIP_TIME = 4354819198
"""2107-12-31 23:59:58 UTC, the latest time of a zip member (APPNOTE 4.4.6)."""

_UNIX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelPlan:
    """A wheel to be written; METADATA, WHEEL, RECORD and the license folder follow.

    Attributes:
        name: the file name.
        metadata: of the same release as ``name``.
        generator: the writing program and its version, such as ``archsplit 1.0``.
        members: the installed files.
        licenses: the files of ``metadata.license_files``, under these names.
        sboms: bills of materials (PEP 770).
        purelib: True if no member is compiled.
        entry_points: the text of ``entry_points.txt``, or "".
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
        """Content of WHEEL."""
        return WheelInfo(
            generator=self.generator,
            tags=self.name.tags,
            purelib=self.purelib,
            build=self.name.build,
        )

    def contents(self) -> tuple[WheelMember, ...]:
        """Return all members but RECORD, in the archive's order."""
        dist_info = f"{self.name.dist_info}/"
        # RECORD isn't among them: it has the digests of all others.
        texts = {"METADATA": metadata.encode_metadata(self.metadata), "WHEEL": self.info.encode()}
        if self.entry_points:
            texts["entry_points.txt"] = self.entry_points.encode()
        return (
            # Sorted, because a folder's order on disk differs between machines.
            *_sort_by_name(self.members),
            *_sort_by_name(
                [
                    *(
                        WheelMember(name=dist_info + name, content=text)
                        for name, text in texts.items()
                    ),
                    *(
                        replace(file, name=f"{dist_info}licenses/{file.name}")
                        for file in self.licenses
                    ),
                    *(replace(file, name=f"{dist_info}sboms/{file.name}") for file in self.sboms),
                ]
            ),
        )

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


def write_wheel(
    folder: Path,
    plan: WheelPlan,
    *,
    epoch: int,
    level: int = DEFAULT_LEVEL,
    deflater: ParallelDeflater | None = None,
) -> Path:
    """Write a wheel into ``folder``, completely or not at all.

    Args:
        folder: the output folder; it must exist.
        plan: the wheel.
        epoch: time of all members in seconds since 1970, brought into a zip's range.
        level: of libdeflate, 1 to 12; 0 stores.
        deflater: shared by several wheels; None makes one for this wheel.

    Returns:
        The path of the wheel.

    Raises:
        InputError: the file of a member can't be read, or changes meanwhile.
        OutputError: the folder can't be written.
    """
    path = folder / str(plan.name)
    with contextlib.ExitStack() as stack:
        shared = deflater or stack.enter_context(contextlib.closing(ParallelDeflater()))
        temporary = stack.enter_context(atomic_replace(path))
        # The name appears when the last byte is written.
        with temporary.open("wb") as file:
            write_archive(file, plan, epoch=epoch, level=level, deflater=shared)
    return path


def write_wheels(
    folder: Path,
    plans: Sequence[WheelPlan],
    *,
    epoch: int,
    level: int = DEFAULT_LEVEL,
    threads: int | None = None,
    on_written: Callable[[Path, float], None] | None = None,
) -> tuple[Path, ...]:
    """Write wheels on all cores; see `write_wheel`.

    Args:
        threads: number of cores; None for all.
        on_written: called with the path and the seconds of each wheel, from any thread.
    """

    def write(plan: WheelPlan) -> Path:
        started = time.monotonic()
        path = write_wheel(folder, plan, epoch=epoch, level=level, deflater=deflater)
        if on_written is not None:
            on_written(path, time.monotonic() - started)
        return path

    # Two at a time: while the last pieces of a wheel are packed, the next wheel begins.
    with (
        ThreadPool(2) as writers,
        contextlib.closing(ParallelDeflater(threads)) as deflater,
    ):
        return tuple(future.result() for future in [writers.submit(write, plan) for plan in plans])


def write_archive(
    file: BinaryIO, plan: WheelPlan, *, epoch: int, level: int, deflater: ParallelDeflater
) -> None:
    """Write the bytes of a wheel into an open file; see `write_wheel`."""
    output = _WheelOutput(
        archive=ArchiveWriter(file),
        timestamp=min(max(epoch, ZIP_EPOCH), LATEST_ZIP_TIME),
        level=level,
        deflater=deflater,
    )
    # In two steps: the rows are known when all other members are packed.
    rows = output.add(plan.contents())
    name = f"{plan.name.dist_info}/RECORD"
    text = record.encode_record([*rows, record.RecordRow(path=name)])
    output.add([WheelMember(name=name, content=text)])
    output.archive.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _WheelOutput:
    """An unfinished archive, with the settings of its members."""

    archive: ArchiveWriter
    timestamp: int
    level: int
    deflater: ParallelDeflater

    def add(self, members: Sequence[WheelMember]) -> list[record.RecordRow]:
        """Write members, packed in parallel; return their rows of RECORD."""
        readers = [
            HashingReader(member.content, where=f"the file for {member.name}") for member in members
        ]
        pieces = (piece for number, one in enumerate(readers) for piece in one.pieces(number))
        current = -1
        # Pieces come back in the order of the members, whichever thread was first.
        for piece, content in self._pack(pieces):
            if current < piece.owner:
                current = piece.owner
                self.archive.begin(self._header(members[current], readers[current].size))
            self.archive.extend(content)
            if piece.is_last:
                self.archive.end(readers[current].crc)
        return [
            record.RecordRow(path=member.name, digest=reader.digest, size=reader.size)
            for member, reader in zip(members, readers, strict=True)
        ]

    def _pack(
        self, pieces: Iterator[DeflatePiece]
    ) -> Iterator[tuple[DeflatePiece, bytes | bytearray]]:
        # Level 0 stores: for archives that only a tool on this machine reads.
        if self.level:
            return self.deflater.pack(pieces, self.level)
        return ((piece, piece.content) for piece in pieces)

    def _header(self, member: WheelMember, size: int) -> zipfile.ZipInfo:
        year, month, day, hour, minute, second = time.gmtime(self.timestamp)[:6]
        info = zipfile.ZipInfo(member.name, (year, month, day, hour, minute, second))
        # Fixed, because the value decides how installers read the mode.
        info.create_system = _UNIX
        info.external_attr = (stat.S_IFREG | member.mode) << 16
        info.compress_type = zipfile.ZIP_DEFLATED if self.level else zipfile.ZIP_STORED
        # Written again when the member is complete.
        info.CRC = info.compress_size = 0
        info.file_size = size
        return info


def _sort_by_name(members: Iterable[WheelMember]) -> list[WheelMember]:
    return sorted(members, key=lambda member: member.name)
