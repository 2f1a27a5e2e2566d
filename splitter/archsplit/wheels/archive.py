"""Write wheels out of what is packed already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.wheels import record
from archsplit.wheels.record import RecordRow
from archsplit.wheels.zip_writer import ArchiveWriter, packed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import BinaryIO

    from archsplit.wheels.filename import WheelName
    from archsplit.wheels.reader import Wheel
    from archsplit.wheels.zip_writer import Packed

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
