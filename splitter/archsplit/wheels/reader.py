"""A finished wheel, with everything checked before it is used.

In: a path. Out: `Wheel`, with its own folder, WHEEL and RECORD checked against each other, the
archive and the file name; contents are checked while they are read. All findings come in one error.

``installer`` and ``wheel`` read wheels too, to install or to convert them. Neither looks for
duplicate members, symbolic links, sizes that lie, or tags that contradict the file name, and
``wheel`` replaces a private method of the standard library to see a file's end. So the standard
library reads the archive here, and ``packaging`` names and metadata; the tests compare the verdicts
of all three.
"""

from __future__ import annotations

import contextlib
import hashlib
import zipfile
import zlib
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from isal import isal_zlib
from isal.igzip_lib import IsalError
from packaging.metadata import parse_email

from archsplit.errors import InputError, WheelError
from archsplit.system.fs import hash_stream, input_errors, output_errors
from archsplit.system.parallel import BlockSinks, map_on_cores
from archsplit.system.units import BLOCK, count_text
from archsplit.wheels import metadata, record
from archsplit.wheels.filename import WheelName
from archsplit.wheels.metadata import WheelInfo
from archsplit.wheels.record import RecordRow
from archsplit.wheels.zip_reader import (
    BAD_CHECKSUM,
    BAD_DATA,
    damage_error,
    open_archive,
    read_packed_blocks,
    unsound_wheel,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from pathlib import Path
    from zipfile import ZipInfo

    from packaging.metadata import Metadata, RawMetadata

    from archsplit.wheels.zip_reader import Archive

__pure__ = True

MAX_TEXT_BYTES = 64 << 20
"""Largest METADATA, WHEEL or RECORD in bytes: room for half a million rows."""

_SUFFIX = ".dist-info"
_SITE_PACKAGES = ("purelib", "platlib")
_MAX_NOTES = 5
_WRONG_RECORD = "RECORD is wrong"
# Deprecated by the specification, and present in old wheels.
SIGNATURE_FILES = ("RECORD.jws", "RECORD.p7s")

_T = TypeVar("_T")


def _read_dist_info(
    archive: Archive,
    name: WheelName,
    *,
    same_tags: bool,
    full_record: bool,
    ignore_record: bool = False,
) -> tuple[str, WheelInfo, tuple[RecordRow, ...]]:
    """Return the name of the wheel's own folder, and the content of WHEEL and RECORD.

    Args:
        archive: the wheel.
        name: the name of its file.
        same_tags: refuse a wheel whose file name has other tags than WHEEL.
        full_record: refuse a RECORD that lacks members, sizes or hashes.
        ignore_record: return the rows that RECORD should have, and note the faults of its own.

    Raises:
        WheelError: a file is missing or wrong, or contradicts another one, the archive's members
            or the file name; the message lists every finding.
    """
    folder = _find_dist_info(archive)
    findings: list[str] = []
    faults: list[str] = []
    # Each file is read even if another one is wrong, so that one error lists everything.
    rows = _read_or_add_finding(
        # Without RECORD, no installer takes the wheel.
        faults if f"{folder}/RECORD" in archive.members else findings,
        lambda: record.decode_record(_small_member(archive, f"{folder}/RECORD")),
    )
    info = _read_or_add_finding(
        findings, lambda: WheelInfo.decode(_small_member(archive, f"{folder}/WHEEL"))
    )
    release = _read_or_add_finding(
        findings,
        lambda: metadata.read_name_and_version(_small_member(archive, f"{folder}/METADATA")),
    )
    if rows is not None and full_record:
        faults += _record_findings(archive, rows, folder)
    if not ignore_record:
        findings += faults
    if info is not None and same_tags:
        findings += _tag_findings(name, info)
    # Spelled in any way: builders write `Foo_Bar-1.0` and `foo_bar-1.0.0`.
    if not name.is_release(*folder.removesuffix(_SUFFIX).rpartition("-")[::2]):
        findings.append(f"{folder} is of another release than the file name")
    if release and not name.is_release(*release):
        findings.append(f"METADATA is of {' '.join(release)}, another release than the file name")
    if findings or info is None or (rows is None and not ignore_record):
        raise unsound_wheel(archive.path, findings)
    if ignore_record:
        right = tuple(_content_rows(archive, folder))
        faults += _hash_findings(rows or (), right)
        info = replace(info, notes=(*info.notes, *_record_notes(faults)))
        return folder, info, right
    return folder, info, rows or ()


def _content_rows(archive: Archive, folder: str) -> Iterator[RecordRow]:
    """Yield the rows that RECORD should have.

    Raises:
        WheelError: a member is damaged.
    """
    without_hash = {f"{folder}/{name}" for name in ("RECORD", *SIGNATURE_FILES)}
    for name in archive.members:
        if name in without_hash:
            yield RecordRow(path=name)
            continue
        with archive.open(RecordRow(path=name)) as stream:
            digest, size = hash_stream(stream)
        yield RecordRow(path=name, digest=digest, size=size)


def _hash_findings(rows: tuple[RecordRow, ...], right: tuple[RecordRow, ...]) -> Iterator[str]:
    digests = {row.path: row.digest for row in right}
    for number, row in enumerate(rows, start=1):
        # Another algorithm is compared nowhere: with this option, RECORD decides nothing.
        if (
            row.digest
            and row.algorithm == "sha256"
            and digests.get(row.path, row.digest) != row.digest
        ):
            yield f"{row.path}: RECORD has another hash (row {number})"


def _record_notes(faults: list[str]) -> Iterator[str]:
    yield from (f"{_WRONG_RECORD}: {fault}" for fault in faults[:_MAX_NOTES])
    if len(faults) > _MAX_NOTES:
        yield f"{_WRONG_RECORD} in {count_text(len(faults) - _MAX_NOTES, 'more row')}"


def _find_dist_info(archive: Archive) -> str:
    folders = {name.partition("/")[0] for name in archive.members if "/" in name}
    dist_infos = sorted(folder for folder in folders if folder.endswith(_SUFFIX))
    # With two of them, installers would choose differently.
    if len(dist_infos) != 1:
        found = ", ".join(dist_infos) or "none"
        raise unsound_wheel(archive.path, [f"folders *{_SUFFIX}: {found}; expected one"])
    return dist_infos[0]


def _small_member(archive: Archive, name: str) -> bytes:
    with archive.open(RecordRow(path=name)) as stream:
        content = stream.read(MAX_TEXT_BYTES + 1)
    # One byte more was read, so a longer member is noticed without being unpacked.
    if len(content) > MAX_TEXT_BYTES:
        raise WheelError(f"{name} has more than {MAX_TEXT_BYTES} bytes, the limit")
    return content


def _read_or_add_finding(findings: list[str], read: Callable[[], _T]) -> _T | None:
    try:
        return read()
    except WheelError as error:
        findings += error.message.splitlines()
        return None


def _record_findings(archive: Archive, rows: tuple[RecordRow, ...], folder: str) -> Iterator[str]:
    counts = Counter(row.path for row in rows)
    yield from (f"{path}: RECORD has {n} rows of it" for path, n in counts.items() if n > 1)
    signatures = {f"{folder}/{file}" for file in SIGNATURE_FILES}
    # A signature is made after RECORD, and can't be in it.
    unlisted = archive.members.keys() - counts.keys() - signatures
    yield from (f"{path}: not in RECORD" for path in unlisted)
    for number, row in enumerate(rows, start=1):
        if row.path not in archive.members:
            # An installer would fail in the middle of its work.
            found = ["in RECORD, but not in the archive"]
        elif row.path in signatures:
            found = ["in RECORD, which it signs"]
        elif row.path == f"{folder}/RECORD":
            has_facts = row.digest is not None or row.size is not None
            found = ["it can't have its own hash and size"] if has_facts else []
        else:
            found = list(_row_findings(row, archive.members[row.path].file_size))
        # Of a thousand rows, the reader of the message wants to see this one.
        yield from (f"{row.path}: {finding} (row {number})" for finding in found)


def _row_findings(row: RecordRow, size: int) -> Iterator[str]:
    if row.digest is None:
        yield "RECORD has no hash of it"
    if row.size != size:
        # The specification allows a row without a size, but every builder writes it.
        found = "no size" if row.size is None else count_text(row.size, "byte")
        yield f"{count_text(size, 'byte')}, and {found} in RECORD"


def _tag_findings(name: WheelName, info: WheelInfo) -> Iterator[str]:
    # Installers choose by the file name, so WHEEL is what may be wrong.
    if info.tags != name.tags:
        found, expected = ", ".join(info.tags), ", ".join(name.tags)
        yield f"WHEEL has the tags {found}, the file name {expected}"
    if info.build != name.build:
        yield f"WHEEL has the build tag {info.build!r}, the file name {name.build!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """An open wheel, checked but for the contents of its members; see `open_wheel`.

    Reading a member to its end compares the content with RECORD.

    Attributes:
        path: the file.
        name: the parts of the file name, normalized.
        dist_info: the folder of METADATA, WHEEL and RECORD.
        info: the content of WHEEL.
        record: the rows of RECORD by path.
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

    def installed_path(self, name: str) -> str | None:
        """Return the path of a member in site-packages, or None if it is installed elsewhere."""
        data = f"{self.dist_info.removesuffix('.dist-info')}.data/"
        if not name.startswith(data):
            return name
        scheme, _, rest = name[len(data) :].partition("/")
        # Scripts, headers and data go to folders that depend on the installer.
        return rest if scheme in _SITE_PACKAGES else None

    def row(self, name: str) -> RecordRow:
        """Return a member's row of RECORD; without one, a row without hash and size."""
        # Not the default of `get`, which would check the name of each of thousands of members.
        return self.record.get(name) or RecordRow(path=name)

    def open(self, name: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """Open a member as a sequential stream.

        Raises:
            WheelError: there is no such member. While reading: the member is damaged, or RECORD
                has another hash.
        """
        return self.archive.open(self.row(name))

    def read(self, name: str) -> bytes:
        """Return the content of a member.

        Raises:
            WheelError: see `open`.
        """
        with self.open(name) as stream:
            return stream.read()

    @property
    def raw_metadata(self) -> RawMetadata:
        """METADATA as it is: wheels are published with fields that an index would refuse."""
        return parse_email(self.read(f"{self.dist_info}/METADATA"))[0]

    def metadata(self) -> Metadata:
        """Read METADATA as strictly as the index does.

        Raises:
            WheelError: METADATA is not valid.
        """
        return metadata.decode_metadata(self.read(f"{self.dist_info}/METADATA"))

    def check_contents(self, *, besides: Collection[str] = ()) -> None:
        """Read every member to its end.

        Args:
            besides: members that the caller reads to their end.

        Raises:
            WheelError: members are damaged, or RECORD has other hashes; the message lists all.
        """
        names = [name for name in self.names if name not in besides]
        errors = list(chain.from_iterable(self.map_members(self._member_errors, names)))
        if errors:
            hint = next((error.hint for error in errors if error.hint), None)
            raise unsound_wheel(self.path, [error.message for error in errors], hint=hint)

    def map_members(
        self, function: Callable[[tuple[str, ...]], _T], names: Iterable[str]
    ) -> list[_T]:
        """Return the results of a function for groups of members, computed on several cores.

        Each large member is a group of its own, and all small ones together are the last: a thread
        for each of thousands of Python files would take longer than the work.
        """
        sizes = {name: self.archive.members[name].file_size for name in names}
        groups: list[tuple[str, ...]] = [(name,) for name, size in sizes.items() if size > BLOCK]
        groups.append(tuple(name for name, size in sizes.items() if size <= BLOCK))
        return map_on_cores(
            function, groups, weight=lambda group: sum(sizes[name] for name in group)
        )

    def _member_errors(self, names: Iterable[str]) -> list[WheelError]:
        errors: list[WheelError] = []
        for name in names:
            try:
                self.check(name)
            except WheelError as error:  # noqa: PERF203 - each member has its own error
                errors.append(error)
        return errors

    def check(self, name: str) -> None:
        """Read a member to its end, and compare it with the archive and RECORD.

        Raises:
            WheelError: see `open`.
        """
        read_member(self.archive, self.row(name), None)


@contextlib.contextmanager
def open_wheel(
    path: Path, *, same_tags: bool = True, full_record: bool = True, ignore_record: bool = False
) -> Iterator[Wheel]:
    """Open a wheel, and check all of it but the contents of its members.

    Args:
        path: the wheel.
        same_tags: refuse a wheel whose file name has other tags than WHEEL. Public wheels like that
            exist, because installers go only by the file name.
        full_record: refuse a RECORD that lacks members, sizes or hashes.
        ignore_record: take the members as they are, which reads all of them. The wheel then has the
            rows that RECORD should have, and `WheelInfo.notes` the faults.

    Raises:
        InputError: the file is missing or can't be read.
        WheelError: the wheel is not sound; the message lists every finding.
    """
    name = WheelName.parse(path.name)
    with open_archive(path) as archive:
        dist_info, info, rows = _read_dist_info(
            archive,
            name,
            same_tags=same_tags,
            full_record=full_record,
            ignore_record=ignore_record,
        )
        yield Wheel(
            path=path,
            name=name,
            dist_info=dist_info,
            info=info,
            record={row.path: row for row in rows},
            archive=archive,
        )


def is_sound_without_record(path: Path) -> bool:
    """Return True for a wheel in which nothing but RECORD is wrong."""
    try:
        with open_wheel(path, same_tags=False, ignore_record=True) as wheel:
            return any(note.startswith(_WRONG_RECORD) for note in wheel.info.notes)
    except (InputError, WheelError):
        return False


def extract_member(archive: Archive, entry: RecordRow, path: Path) -> None:
    """Write the member of a RECORD row to ``path``; fast, for members of hundreds of megabytes.

    Raises:
        WheelError: the member is damaged, or its size or hash is another one.
        OutputError: ``path`` can't be written.
        InputError: the archive can't be read.
    """
    with output_errors(path), path.open("wb") as file:
        read_member(archive, entry, file.write)


def read_member(
    archive: Archive, entry: RecordRow, write: Callable[[bytes], object] | None
) -> None:
    """Read a member, and hand its blocks to a function, whose errors end it.

    ISA-L inflates at twice zlib's speed, and other cores hash and write meanwhile.

    Raises:
        WheelError: the member is damaged, or its size or hash is another one.
        InputError: the archive can't be read.
    """
    info = archive.members[entry.path]
    where = f"{archive.path}: {entry.path}"
    hasher = _Hasher(entry.algorithm)
    sinks = (hasher.update,) if write is None else (hasher.update, write)
    blocks = _blocks_up_to(info.file_size, _inflate_member(archive, info, where))
    if info.file_size <= BLOCK:
        # A thread for a small member would take longer than its hash.
        for block in blocks:
            for sink in sinks:
                sink(block)
    else:
        with contextlib.closing(BlockSinks(*sinks)) as threads:
            for block in blocks:
                threads.feed(block)
            threads.wait()
    if hasher.size != info.file_size:
        raise damage_error(where, "it doesn't match the size in the archive")
    if hasher.crc != info.CRC:
        raise damage_error(where, BAD_CHECKSUM)
    # A row without a digest (RECORD itself) has nothing to compare.
    if entry.digest not in {None, hasher.digest.digest()}:
        raise WheelError(f"{where} doesn't match its hash in RECORD")


def _blocks_up_to(limit: int, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield blocks until they have more bytes than a limit together."""
    size = 0
    for block in blocks:
        yield block
        size += len(block)
        # More than declared: a bomb is stopped here, not on a full disk.
        if size > limit:
            return


class _Hasher:
    """Size, checksum and digest of a content, used from one thread."""

    def __init__(self, algorithm: str) -> None:
        self.digest = hashlib.new(algorithm)
        self.size, self.crc = 0, 0

    def update(self, block: bytes | bytearray | memoryview) -> None:
        """Hash and count a block."""
        self.digest.update(block)
        self.crc = isal_zlib.crc32(block, self.crc)
        self.size += len(block)


def _inflate_member(archive: Archive, info: ZipInfo, where: str) -> Iterator[bytes]:
    """Yield the content in blocks of at most a megabyte, whatever the compression ratio is."""
    inflate = isal_zlib.decompressobj(-zlib.MAX_WBITS)
    with input_errors(archive.path), archive.path.open("rb") as file:
        for packed in read_packed_blocks(file, info):
            if info.compress_type == zipfile.ZIP_STORED:
                yield packed
                continue
            remaining = packed
            # Bytes after the stream's end are ignored, as zipfile does; size and CRC are compared.
            while remaining and not inflate.eof:
                try:
                    yield inflate.decompress(remaining, BLOCK)
                except IsalError as error:  # type: ignore[misc] # its stub calls the class an instance
                    raise damage_error(where, BAD_DATA) from error
                remaining = inflate.unconsumed_tail
    yield inflate.flush() if info.compress_type != zipfile.ZIP_STORED else b""
