"""Sizes and counts in messages and options.

The convention of sizes is ccache's and the package index's: ``k``, ``M``, ``G``, ``T`` are decimal,
and ``Ki``, ``Mi``, ``Gi``, ``Ti`` binary, in any case, with or without ``B``.
"""

from __future__ import annotations

import re
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from archsplit.errors import UsageError
from archsplit.system.patterns import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Collection

__pure__ = True

_UNITS: dict[str, int] = {
    "": 1,
    **{unit: 1000**power for power, unit in enumerate("KMGT", 1)},
    **{f"{unit}I": 1024**power for power, unit in enumerate("KMGT", 1)},
}
_SIZE = lazy_pattern(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?((?:[KMGT]I?)?)B?", re.IGNORECASE)

BLOCK = 1 << 20
"""Bytes per read, wherever a file needn't be in memory as a whole."""


def size_text(size: int) -> str:
    """Return ``131.7 MB``, ``12.3 kB``, ``80 B``."""
    unit, digits, step = _unit(size)
    return f"{(size + step // 2) // step / 10**digits:.{digits}f} {unit}"


def size_texts(sizes: Collection[int]) -> tuple[str, ...]:
    """Return the texts of parts, which add up to the text of their sum.

    Each sum of the first parts is rounded, and a part is the difference of two. A part for which
    nothing is left has its own unit.
    """
    unit, digits, step = _unit(sum(sizes))
    sums = ((one + step // 2) // step for one in accumulate(sizes, initial=0))
    return tuple(
        f"{(after - before) / 10**digits:.{digits}f} {unit}" if after > before else size_text(size)
        for size, (before, after) in zip(sizes, pairwise(sums), strict=True)
    )


def _unit(size: int) -> tuple[str, int, int]:
    """Return the unit of a size, its decimals, and the bytes of the last digit."""
    # Decimal units, because that is how the index states its limits.
    units = (("B", 0, 1), ("kB", 1, 100), ("MB", 1, 10**5), ("GB", 2, 10**7))
    return units[sum(abs(size) >= limit for limit in (10**3, 10**6, 10**9))]


def short_size(size: int) -> str:
    """Return a size with three significant digits: ``132 MB``, ``26.4 kB``, ``1.20 GB``."""
    # Rounded first: 999,960 bytes are 1.00 MB.
    value = float(f"{size:.3g}")
    unit, digits, step = _unit(int(value))
    if not digits:
        return f"{size} B"
    value /= step * 10**digits
    decimals = max(3 - len(f"{abs(value):.0f}"), 0)
    return f"{value:.{decimals}f} {unit}"


def count_text(number: int, one: str, several: str = "") -> str:
    """Return ``1 image``, ``2 images``; ``several`` is for other plurals than with an s."""
    return f"{number} {one if number == 1 else several or f'{one}s'}"


def change_text(size: int) -> str:
    """Return ``+1.2 MB``, ``-80 B``: a size with its sign."""
    # A minus is a part of the number.
    return f"{'+' if size > 0 else ''}{size_text(size)}"


def parse_size(text: str) -> int:
    """Read ``100MB``, ``1.5 GiB``, ``8G``, ``1T`` or a plain number of bytes.

    Raises:
        UsageError: the text is anything else.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a size", hint="write it like 100MB, 20G or 1.5GiB")
    # Rounded, not cut: 1.1M is 1,100,000, and a float may have less.
    return round(float(match[1]) * _UNITS[match[2].upper()])
