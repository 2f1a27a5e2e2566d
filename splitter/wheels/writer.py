"""Write wheels whose bytes depend on what is in them and on nothing else.

Members are sorted, the wheel's own folder last and RECORD at the very end; times come from an epoch
in UTC; modes, the host system and the deflate level are fixed. What is left is zlib: another
release of it, or zlib-ng under its name, may pack the same bytes into others. So the zlib in use
(`zlib.ZLIB_RUNTIME_VERSION`) is part of the toolchain, like nvcc; `difference` tells such wheels
from those that differ in content.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import stat
import time
import zipfile
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO

from splitter.errors import InputError, WheelError
from splitter.system.epoch import ZIP_EPOCH
from splitter.system.files import reading, replacing
from splitter.wheels import metadata, record
from splitter.wheels.info import WheelInfo
from splitter.wheels.member import Member, colliding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from splitter.wheels.metadata import CoreMetadata
    from splitter.wheels.names import WheelName

DEFAULT_LEVEL = 6
"""zlib's own default, by its number, because forks of zlib may have another default."""

LAST_MOMENT = 4354819198
"""2107-12-31 23:59:58 UTC: the latest time that a zip member can carry (APPNOTE 4.4.6)."""

_UNIX = 3
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelPlan:
    """A wheel that can be written; METADATA, WHEEL, RECORD and the place of the licences follow.

    Attributes:
        name: of the file.
        metadata: of the same release as ``name``.
        generator: the program that makes it and its version, such as ``archsplit 1.0``.
        members: what installs.
        licenses: the files that ``metadata.license_files`` names, under those names.
        purelib: whether nothing in it is compiled.
    """

    name: WheelName
    metadata: CoreMetadata
    generator: str
    members: tuple[Member, ...]
    licenses: tuple[Member, ...] = ()
    purelib: bool = False

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

    def contents(self) -> tuple[Member, ...]:
        """All members but RECORD, in the archive's order."""
        own = f"{self.name.dist_info}/"
        texts = {"METADATA": metadata.encode(self.metadata), "WHEEL": self.info.encode()}
        return (
            *_sorted(self.members),
            *_sorted(
                [
                    *(Member(name=own + name, content=text) for name, text in texts.items()),
                    *(replace(file, name=f"{own}licenses/{file.name}") for file in self.licenses),
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
        yield from colliding(member.name for member in self.contents())


def write_wheel(folder: Path, plan: WheelPlan, *, epoch: int, level: int = DEFAULT_LEVEL) -> Path:
    """Write a wheel into ``folder``, whole or not at all.

    Args:
        folder: where; it must exist.
        plan: what.
        epoch: seconds since 1970 that every member carries, brought into a zip's range.
        level: of deflate, 1 to 9; 0 stores.

    Returns:
        The wheel's path.

    Raises:
        InputError: a member's file can't be read, or changes meanwhile.
        OutputError: the folder can't be written.
    """
    path = folder / str(plan.name)
    with replacing(path) as temporary, temporary.open("wb") as file:
        write_archive(file, plan, epoch=epoch, level=level)
    return path


def write_archive(file: BinaryIO, plan: WheelPlan, *, epoch: int, level: int) -> None:
    """Write a wheel's bytes into an open file; see `write_wheel`."""
    moment = min(max(epoch, ZIP_EPOCH), LAST_MOMENT)
    with zipfile.ZipFile(file, "w") as archive:
        rows = [_add(archive, member, moment, level) for member in plan.contents()]
        name = f"{plan.name.dist_info}/RECORD"
        text = record.encode([*rows, record.Entry(path=name)])
        _add(archive, Member(name=name, content=text), moment, level)


def _add(archive: zipfile.ZipFile, member: Member, moment: int, level: int) -> record.Entry:
    info = _header(member, moment, level)
    declared, size, digest = info.file_size, 0, hashlib.sha256()
    with archive.open(info, "w") as stream:
        for block in _blocks(member.content, declared):
            stream.write(block)
            digest.update(block)
            size += len(block)
    if size != declared:
        raise InputError(f"the file for {member.name} changed while it was packed")
    return record.Entry(path=member.name, digest=digest.digest(), size=size)


def _header(member: Member, moment: int, level: int) -> zipfile.ZipInfo:
    year, month, day, hour, minute, second = time.gmtime(moment)[:6]
    info = zipfile.ZipInfo(member.name, (year, month, day, hour, minute, second))
    info.create_system = _UNIX
    info.external_attr = (stat.S_IFREG | member.mode) << 16
    info.compress_type = zipfile.ZIP_DEFLATED if level else zipfile.ZIP_STORED
    # The attribute is public from Python 3.13 on, as compress_level; this name still works there.
    info._compresslevel = level  # type: ignore[attr-defined]  # noqa: SLF001
    info.file_size = _size(member.content)  # tells zipfile whether the header needs Zip64
    return info


def _size(content: bytes | Path) -> int:
    if isinstance(content, bytes):
        return len(content)
    with reading(content):
        return content.stat().st_size


def _blocks(content: bytes | Path, size: int) -> Iterator[bytes]:
    """Give the content in pieces, and of a file that has grown no more than one byte too many."""
    with _opened(content) as file:
        for start in range(0, size + 1, _BLOCK):
            yield file.read(min(_BLOCK, size + 1 - start))


@contextlib.contextmanager
def _opened(content: bytes | Path) -> Iterator[BinaryIO]:
    if isinstance(content, bytes):
        yield io.BytesIO(content)
    else:
        with reading(content), content.open("rb") as file:
            yield file


def _sorted(members: Iterable[Member]) -> list[Member]:
    return sorted(members, key=lambda member: member.name)
