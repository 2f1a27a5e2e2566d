"""Records of device code: files hold units, units hold images.

In go the facts that `archsplit.devicecode.scan` reads; out come an `Inventory` and rows for
reports. The one idea: a unit is the set from which a GPU takes one image, so every statement about
GPUs is made unit by unit, and every statement about bytes image by image.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from archsplit.arch.target import CodeKind
from archsplit.formats.fatbin import Compression, EntryKind
from archsplit.system.units import count_text, size_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from archsplit.arch.target import Suffix, Target
    from archsplit.formats.fatbin import FatbinEntry

    CodeForm = tuple[EntryKind | None, Compression, Target | None]
    """Images that compress alike."""

_KIND_NAMES = {
    EntryKind.LTO_IR: "LTO-IR",
    EntryKind.INDEX: "index",
    EntryKind.RELOCATABLE_PTX: "relocatable PTX",
    EntryKind.TILE_IR: "tile IR",
    EntryKind.CONCATENATED: "concatenated",
}
_MAX_HTML_ROWS = 200
"""Rows of a notebook's table; the JSON has all."""
_CODE_NAMES = {CodeKind.SASS: "SASS", CodeKind.PTX: "PTX"}


class Place(enum.Enum):
    """Use of a unit, as far as its place in the file shows."""

    EXECUTABLE = "executable"
    """Registered at run time: a device takes the best image of each unit."""

    RELOCATABLE = "relocatable"
    """Input of a device link (``-rdc=true``): a leftover in a linked library."""

    OUTSIDE = "outside"
    """Outside of the fatbin sections: only the library's own code knows the use."""


class Image(NamedTuple):
    """A piece of device code for one target.

    A tuple, because an environment has a hundred thousand: a frozen dataclass takes twice as long
    to make, and four times as long to send to another process.

    Attributes:
        kind: None for an unknown number.
        kind_number: the number in the fatbin.
        target: None for code that is neither SASS nor PTX.
        arch: the sm number that every image has, without the suffix.
        offset: in the file.
        file_bytes: the header and the padded payload; of a bare cubin, the file.
        wheel_bytes: the part of the wheel's compressed stream; None outside of wheels.
        is_bare: True for a cubin by itself, outside of any container.
        frame: the offset of its compressed frame of several images (kind 256), else None: its bytes
            are the share of the frame by uncompressed size, and ``offset`` is its record's.
    """

    kind: EntryKind | None
    kind_number: int
    target: Target | None
    arch: int
    suffix: Suffix
    compression: Compression
    offset: int
    file_bytes: int
    wheel_bytes: int | None
    is_bare: bool = False
    frame: int | None = None

    @property
    def is_share(self) -> bool:
        """True for an image in a frame of several."""
        return self.frame is not None

    @property
    def weight(self) -> int:
        """Bytes of the download; bytes of the file outside of a wheel."""
        return self.file_bytes if self.wheel_bytes is None else self.wheel_bytes

    @property
    def kind_name(self) -> str:
        """``SASS``, ``PTX``, ``LTO-IR`` or the name of another kind."""
        if self.kind is None:
            return f"kind {self.kind_number}"
        # SASS and PTX differ by target; other kinds have their own names.
        if self.kind in _KIND_NAMES or self.target is None:
            return _KIND_NAMES[self.kind]
        return _CODE_NAMES[self.target.kind]

    @property
    def packing(self) -> str:
        """Compression as text: ``zstd``, or ``zstd, shared frame``."""
        return f"{self.compression.value}{', shared frame' * self.is_share}"

    @property
    def target_name(self) -> str | None:
        """``sm_90a``; nvcc's ``lto_90`` for LTO IR; a bare number for others, None without one."""
        if self.target is not None:
            return str(self.target)
        number = f"{self.arch}{self.suffix}" if self.arch else None
        return f"lto_{number}" if number and self.kind is EntryKind.LTO_IR else number


def code_form(image: Image | FatbinEntry) -> CodeForm:
    """Return the kind of images that an image compresses like."""
    return image.kind, image.compression, image.target


class Unit(NamedTuple):
    """A fatbin container, or a cubin by itself: a device chooses one image of it.

    A tuple for the same reason as `Image`.

    Attributes:
        section: the ELF section's name; None outside of ELF files (a bare fatbin or cubin).
        member: the object in a static library, or the library whose code a pack has; else None.
        fat: the container of the fat library that a pack has a part of; None for a whole one.
        is_device_linked: True for the result of a library's device link, and for its input, which
            the driver links for GPUs that the result has no code for.
        is_registered: True for a container of a library that exactly one wrapper points at.
        checksum: of its images, to find copies; None unless it was requested and one is possible.
    """

    section: str | None
    place: Place
    images: tuple[Image, ...]
    member: str | None = None
    fat: FatContainer | None = None
    is_device_linked: bool = False
    is_registered: bool = False
    checksum: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FatContainer:
    """A container of a library that was split: its key, or its number before contract 1.1.

    All packs of one build have the same keys, or number the containers alike.

    Attributes:
        build: the split's build id.
        library: the number of the library in the core's table.
        container: its number in the library.
        key: of the container; b"" if it has a number.
    """

    build: bytes = field(repr=False)
    library: int = 0
    container: int = 0
    key: bytes = field(default=b"", repr=False)


