"""Device code as records: images, in the units from which a device chooses one.

Images added up: one row for those of one kind, target, section and compression.

What was inspected: files, with what device code is in them.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from archsplit.arch.target import CodeKind
from archsplit.formats.fatbin import Compression, EntryKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from archsplit.arch.target import Suffix, Target

_KIND_NAMES = {
    EntryKind.LTO_IR: "LTO-IR",
    EntryKind.INDEX: "index",
    EntryKind.RELOCATABLE_PTX: "relocatable PTX",
    EntryKind.TILE_IR: "tile IR",
    EntryKind.CONCATENATED: "concatenated",
}
_CODE_NAMES = {CodeKind.SASS: "SASS", CodeKind.PTX: "PTX"}


class Place(enum.Enum):
    """What a unit is there for, as far as the place says it where it lies."""

    EXECUTABLE = "executable"
    """Registered at run time; a device takes the best image of each unit."""

    RELOCATABLE = "relocatable"
    """Input of a device link (``-rdc=true``): a leftover in a finished library."""

    OUTSIDE = "outside"
    """Outside of the fatbin sections: who uses it, and how, only the library knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One piece of device code.

    Attributes:
        kind: None when its number is not known.
        kind_number: as it stands in the fatbin.
        target: None for what is neither SASS nor PTX.
        arch: the sm number that every image has, without the suffix.
        offset: in the file.
        file_bytes: the header and the padded payload; of a bare cubin, the file.
        wheel_bytes: of the wheel's compressed stream; None outside of wheels.
        is_bare: whether it is a cubin by itself, and no entry of a container.
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

    @property
    def weight(self) -> int:
        """Bytes of the download where one is known, else of the file."""
        return self.file_bytes if self.wheel_bytes is None else self.wheel_bytes

    @property
    def kind_name(self) -> str:
        """``SASS``, ``PTX``, ``LTO-IR``, or whatever else it is."""
        if self.kind is None:
            return f"kind {self.kind_number}"
        if self.kind in _KIND_NAMES or self.target is None:
            return _KIND_NAMES[self.kind]
        return _CODE_NAMES[self.target.kind]

    @property
    def target_name(self) -> str | None:
        """``sm_90a``; nvcc's ``lto_90`` for LTO IR; a bare number for others, None without one."""
        if self.target is not None:
            return str(self.target)
        number = f"{self.arch}{self.suffix}" if self.arch else None
        return f"lto_{number}" if number and self.kind is EntryKind.LTO_IR else number


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What a device chooses one image from: a fatbin container, or a cubin by itself.

    Attributes:
        section: the ELF section's name; None where there is none (a bare fatbin or cubin).
        member: the object in a static library, or the library that a pack has code of; else None.
        fat: the container of the fat library that a pack has a part of; None for a whole one.
    """

    section: str | None
    place: Place
    images: tuple[Image, ...] = field(repr=False)
    member: str | None = None
    fat: FatContainer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FatContainer:
    """A container of a library that was split; all packs of one build number it alike.

    Attributes:
        build: the split's build id.
        library: the number of the library in the core's table.
        container: its number in the library.
    """

    build: bytes = field(repr=False)
    library: int
    container: int


def join_units(units: Iterable[Unit]) -> tuple[Unit, ...]:
    """Join the parts of fat containers that packs have; an image in several packs counts once.

    A device chooses from the packs of one build together, as it chose from the fat library. Other
    units stay as they are. No pack has some images of a container's target without the others.
    """
    whole: list[Unit] = []
    parts: dict[FatContainer, list[Unit]] = {}
    for unit in units:
        if unit.fat is None:
            whole.append(unit)
        else:
            parts.setdefault(unit.fat, []).append(unit)
    return (*whole, *map(_joined, parts.values()))


def _joined(parts: list[Unit]) -> Unit:
    images: list[Image] = []
    for part in parts:
        held = {image.target for image in images}
        images += (image for image in part.images if image.target not in held)
    return replace(parts[0], images=tuple(images))


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryRow:
    """All images of one kind, target, section and compression."""

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
        """What it costs: bytes of the download where one is known, else of the file."""
        return self.file_bytes if self.wheel_bytes is None else self.wheel_bytes


def inventory_rows(units: Iterable[Unit]) -> tuple[InventoryRow, ...]:
    """Add up images; machine code first, then PTX, then the rest, each by target."""
    groups: dict[tuple[object, ...], list[tuple[Unit, Image]]] = {}
    for unit in units:
        place = (unit.section, id(unit.place))
        for image in unit.images:
            groups.setdefault((*place, *_kind(image)), []).append((unit, image))
    return tuple(_row(group) for group in sorted(groups.values(), key=_order))


def _kind(image: Image) -> tuple[object, ...]:
    """All that its names are made of, as numbers: there are thousands of images, and few names."""
    numbers = (image.kind_number, image.arch, image.suffix, id(image.compression))
    return (*numbers, image.kind is None, image.target is None)


def sum_wheel_bytes(sizes: Iterable[int | None]) -> int | None:
    """The sum of wheel bytes: None as soon as one is not known."""
    total = 0
    for size in sizes:
        if size is None:
            return None
        total += size
    return total


def _row(group: list[tuple[Unit, Image]]) -> InventoryRow:
    unit, first = group[0]
    return InventoryRow(
        kind=first.kind_name,
        target=first.target_name,
        section=unit.section,
        place=unit.place,
        compression=first.compression.value,
        count=len(group),
        file_bytes=sum(image.file_bytes for _, image in group),
        wheel_bytes=sum_wheel_bytes(image.wheel_bytes for _, image in group),
    )


def _order(group: list[tuple[Unit, Image]]) -> tuple[object, ...]:
    unit, image = group[0]
    places = list(Place)
    kind = (image.target is None, image.target is not None and image.target.kind is CodeKind.PTX)
    place = (places.index(unit.place), unit.section or "")
    return (*kind, image.kind_name, image.arch, image.suffix, *place, image.compression.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """All copies of one kernel for one target; a template may be in many translation units."""

    target: str
    name: str
    count: int
    code_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file that can hold device code.

    Attributes:
        path: the member's name in a wheel, else relative to what was inspected.
        wheel_bytes: its part of the download; None outside of wheels.
        units: in the order of the file.
        problem: why less is said about it than there may be, or None.
        kernels: empty where nobody asked for them.
    """

    path: str
    size: int
    wheel_bytes: int | None
    units: tuple[Unit, ...] = field(repr=False)
    problem: str | None = None
    kernels: tuple[KernelRow, ...] = field(default=(), repr=False)

    @property
    def weight(self) -> int:
        """What it costs: bytes of the download where one is known, else of the file."""
        return self.size if self.wheel_bytes is None else self.wheel_bytes

    @property
    def containers(self) -> int:
        """How many units its sections have; what lies outside of them isn't counted."""
        return sum(unit.place is not Place.OUTSIDE for unit in self.units)

    def rows(self) -> tuple[InventoryRow, ...]:
        """Its images, added up."""
        return inventory_rows(self.units)


