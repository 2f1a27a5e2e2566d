"""Choices among images: the driver's for one device, and a user's for a file.

The driver chooses in each container by itself, so everything here is about one container's entries;
a choice for a whole file would empty containers that a device needs (an RTX 4090 runs the sm_86
image of most of torch's containers, although a few have an sm_89 one).

There is one rule across containers, `runs_linked_code`: a device that has linked code needs no
input of the device link. `slim`, `split` and `inspect` follow it.
"""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from archsplit.arch.compat import best_target
from archsplit.arch.target import CodeKind
from archsplit.devicecode.model import Place
from archsplit.errors import UsageError
from archsplit.formats.fatbin import EntryKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from archsplit.arch.target import Capability, Target
    from archsplit.formats.fatbin import FatbinEntry

_MAX_LABEL = 40


class Code(Protocol):
    """Properties of code by which it is selected; see `FatbinEntry` and `Image`."""

    @property
    def target(self) -> Target | None:
        """Target of the code; None for code that is neither SASS nor PTX."""

    @property
    def kind(self) -> EntryKind | None:
        """Kind of the payload; None for an unknown number."""

    @property
    def offset(self) -> int:
        """Offset in the file, which is unique."""


AnyCode = TypeVar("AnyCode", bound=Code)


class Coverage(enum.Enum):
    """Ways in which a container serves a device, best first."""

    NATIVE = "native"
    """Machine code for exactly this capability."""

    OLDER_MINOR = "older_minor"
    """Machine code for an earlier minor capability of the same major one."""

    PTX = "ptx"
    """PTX, which the driver compiles at the first start."""

    NONE = "none"
    """No code that runs: launches fail."""

    @property
    def words(self) -> str:
        """Coverage in reports, as in ``older minor``."""
        return {"ptx": "PTX", "none": "not at all"}.get(self.value, self.value.replace("_", " "))


def classify_coverage(target: Target | None, capability: Capability) -> Coverage:
    """Return the coverage of a device that takes ``target``; None stands for no code."""
    if target is None:
        return Coverage.NONE
    if target.kind is CodeKind.PTX:
        return Coverage.PTX
    return Coverage.NATIVE if target.capability == capability else Coverage.OLDER_MINOR


def is_code(entry: Code) -> bool:
    """Return True if a driver could take this entry for some device.

    LTO IR, relocatable PTX and unknown kinds have no target that a driver chooses by. Their use is
    unknown, so they always stay.
    """
    return entry.target is not None and entry.kind is not EntryKind.RELOCATABLE_PTX


def code_targets(entries: Iterable[Code]) -> frozenset[Target]:
    """Return the targets of a container's code."""
    return frozenset(
        entry.target for entry in entries if entry.target is not None and is_code(entry)
    )


def missing_text(subject: str, missing: Iterable[Target], found: Iterable[Target]) -> str:
    """Return a message that names targets without code, and the others."""
    names, others = (", ".join(map(str, sorted(targets))) for targets in (missing, found))
    return f"{subject}: nothing in it is for {names}; it has {others or 'none'}"


# The model of the driver's choice, on which slim and split rely.
def selected_images(entries: Iterable[AnyCode], capability: Capability) -> tuple[AnyCode, ...]:
    """Return the images that a device takes out of a container, in its order.

    These are all entries of the best target: a container may hold several of one target, and NVIDIA
    does not document which of them the driver takes. Empty if nothing runs.
    """
    entries = tuple(entries)
    # A device takes one target from each container, never two.
    best = best_target(capability, code_targets(entries))
    return tuple(entry for entry in entries if entry.target == best and is_code(entry))


def runs_linked_code(linked: Iterable[frozenset[Target]], capability: Capability) -> bool:
    """Return True if a device never needs the relocatable code of a library.

    A driver links the containers in ``__nv_relfatbin`` itself only for a device without machine
    code in a container that nvlink has written.

    Args:
        linked: the targets of each container that nvlink has written (wrapper version 2), of empty
            ones too: those are of PTX, which only the driver links.
    """
    taken = [best_target(capability, targets) for targets in linked]
    return bool(taken) and all(one is not None and one.kind is CodeKind.SASS for one in taken)


class ContainerCode(NamedTuple):
    """Targets on which it depends what a device takes of a container.

    Attributes:
        targets: of its code.
        linked: for input of a device link, the targets of each linked container, which come first.
        input: for linked code, the targets of that input, which comes second.
    """

    place: Place
    targets: frozenset[Target]
    linked: frozenset[frozenset[Target]] | None = None
    input: frozenset[Target] = frozenset()

    def choose(self, capability: Capability) -> Target | None:
        """Return the target that a device takes; None for nothing."""
        if self.linked is not None and runs_linked_code(self.linked, capability):
            return None
        return best_target(capability, self.targets)

    def coverage(self, capability: Capability) -> Coverage | None:
        """Return the coverage of a device; None if it takes its code from another container."""
        best = self.choose(capability)
        if self.place is Place.RELOCATABLE:
            is_judged = self.linked is not None and best is not None
        else:
            # The driver links the input instead.
            is_judged = best is not None or best_target(capability, self.input) is None
        return classify_coverage(best, capability) if is_judged else None


