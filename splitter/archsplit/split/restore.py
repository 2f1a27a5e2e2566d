"""Record to restore a fat library, and its use by ``archsplit join``.

In: a core and its packs. Out: the fat libraries, byte for byte. The library in the core lacks the
images, which the packs have; the stub and the cut changed some more bytes. A `Restore` lists the
pieces of the original in order: ranges of the core's library, images, and kept bytes that are in
neither.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from archsplit.devicecode.edits import CopiedBytes
from archsplit.devicecode.recompress import remake_image
from archsplit.errors import BinaryFormatError, InputError, OutputError, VerifyError
from archsplit.formats.mapped import release_pages
from archsplit.formats.reader import open_file
from archsplit.release.identity import LOADER_PACKAGE
from archsplit.release.wheel_set import read_wheel_set
from archsplit.system.fs import (
    atomic_replace,
    hash_blocks,
    output_dir,
    output_errors,
    replace_all,
    temporary_dir,
)
from archsplit.system.parallel import are_equal
from archsplit.wheels.reader import extract_member, open_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from archsplit.devicecode.edits import EditPiece
    from archsplit.devicecode.registered import RegisteredContainer
    from archsplit.formats.device_pack import ImageKey, Pack, PackImage, PackLibrary
    from archsplit.formats.reader import Window
    from archsplit.release.wheel_set import WheelFacts, WheelSet
    from archsplit.wheels.reader import Wheel

RESTORE = "restore"
"""Suffix of a library's record in the core, next to the table."""

_ROW = struct.Struct("<BQQ")
_COUNT = struct.Struct("<II")
# The kinds of rows, in the core's files: their numbers must never change.
_COPY, _KEPT, _IMAGE = range(3)
# Small blocks find more equal bytes, and make more rows; a few bytes are changed in few places.
_BLOCK = 1024
_GROUP = 1024 * _BLOCK

