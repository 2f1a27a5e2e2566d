"""Write wheels from packed members: an old wheel with changes, or a new one.

In: an open wheel, its new name, and the contents of changed and added members, packed (compressed
and hashed). Out: the new archive, with a matching RECORD. The compressed bytes of an unchanged
member are copied with its time and mode, so rewriting takes no longer than copying the file.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from archsplit.system.env import ZIP_EPOCH
from archsplit.wheels.reader import SIGNATURE_FILES
from archsplit.wheels.record import FILE_MODE, PROGRAM_MODE, RecordRow, encode_record
from archsplit.wheels.zip_writer import ArchiveWriter, pack

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import BinaryIO

    from archsplit.wheels.filename import WheelName
    from archsplit.wheels.reader import Wheel
    from archsplit.wheels.zip_writer import PackedContent


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelRewrite:
    """A wheel with some members changed or added, maybe under another name.

    Attributes:
        wheel: the old wheel.
        name: of the new wheel.
        changed: new contents of members, by their old names; one that is still being packed is
            waited for when its place in the archive comes.
        added: new members, by their new names; an old member of the same name is dropped.
        moves_record: write RECORD last, as a new member; False leaves RECORD at its old place.
    """

    wheel: Wheel
    name: WheelName
    changed: Mapping[str, PackedContent | Future[PackedContent]] = field(repr=False)
    added: Mapping[str, PackedContent] = field(repr=False)
    moves_record: bool = True

    def write(self, file: BinaryIO) -> None:
        """Write the new wheel.

        Raises:
            WheelError: the old wheel is damaged.
            InputError: the old wheel can't be read.
        """
        old_record = f"{self.wheel.dist_info}/RECORD"
        kept = self._kept_names()
        writer = ArchiveWriter(file)
        for old in kept:
            new = self._new_name(old)
            if old == old_record:
                # At its old place, among members that may still be packed.
                content = pack(encode_record(self._rows(kept)))
                writer.replace(self.wheel.archive, old, new, content)
            elif old in self.changed:
                writer.replace(self.wheel.archive, old, new, self._changed(old))
            else:
                # The packed bytes stay, so an unchanged member costs no compression and can't
                # change.
                writer.copy(self.wheel.archive, old, new)
        added = dict(self.added)
        if self.moves_record:
            added |= _record_member(self._new_name(old_record), self._rows(kept))
        for name, content in added.items():
            writer.add(name, content)
        writer.close()

    def _rows(self, kept: list[str]) -> list[RecordRow]:
        return [*map(self._row, kept), *_rows(self.added)]

    def _changed(self, old: str) -> PackedContent:
        content = self.changed[old]
        return content.result() if isinstance(content, Future) else content

    def _kept_names(self) -> list[str]:
        """Return the old names of the members that the new wheel has too."""
        # The signatures fit only the old RECORD, and no installer checks them: drop them.
        dropped = {f"{self.wheel.dist_info}/{name}" for name in SIGNATURE_FILES}
        if self.moves_record:
            dropped.add(f"{self.wheel.dist_info}/RECORD")
        return [
            name
            for name in self.wheel.names
            if name not in dropped and self._new_name(name) not in self.added
        ]

    def _row(self, old: str) -> RecordRow:
        row = self.wheel.row(old)
        if old in self.changed:
            content = self._changed(old)
            row = RecordRow(path=old, digest=content.digest, size=content.size)
        new = self._new_name(old)
        # Most names stay, and a new row would check its name again.
        return row if row.path == new else replace(row, path=new)

    def _new_name(self, member: str) -> str:
        """Return a member's name in the new wheel, with the new `.dist-info` and `.data`."""
        old = self.wheel.dist_info.removesuffix(".dist-info")
        # Both folders have the version in their names.
        for suffix in (".dist-info/", ".data/"):
            if member.startswith(old + suffix):
                new = new_dist_info(self.wheel, self.name).removesuffix(".dist-info")
                return f"{new}{suffix}{member[len(old + suffix) :]}"
        return member


def new_dist_info(wheel: Wheel, name: WheelName) -> str:
    """Return the name of the ``.dist-info`` folder of the wheel under its new name.

    Builders spell that folder in several ways (``VecSort-1.0.dist-info``). The old spelling is kept
    if the project stays the same: installers refuse a wheel with two ``.dist-info`` folders.
    """
    if name.project != wheel.name.project:
        return name.dist_info
    if name.version != wheel.name.version:
        # Only the version changes, so the builder's spelling of the project stays.
        stem = wheel.dist_info.removesuffix(".dist-info").rpartition("-")[0]
        return f"{stem}-{name.version}.dist-info"
    return wheel.dist_info


def write_members(
    file: BinaryIO,
    name: WheelName,
    members: Mapping[str, PackedContent],
    *,
    programs: Collection[str] = (),
    epoch: int = ZIP_EPOCH,
) -> None:
    """Write a wheel with these members, METADATA and WHEEL among them; RECORD is added.

    Args:
        programs: the members that may be executed.
        epoch: see `ArchiveWriter.add`.
    """
    writer = ArchiveWriter(file)
    own_record = _record_member(f"{name.dist_info}/RECORD", _rows(members))
    for member, content in {**members, **own_record}.items():
        mode = PROGRAM_MODE if member in programs else FILE_MODE
        writer.add(member, content, mode=mode, epoch=epoch)
    writer.close()


def _rows(members: Mapping[str, PackedContent]) -> list[RecordRow]:
    return [
        RecordRow(path=name, digest=content.digest, size=content.size)
        for name, content in members.items()
    ]


def _record_member(name: str, rows: list[RecordRow]) -> dict[str, PackedContent]:
    # RECORD can't contain its own hash, so its row has neither hash nor size.
    return {name: pack(encode_record([*rows, RecordRow(path=name)]))}
