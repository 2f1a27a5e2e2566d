"""What a slimmed wheel or distribution says of itself: for people, and for programs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING

from archsplit.slim.report import SLIM_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from archsplit.slim.report import SlimmedFile

NOTE_FILE = "archsplit-slim.json"
"""In the distribution's own folder: what was removed, and from what."""


def slimmed_before(texts: Iterable[bytes]) -> str | None:
    """Say that device code was removed on purpose, by the choices in `NOTE_FILE`s; None if not."""
    choices = sorted({choice for text in texts if (choice := _choice(text))})
    if not choices:
        return None
    named = ", ".join(f"`{choice}`" for choice in choices)
    return f"it was slimmed on purpose, by {named}; slim the original instead"


def _choice(text: bytes) -> str | None:
    try:
        return str(json.loads(text)["choice"])
    except (ValueError, KeyError, TypeError):
        return None


def removal_note(files: Iterable[SlimmedFile]) -> str:
    """A paragraph for a wheel's page: what it lacks."""
    totals: Counter[str] = Counter()
    for file in files:
        for row in file.removed:
            totals[row.target or row.kind] += row.file_bytes
    parts = [f"{target} ({size / 1e6:.1f} MB)" for target, size in sorted(totals.items())]
    removed = ", ".join(parts) or "none, it was only packed anew"
    return f"This wheel was slimmed with archsplit. Device code that was removed: {removed}."


def removal_record(
    *, source: Mapping[str, str], choice: str, files: Iterable[SlimmedFile]
) -> bytes:
    """The content of `NOTE_FILE`; ``source`` says what was slimmed."""
    content = {
        "schema": SLIM_SCHEMA,
        "source": dict(source),
        "choice": choice,
        "files": [
            {"path": file.path, "removed": [asdict(row) for row in file.removed]} for file in files
        ],
    }
    return (json.dumps(content, indent=2) + "\n").encode()
