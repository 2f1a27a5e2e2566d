"""What is asked for when something is split, and what came of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from splitter.devicecode.shares import By

if TYPE_CHECKING:
    from pathlib import Path

    from splitter.arch.target import Target

SCHEMA = 1
REPORT = "archsplit-split.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRequest:
    """What is asked for.

    Attributes:
        source: a wheel; never changed.
        out: the folder for all that is written.
        name: the core's distribution, if it shall have another name than the fat wheel.
        by: what a pack stands for.
        targets: pack no more than what the GPUs of these need; None for everything.
        install_all: the core requires every pack, so that who installs it gets what the fat wheel
            had; else packs come with extras.
    """

    source: Path
    out: Path
    name: str | None = None
    by: By = By.CAPABILITY
    targets: tuple[Target, ...] | None = None
    install_all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitWheel:
    """A wheel that was written.

    Attributes:
        pack: ``cc90``; None for the core.
        serves: the capabilities of the GPUs that need no other pack.
        images: how many images are in it, and their bytes.
    """

    file: str
    size: int
    sha256: str
    pack: str | None = None
    serves: tuple[str, ...] = ()
    images: int = 0
    image_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitLibrary:
    """A library that was taken apart: its size before and after, and what stays in it."""

    name: str
    size_before: int
    size_after: int
    containers: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitReport:
    """All that came of a split."""

    source: str
    source_sha256: str
    build_id: str
    wheels: tuple[SplitWheel, ...]
    libraries: tuple[SplitLibrary, ...]
    needs: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def as_json(self) -> str:
        """For programs; ``schema`` changes when a field is renamed or removed."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2) + "\n"

    def text(self) -> str:
        """For people."""
        lines = [f"{self.source} is now"]
        for wheel in self.wheels:
            what = f"GPUs of capability {', '.join(wheel.serves)}" if wheel.serves else wheel.pack
            lines.append(f"  {wheel.size / 1e6:8.1f} MB  {wheel.file}  {what or 'core'}")
        for library in self.libraries:
            before, after = library.size_before / 1e6, library.size_after / 1e6
            lines.append(f"{library.name}: {before:.1f} -> {after:.1f} MB")
            lines += [f"  {note}" for note in library.notes]
        return "\n".join(lines)
