"""Lists of targets in one text, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.arch.target import Target, target_names

if TYPE_CHECKING:
    from collections.abc import Callable


def parse_targets(
    text: str, *, spelling: Callable[[str], tuple[str, ...]] = target_names
) -> tuple[Target, ...]:
    """Return the targets of a list without repetition, in their own order."""
    return tuple(sorted({Target.parse(name) for name in spelling(text)}))
