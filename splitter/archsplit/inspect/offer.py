"""What can be left out: the device code of a wheel or library, or the plugins of a build."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.arch.compat import runs_on
from archsplit.arch.target import CodeKind, Target
from archsplit.devicecode.model import Place, joined_units
from archsplit.devicecode.select import is_code, targets_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from archsplit.arch.target import Capability
    from archsplit.devicecode.inventory import Inventory
    from archsplit.devicecode.model import Unit
    from archsplit.release.report import Report

__pure__ = True

_STUB = 2048
"""Bytes of the longest image of a container that nvcc's device link writes for nothing; those of
CUDA 11.8 to 13.0 have 600 to 1600."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Containers with code for the same targets, in which a GPU therefore chooses alike.

    Attributes:
        containers: how many GPUs take code from; 0 for those that none does.
        sizes: what each target's code costs.
    """

    containers: int
    sizes: Mapping[Target, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCosts:
    """Something to choose targets of.

    Attributes:
        name: to show.
        size: bytes of it all: of the download, where there is one.
        in_download: whether sizes are those of a download.
        is_release: whether each target is a wheel of its own.
        is_split: True for packs, which `archsplit slim` can't take code out of.
    """

    name: str
    size: int
    in_download: bool
    is_release: bool
    groups: tuple[Group, ...] = field(repr=False)
    is_split: bool = False

    @property
    def sizes(self) -> dict[Target, int]:
        """What each target costs in all."""
        sums: Counter[Target] = Counter()
        for group in self.groups:
            sums.update(group.sizes)
        return {target: sums[target] for target in sorted(sums)}

    def gaps(self, capability: Capability) -> int:
        """In how many containers there is nothing at all for a GPU, though others may serve it."""
        return sum(
            group.containers
            for group in self.groups
            if not any(runs_on(target, capability) for target in group.sizes)
        )

    @property
    def fixed(self) -> int:
        """What is left without any target."""
        return self.size - sum(self.sizes.values())


def costs_of_inventory(inventory: Inventory) -> TargetCosts:
    """What ``archsplit inspect`` has found, as far as ``archsplit slim`` could take it out."""
    everything = tuple(inventory.units())
    units = [unit for unit in joined_units(everything) if unit.place is not Place.OUTSIDE]
    copies = _weight(everything) - _weight(joined_units(everything))
    groups: dict[tuple[bool, frozenset[Target]], list[Unit]] = {}
    for unit in units:
        targets = targets_of(unit.images)
        if targets:
            groups.setdefault((_is_run(unit), targets), []).append(unit)
    return TargetCosts(
        name=inventory.name,
        size=inventory.size - copies,
        in_download=inventory.is_wheel,
        is_release=False,
        is_split=any(unit.fat is not None for unit in everything),
        groups=tuple(
            Group(containers=len(alike) if is_run else 0, sizes=_sizes(alike))
            for (is_run, _), alike in groups.items()
        ),
    )


def costs_of_release(report: Report, *, name: str) -> TargetCosts:
    """The plugins of a build; a GPU takes the best of them as it would of images."""
    sizes = {Target.parse(wheel.targets[0]): wheel.size for wheel in report.wheels if wheel.targets}
    return TargetCosts(
        name=name,
        size=sum(wheel.size for wheel in report.wheels),
        in_download=True,
        is_release=True,
        groups=(Group(containers=1, sizes=sizes),),
    )


def _is_run(unit: Unit) -> bool:
    """Whether a GPU that finds nothing in it any more would miss something."""
    is_stub = all(
        image.file_bytes <= _STUB and (image.target is None or image.target.kind is CodeKind.SASS)
        for image in unit.images
    )
    return unit.place is Place.EXECUTABLE and not is_stub


def _sizes(units: Iterable[Unit]) -> dict[Target, int]:
    sums: Counter[Target] = Counter()
    for unit in units:
        for image in unit.images:
            if image.target is not None and is_code(image):
                sums[image.target] += image.weight
    return dict(sums)


def _weight(units: Iterable[Unit]) -> int:
    return sum(image.weight for unit in units for image in unit.images)