_MAX_RECORD, _MAX_ROWS = 1 << 27, 1 << 20
"""Bytes and rows of a record; the largest real ones have some megabytes."""
_SPLIT_AGAIN = "split the fat wheel again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """Pieces of the original library, in order.

    Attributes:
        rows: kind, position and size of each piece. The position of a copy is its offset in the
            core's library; the one of an image is the container in the upper and the number in
            the lower 32 bits.
        kept: the bytes that are neither in the core's library nor in a pack.
    """

    rows: tuple[tuple[int, int, int], ...] = field(repr=False)
    kept: bytes = field(repr=False)

    def encode(self) -> bytes:
        """Return the record as the content of a file."""
        rows = b"".join(_ROW.pack(*row) for row in self.rows)
        # Kept bytes may be whole tables of changed pointers, which compress well.
        return zlib.compress(_COUNT.pack(len(self.rows), len(self.kept)) + rows + self.kept, 9)

    @classmethod
    def decode(cls, content: bytes, *, source: str) -> Restore:
        """Decode the content of a record's file.

        Raises:
            BinaryFormatError: the record is damaged.
        """
        try:
            unpacker = zlib.decompressobj()
            text = unpacker.decompress(content, _MAX_RECORD)
            count, size = _COUNT.unpack_from(text)
            end = _COUNT.size + count * _ROW.size
            # Checked before rows are unpacked, so a damaged count can't read beyond the end.
            if not unpacker.eof or len(text) != end + size or count > _MAX_ROWS:
                raise BinaryFormatError(
                    f"{source} is damaged: {len(text)} bytes, expected {end + size}",
                    hint=_SPLIT_AGAIN,
                )
            rows = tuple(_ROW.iter_unpack(text[_COUNT.size : end]))
        except (zlib.error, struct.error, OverflowError) as error:
            raise BinaryFormatError(
                f"{source} is damaged: it can't be unpacked", hint=_SPLIT_AGAIN
            ) from error
        return cls(rows=rows, kept=text[end:])

    def blocks(
        self, library: memoryview, image: Callable[[int, int], memoryview]
    ) -> Iterator[memoryview]:
        """Yield the bytes of the original library.

        Args:
            library: the library in the core.
            image: returns an image by its container and its number in the container.

        Raises:
            BinaryFormatError: a piece is shorter than its row.
        """
        position = 0
        for kind, source, size in self.rows:
            if kind == _IMAGE:
                # See the attribute `rows`.
                block = image(source >> 32, source & 0xFFFF_FFFF)
            elif kind == _COPY:
                block = library[source : source + size]
            else:
                block = memoryview(self.kept)[position : position + size]
                position += size
            # A slice beyond the end is silently shorter.
            if len(block) != size:
                raise BinaryFormatError("the core's library is not the one that was split")
            yield block


def build_restore(
    original: Window,
    core: Window,
    pieces: Sequence[EditPiece],
    moved: Sequence[RegisteredContainer],
) -> Restore:
    """Return the record to restore a library.

    Args:
        core: the written library of the core.
        pieces: its plan, as pieces of the original.
        moved: the containers without their images.
    """
    builder = _Builder(original)
    images = {
        entry.offset: (index << 32 | number, entry.size)
        for index, container in enumerate(moved)
        for number, entry in enumerate(container.entries)
    }
    for offset in sorted(images):
        source, size = images[offset]
        builder.add_image(offset, source, size)
    at = 0
    for piece in pieces:
        # New bytes and zeros aren't in the original. A row takes more than a few bytes that stayed
        # between two changed pointers.
        if isinstance(piece, CopiedBytes) and piece.size > _ROW.size:
            builder.add_equal_blocks(core, piece, at)
        at += piece.size
    return builder.build()


class _Builder:
    """Builder of a `Restore`: ranges of the original with a known source; all others are kept."""

    def __init__(self, original: Window) -> None:
        self._original = original
        self._ranges: list[tuple[int, int, int, int]] = []

    def add_image(self, offset: int, source: int, size: int) -> None:
        """Add an image as a range from a pack."""
        self._ranges.append((offset, size, _IMAGE, source))

    def add_equal_blocks(self, core: Window, piece: CopiedBytes, at: int) -> None:
        """Add the equal blocks of a piece as ranges from the core's library."""
        end = piece.offset + piece.size
        ahead = at - piece.offset
        # Compared although they were copied: the stub has changed some of them. Most of a library
        # is equal, so whole groups of blocks come first.
        for first in range(piece.offset, end, _GROUP):
            last = min(first + _GROUP, end)
            # Both libraries at once would be most of a split's memory.
            release_pages(core)
            release_pages(self._original)
            if self._is_equal(core, first, last, ahead):
                self._add_copy(first, last - first, first + ahead)
                continue
            for start in range(first, last, _BLOCK):
                size = min(_BLOCK, last - start)
                if self._is_equal(core, start, start + size, ahead):
                    self._add_copy(start, size, start + ahead)

    def _is_equal(self, core: Window, start: int, end: int, ahead: int) -> bool:
        return are_equal(self._original.data[start:end], core.data[start + ahead : end + ahead])

    def _add_copy(self, start: int, size: int, at: int) -> None:
        if self._ranges:
            before, length, kind, source = self._ranges[-1]
            # Neighboring blocks become one row.
            if kind == _COPY and before + length == start and source + length == at:
                self._ranges[-1] = (before, length + size, kind, source)
                return
        self._ranges.append((start, size, _COPY, at))

    def build(self) -> Restore:
        """Return the record; what no range covers is kept."""
        rows, kept, position = [], bytearray(), 0
        end = (len(self._original), 0, _COPY, 0)
        # The last, empty range makes the gap before the end of the file visible.
        for start, size, kind, source in [*sorted(self._ranges), end]:
            if start > position:
                rows.append((_KEPT, 0, start - position))
                kept += self._original.data[position:start]
            if size:
                rows.append((kind, source, size))
            position = start + size
        return Restore(rows=tuple(rows), kept=bytes(kept))


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A restored fat library."""

    name: str
    path: Path
    size: int
    sha256: str


def join_split(folder: Path, out: Path) -> tuple[Joined, ...]:
    """Restore the fat libraries of a split below ``out``; all or none.

    Raises:
        InputError: a wheel is not the core of a split, or a pack is missing.
        BinaryFormatError: the record of a library is damaged.
        VerifyError: no wheel is a core, a wheel is damaged, or an image is not one of the table's.
        OutputError: ``out`` can't be written, or is the folder of the wheels.
    """
    # A release is checked, uploaded and copied as a folder: all in it counts as a part of it.
    if out.resolve() == folder.resolve():
        raise OutputError(f"{out} has the wheels of the split", hint="choose another --out")
    # Two private folders: wheels are unpacked in one, and the other is on the output's file system.
    with temporary_dir() as scratch, output_dir(out) as target, temporary_dir(target) as staging:
        views = read_wheel_set(folder, scratch).require_cores()
        joined = tuple(
            each
            for view in views
            for each in _restore_core(view, scratch, staging, is_only=len(views) == 1)
        )
        for one in joined:
            with output_errors(target / one.name):
                (target / one.name).parent.mkdir(parents=True, exist_ok=True)
        replace_all([one.name for one in joined], source=staging, target=target)
        return tuple(replace(one, path=target / one.name) for one in joined)


def _restore_core(
    release: WheelSet, scratch: Path, out: Path, *, is_only: bool
) -> Iterator[Joined]:
    """Restore the libraries of one core; of several, into a folder named by the core's tags."""
    core = release.cores[0]
    if core.pack is None or release.identity is None:
        raise InputError(
            f"{core.path} has no table of images",
            hint="give a folder that archsplit split wrote to",
        )
    rows, contents = dict(core.pack.images()), _find_images(core.pack, release.wheels)
    loader = f"{release.identity.import_package}/{LOADER_PACKAGE}"
    # Libraries of several platforms have one name.
    folder = "" if is_only else core.name.place
    with open_wheel(core.path, same_tags=False) as wheel:
        for number, library in enumerate(core.pack.libraries):
            one = _restore_library(
                wheel,
                library,
                record=f"{loader}/{library.stub}.{RESTORE}",
                image=_library_images(contents, rows, number),
                core_library=scratch / f"{number}.core",
                out=out / folder,
            )
            yield replace(one, name=str(PurePosixPath(folder, one.name)))


