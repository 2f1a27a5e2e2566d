"""The effect of a selection on GPUs, and the checks that refuse a harmful one.

In go containers with the images that stay; out comes, for each capability, how many containers
serve it and how, before and after.
"""

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

_MAX_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageChange:
    """The number of containers that serve a GPU, by coverage, before and after."""

    capability: Capability
    before: Mapping[Coverage, int] = field(repr=False)
    after: Mapping[Coverage, int] = field(repr=False)

    @property
    def stops(self) -> int:
        """The number of containers that ran on the GPU before and do not run after."""
        return self.after.get(Coverage.NONE, 0) - self.before.get(Coverage.NONE, 0)

    @property
    def is_changed(self) -> bool:
        """True if the coverage of any container differs."""
        return self.before != self.after


def coverage_changes(containers: Iterable[FilteredContainer]) -> tuple[CoverageChange, ...]:
    """Return the changes for each known capability; unchanged ones are left out.

    Containers of ``-rdc=true`` objects are not counted: no device takes an image from them before
    the device link. Nor are stub containers that lose images: nothing in them can be launched.
    """
    # A library has thousands of containers and few different sets of targets.
    pairs = Counter(
        (code_targets(filtered.entries), code_targets(filtered.kept))
        for filtered in containers
        if is_used_at_run_time(filtered)
    )
    changes = []
    # Every published GPU, not only the selected ones: the report names all that lose code.
    for capability in GPU_BY_CAPABILITY:
        before: Counter[Coverage] = Counter()
        after: Counter[Coverage] = Counter()
        for (whole, kept), count in pairs.items():
            before[classify_coverage(best_target(capability, whole), capability)] += count
            after[classify_coverage(best_target(capability, kept), capability)] += count
        changes.append(CoverageChange(capability=capability, before=before, after=after))
    return tuple(change for change in changes if change.is_changed)


def is_for_run_time(filtered: FilteredContainer) -> bool:
    """Return True if a device takes code directly from this container."""
    return filtered.section is None or filtered.section.name != RELOCATABLE


def is_used_at_run_time(filtered: FilteredContainer) -> bool:
    """Return True if a device misses code when the container has nothing for it."""
    return is_for_run_time(filtered) and not (
        len(filtered.kept) < len(filtered.entries) and is_stub(filtered)
    )


def has_code_for(selection: Selection, containers: Iterable[FilteredContainer]) -> bool:
    """Return True if anything runs on a device, or is to be kept."""
    # Code that runs through PTX or an older minor counts for a device, not for a list.
    if selection.devices:
        target_sets = {code_targets(filtered.entries) for filtered in containers}
        return any(
            best_target(device, targets) for device in selection.devices for targets in target_sets
        )
    return any(code_targets(filtered.kept) for filtered in containers)


def check_code_stays(
    selection: Selection, containers: Iterable[FilteredContainer], *, subject: str
) -> None:
    """Refuse a selection that matches nothing in any of the containers.

    Raises:
        TargetError: nothing runs on one of the devices, or no listed target is present.
    """
    containers = tuple(containers)
    hint = f"`archsplit inspect {subject}` shows its targets"
    target_sets = {code_targets(filtered.entries) for filtered in containers} - {frozenset()}
    # A file without any device code is no fault of the selection.
    for device in sorted(selection.devices) if target_sets else ():
        if not any(best_target(device, targets) for targets in target_sets):
            raise TargetError(f"{subject}: nothing in it runs on {device}", hint=hint)
    if target_sets and not any(code_targets(filtered.kept) for filtered in containers):
        raise TargetError(f"{subject}: none of its device code would stay", hint=hint)


def check_coverage_stays(
    selection: Selection, containers: Iterable[FilteredContainer], *, subject: str
) -> None:
    """Refuse a list of targets that leaves a served GPU without code in some container.

    Checked are the GPUs whose own code is on the list of targets to keep; with a list of targets to
    drop, the GPUs whose own machine code stays somewhere in the file.

    Raises:
        TargetError: the message names the containers.
    """
    # A selection by devices keeps in each container the image that the device takes.
    used = (
        ()
        if selection.devices
        else tuple(filtered for filtered in containers if is_used_at_run_time(filtered))
    )
    checked = {target.capability for target in selection.keep} or {
        target.capability
        for filtered in used
        for target in code_targets(filtered.kept)
        if target.kind is CodeKind.SASS
    }
    unserved = [
        f"{filtered.start:#x} ({device} took {best})"
        for device in sorted(checked)
        for filtered in used
        if (best := best_target(device, code_targets(filtered.entries))) is not None
        and best_target(device, code_targets(filtered.kept)) is None
    ]
    if unserved:
        more = f" and {len(unserved) - _MAX_SHOWN} more" if len(unserved) > _MAX_SHOWN else ""
        raise TargetError(
            f"{subject}: GPUs whose code stays would find nothing in {len(unserved)} containers "
            f"that serve them now, at {', '.join(unserved[:_MAX_SHOWN])}{more}",
            hint=f"name the GPUs instead, as in --device {min(checked)}: then each container keeps "
            "what they take from it",
        )
