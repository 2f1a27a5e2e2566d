"""The report of a split: the file beside its wheels."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from pydantic import TypeAdapter

from archsplit.devicecode.partition import REST_PACK
from archsplit.release.listing import read_listing, with_earlier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SPLIT_SCHEMA = 1
SPLIT_REPORT_FILE = "archsplit-split.json"
_GROWN = 1.25
"""Sum of the wheels against the fat file from which on the other way to split is proposed."""


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
class UnmovedCode:
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
    """All that came of a split; ``stays`` is what could not be moved.

    Attributes:
        source_size: bytes of the fat file; 0 in older reports.
        notes: oddities of the fat wheel that were mended.
    """

    source: str
    source_sha256: str
    build_id: str
    wheels: tuple[SplitWheel, ...]
    libraries: tuple[SplitLibrary, ...]
    needs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    stays: tuple[UnmovedCode, ...] = ()
    source_size: int = 0
    notes: tuple[str, ...] = ()

    def together_with(self, path: Path) -> SplitReport:
        """This report, and the wheels of an earlier one of the same split that are still there.

        Raises:
            InputError: there is a report, and it can't be read.
        """
        earlier = read_split_report(path) if path.exists() else self
        if earlier.build_id != self.build_id:
            return self
        return replace(self, wheels=with_earlier(self.wheels, earlier.wheels, path.parent))

    def as_json(self) -> str:
        """For programs; ``schema`` changes when a field is renamed or removed."""
        return json.dumps({"schema": SPLIT_SCHEMA, **asdict(self)}, indent=2) + "\n"

    def text(self) -> str:
        """For people."""
        lines = [f"{self.source} is now"]
        lines += [
            f"  {wheel.size / 1e6:8.1f} MB  {wheel.file}  {self._purpose(wheel)}"
            for wheel in self.wheels
        ]
        lines += self._totals()
        for library in self.libraries:
            before, after = library.size_before / 1e6, library.size_after / 1e6
            lines.append(f"{library.name}: {before:.1f} -> {after:.1f} MB")
            lines += [f"  {note}" for note in library.notes]
        for one in self.stays:
            what = f"{one.images} images, {one.size / 1e6:.1f} MB" if one.images else "what it has"
            lines.append(f"{one.name}: {what} stay: {one.why}")
        lines += self.notes
        return "\n".join(lines)

    def _purpose(self, wheel: SplitWheel) -> str:
        if wheel.serves:
            return f"GPUs of capability {', '.join(wheel.serves)}"
        gpus = [one for one, packs in self.needs.items() if wheel.pack in packs]
        return (
            f"part for GPUs of capability {', '.join(gpus)}" if gpus else wheel.pack or wheel.role
        )

    def _totals(self) -> Iterator[str]:
        """Compare the sum with the fat file, and say what a user and the index get."""
        total = sum(wheel.size for wheel in self.wheels)
        fat = ""
        if self.source_size:
            times = total / self.source_size
            fat = f", {times:.2f} times the fat wheel's {self.source_size / 1e6:.1f} MB"
        yield f"together {total / 1e6:.1f} MB{fat}"
        size_of = {wheel.pack or wheel.role: wheel.size for wheel in self.wheels}
        gpus: dict[tuple[str, ...], list[str]] = {}
        for capability, packs in self.needs.items():
            gpus.setdefault(packs, []).append(capability)
        for packs, capabilities in gpus.items():
            size = size_of["core"] + sum(size_of[pack] for pack in packs)
            what = f"core, {', '.join(packs)}"
            yield f"  a GPU of {', '.join(capabilities)} downloads {size / 1e6:.1f} MB: {what}"
        names = {wheel.distribution for wheel in self.wheels if wheel.pack != REST_PACK}
        yield f"names on the index: {len(names)}"
        by_capability = any(wheel.serves for wheel in self.wheels)
        if by_capability and 0 < _GROWN * self.source_size < total:
            yield (
                "note: images that several kinds of GPU take are in several packs; --by target puts"
                " each in one, with more packs for each GPU"
            )


def read_split_report(path: Path) -> SplitReport:
    """Read a split's report.

    Raises:
        InputError: it can't be read, or is not a report of this schema.
    """
    return read_listing(path, _REPORT, schema=SPLIT_SCHEMA, what="a split's report")


_REPORT = TypeAdapter(SplitReport)