def _find_images(table: Pack, wheels: Iterable[WheelFacts]) -> Mapping[ImageKey, memoryview]:
    """Return all images of the table from the packs that have them, with checked digests."""
    build, images = table.descriptor.build_id, dict(table.images())
    packs = [wheel.pack for wheel in wheels if wheel.pack is not None and wheel.identity is None]
    content_by_image = {
        key: pack.content(image).data
        for pack in packs
        if pack.descriptor.build_id == build
        for key, image in pack.images_in(table)
    }
    missing = len(images) - len(content_by_image)
    if missing:
        raise InputError(
            f"images in no pack here: {missing} of {len(images)}",
            hint="put all wheels of a split without --targets in a folder; an index has no `rest`",
        )
    # All digests, before the first library is written.
    for key, row in images.items():
        if hashlib.sha256(content_by_image[key]).digest() != row.digest:
            raise VerifyError(f"image {key} is not the one that was split")
    return content_by_image


def _restore_library(
    wheel: Wheel,
    library: PackLibrary,
    *,
    record: str,
    image: Callable[[int, int], memoryview],
    core_library: Path,
    out: Path,
) -> Joined:
    restore = Restore.decode(wheel.read(record), source=f"{wheel.path}: {record}")
    name = _find_member(wheel, library.name)
    extract_member(wheel.archive, wheel.row(name), core_library)
    path = out / library.name
    with output_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_replace(path, mode=0o755) as new, new.open("wb") as file:
        content = restore.blocks(open_file(core_library).data, image)
        digest, size = hash_blocks(content, copy_to=file)
    return Joined(name=library.name, path=path, size=size, sha256=digest.hex())


def _find_member(wheel: Wheel, path: str) -> str:
    """Return the member of a wheel that installs to a path of site-packages."""
    # A member in `.data/purelib` installs to another path than its own.
    member = next((name for name in wheel.names if wheel.installed_path(name) == path), None)
    if member is None:
        raise VerifyError(f"{wheel.path.name} has no {path}, which its table lists")
    return member


def _library_images(
    contents: Mapping[ImageKey, memoryview], rows: Mapping[ImageKey, PackImage], library: int
) -> Callable[[int, int], memoryview]:
    """Return a function that returns the vendor's bytes of an image of a library."""

    def image(container: int, number: int) -> memoryview:
        key = (library, container, number)
        form = rows[key].form
        return contents[key] if form is None else memoryview(remake_image(contents[key], form))

    return image
