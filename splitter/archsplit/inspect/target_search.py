"""One list of targets, weighed: whom it serves and how, and what it costs.

A GPU is served as in its worst container: where one of them has nothing for it any more that had
something, launches fail. How well it is served is said by `archsplit.devicecode.select.Coverage`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.arch.compat import preference, runs_on
from archsplit.arch.target import CodeKind
from archsplit.devicecode.select import Coverage, coverage_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from archsplit.arch.target import Capability, Target
    from archsplit.inspect.gpu_table import GpuTable
    from archsplit.inspect.offer import TargetCosts

__pure__ = True

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
class Point:
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
            if any(runs_on(target, capability) for capability in self._shares)
        )

    def with_new_ptx(self, mask: int) -> int:
        """The bits with the newest PTX for each GPU that runs PTX, and without PTX for nobody."""
        now, new = self.proposal(mask), mask
        for capability, service in now.services.items():
            if service is Coverage.PTX:
                fitting = (
                    number
                    for number, target in enumerate(self.targets[: self._wanted])
                    if target.kind is CodeKind.PTX and runs_on(target, capability)
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

    def points(self, masks: Iterable[int]) -> Iterator[Point]:
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

    def _point(self, mask: int) -> Point:
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
        return Point(size, round(machine_code, _DIGITS), round(served, _DIGITS), mask)

    def _taste(self, offer: TargetCosts, capability: Capability) -> _Taste:
        """For each kind of container, what a GPU would take of it, best first."""
        bits = {target: 1 << number for number, target in enumerate(self.targets)}
        tastes: dict[tuple[tuple[int, int], ...], None] = {}
        for group in offer.groups:
            fitting = [target for target in group.sizes if runs_on(target, capability)]
            if group.containers and fitting:
                ordered = sorted(fitting, key=preference, reverse=True)
                taste = [(bits[one], _ORDER.index(coverage_of(one, capability))) for one in ordered]
                tastes[tuple(taste)] = None
        return tuple(tastes)


def _worst(taste: _Taste, mask: int) -> int:
    """How a GPU is served by a list: as in its worst container."""
    worst = 0 if taste else _NONE
    for choices in taste:
        found = next((service for bit, service in choices if mask & bit), _NONE)
        worst = max(worst, found)
    return worst