def container_codes(
    containers: Collection[tuple[Place, bool, frozenset[Target]]],
) -> Iterator[ContainerCode]:
    """Yield the code of a file's containers, in their order.

    Args:
        containers: all of the file: the place, True for the result or the input of a device link,
            and the targets.
    """
    linked, inputs = (
        frozenset(targets for place, is_part, targets in containers if is_part and place is wanted)
        for wanted in (Place.EXECUTABLE, Place.RELOCATABLE)
    )
    everything: frozenset[Target] = frozenset().union(*inputs)
    for place, is_part, targets in containers:
        is_run = place is Place.EXECUTABLE
        yield ContainerCode(
            place=place,
            targets=targets,
            linked=linked if is_part and not is_run else None,
            input=everything if is_part and is_run else frozenset(),
        )


def needed_images(
    entries: Iterable[AnyCode], capabilities: Iterable[Capability]
) -> tuple[AnyCode, ...]:
    """Return the images that at least one of several devices takes, in the container's order."""
    entries = tuple(entries)
    # By offset, because two entries of one target may be equal in everything else.
    offsets = {
        entry.offset
        for capability in capabilities
        for entry in selected_images(entries, capability)
    }
    return tuple(entry for entry in entries if entry.offset in offsets)


def newest_ptx(entries: Iterable[AnyCode]) -> tuple[AnyCode, ...]:
    """Return the PTX of the highest capability, from which future GPUs can start.

    PTX with the suffix ``a`` or ``f`` is left out: no later GPU can run it.
    """
    entries = tuple(entries)
    # PTX with a suffix is bound to one generation of GPUs.
    generic = [
        target
        for target in code_targets(entries)
        if target.kind is CodeKind.PTX and target.suffix == ""
    ]
    newest = max(generic, default=None)
    return tuple(entry for entry in entries if newest is not None and entry.target == newest)


class PtxPolicy(enum.Enum):
    """PTX that stays in addition to the selected images."""

    NONE = "none"
    """None: GPUs newer than all selected code can't start."""

    NEWEST = "newest"
    """In each container the PTX of the highest capability: newer GPUs can start."""

    ALL = "all"
    """All PTX."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A choice among images: by devices, by targets to keep, or by targets to drop.

    Attributes:
        devices: the image that each of them takes stays in every container, PTX included.
        keep: images of these targets stay.
        drop: images of these targets go, and all others stay.
        ptx: further PTX that stays, unless it is in ``drop``.
    """

    devices: frozenset[Capability] = frozenset()
    keep: frozenset[Target] = frozenset()
    drop: frozenset[Target] = frozenset()
    ptx: PtxPolicy = PtxPolicy.NEWEST

    def __post_init__(self) -> None:
        if sum(map(bool, (self.devices, self.keep, self.drop))) != 1:
            raise UsageError(
                "name one of --device GPU, --keep LIST or --drop LIST",
                hint="for example --device 9.0",
            )

    def kept(
        self, entries: Iterable[FatbinEntry], linked: Collection[frozenset[Target]] = ()
    ) -> tuple[FatbinEntry, ...]:
        """Return the entries of a container that stay, in its order.

        Entries that are no code for a device always stay.

        Args:
            entries: of the container.
            linked: for input of a device link, as in `runs_linked_code`.
        """
        entries = tuple(entries)
        devices = [one for one in self.devices if not runs_linked_code(linked, one)]
        offsets = {entry.offset for entry in self._selected_entries(entries, devices)}
        return tuple(entry for entry in entries if entry.offset in offsets or not is_code(entry))

    @property
    def label(self) -> str:
        """Choice as a part of a file name: letters, digits and dots."""
        names = sorted(self.keep or self.drop)
        words = [str(name).replace("_", "") for name in names]
        words = ["no", *words] if self.drop else words
        words += [f"cc{device.sm_number}" for device in sorted(self.devices)]
        # The default adds nothing, so that the names of common selections stay short.
        if not self.drop and self.ptx is not PtxPolicy.NEWEST:
            words.append({PtxPolicy.NONE: "noptx", PtxPolicy.ALL: "ptx"}[self.ptx])
        text = ".".join(words)
        # File names have a limit of 255 bytes, and wheels add more parts to theirs.
        if len(text) <= _MAX_LABEL:
            return text
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def _selected_entries(
        self, entries: tuple[FatbinEntry, ...], devices: Iterable[Capability]
    ) -> Iterable[FatbinEntry]:
        # A list of targets to drop says nothing about PTX: the policy does not apply.
        if self.drop:
            return [entry for entry in entries if entry.target not in self.drop]
        listed = [entry for entry in entries if entry.target in self.keep]
        return [*listed, *needed_images(entries, devices), *self._kept_ptx(entries)]

    def _kept_ptx(self, entries: tuple[FatbinEntry, ...]) -> Iterable[FatbinEntry]:
        if self.ptx is PtxPolicy.NEWEST:
            return newest_ptx(entries)
        keeps_all = self.ptx is PtxPolicy.ALL
        return [entry for entry in entries if keeps_all and is_ptx(entry)]


def kept_bitcode(targets: Iterable[Target], selection: Selection) -> frozenset[Target]:
    """Return the targets of a library's bitcode that stay: a GPU takes the next older one."""
    targets = frozenset(targets)
    if selection.drop:
        return targets - selection.drop
    kept: set[Target] = set()
    for wanted in {*selection.devices, *(one.capability for one in selection.keep)}:
        newest = max((one.capability for one in targets if one.capability <= wanted), default=None)
        kept |= {one for one in targets if one.capability == newest}
    return frozenset(kept)


def is_ptx(entry: Code) -> bool:
    """Return True if the entry is PTX, which a driver compiles."""
    return entry.target is not None and entry.target.kind is CodeKind.PTX
