"""Rectangles whose areas are weights, as square as can be.

The method is "squarified treemaps" (Bruls, Huizing, van Wijk, 2000): rows are filled along the
shorter side for as long as that makes their worst rectangle less oblong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Rectangle:
    """A place on the picture."""

    x: float
    y: float
    width: float
    height: float

    @property
    def area(self) -> float:
        """Its width times its height."""
        return self.width * self.height

    def inset(self, *, top: float, around: float) -> Rectangle:
        """What is left of it within a frame; nothing rather than less than nothing."""
        return Rectangle(
            x=self.x + around,
            y=self.y + top,
            width=max(0.0, self.width - 2 * around),
            height=max(0.0, self.height - top - around),
        )


def squarified(weights: Sequence[float], within: Rectangle) -> Iterator[Rectangle]:
    """One rectangle a weight, in their order; together they fill the one given.

    Args:
        weights: positive, the largest first, or the rectangles get oblong.
        within: the place to fill.
    """
    total = sum(weights)
    areas = [weight * within.area / total for weight in weights]
    while areas:
        side = min(within.width, within.height)
        count = _row_length(areas, side)
        row, areas = areas[:count], areas[count:]
        yield from _laid(row, within)
        within = _beside(sum(row), within)


def _row_length(areas: Sequence[float], side: float) -> int:
    """How many rectangles make the next row."""
    count = 1
    while count < len(areas) and _worst(areas[: count + 1], side) <= _worst(areas[:count], side):
        count += 1
    return count


def _worst(row: Sequence[float], side: float) -> float:
    """The most oblong rectangle's longer side by its shorter one."""
    thickness = _quotient(sum(row), side)
    return max(max(_quotient(thickness**2, area), _quotient(area, thickness**2)) for area in row)


def _laid(row: Sequence[float], within: Rectangle) -> Iterator[Rectangle]:
    """A row along the shorter side."""
    upright = within.width >= within.height
    thickness = _quotient(sum(row), min(within.width, within.height))
    ahead = 0.0
    for area in row:
        length = _quotient(area, thickness)
        if upright:
            yield Rectangle(x=within.x, y=within.y + ahead, width=thickness, height=length)
        else:
            yield Rectangle(x=within.x + ahead, y=within.y, width=length, height=thickness)
        ahead += length


def _beside(area: float, within: Rectangle) -> Rectangle:
    """What a row of this area leaves."""
    used = _quotient(area, min(within.width, within.height))
    if within.width >= within.height:
        x, width = within.x + used, max(0.0, within.width - used)
        return Rectangle(x=x, y=within.y, width=width, height=within.height)
    y, height = within.y + used, max(0.0, within.height - used)
    return Rectangle(x=within.x, y=y, width=within.width, height=height)


def _quotient(part: float, whole: float) -> float:
    """0 where a place has no area left: what lies there can't be seen anyway."""
    return part / whole if whole > 0 else 0.0
