"""Write a wheel again with some members changed: everything else stays the bytes that it was.

Write wheels out of what is packed already.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from packaging.version import Version

from archsplit.errors import WheelError
from archsplit.system.fs import hash_stream
from archsplit.wheels import record
from archsplit.wheels.metadata import revised_info
from archsplit.wheels.record import RecordRow
from archsplit.wheels.zip_writer import ArchiveWriter, packed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import BinaryIO

    from archsplit.wheels.filename import WheelName
    from archsplit.wheels.reader import Wheel
    from archsplit.wheels.zip_writer import Packed

__pure__ = True

_RECORD_SIGNATURES = ("RECORD.jws", "RECORD.p7s")
_HEADER_END = re.compile(rb"\r?\n\r?\n")
_VERSION_LINE = re.compile(rb"^Version:.*$", re.MULTILINE | re.IGNORECASE)
_DESCRIPTION = re.compile(rb"^Description:", re.MULTILINE | re.IGNORECASE)


def with_build(name: WheelName, words: str) -> WheelName:
    """The same release under a build tag: installers prefer it to the wheel without one."""
    build = f"{name.build}.{words}" if name.build else f"0{words}"
    return replace(name, build=build)


def with_label(name: WheelName, label: str) -> WheelName:
    """The same release with one more local label: ``3.2.0`` → ``3.2.0+slim.sm90``.

    Raises:
        WheelError: the label can't be part of a version.
    """
    joint = "." if Version(name.version).local else "+"
    try:
        return replace(name, version=str(Version(f"{name.version}{joint}{label}")))
    except ValueError:
        raise WheelError(
            f"{label!r} can't be a local label", hint="letters, digits and dots, as in slim.sm90"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """A wheel with changes.

    Attributes:
        wheel: the old one.
        name: the new one's.
        changed: new contents of members, by their old names.
        note: what was changed, for the project's page.
        added: files for the wheel's own folder, by name.
        believe_record: copy RECORD's rows of what stays; else each is made anew.
    """

    wheel: Wheel
    name: WheelName
    changed: Mapping[str, Packed] = field(repr=False)
    note: str
    added: Mapping[str, bytes] = field(repr=False)
    believe_record: bool = True

    def write(self, file: BinaryIO) -> None:
        """Write the new wheel.

        Raises:
            WheelError: the old one is damaged.
            InputError: it can't be read.
        """
        old = self.wheel.dist_info
        changed = dict(self.changed)
        for name, text in ((f"{old}/METADATA", self._metadata()), (f"{old}/WHEEL", self._info())):
            changed[name] = packed(text)
        added = {f"{self._folder}/{name}": packed(text) for name, text in self.added.items()}
        rows = [*self._rows(changed), *_added_rows(added)]
        changed[f"{old}/RECORD"] = packed(record.encode_record(rows))
        writer = ArchiveWriter(file)
        for name in self._names():
            if name in changed:
                writer.replace(self.wheel.archive, name, self._new(name), changed[name])
            else:
                writer.copy(self.wheel.archive, name, self._new(name))
        for name, content in added.items():
            writer.add(name, content)
        writer.close()

    @property
    def _folder(self) -> str:
        return self._new(self.wheel.dist_info + "/").rstrip("/")

    def _names(self) -> Iterator[str]:
        """What stays; what is signed is another RECORD now, and an old file of ours is replaced."""
        gone = {f"{self.wheel.dist_info}/{name}" for name in (*_RECORD_SIGNATURES, *self.added)}
        return (name for name in self.wheel.names if name not in gone)

    def _new(self, name: str) -> str:
        """The folders of a wheel's own files carry its version."""
        if self.name.version == self.wheel.name.version:
            return name
        own = self.wheel.dist_info.removesuffix(".dist-info")
        stem = own.rpartition("-")[0]
        for suffix in (".dist-info/", ".data/"):
            if name.startswith(own + suffix):
                return f"{stem}-{self.name.version}{suffix}{name[len(own + suffix) :]}"
        return name

    def _rows(self, changed: Mapping[str, Packed]) -> Iterator[RecordRow]:
        for name in self._names():
            row = self.wheel.record.get(name, RecordRow(path=name))
            if name in changed:
                row = RecordRow(path=name, digest=changed[name].digest, size=changed[name].size)
            elif not self.believe_record and name != f"{self.wheel.dist_info}/RECORD":
                row = self._true_row(name)
            yield replace(row, path=self._new(name))

    def _true_row(self, name: str) -> RecordRow:
        with self.wheel.archive.open(RecordRow(path=name)) as stream:
            digest, size = hash_stream(stream)
        return RecordRow(path=name, digest=digest, size=size)

    def _metadata(self) -> bytes:
        text = self.wheel.read(f"{self.wheel.dist_info}/METADATA")
        end = _HEADER_END.search(text)
        head, body = (text, b"") if end is None else (text[: end.start()], text[end.end() :])
        if self.name.version != self.wheel.name.version:
            head = _VERSION_LINE.sub(f"Version: {self.name.version}".encode(), head, count=1)
        if _DESCRIPTION.search(head):
            # Metadata of the old kind: a body would be a second description.
            return head.rstrip() + b"\n" + (b"\n" + body if body else b"")
        body = body.rstrip()
        return (
            head.rstrip() + b"\n\n" + (body + b"\n\n" if body else b"") + self.note.encode() + b"\n"
        )

    def _info(self) -> bytes:
        """WHEEL as it was, with what the file name says."""
        text = self.wheel.read(f"{self.wheel.dist_info}/WHEEL")
        return revised_info(text, tags=self.name.tags, build=self.name.build)


