"""What an inventory is worth to a device: what it uses, what is dead weight, how it is served."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.arch.compat import best_for
from archsplit.devicecode.model import Place, joined_units
from archsplit.devicecode.select import Coverage, coverage_of, is_code, targets_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from archsplit.arch.target import Capability, Target
    from archsplit.devicecode.inventory import Inventory
    from archsplit.devicecode.model import Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """Bytes in files, and of the download; the second None outside of wheels."""

    file_bytes: int
    wheel_bytes: int | None

    @property
    def cost(self) -> int:
        """Bytes of the download where one is known, else in files."""
        return self.file_bytes if self.wheel_bytes is None else self.wheel_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What device code is worth to GPUs of one capability.

    Only what is registered at run time is judged: leftovers of a device link and what lies outside
    of the fatbin sections are neither usable nor dead weight here.

    Attributes:
        containers: how many containers serve it how well; one that is empty serves nobody.
        targets: what it uses, in their order.
        usable: the images that it takes.
        dead: the machine code and PTX that it doesn't take.
    """

    capability: Capability
    containers: Mapping[Coverage, int]
    targets: tuple[Target, ...]
    usable: Weight
    dead: Weight


def devices_of(inventory: Inventory, capabilities: Iterable[Capability]) -> tuple[Device, ...]:
    """Judge all containers of an inventory for each capability."""
    groups = _alike(inventory)
    return tuple(
        _device(groups, capability, in_wheel=inventory.is_wheel) for capability in capabilities
    )


class _Group:
    """Containers that hold code for the same targets: a device chooses alike in all of them."""

    def __init__(self) -> None:
        self.containers = 0
        self.file_bytes: Counter[Target] = Counter()
        self.wheel_bytes: Counter[Target] = Counter()

    def add(self, unit: Unit) -> None:
        self.containers += 1
        for image in unit.images:
            if image.target is not None and is_code(image):
                self.file_bytes[image.target] += image.file_bytes
                self.wheel_bytes[image.target] += image.wheel_bytes or 0


def _alike(inventory: Inventory) -> Mapping[frozenset[Target], _Group]:
    groups: dict[frozenset[Target], _Group] = {}
    for unit in joined_units(inventory.units()):
        if unit.place is Place.EXECUTABLE:
            groups.setdefault(targets_of(unit.images), _Group()).add(unit)
    return groups


def _device(
    groups: Mapping[frozenset[Target], _Group], capability: Capability, *, in_wheel: bool
) -> Device:
    containers: Counter[Coverage] = Counter()
    file_bytes, wheel_bytes = [0, 0], [0, 0]
    used: set[Target] = set()
    for targets, group in groups.items():
        best = best_for(capability, targets)
        containers[coverage_of(best, capability)] += group.containers
        if best is not None:
            used.add(best)
        for target in targets:
            file_bytes[target != best] += group.file_bytes[target]
            wheel_bytes[target != best] += group.wheel_bytes[target]
    usable, dead = (
        Weight(file_bytes=in_files, wheel_bytes=in_download if in_wheel else None)
        for in_files, in_download in zip(file_bytes, wheel_bytes, strict=True)
    )
    return Device(
        capability=capability,
        containers={service: containers[service] for service in Coverage},
        targets=tuple(sorted(used)),
        usable=usable,
        dead=dead,
    )