def drop_placeholders(files: tuple[File, ...]) -> tuple[File, ...]:
    """Leave out the empty containers of libraries that a core's table among the files lists.

    The table's containers stand for them, and are joined with what packs have of each.
    """
    listed = tuple({unit.member for file in files for unit in file.units if _is_in_table(unit)})
    return tuple(
        replace(file, units=tuple(unit for unit in file.units if unit.images or unit.fat))
        if any(name and f"/{file.path}".endswith(f"/{name}") for name in listed)
        else file
        for file in files
    )


def _is_in_table(unit: Unit) -> bool:
    return unit.fat is not None and not unit.images


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What was found in a file, wheel, folder or installed package.

    Attributes:
        path: what was asked about.
        sha256: of the file; None for folders and packages, and where nobody asked.
        size: bytes of the file, or of all files.
        is_wheel: whether ``size`` is that of a download.
        files: those that can hold device code, whether they do or not.
    """

    path: str
    sha256: str | None
    size: int
    is_wheel: bool
    files: tuple[File, ...] = field(repr=False)

    @property
    def name(self) -> str:
        """The last part of its path: what may be shown to others."""
        return self.path.rstrip("/").rpartition("/")[2]

    def units(self) -> Iterator[Unit]:
        """The units of all files."""
        return (unit for file in self.files for unit in file.units)

    def rows(self) -> tuple[InventoryRow, ...]:
        """The images of all files, added up."""
        return inventory_rows(self.units())

    def kernels(self) -> tuple[KernelRow, ...]:
        """The kernels of all files, added up, in the order in which they come."""
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
