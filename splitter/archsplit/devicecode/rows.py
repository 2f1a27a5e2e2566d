"""Images added up: one row for those of one kind, target, section and compression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.arch.target import CodeKind
from archsplit.devicecode.model import Place

if TYPE_CHECKING:
    from collections.abc import Iterable

    from archsplit.devicecode.model import Image, Unit


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


def sum_rows(sizes: Iterable[int | None]) -> int | None:
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
        wheel_bytes=sum_rows(image.wheel_bytes for _, image in group),
    )


def _order(group: list[tuple[Unit, Image]]) -> tuple[object, ...]:
    unit, image = group[0]
    places = list(Place)
    kind = (image.target is None, image.target is not None and image.target.kind is CodeKind.PTX)
    place = (places.index(unit.place), unit.section or "")
    return (*kind, image.kind_name, image.arch, image.suffix, *place, image.compression.value)
