"""Moved from archsplit.devicecode.registered."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from archsplit.release.split_report import UnmovedCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.devicecode.registered import RegisteredContainer


def stays_of(name: str, places: tuple[RegisteredContainer, ...]) -> Iterator[UnmovedCode]:
    """What stays of a library's containers, by what keeps it."""
    by_obstacle: defaultdict[str, list[RegisteredContainer]] = defaultdict(list)
    for place in places:
        if place.obstacle:
            by_obstacle[place.obstacle].append(place)
    for why, found in sorted(by_obstacle.items()):
        entries = [entry for place in found for entry in place.entries]
        size = sum(entry.size for entry in entries)
        yield UnmovedCode(name=name, images=len(entries), size=size, why=why)
