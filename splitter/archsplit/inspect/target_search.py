"""What can be left out: the device code of a wheel or library, or the plugins of a build.

One list of targets, weighed: whom it serves and how, and what it costs.

A GPU is served as in its worst container: where one of them has nothing for it any more that had
something, launches fail. How well it is served is said by `archsplit.devicecode.select.Coverage`.

Lists of targets that no other one beats.

Of a few targets, every list is weighed; of many, those that are likely to be good.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.arch.compat import can_run_on, preference
from archsplit.arch.target import CodeKind, Target
from archsplit.devicecode.model import Place, join_units
from archsplit.devicecode.select import Coverage, classify_coverage, code_targets, is_code

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from archsplit.arch.target import Capability
    from archsplit.devicecode.model import Inventory, Unit
    from archsplit.inspect.gpu_table import GpuTable
    from archsplit.release.report import Release

__pure__ = True

_STUB = 2048
"""Bytes of the longest image of a container that nvcc's device link writes for nothing; those of
CUDA 11.8 to 13.0 have 600 to 1600."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerGroup:
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
    groups: tuple[ContainerGroup, ...] = field(repr=False)
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
            if not any(can_run_on(target, capability) for target in group.sizes)
        )

    @property
    def fixed(self) -> int:
        """What is left without any target."""
        return self.size - sum(self.sizes.values())


def inventory_costs(inventory: Inventory) -> TargetCosts:
    """What ``archsplit inspect`` has found, as far as ``archsplit slim`` could take it out."""
    everything = tuple(inventory.units())
    units = [unit for unit in join_units(everything) if unit.place is not Place.OUTSIDE]
    copies = _weight(everything) - _weight(join_units(everything))
    groups: dict[tuple[bool, frozenset[Target]], list[Unit]] = {}
    for unit in units:
        targets = code_targets(unit.images)
        if targets:
            groups.setdefault((_is_run(unit), targets), []).append(unit)
    return TargetCosts(
        name=inventory.name,
        size=inventory.size - copies,
        in_download=inventory.is_wheel,
        is_release=False,
        is_split=any(unit.fat is not None for unit in everything),
        groups=tuple(
            ContainerGroup(containers=len(alike) if is_run else 0, sizes=_sizes(alike))
            for (is_run, _), alike in groups.items()
        ),
    )


