"""What is asked for when something is split, and what came of it."""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Literal

from splitter.devicecode.shares import By

if TYPE_CHECKING:
    from pathlib import Path

    from splitter.arch.target import Target

SCHEMA = 1
REPORT = "archsplit-split.json"


class Install(enum.Enum):
    """What comes when the core is installed by its name alone, and whether a third name has all."""

    CORE = "core"
    ALL = "all"
    META = "meta"


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRequest:
    """What is asked for.

    Attributes:
        source: a wheel; never changed.
        out: the folder for all that is written.
        name: the core's distribution, if it shall have another name than the fat wheel.
        by: what a pack stands for.
        targets: pack no more than what the GPUs of these need; None for everything.
        install: ``ALL``: the core requires every pack, so that who installs it gets what the fat
            wheel had; else packs come with extras. ``META``: and one more wheel, ``<name>-all``,
            requires the core and every pack.
        release: the core gets the fat wheel's file name, to be published in its place. Otherwise a
            core of the fat wheel's name and version has a build tag, which installers prefer.
    """

    source: Path
    out: Path
    name: str | None = None
    by: By = By.CAPABILITY
    targets: tuple[Target, ...] | None = None
    install: Install = Install.CORE
    release: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitWheel:
    """A wheel that was written.

    Attributes:
        role: ``core``, ``pack`` or ``meta``.
        distribution: the name that pip knows it by.
        pack: ``cc90``; None for the core.
        serves: the capabilities of the GPUs that need no other pack.
        images: how many images are in it, and their bytes.
    """

    file: str
    size: int
    sha256: str
    role: Literal["core", "pack", "meta"]
    distribution: str
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
class Stay:
    """Device code that was left where it was.

    Attributes:
        name: the member of the wheel that has it.
        images: how many, and their bytes; 0 where they can't be read.
        why: what keeps it there.
    """

    name: str
    images: int
    size: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitReport:
    """All that came of a split; ``stays`` is what could not be moved, ``notes`` what is odd."""

    source: str
    source_sha256: str
    build_id: str
    wheels: tuple[SplitWheel, ...]
    libraries: tuple[SplitLibrary, ...]
    needs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    stays: tuple[Stay, ...] = ()
    notes: tuple[str, ...] = ()

    def as_json(self) -> str:
        """For programs; ``schema`` changes when a field is renamed or removed."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2) + "\n"

    def text(self) -> str:
        """For people."""
        lines = [f"{self.source} is now"]
        for wheel in self.wheels:
            what = (
                f"GPUs of capability {', '.join(wheel.serves)}"
                if wheel.serves
                else wheel.pack or wheel.role
            )
            lines.append(f"  {wheel.size / 1e6:8.1f} MB  {wheel.file}  {what}")
        for library in self.libraries:
            before, after = library.size_before / 1e6, library.size_after / 1e6
            lines.append(f"{library.name}: {before:.1f} -> {after:.1f} MB")
            lines += [f"  {note}" for note in library.notes]
        for one in self.stays:
            what = f"{one.images} images, {one.size / 1e6:.1f} MB" if one.images else "what it has"
            lines.append(f"{one.name}: {what} stay: {one.why}")
        lines += self.notes
        return "\n".join(lines)