def join_units(units: Iterable[Unit]) -> tuple[Unit, ...]:
    """Join the parts of each fat container that lie in several packs.

    A device chooses from the packs of one build together, as it chose from the fat library. An
    image that lies in several packs counts once. Units of other files are returned as they are. No
    pack has some images of a container's target without the others.
    """
    whole: list[Unit] = []
    parts: dict[FatContainer, list[Unit]] = {}
    for unit in units:
        if unit.fat is None:
            whole.append(unit)
        else:
            parts.setdefault(unit.fat, []).append(unit)
    return (*whole, *map(_join_parts, parts.values()))


def _join_parts(parts: list[Unit]) -> Unit:
    images: list[Image] = []
    for part in parts:
        targets = {image.target for image in images}
        # A pack has all images of a target or none, so targets tell copies apart.
        images += (image for image in part.images if image.target not in targets)
    return parts[0]._replace(images=tuple(images))


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryRow:
    """Sum of all images of one kind, target, section and compression."""

    kind: str
    target: str | None
    section: str | None
    place: Place
    compression: str
    count: int
    file_bytes: int
    wheel_bytes: int | None

    @property
    def weight(self) -> int:
        """Bytes of the download; bytes of the file outside of a wheel."""
        return self.file_bytes if self.wheel_bytes is None else self.wheel_bytes


def inventory_rows(units: Iterable[Unit]) -> tuple[InventoryRow, ...]:
    """Add up images: machine code first, then PTX, then the rest, each by target."""
    groups: dict[tuple[object, ...], _Sum] = {}
    for unit in units:
        section, place = unit.section, id(unit.place)
        for image in unit.images:
            # Numbers stand for the names of kind, target and compression: there are thousands of
            # images and few names, and computing them for each image is slow.
            key = (
                section,
                place,
                image.kind_number,
                image.arch,
                image.suffix,
                id(image.compression),
                image.is_share,
                image.kind is None,
                image.target is None,
            )
            group = groups.get(key)
            if group is None:
                group = groups[key] = _Sum(unit, image)
            group.count += 1
            group.file_bytes += image.file_bytes
            # A part of a sum would look like the whole.
            if image.wheel_bytes is None:
                group.wheel_bytes = None
            elif group.wheel_bytes is not None:
                group.wheel_bytes += image.wheel_bytes
    return tuple(_row(group) for group in sorted(groups.values(), key=_sort_key))


class _Sum:
    """Sum of images that are alike, and the first of them with its unit."""

    __slots__ = ("count", "file_bytes", "image", "unit", "wheel_bytes")

    def __init__(self, unit: Unit, image: Image) -> None:
        self.unit, self.image = unit, image
        self.count = self.file_bytes = 0
        self.wheel_bytes: int | None = 0


def sum_wheel_bytes(sizes: Iterable[int | None]) -> int | None:
    """Return the sum of wheel bytes, or None if one of them is unknown."""
    total = 0
    # A part of a sum would look like the whole.
    for size in sizes:
        if size is None:
            return None
        total += size
    return total


def _row(group: _Sum) -> InventoryRow:
    unit, first = group.unit, group.image
    return InventoryRow(
        kind=first.kind_name,
        target=first.target_name,
        section=unit.section,
        place=unit.place,
        compression=first.packing,
        count=group.count,
        file_bytes=group.file_bytes,
        wheel_bytes=group.wheel_bytes,
    )


