"""Read a finished wheel: nothing in it is believed before it has been checked.

``installer`` and ``wheel`` read wheels too, the one to install them, the other to convert them.
Neither looks for duplicate members, symbolic links, sizes that lie, or tags that the file name
contradicts, and ``wheel`` replaces a private method of the standard library to see a file's end. A
release tool wants all of that, and every finding at once. So the archive is read by the standard
library, names and metadata by ``packaging``; the tests hold the verdicts against the other two.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

from archsplit.errors import WheelError
from archsplit.system.fs import replacing
from archsplit.system.units import BLOCK
from archsplit.wheels import metadata
from archsplit.wheels.filename import WheelName
from archsplit.wheels.inspection import inspected
from archsplit.wheels.record import RecordRow
from archsplit.wheels.zip_checks import open_archive, refusal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from packaging.metadata import Metadata

    from archsplit.wheels.info import WheelInfo
    from archsplit.wheels.zip_checks import Archive

__pure__ = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A wheel all of which has been checked but the contents of its members; see `open_wheel`.

    A content is checked while it is read: whoever reads a member to its end has read what RECORD
    promises.

    Attributes:
        path: the file.
        name: what the file name says, normalized.
        dist_info: the folder of the wheel's own files.
        info: what WHEEL says.
        record: RECORD's rows by path.
    """

    path: Path
    name: WheelName
    dist_info: str
    info: WheelInfo
    record: Mapping[str, RecordRow] = field(repr=False)
    archive: Archive = field(repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """All files, in the archive's order."""
        return tuple(self.archive.members)

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """Give a member as a sequential stream.

        Raises:
            WheelError: there is no such member; and, while reading, it is damaged or not what
                RECORD promises.
        """
        with self.archive.open(self.record.get(name, RecordRow(path=name))) as stream:
            yield stream

    def read(self, name: str) -> bytes:
        """Give a member's content.

        Raises:
            WheelError: see `open`.
        """
        with self.open(name) as stream:
            return stream.read()

    def extract(self, name: str, path: Path) -> None:
        """Write a member to ``path``, whole or not at all.

        Raises:
            OutputError: ``path`` can't be written.
            WheelError: see `open`.
        """
        with self.open(name) as stream, replacing(path) as new, new.open("wb") as file:
            while block := stream.read(BLOCK):
                file.write(block)

    def metadata(self) -> Metadata:
        """Read METADATA as strictly as the index does.

        Raises:
            WheelError: it is not valid.
        """
        return metadata.decode_metadata(self.read(f"{self.dist_info}/METADATA"))

    def check_contents(self) -> None:
        """Read every member to its end.

        Raises:
            WheelError: some are damaged or not what RECORD promises; the message lists all.
        """
        findings = [finding for name in self.names for finding in self._findings(name)]
        if findings:
            raise refusal(self.path, findings)

    def _findings(self, name: str) -> Iterator[str]:
        try:
            with self.open(name) as stream:
                while stream.read(BLOCK):
                    pass
        except WheelError as error:
            yield str(error)


@contextlib.contextmanager
def open_wheel(path: Path, *, same_tags: bool = True, full_record: bool = True) -> Iterator[Wheel]:
    """Open a finished wheel and check all of it but the contents of its members.

    Args:
        path: the wheel.
        same_tags: refuse one whose file name has other tags than WHEEL. Installers look at the file
            name alone, and there are public wheels like that.
        full_record: refuse one whose RECORD has not all members, with their sizes and hashes.

    Raises:
        InputError: the file is missing or can't be read.
        WheelError: it is not a wheel, or not a sound one; the message lists every finding.
    """
    name = WheelName.parse(path.name)
    with open_archive(path) as archive:
        dist_info, info, rows = inspected(
            archive, name, same_tags=same_tags, full_record=full_record
        )
        yield Wheel(
            path=path,
            name=name,
            dist_info=dist_info,
            info=info,
            record={row.path: row for row in rows},
            archive=archive,
        )
