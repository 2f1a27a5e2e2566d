"""One colour a GPU generation, in all views."""

from __future__ import annotations

import re

REST = "#c9ccd1"
"""What is no device code."""

OTHER = "#8a8f98"
"""Device code without a target."""

USABLE, DEAD = "#4f9d69", "#d9c6c3"
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


def colour_of(target: str | None) -> str:
    """The colour of a target by its major capability, as ``#rrggbb``."""
    match = _NUMBER.fullmatch(target or "")
    return OTHER if match is None else _BY_MAJOR.get(int(match[1]), OTHER)
