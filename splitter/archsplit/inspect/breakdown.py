"""One colour a GPU generation, in all views.

What all views show: device code by target, and whatever else the bytes are for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.devicecode.model import Place, sum_wheel_bytes
from archsplit.system.units import size_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from archsplit.devicecode.model import Inventory, InventoryRow

REST_COLOR = "#c9ccd1"
"""What is no device code."""

OTHER_COLOR = "#8a8f98"
"""Device code without a target."""

USABLE_COLOR, DEAD_COLOR = "#4f9d69", "#d9c6c3"
"""What a GPU can use, and what it can't."""

_BY_MAJOR = {
    2: "#b59a7a",
    3: "#b59a7a",
    5: "#a67c52",
    6: "#c98f3c",
    7: "#4f9d69",
    8: "#3a7ebf",
    9: "#7a5cc2",
    10: "#c2527f",
    11: "#d0724a",
    12: "#2a9d9d",
}
_NUMBER = re.compile(r"(?:sm|compute|lto)_([0-9]+)[0-9][af]?")


def target_color(target: str | None) -> str:
    """The colour of a target by its major capability, as ``#rrggbb``."""
    match = _NUMBER.fullmatch(target or "")
    return OTHER_COLOR if match is None else _BY_MAJOR.get(int(match[1]), OTHER_COLOR)


REST_LABEL = "everything else"
"""Host code, Python, data: what no GPU runs."""

PLACE_WORDS = {
    Place.EXECUTABLE: "",
    Place.RELOCATABLE: "for a device link",
    Place.OUTSIDE: "outside the fatbin sections",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakdownPart:
    """Bytes of one purpose.

    Attributes:
        label: the target, or the kind of what has none.
        kind: SASS, PTX, …; empty for what is no device code.
        note: where it lies, unless it is where it runs from.
        count: images.
        compressions: how they are packed, sorted.
        file_bytes, wheel_bytes: as in `archsplit.devicecode.model.InventoryRow`.
    """

    label: str
    kind: str
    note: str
    colour: str
    count: int
    compressions: tuple[str, ...]
    file_bytes: int
    wheel_bytes: int | None

    @property
    def weight(self) -> int:
        """Bytes of the download where one is known, else of the file."""
        return self.file_bytes if self.wheel_bytes is None else self.wheel_bytes


def breakdown(rows: Iterable[InventoryRow]) -> tuple[BreakdownPart, ...]:
    """Rows of one target and purpose, added up; in their order."""
    groups: dict[tuple[Place, str, str], list[InventoryRow]] = {}
    for row in rows:
        groups.setdefault((row.place, row.kind, row.target or row.kind), []).append(row)
    places = list(Place)
    return tuple(
        BreakdownPart(
            label=label,
            kind=kind,
            note=PLACE_WORDS[place],
            colour=target_color(label),
            count=sum(row.count for row in group),
            compressions=tuple(sorted({row.compression for row in group})),
            file_bytes=sum(row.file_bytes for row in group),
            wheel_bytes=sum_wheel_bytes(row.wheel_bytes for row in group),
        )
        # Sorting keeps the rows' own order within a place.
        for (place, kind, label), group in sorted(
            groups.items(), key=lambda item: places.index(item[0][0])
        )
    )


def remaining_part(size: int, parts: Iterable[BreakdownPart]) -> BreakdownPart:
    """What is left of ``size`` (of the download, or of a file) beside some parts."""
    left = max(0, size - sum(part.weight for part in parts))
    return BreakdownPart(
        label=REST_LABEL,
        kind="",
        note="",
        colour=REST_COLOR,
        count=0,
        compressions=(),
        file_bytes=left,
        wheel_bytes=None,
    )


def share_text(part: int, whole: int) -> str:
    """``82 %``; empty where there is no whole."""
    return f"{100 * part / whole:.0f} %" if whole else ""


def summarize(inventory: Inventory) -> str:
    """One sentence: how much there is, and how much of it is device code."""
    weight = sum(row.weight for row in inventory.rows())
    holders = [file for file in inventory.files if file.rows()]
    containers = sum(file.containers for file in inventory.files)
    what = "to download" if inventory.is_wheel else "in all"
    if not holders:
        return f"{size_text(inventory.size)} {what}; no device code"
    return (
        f"{size_text(inventory.size)} {what}; {size_text(weight)} of it "
        f"({share_text(weight, inventory.size)}) is device code, "
        f"in {_count(containers, 'container')} of {_count(len(holders), 'file')}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
