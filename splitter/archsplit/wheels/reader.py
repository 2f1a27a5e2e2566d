"""What makes an archive a wheel: its own folder, with RECORD, WHEEL and METADATA that agree.

Read a finished wheel: nothing in it is believed before it has been checked.

``installer`` and ``wheel`` read wheels too, the one to install them, the other to convert them.
Neither looks for duplicate members, symbolic links, sizes that lie, or tags that the file name
contradicts, and ``wheel`` replaces a private method of the standard library to see a file's end. A
release tool wants all of that, and every finding at once. So the archive is read by the standard
library, names and metadata by ``packaging``; the tests hold the verdicts against the other two.

Unpack one member into a file, fast: for members of hundreds of megabytes.

ISA-L inflates at twice zlib's speed; what is hashed and written is so beside it, on another core.
"""

from __future__ import annotations

import contextlib
import hashlib
import zipfile
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from isal import isal_zlib
from isal.igzip_lib import IsalError

from archsplit.errors import WheelError
from archsplit.system.fs import atomic_replace, input_errors, output_errors
from archsplit.system.units import BLOCK
from archsplit.wheels import metadata, record
from archsplit.wheels.filename import WheelName
from archsplit.wheels.metadata import WheelInfo
from archsplit.wheels.record import RecordRow
from archsplit.wheels.zip_checks import open_archive, unsound_wheel
from archsplit.wheels.zip_writer import read_packed_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from zipfile import ZipInfo

    from packaging.metadata import Metadata

    from archsplit.wheels.zip_checks import Archive

__pure__ = True

MAX_TEXT_BYTES = 64 << 20
"""Bytes of METADATA, WHEEL or RECORD that are read into memory; half a million rows fit."""

_SUFFIX = ".dist-info"
_SIGNATURES = ("RECORD.jws", "RECORD.p7s")

_T = TypeVar("_T")


def read_own_files(
    archive: Archive, name: WheelName, *, same_tags: bool, full_record: bool
) -> tuple[str, WheelInfo, tuple[RecordRow, ...]]:
    """Find a wheel's own folder, and read WHEEL and RECORD; contents are not read otherwise.

    Args:
        archive: the wheel.
        name: of its file.
        same_tags: refuse a wheel that was given another file name after it was made.
        full_record: refuse one whose RECORD has not all members, with their sizes and hashes.

    Raises:
        WheelError: they are missing, wrong, or don't fit each other, the archive's members or the
            file name; the message lists every finding.
    """
    folder = _own_folder(archive)
    findings: list[str] = []
    rows = _tried(findings, lambda: record.decode_record(_text(archive, f"{folder}/RECORD")))
    info = _tried(findings, lambda: WheelInfo.decode(_text(archive, f"{folder}/WHEEL")))
    release = _tried(
        findings, lambda: metadata.read_name_and_version(_text(archive, f"{folder}/METADATA"))
    )
    if rows is not None and full_record:
        findings += _record_findings(archive, rows, folder)
    if info is not None and same_tags:
        findings += _tag_findings(name, info)
    if not name.is_of(*folder.removesuffix(_SUFFIX).rpartition("-")[::2]):
        findings.append(f"{folder} is of another release than the file name")
    if release and not name.is_of(*release):
        findings.append(f"METADATA is of {' '.join(release)}, another release than the file name")
    if findings or rows is None or info is None:
        raise unsound_wheel(archive.path, findings)
    return folder, info, rows


def _own_folder(archive: Archive) -> str:
    folders = {name.partition("/")[0] for name in archive.members if "/" in name}
    own = sorted(folder for folder in folders if folder.endswith(_SUFFIX))
    if len(own) != 1:
        found = ", ".join(own) or "none"
        raise unsound_wheel(archive.path, [f"it needs one folder *{_SUFFIX}, and has {found}"])
    return own[0]


def _text(archive: Archive, name: str) -> bytes:
    with archive.open(RecordRow(path=name)) as stream:
        content = stream.read(MAX_TEXT_BYTES + 1)
    if len(content) > MAX_TEXT_BYTES:
        raise WheelError(f"{name} has more than {MAX_TEXT_BYTES} bytes")
    return content


def _tried(findings: list[str], read: Callable[[], _T]) -> _T | None:
    try:
        return read()
    except WheelError as error:
        findings += str(error).splitlines()
        return None


