"""Device code as records: images, in the units from which a device chooses one."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from archsplit.arch.target import CodeKind
from archsplit.formats.entry import Compression, EntryKind

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def joined_units(units: Iterable[Unit]) -> tuple[Unit, ...]:
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
