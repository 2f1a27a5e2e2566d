"""What to do about what `archsplit verify` finds; pure."""

from __future__ import annotations

__pure__ = True

_REMEDIES = (
    ("build it with", ""),
    ("put all wheels that split wrote", ""),
    ("take all wheels from one split", ""),
    ("names it, but it is not here", "build it again into this folder"),
    ("is not the file that", "build it again, or take it from where the others come from"),
    ("its descriptor says", "build core and plugins from the same sources with the same tools"),
    ("requires ", "build it again: nobody but archsplit should write these pins"),
    ("the extra ", "build the core again"),
    ("is neither the core nor", "take it out of the folder"),
    ("one core is needed", "put the wheels of one release alone into the folder"),
    ("the core names no plugin", "add the target to the recipe, and build again"),
    (" wheels", "leave one of them in the folder"),
)
"""A part of the finding, and what to do; nothing where the finding already says it."""


def with_remedy(finding: str) -> str:
    """A finding with what to do about it."""
    for part, remedy in _REMEDIES:
        if part in finding:
            return f"{finding}; {remedy}" if remedy else finding
    return f"{finding}; build that wheel again"