def _record_findings(archive: Archive, rows: tuple[RecordRow, ...], folder: str) -> Iterator[str]:
    times = Counter(row.path for row in rows)
    yield from (f"{path}: RECORD has {n} rows of it" for path, n in times.items() if n > 1)
    signatures = {f"{folder}/{file}" for file in _SIGNATURES}
    unlisted = archive.members.keys() - times.keys() - signatures
    yield from (f"{path}: not in RECORD" for path in unlisted)
    for row in rows:
        if row.path not in archive.members:
            yield f"{row.path}: in RECORD, but not in the archive"
        elif row.path in signatures:
            yield f"{row.path}: in RECORD, which it signs"
        elif row.path == f"{folder}/RECORD":
            yield from _own_row_findings(row)
        else:
            yield from _row_findings(row, archive.members[row.path].file_size)


def _own_row_findings(row: RecordRow) -> Iterator[str]:
    if row.digest is not None or row.size is not None:
        yield f"{row.path}: it can't have its own hash and size"


def _row_findings(row: RecordRow, size: int) -> Iterator[str]:
    if row.digest is None:
        yield f"{row.path}: RECORD has no hash of it"
    if row.size != size:
        found = "no size" if row.size is None else f"{row.size} bytes"
        yield f"{row.path}: {size} bytes, and {found} in RECORD"


def _tag_findings(name: WheelName, info: WheelInfo) -> Iterator[str]:
    if info.tags != name.tags:
        found, expected = ", ".join(info.tags), ", ".join(name.tags)
        yield f"WHEEL has the tags {found}, the file name {expected}"
    if info.build != name.build:
        yield f"WHEEL has the build tag {info.build!r}, the file name {name.build!r}"


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
        with self.open(name) as stream, atomic_replace(path) as new, new.open("wb") as file:
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
            raise unsound_wheel(self.path, findings)

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
        dist_info, info, rows = read_own_files(
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


def extract_member(archive: Archive, entry: RecordRow, path: Path) -> None:
    """Write the member that ``entry`` describes to ``path``.

    Raises:
        WheelError: it is damaged, not as long as declared, or not what ``entry`` has the hash of.
        OutputError: ``path`` can't be written.
        InputError: the archive can't be read.
    """
    info = archive.members[entry.path]
    where = f"{archive.path}: {entry.path}"
    with ThreadPoolExecutor(1) as worker, output_errors(path), path.open("wb") as file:
        sink = _Sink(file, entry.algorithm)
        taken = worker.submit(sink.take, b"")
        for block in _inflated(archive, info, where):
            taken.result()
            if sink.size > info.file_size:
                break
            taken = worker.submit(sink.take, block)
        taken.result()
    if (sink.size, sink.crc) != (info.file_size, info.CRC):
        raise WheelError(f"{where} is not what the archive declares")
    if entry.digest not in {None, sink.digest.digest()}:
        raise WheelError(f"{where} is not what RECORD has the hash of")


class _Sink:
    """Takes the content, on another thread than the one that inflates it."""

    def __init__(self, file: BinaryIO, algorithm: str) -> None:
        self._file = file
        self.digest = hashlib.new(algorithm)
        self.size, self.crc = 0, 0

    def take(self, block: bytes) -> None:
        """Write, hash and count a block."""
        self._file.write(block)
        self.digest.update(block)
        self.crc = zlib.crc32(block, self.crc)
        self.size += len(block)


def _inflated(archive: Archive, info: ZipInfo, where: str) -> Iterator[bytes]:
    """The content in blocks of no more than a megabyte, however much a packed one stands for."""
    inflate = isal_zlib.decompressobj(-zlib.MAX_WBITS)
    with input_errors(archive.path), archive.path.open("rb") as file:
        for packed in read_packed_blocks(file, info):
            if info.compress_type == zipfile.ZIP_STORED:
                yield packed
                continue
            left = packed
            while left and not inflate.eof:
                try:
                    yield inflate.decompress(left, BLOCK)
                except IsalError as error:  # type: ignore[misc] # its stub calls the class an instance
                    raise WheelError(f"{where} is damaged: {error}") from error
                left = inflate.unconsumed_tail
    yield inflate.flush() if info.compress_type != zipfile.ZIP_STORED else b""
