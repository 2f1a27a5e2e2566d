"""What to keep of device code: for some GPUs, or by a list of targets."""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.arch.target import CodeKind
from archsplit.devicecode.select import is_code, needed_images, newest_ptx
from archsplit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from archsplit.arch.target import Capability, Target
    from archsplit.formats.entry import FatbinEntry

_MAX_LABEL = 40


class PtxPolicy(enum.Enum):
    """Which PTX stays beside what was asked for."""

    NONE = "none"
    """None: no GPU that is newer than all that stays can start."""

    NEWEST = "newest"
    """In each container that of the highest capability: GPUs newer than it can start."""

    ALL = "all"
    """All that there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A choice among images: by devices, by targets to keep, or by targets to drop.

    Attributes:
        devices: what each of them takes stays, container by container, PTX where it takes PTX.
        keep: what was built for one of these stays.
        drop: what was built for one of these goes, and all else stays.
        ptx: what else stays, unless it is in ``drop``.
    """

    devices: frozenset[Capability] = frozenset()
    keep: frozenset[Target] = frozenset()
    drop: frozenset[Target] = frozenset()
    ptx: PtxPolicy = PtxPolicy.NEWEST

    def __post_init__(self) -> None:
        if sum(map(bool, (self.devices, self.keep, self.drop))) != 1:
            raise UsageError(
                "what to keep has to be said in one way",
                hint="give --device, --keep or --drop, such as --device 9.0",
            )

    def kept(self, entries: Iterable[FatbinEntry]) -> tuple[FatbinEntry, ...]:
        """What stays of a container, in its order; what is no code for a device always does."""
        entries = tuple(entries)
        offsets = {entry.offset for entry in self._wanted(entries)}
        return tuple(entry for entry in entries if entry.offset in offsets or not is_code(entry))

    @property
    def label(self) -> str:
        """The choice as a part of a file name: letters, digits and dots."""
        names = sorted(self.keep or self.drop)
        words = [str(name).replace("_", "") for name in names]
        words = ["no", *words] if self.drop else words
        words += [f"cc{device.sm_number}" for device in sorted(self.devices)]
        if not self.drop and self.ptx is not PtxPolicy.NEWEST:
            words.append({PtxPolicy.NONE: "noptx", PtxPolicy.ALL: "ptx"}[self.ptx])
        text = ".".join(words)
        if len(text) <= _MAX_LABEL:
            return text
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def _wanted(self, entries: tuple[FatbinEntry, ...]) -> Iterable[FatbinEntry]:
        if self.drop:
            return [entry for entry in entries if entry.target not in self.drop]
        chosen = [entry for entry in entries if entry.target in self.keep]
        return [*chosen, *needed_images(entries, self.devices), *self._ptx(entries)]

    def _ptx(self, entries: tuple[FatbinEntry, ...]) -> Iterable[FatbinEntry]:
        if self.ptx is PtxPolicy.NEWEST:
            return newest_ptx(entries)
        everything = self.ptx is PtxPolicy.ALL
        return [entry for entry in entries if everything and is_ptx(entry)]


def is_ptx(entry: FatbinEntry) -> bool:
    """Whether it is text that a driver compiles."""
    return entry.target is not None and entry.target.kind is CodeKind.PTX