def _added_rows(added: Mapping[str, Packed]) -> Iterator[RecordRow]:
    return (
        RecordRow(path=name, digest=content.digest, size=content.size)
        for name, content in added.items()
    )


_SIGNATURES = ("RECORD", "RECORD.jws", "RECORD.p7s")


def write_revised(
    file: BinaryIO,
    wheel: Wheel,
    name: WheelName,
    changed: Mapping[str, Packed],
    added: Mapping[str, Packed],
) -> None:
    """Write a wheel again, maybe under another name; what doesn't change is copied as it is.

    Args:
        changed: new contents, by the old names of members.
        added: files that it didn't have.

    Raises:
        WheelError: the old one is damaged.
        InputError: it can't be read.
    """
    writer, rows = ArchiveWriter(file), []
    gone = {f"{wheel.dist_info}/{each}" for each in _SIGNATURES}
    for old in wheel.names:
        new = _renamed(old, wheel, name)
        if old in gone:
            continue
        if old in changed:
            writer.replace(wheel.archive, old, new, changed[old])
            rows.append(_row(new, changed[old]))
        else:
            writer.copy(wheel.archive, old, new)
            row = wheel.record[old]
            rows.append(
                RecordRow(path=new, digest=row.digest, size=row.size, algorithm=row.algorithm)
            )
    _finish(writer, name.dist_info, rows, added.items())


def write_members(file: BinaryIO, name: WheelName, members: Mapping[str, Packed]) -> None:
    """Write a wheel with these members, its METADATA and WHEEL among them."""
    _finish(ArchiveWriter(file), name.dist_info, [], members.items())


def _finish(
    writer: ArchiveWriter,
    dist_info: str,
    rows: list[RecordRow],
    members: Iterable[tuple[str, Packed]],
) -> None:
    for name, content in members:
        writer.add(name, content)
        rows.append(_row(name, content))
    name = f"{dist_info}/RECORD"
    writer.add(name, packed(record.encode_record([*rows, RecordRow(path=name)])))
    writer.close()


def _row(name: str, content: Packed) -> RecordRow:
    return RecordRow(path=name, digest=content.digest, size=content.size)


def _renamed(member: str, wheel: Wheel, name: WheelName) -> str:
    """The folders of a wheel's own files carry its name."""
    own = wheel.dist_info.removesuffix(".dist-info")
    new = name.dist_info.removesuffix(".dist-info")
    for suffix in (".dist-info/", ".data/"):
        if name.project != wheel.name.project and member.startswith(own + suffix):
            return f"{new}{suffix}{member[len(own + suffix) :]}"
    return member
