"""Key components that a person can read, and the key that follows from them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__pure__ = True

KEY_SCHEMA = "archsplit cache 3"
"""Version of keys and entries; a part of each key."""


class KeyComponent(NamedTuple):
    """A dependency of a result.

    Attributes:
        name: such as ``flag -O3``, ``program cicc``, ``environment LANG``; may repeat.
        value: the text itself, or the SHA-256 of a file's content.
    """

    name: str
    value: str


def compute_key(parts: Iterable[KeyComponent]) -> str:
    """Return the key as 64 hexadecimal digits; the order of the components counts."""
    digest = hashlib.sha256(KEY_SCHEMA.encode())
    for part in parts:
        for text in part:
            content = text.encode(errors="surrogateescape")
            # With lengths, no two lists of texts have the same bytes.
            digest.update(b"%d:" % len(content))
            digest.update(content)
    return digest.hexdigest()


def key_differences(old: Sequence[KeyComponent], new: Sequence[KeyComponent]) -> tuple[str, ...]:
    """Return the differences of two results' components, sorted by name."""
    before, after = _by_name(old), _by_name(new)
    lines = []
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name, []), after.get(name, [])
        # Names may repeat, so that all values of a name are compared at once.
        if was != now:
            lines.append(_difference(name, was, now))
    return tuple(lines)


def _by_name(parts: Iterable[KeyComponent]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for part in parts:
        found.setdefault(part.name, []).append(part.value)
    return found


def _difference(name: str, was: list[str], now: list[str]) -> str:
    if not was:
        return f"{name} is new: {_shown(now)}"
    if not now:
        return f"{name} is gone: {_shown(was)}"
    gone = [value for value in was if value not in now]
    come = [value for value in now if value not in was]
    # Only added, or only removed: the other half would be noise.
    if bool(gone) != bool(come):
        return f"{name} is {'new' if come else 'gone'}: {_shown(come or gone)}"
    return f"{name}: {_shown(come or now)}, before {_shown(gone or was)}"


def _shown(values: list[str]) -> str:
    short = [value[:12] if _is_digest(value) else value for value in values]
    return " ".join(short) or "nothing"


def _is_digest(value: str) -> bool:
    return len(value) == hashlib.sha256().digest_size * 2 and value.isalnum()
