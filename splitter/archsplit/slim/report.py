"""What was taken out of a file or wheel, what stayed, and what was checked afterwards.

What a slimmed wheel or distribution says of itself: for people, and for programs.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from archsplit.devicecode.effects import CoverageChange
    from archsplit.devicecode.file_plan import FilePlan
    from archsplit.devicecode.verify import KeptImage
    from archsplit.formats.fatbin import FatbinEntry

SLIM_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedImages:
    """Images of one kind and target that are gone."""

    kind: str
    target: str | None
    count: int
    file_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimmedFile:
    """One file.

    Attributes:
        path: the member's name in a wheel, else the file's own.
        size_before, size_after: bytes.
        mode: what was done: ``shrink``, ``in-place`` or ``untouched``.
        note: why it got no shorter, though it was asked for; or None.
        kept: images that stay, with digests; empty where nothing was written.
    """

    path: str
    size_before: int
    size_after: int
    mode: str
    note: str | None
    removed: tuple[RemovedImages, ...]
    kept: tuple[KeptImage, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimReport:
    """A file, wheel or environment and what became of it.

    Attributes:
        source: what was given.
        output: what was written; None for a dry run, and where there was nothing to take out.
        size_before, size_after: bytes of the download for wheels; of a dry run the size after is
            not known there, and None.
        sha256: of the output; None for an environment.
        choice: what stays, in the words of the command line.
        files: those with device code.
        effects: what changes for known GPUs.
        checks: what was tried with the output, one line each.
        notes: what was left as it is, and why; what else one has to know.
    """

    source: str
    output: str | None
    size_before: int
    size_after: int | None
    sha256: str | None
    choice: str
    files: tuple[SlimmedFile, ...]
    effects: tuple[CoverageChange, ...] = field(repr=False)
    checks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def as_json(self) -> str:
        """The report as text, with one final newline."""
        content = {
            "schema": SLIM_SCHEMA,
            "source": self.source,
            "output": self.output,
            "size_before": self.size_before,
            "size_after": self.size_after,
            "sha256": self.sha256,
            "choice": self.choice,
            "files": [asdict(file) for file in self.files],
            "effects": list(map(_effect, self.effects)),
            "checks": list(self.checks),
            "notes": list(self.notes),
        }
        return json.dumps(content, indent=2) + "\n"


def describe_file(
    path: str, plan: FilePlan, mode: str, kept: Iterable[KeptImage] = ()
) -> SlimmedFile:
    """What a plan does to a file."""
    return SlimmedFile(
        path=path,
        size_before=len(plan.window),
        size_after=plan.size,
        mode=mode if plan.is_changed else "untouched",
        note=plan.note,
        removed=_removed(plan),
        kept=tuple(kept),
    )


def _removed(plan: FilePlan) -> tuple[RemovedImages, ...]:
    groups: dict[tuple[str, str | None], list[FatbinEntry]] = {}
    for container in plan.containers:
        stays = {entry.offset for entry in container.kept}
        for entry in container.entries:
            if entry.offset not in stays:
                target = None if entry.target is None else str(entry.target)
                groups.setdefault((entry.kind_name, target), []).append(entry)
    return tuple(
        RemovedImages(
            kind=kind,
            target=target,
            count=len(entries),
            file_bytes=sum(entry.size for entry in entries),
        )
        for (kind, target), entries in sorted(groups.items(), key=lambda item: str(item[0]))
    )


def _effect(effect: CoverageChange) -> Mapping[str, object]:
    return {
        "capability": str(effect.capability),
        "before": {service.value: count for service, count in effect.before.items()},
        "after": {service.value: count for service, count in effect.after.items()},
        "stops": effect.stops,
    }


SLIM_NOTE_FILE = "archsplit-slim.json"
"""In the distribution's own folder: what was removed, and from what."""


def earlier_slim_hint(texts: Iterable[bytes]) -> str | None:
    """Return a hint that device code was removed on purpose, or None without a slim record."""
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
    """The content of `SLIM_NOTE_FILE`; ``source`` says what was slimmed."""
    content = {
        "schema": SLIM_SCHEMA,
        "source": dict(source),
        "choice": choice,
        "files": [
            {"path": file.path, "removed": [asdict(row) for row in file.removed]} for file in files
        ],
    }
    return (json.dumps(content, indent=2) + "\n").encode()
