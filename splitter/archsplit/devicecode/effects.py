"""What a selection does to GPUs: where code stops running, or runs in a lesser way."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.arch.compat import GPU_BY_CAPABILITY, best_target
from archsplit.arch.target import CodeKind
from archsplit.devicecode.file_plan import is_stub
from archsplit.devicecode.select import Coverage, classify_coverage, code_targets
from archsplit.errors import TargetError
from archsplit.formats.fatbin import RELOCATABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from archsplit.arch.target import Capability
    from archsplit.devicecode.edits import FilteredContainer
    from archsplit.devicecode.select import Selection

_NAMED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageChange:
    """How many containers serve a GPU, and how, before and after."""

    capability: Capability
    before: Mapping[Coverage, int] = field(repr=False)
    after: Mapping[Coverage, int] = field(repr=False)

    @property
    def stops(self) -> int:
        """Containers that ran on it, and don't any more."""
        return self.after.get(Coverage.NONE, 0) - self.before.get(Coverage.NONE, 0)

    @property
    def is_changed(self) -> bool:
        """Whether anything is another way than before."""
        return self.before != self.after


def coverage_changes(containers: Iterable[FilteredContainer]) -> tuple[CoverageChange, ...]:
    """What changes for each known capability; what doesn't change for one is left out.

    Containers of ``-rdc=true`` objects are not counted: no device takes an image from them as they
    are. Nor are those that lose something and have nothing to run.
    """
    pairs = Counter(
        (code_targets(one.entries), code_targets(one.kept))
        for one in containers
        if is_used_at_run_time(one)
    )
    found = []
    for capability in GPU_BY_CAPABILITY:
        before: Counter[Coverage] = Counter()
        after: Counter[Coverage] = Counter()
        for (all_of_them, kept), count in pairs.items():
            before[classify_coverage(best_target(capability, all_of_them), capability)] += count
            after[classify_coverage(best_target(capability, kept), capability)] += count
        found.append(CoverageChange(capability=capability, before=before, after=after))
    return tuple(effect for effect in found if effect.is_changed)


def is_for_run_time(one: FilteredContainer) -> bool:
    """Whether a device takes its code out of this container."""
    return one.section is None or one.section.name != RELOCATABLE


def is_used_at_run_time(one: FilteredContainer) -> bool:
    """Whether a device that finds nothing in it any more misses something."""
    return is_for_run_time(one) and not (len(one.kept) < len(one.entries) and is_stub(one))


def has_code_for(selection: Selection, containers: Iterable[FilteredContainer]) -> bool:
    """Whether anything runs on one of the devices, or is on the list of what stays."""
    if selection.devices:
        held = {code_targets(one.entries) for one in containers}
        return any(best_target(device, each) for device in selection.devices for each in held)
    return any(code_targets(one.kept) for one in containers)


def check_code_stays(
    selection: Selection, containers: Iterable[FilteredContainer], *, of: str
) -> None:
    """Refuse a choice for which there is nothing at all in any of the containers.

    Raises:
        TargetError: nothing runs on one of the devices, or nothing of the list is there.
    """
    containers = tuple(containers)
    hint = f"`archsplit inspect {of}` says what it was built for"
    held = {code_targets(one.entries) for one in containers} - {frozenset()}
    for device in sorted(selection.devices) if held else ():
        if not any(best_target(device, targets) for targets in held):
            raise TargetError(f"{of}: nothing in it runs on {device}", hint=hint)
    if held and not any(code_targets(one.kept) for one in containers):
        raise TargetError(f"{of}: none of its device code would stay", hint=hint)


def check_coverage_stays(
    selection: Selection, containers: Iterable[FilteredContainer], *, of: str
) -> None:
    """Refuse a list of targets that leaves a GPU without code where it finds some now.

    Meant is every GPU whose own code is on the list of what stays; with a list of what goes, every
    one whose own machine code stays somewhere in the file.

    Raises:
        TargetError: the message has the containers.
    """
    run = () if selection.devices else tuple(one for one in containers if is_used_at_run_time(one))
    meant = {target.capability for target in selection.keep} or {
        target.capability
        for one in run
        for target in code_targets(one.kept)
        if target.kind is CodeKind.SASS
    }
    starved = [
        f"{one.start:#x} ({device} took {best})"
        for device in sorted(meant)
        for one in run
        if (best := best_target(device, code_targets(one.entries))) is not None
        and best_target(device, code_targets(one.kept)) is None
    ]
    if starved:
        more = f" and {len(starved) - _NAMED} more" if len(starved) > _NAMED else ""
        raise TargetError(
            f"{of}: GPUs whose code stays would find nothing in {len(starved)} containers that "
            f"serve them now, at {', '.join(starved[:_NAMED])}{more}",
            hint=f"name the GPUs instead, as in --device {min(meant)}: then each container keeps "
            "what they take from it",
        )