def _sort_key(group: _Sum) -> tuple[object, ...]:
    unit, image = group.unit, group.image
    # The order of the enum's members is the order of reports.
    places = list(Place)
    kind = (image.target is None, image.target is not None and image.target.kind is CodeKind.PTX)
    place = (places.index(unit.place), unit.section or "")
    return (*kind, image.kind_name, image.arch, image.suffix, *place, image.packing)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """Sum of all copies of a kernel for one target.

    A template may be instantiated in many translation units.
    """

    target: str
    name: str
    count: int
    code_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file that can hold device code.

    Attributes:
        path: the member's name in a wheel, else relative to the inspected folder.
        wheel_bytes: the file's part of the download; None outside of wheels.
        units: in the order of the file.
        problem: the reason why the units may be incomplete, or None.
        kernels: empty unless kernels were requested.
        zstd: the share of bytes that images keep as zstd frames of level 9, by a sample; None
            unless it was requested.
    """

    path: str
    size: int
    wheel_bytes: int | None
    units: tuple[Unit, ...] = field(repr=False)
    problem: str | None = None
    kernels: tuple[KernelRow, ...] = field(default=(), repr=False)
    zstd: Mapping[CodeForm, float] | None = None

    @property
    def weight(self) -> int:
        """Bytes of the download; bytes of the file outside of a wheel."""
        return self.size if self.wheel_bytes is None else self.wheel_bytes

    @property
    def containers(self) -> int:
        """Number of units inside of the fatbin sections."""
        return sum(unit.place is not Place.OUTSIDE for unit in self.units)

    def zstd_size(self, unit: Unit, image: Image) -> int:
        """Return the bytes of an image in the form that split would store."""
        # A linker can't read zstd, and a frame of several images stays as it is.
        can_change = unit.place is Place.EXECUTABLE and not image.is_share
        zstd = self.zstd if can_change and self.zstd else {}
        return int(zstd.get(code_form(image), 1.0) * image.file_bytes)

    @property
    def zstd_saves(self) -> int:
        """Bytes of the file that zstd level 9 would save."""
        return sum(
            image.file_bytes - self.zstd_size(unit, image)
            for unit in self.units
            for image in unit.images
        )

    def rows(self) -> tuple[InventoryRow, ...]:
        """Add up the images of the file."""
        return inventory_rows(self.units)


def drop_placeholders(files: tuple[File, ...]) -> tuple[File, ...]:
    """Remove the empty containers of split libraries that the core's table lists.

    The units of the table stand for these containers, and are joined with their parts in packs.
    """
    # Only a core's table tells that a container was emptied by a split.
    listed = {one.member for file in files for one in file.units if one.fat and not one.images}
    return tuple(
        replace(file, units=tuple(unit for unit in file.units if unit.images or unit.fat))
        # The table names a library by the end of its installed path.
        if any(name and f"/{file.path}".endswith(f"/{name}") for name in listed)
        else file
        for file in files
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherFiles:
    """Files of one kind that only compilers, tests and profilers read.

    Attributes:
        size: bytes of the files, or of the download if the inventory is of one.
    """

    kind: str
    count: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Device code of a file, wheel, folder or installed package.

    Jupyter shows an inventory as a table.

    Attributes:
        path: the inspected subject, as the user named it.
        sha256: of the file; None for folders and packages, and unless it was requested.
        size: bytes of the file, or of all files.
        is_wheel: True if ``size`` is a download's.
        files: all that can hold device code, with or without any.
        other_files: headers, static libraries, tests and the like, the largest sum first.
    """

    path: str
    sha256: str | None
    size: int
    is_wheel: bool
    files: tuple[File, ...] = field(repr=False)
    other_files: tuple[OtherFiles, ...] = field(default=(), repr=False)

    @property
    def name(self) -> str:
        """Last part of the path, without the folders of this machine."""
        return self.path.rstrip("/").rpartition("/")[2]

    def units(self) -> Iterator[Unit]:
        """Yield the units of all files."""
        return (unit for file in self.files for unit in file.units)

    def rows(self) -> tuple[InventoryRow, ...]:
        """Add up the images of all files."""
        return inventory_rows(self.units())

    def kernels(self) -> tuple[KernelRow, ...]:
        """Add up the kernels of all files, in the order of their first appearance."""
        counts: Counter[tuple[str, str]] = Counter()
        sizes: Counter[tuple[str, str]] = Counter()
        for file in self.files:
            for row in file.kernels:
                counts[row.target, row.name] += row.count
                sizes[row.target, row.name] += row.code_bytes
        return tuple(
            KernelRow(target=target, name=name, count=counts[target, name], code_bytes=size)
            for (target, name), size in sizes.items()
        )

    def _repr_html_(self) -> str:
        """Return the table that Jupyter shows: files, targets, images and bytes."""
        measure = "download" if self.is_wheel else "bytes"
        rows = [row for file in self.files for row in _html_rows(file)]
        lines = rows[:_MAX_HTML_ROWS]
        if len(rows) > _MAX_HTML_ROWS:
            lines.append(_html_row(f"… and {count_text(len(rows) - _MAX_HTML_ROWS, 'more row')}"))
        lines.append(_html_row("total", size=size_text(self.size)))
        return (
            f"<table><caption>{escape(self.name)}</caption>"
            f"<thead><tr><th>file<th>target<th>kind<th>images<th>{measure}</tr></thead>"
            f"<tbody>{''.join(lines)}</tbody></table>"
        )


def _html_rows(file: File) -> Iterator[str]:
    """Return a row for each target of a file, and one for its problem."""
    groups: dict[tuple[str, str], list[InventoryRow]] = {}
    for row in file.rows():
        groups.setdefault((row.target or "", row.kind), []).append(row)
    for (target, kind), rows in groups.items():
        count, size = sum(row.count for row in rows), sum(row.weight for row in rows)
        yield _html_row(file.path, target, kind, str(count), size=size_text(size))
    if file.problem is not None:
        yield _html_row(file.path, "", file.problem)


def _html_row(path: str, target: str = "", kind: str = "", count: str = "", size: str = "") -> str:
    # Paths and problems come from other people's wheels: no cell may become markup.
    cells = "".join(f"<td>{escape(cell)}" for cell in (path, target, kind, count, size))
    return f"<tr>{cells}</tr>"
