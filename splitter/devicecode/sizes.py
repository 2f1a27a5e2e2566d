"""Sizes as people write and read them, in decimal units as the index has them."""

from __future__ import annotations

import re

from splitter.errors import UsageError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?((?:[KMG]I?)?)B?", re.IGNORECASE)
_THOUSAND = 1000


def size_text(size: int) -> str:
    """``131.7 MB``, ``12.3 kB``, ``80 B``."""
    if abs(size) < _THOUSAND:
        return f"{size} B"
    value = float(size)
    for unit in ("kB", "MB"):
        value /= _THOUSAND
        if abs(value) < _THOUSAND:
            return f"{value:.1f} {unit}"
    return f"{value / _THOUSAND:.2f} GB"


def parse_size(text: str) -> int:
    """Read ``100MB``, ``1.5 GiB``, ``8G`` or a plain number of bytes.

    Raises:
        UsageError: it is anything else.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a size", hint="write it as in 100MB or 1.5GiB")
    return round(float(match[1]) * _UNITS[match[2].upper()])
