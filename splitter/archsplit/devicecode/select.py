"""What a device takes out of a container, and how well that serves it.

The driver chooses in each container by itself, so everything here is about one container's entries;
a choice for a whole file would empty containers that a device needs (an RTX 4090 runs the sm_86
image of most of torch's containers, although a few have an sm_89 one).

What to keep of device code: for some GPUs, or by a list of targets.
"""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from archsplit.arch.compat import best_target
from archsplit.arch.target import CodeKind
from archsplit.errors import UsageError
from archsplit.formats.fatbin import EntryKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from archsplit.arch.target import Capability, Target
    from archsplit.formats.fatbin import FatbinEntry


class Code(Protocol):
    """As much as a choice needs to know: a `FatbinEntry` has it, and an `Image`."""

    @property
    def target(self) -> Target | None:
        """What the code was built for; None for what is neither SASS nor PTX."""

    @property
    def kind(self) -> EntryKind | None:
        """What the payload is; None when its number is not known."""

    @property
    def offset(self) -> int:
        """Where it is in the file; no two have the same."""


AnyCode = TypeVar("AnyCode", bound=Code)


class Coverage(enum.Enum):
    """How a container serves a device, best first."""

    NATIVE = "native"
    """Machine code for this very capability."""

    OLDER_MINOR = "older_minor"
    """Machine code for an earlier minor capability of the same major one."""

    PTX = "ptx"
    """Text that the driver compiles at the first start."""

    NONE = "none"
    """Nothing in it runs: launches fail."""


def classify_coverage(target: Target | None, capability: Capability) -> Coverage:
    """How well a device is served that takes ``target``; None is for "nothing runs on it"."""
    if target is None:
        return Coverage.NONE
    if target.kind is CodeKind.PTX:
        return Coverage.PTX
    return Coverage.NATIVE if target.capability == capability else Coverage.OLDER_MINOR


def is_code(entry: Code) -> bool:
    """Whether a driver could take this entry for some device.

    LTO IR, relocatable PTX and whatever else has no target is for linkers or unknown: nothing can
    be said about who needs it, so a cutter has to leave it.
    """
    return entry.target is not None and entry.kind is not EntryKind.RELOCATABLE_PTX


def code_targets(entries: Iterable[Code]) -> frozenset[Target]:
    """What a container's code was built for."""
    return frozenset(
        entry.target for entry in entries if entry.target is not None and is_code(entry)
    )


def selected_images(entries: Iterable[AnyCode], capability: Capability) -> tuple[AnyCode, ...]:
    """What a device of ``capability`` takes out of a container, in the container's order.

    All entries of the best target: a container may hold several of one target, and NVIDIA does not
    say which the driver takes. Empty where nothing runs.
    """
    entries = tuple(entries)
    best = best_target(capability, code_targets(entries))
    return tuple(entry for entry in entries if entry.target == best and is_code(entry))


def needed_images(
    entries: Iterable[AnyCode], capabilities: Iterable[Capability]
) -> tuple[AnyCode, ...]:
    """What at least one of several devices takes out of a container, in the container's order."""
    entries = tuple(entries)
    offsets = {
        entry.offset
        for capability in capabilities
        for entry in selected_images(entries, capability)
    }
    return tuple(entry for entry in entries if entry.offset in offsets)


def newest_ptx(entries: Iterable[AnyCode]) -> tuple[AnyCode, ...]:
    """The PTX through which GPUs that don't exist yet can start: a container's forward door.

    That of the highest capability without a suffix; PTX with ``a`` or ``f`` runs on nothing later.
    """
    entries = tuple(entries)
    generic = [
        target
        for target in code_targets(entries)
        if target.kind is CodeKind.PTX and target.suffix == ""
    ]
    newest = max(generic, default=None)
    return tuple(entry for entry in entries if newest is not None and entry.target == newest)


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