def release_costs(report: Release, *, name: str) -> TargetCosts:
    """The plugins of a build; a GPU takes the best of them as it would of images."""
    sizes = {Target.parse(wheel.targets[0]): wheel.size for wheel in report.wheels if wheel.targets}
    return TargetCosts(
        name=name,
        size=sum(wheel.size for wheel in report.wheels),
        in_download=True,
        is_release=True,
        groups=(ContainerGroup(containers=1, sizes=sizes),),
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


_ORDER = tuple(Coverage)
_DIGITS = 12
_Taste = tuple[tuple[tuple[int, int], ...], ...]
_PTX, _NONE = _ORDER.index(Coverage.PTX), _ORDER.index(Coverage.NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A list of targets.

    Attributes:
        targets: ascending.
        size: bytes of what has this list.
        machine_code: the part of the users that runs machine code of it.
        served: the part that runs anything of it, PTX included.
        services: how each capability is served.
    """

    targets: tuple[Target, ...]
    size: int
    machine_code: float
    served: float
    services: Mapping[Capability, Coverage] = field(repr=False)

    @property
    def merit(self) -> tuple[float, float, int]:
        """What is better is greater: machine code, then anything that runs, then fewer bytes."""
        return (self.machine_code, self.served, -self.size)


@dataclass(frozen=True, slots=True)
class ListScore:
    """A list as far as it is compared with others: the fields of `Proposal`, and its bits."""

    size: int
    machine_code: float
    served: float
    mask: int

    @property
    def order(self) -> tuple[float, ...]:
        """Smaller ones first; of the same size, what serves more."""
        return (self.size, -self.machine_code, -self.served, self.mask)


class TargetSearch:
    """Lists as bits: bit n is the target n, ascending."""

    def __init__(self, offer: TargetCosts, users: GpuTable, candidates: tuple[Target, ...]) -> None:
        sizes = offer.sizes
        # What may not be proposed comes last, so that it is in the list of all targets alone.
        wanted = sorted(target for target in sizes if target in candidates)
        self.targets = (*wanted, *(target for target in sizes if target not in wanted))
        self._wanted = len(wanted)
        self._fixed = offer.fixed
        self._sizes = [sizes[target] for target in self.targets]
        self._shares = users.shares
        self._tastes = {capability: self._taste(offer, capability) for capability in users.shares}

    @property
    def useful(self) -> tuple[int, ...]:
        """The bits of what may be proposed, and runs on a GPU of the table at all."""
        return tuple(
            1 << number
            for number, target in enumerate(self.targets[: self._wanted])
            if any(can_run_on(target, capability) for capability in self._shares)
        )

    def with_new_ptx(self, mask: int) -> int:
        """The bits with the newest PTX for each GPU that runs PTX, and without PTX for nobody."""
        now, new = self.proposal(mask), mask
        for capability, service in now.services.items():
            if service is Coverage.PTX:
                fitting = (
                    number
                    for number, target in enumerate(self.targets[: self._wanted])
                    if target.kind is CodeKind.PTX and can_run_on(target, capability)
                )
                new |= 1 << max(fitting, key=lambda number: self.targets[number])
        for number, target in enumerate(self.targets):
            less = new & ~(1 << number)
            if mask >> number & 1 and target.kind is CodeKind.PTX and new != mask:
                point = self._point(less)
                if (point.machine_code, point.served) == (now.machine_code, now.served):
                    new = less
        return new

    def proposal(self, mask: int) -> Proposal:
        """The list of some bits, with all that is said of it."""
        point = self._point(mask)
        return Proposal(
            targets=tuple(
                sorted(target for bit, target in enumerate(self.targets) if mask >> bit & 1)
            ),
            size=point.size,
            machine_code=point.machine_code,
            served=point.served,
            services={
                capability: _ORDER[_worst(taste, mask)]
                for capability, taste in self._tastes.items()
            },
        )

    def points(self, masks: Iterable[int]) -> Iterator[ListScore]:
        """Weigh many lists."""
        return map(self._point, masks)

    def promising(self, useful: tuple[int, ...]) -> Iterator[int]:
        """Lists that are reached from none by adding, and from all by leaving out, one by one.

        Each time the target that brings most users a byte, or costs fewest.
        """
        mask = 0
        yield mask
        while left := [bit for bit in useful if not mask & bit]:
            mask |= max(left, key=lambda bit: self._gain(mask, mask | bit))
            yield mask
        while held := [bit for bit in useful if mask & bit]:
            mask &= ~min(held, key=lambda bit: self._gain(mask & ~bit, mask))
            yield mask

    def _gain(self, less: int, more: int) -> tuple[float, float]:
        first, second = self._point(less), self._point(more)
        users = second.machine_code - first.machine_code + (second.served - first.served) / 2
        return (users / max(1, second.size - first.size), first.size - second.size)

    def _point(self, mask: int) -> ListScore:
        size = self._fixed
        for number, weight in enumerate(self._sizes):
            if mask >> number & 1:
                size += weight
        machine_code = served = 0.0
        for capability, share in self._shares.items():
            worst = _worst(self._tastes[capability], mask)
            machine_code += share if worst < _PTX else 0
            served += share if worst < _NONE else 0
        # Sums of the same shares in another order differ in their last bits.
        return ListScore(size, round(machine_code, _DIGITS), round(served, _DIGITS), mask)

    def _taste(self, offer: TargetCosts, capability: Capability) -> _Taste:
        """For each kind of container, what a GPU would take of it, best first."""
        bits = {target: 1 << number for number, target in enumerate(self.targets)}
        tastes: dict[tuple[tuple[int, int], ...], None] = {}
        for group in offer.groups:
            fitting = [target for target in group.sizes if can_run_on(target, capability)]
            if group.containers and fitting:
                ordered = sorted(fitting, key=preference, reverse=True)
                taste = [
                    (bits[one], _ORDER.index(classify_coverage(one, capability))) for one in ordered
                ]
                tastes[tuple(taste)] = None
        return tuple(tastes)


def _worst(taste: _Taste, mask: int) -> int:
    """How a GPU is served by a list: as in its worst container."""
    worst = 0 if taste else _NONE
    for choices in taste:
        found = next((service for bit, service in choices if mask & bit), _NONE)
        worst = max(worst, found)
    return worst


MAX_EXACT = 15
"""Of more targets than these, not all subsets are weighed: there are 2 to their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposals:
    """What came of weighing.

    Attributes:
        everything: the list of all targets.
        front: the lists that no other beats in bytes, in machine code and in whom they serve at
            once; ascending by bytes.
        exact: whether all lists were weighed.
        fresh: for each list of the front the same with the newest PTX for whoever runs PTX.
    """

    everything: Proposal
    front: tuple[Proposal, ...]
    exact: bool
    fresh: tuple[Proposal, ...]

    def best(self, budget: int | None = None) -> Proposal | None:
        """The list of most merit within a budget; None where nothing is."""
        fitting = (one for one in self.front if budget is None or one.size <= budget)
        return max(fitting, key=lambda one: one.merit, default=None)

    def with_new_ptx(self, best: Proposal, budget: int | None = None) -> Proposal:
        """A list of the front with the newest PTX, if that keeps the budget too.

        Older PTX is smaller, and drivers make slower code of it for newer GPUs.
        """
        fresh = self.fresh[self.front.index(best)]
        return fresh if budget is None or fresh.size <= budget else best


def search_targets(offer: TargetCosts, users: GpuTable, candidates: Iterable[Target]) -> Proposals:
    """Weigh lists of some of an offer's targets."""
    weighing = TargetSearch(offer, users, tuple(candidates))
    useful = weighing.useful
    exact = len(useful) <= MAX_EXACT
    lists = _all_lists(useful) if exact else weighing.promising(useful)
    front = _unbeaten(weighing.points(lists))
    return Proposals(
        everything=weighing.proposal((1 << len(weighing.targets)) - 1),
        front=tuple(weighing.proposal(point.mask) for point in front),
        exact=exact,
        fresh=tuple(weighing.proposal(weighing.with_new_ptx(point.mask)) for point in front),
    )


def _all_lists(bits: tuple[int, ...]) -> Iterator[int]:
    for number in range(1 << len(bits)):
        yield sum(bit for place, bit in enumerate(bits) if number >> place & 1)


def _unbeaten(points: Iterable[ListScore]) -> list[ListScore]:
    front: list[ListScore] = []
    for point in sorted(points, key=lambda point: point.order):
        if point.served and not any(
            other.machine_code >= point.machine_code and other.served >= point.served
            for other in front
        ):
            front.append(point)
    return front
