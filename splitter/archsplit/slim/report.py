"""What was taken out of a file or wheel, what stayed, and what was checked afterwards."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from archsplit.devicecode.effects import Effect
    from archsplit.devicecode.file_plan import FilePlan
    from archsplit.devicecode.verify import KeptImage
    from archsplit.formats.entry import FatbinEntry

SLIM_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
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
    removed: tuple[Removed, ...]
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
    effects: tuple[Effect, ...] = field(repr=False)
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


def file_report(
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


def _removed(plan: FilePlan) -> tuple[Removed, ...]:
    groups: dict[tuple[str, str | None], list[FatbinEntry]] = {}
    for container in plan.containers:
        stays = {entry.offset for entry in container.kept}
        for entry in container.entries:
            if entry.offset not in stays:
                target = None if entry.target is None else str(entry.target)
                groups.setdefault((entry.kind_name, target), []).append(entry)
    return tuple(
        Removed(
            kind=kind,
            target=target,
            count=len(entries),
            file_bytes=sum(entry.size for entry in entries),
        )
        for (kind, target), entries in sorted(groups.items(), key=lambda item: str(item[0]))
    )


def _effect(effect: Effect) -> Mapping[str, object]:
    return {
        "capability": str(effect.capability),
        "before": {service.value: count for service, count in effect.before.items()},
        "after": {service.value: count for service, count in effect.after.items()},
        "stops": effect.stops,
    }
