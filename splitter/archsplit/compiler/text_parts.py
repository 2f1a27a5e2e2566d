"""Preprocessed texts in parts: a header's line marker, and the lines up to the next header.

Texts for several targets have nearly all parts in common, and each part is looked at once.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, TypeVar

from archsplit.nvcc.preprocessed_text import (
    has_open_raw_string,
    include_markers,
    uses_location,
    with_assert_locations,
    without_markers,
)
from archsplit.system.patterns import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    _Fact = TypeVar("_Fact")

_START = lazy_pattern(rb'# 1 "')
_MOST_BYTES = 1 << 26
"""Bytes of parts that are kept; a build has hundreds of texts."""


class TextParts:
    """Parts of preprocessed texts, which don't change; threads may share them."""

    def __init__(self) -> None:
        self._texts: dict[Path, list[bytes]] = {}
        self._known: dict[bytes, bytes] = {}
        self._facts: dict[Callable[[bytes], object], dict[bytes, object]] = {}

    def facts(self, path: Path, function: Callable[[bytes], _Fact]) -> list[_Fact]:
        """Return what a function says of each part of a text; a part has whole lines.

        Raises:
            OSError: the text can't be read.
        """
        parts = self._read(path)
        known: dict[bytes, _Fact] = self._facts.setdefault(function, {})  # type: ignore[assignment]
        # Two threads may look at a part at once: both find the same.
        known.update({part: function(part) for part in parts if part not in known})
        return [known[part] for part in parts]

    def without_markers(self, path: Path) -> bytes | None:
        """Return a text without line markers and empty lines; None if they may have a meaning."""
        stripped = self.facts(path, _without_markers)
        found = [part for part in stripped if part is not None]
        return b"".join(found) if len(found) == len(stripped) else None

    def markers(self, path: Path) -> bytes:
        """Return the markers of `include_markers`."""
        first, *others = self._read(path)
        return include_markers(first + b"".join(part[: part.find(b"\n") + 1] for part in others))

    def _read(self, path: Path) -> list[bytes]:
        found = self._texts.get(path)
        if found is None:
            if sum(map(len, self._known)) > _MOST_BYTES:
                self._texts, self._known, self._facts = {}, {}, {}
            known = self._known
            parts = _split(path.read_bytes())
            found = self._texts[path] = [known.setdefault(part, part) for part in parts]
        return found


def _split(text: bytes) -> list[bytes]:
    starts = (found.start() for found in _START.finditer(text))
    # A pattern that begins with a rare character is twice as fast as one for the end of a line.
    places = [0, *(start for start in starts if text[start - 1 : start] == b"\n"), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(places)]


def _without_markers(part: bytes) -> bytes | None:
    text = with_assert_locations(part)
    return None if uses_location(text) or has_open_raw_string(text) else without_markers(text)
