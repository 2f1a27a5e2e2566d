"""A greedy search for lists of targets.

In go the costs of targets (of a wheel or library, or of a build's plugins) and the users' GPUs;
out come proposals: the best lists that the search meets, from none upwards and from all downwards.
A list is an integer: bit n is the target n.

A GPU is served as in its worst container: if one container has lost all code for it, launches
fail. `archsplit.devicecode.select.Coverage` has the grades.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.arch.compat import can_run_on, preference
from archsplit.arch.target import CodeKind, Target
from archsplit.devicecode.model import Place
from archsplit.devicecode.select import Coverage, classify_coverage
from archsplit.inspect.sizes import code_groups, download_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from archsplit.arch.target import Capability
    from archsplit.devicecode.model import Inventory
    from archsplit.inspect.gpu_table import GpuTable
    from archsplit.inspect.sizes import ContainerFacts
    from archsplit.release.report import Release

__pure__ = True


_ORDER = tuple(Coverage)
_DIGITS = 12
_Preferences = tuple[tuple[tuple[int, int], ...], ...]
_PTX, _NONE = _ORDER.index(Coverage.PTX), _ORDER.index(Coverage.NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerGroup:
    """Containers with code for the same targets, in which a GPU makes the same choice.

    Attributes:
        containers: the number of containers that GPUs take code from; 0 for those that none does.
        sizes: the bytes of each target's code.
        linked: for input of a device link, the targets of the linked code, which a GPU takes first.
        input: for linked code, the targets of that input, which the driver links for other GPUs.
    """

    containers: int
    sizes: Mapping[Target, int]
    linked: frozenset[Target] | None = None
    input: frozenset[Target] = frozenset()

    def is_gap(self, capability: Capability) -> bool:
        """Return True if a GPU has no code here, with or without the driver's link."""
        targets = {*self.sizes, *self.input}
        # Input serves no GPU by itself, so no GPU misses it either.
        return self.linked is None and not any(can_run_on(one, capability) for one in targets)

    def choices(self, capability: Capability) -> tuple[Target, ...]:
        """Return the targets that a GPU can take, best first; none if the group is not for it."""
        first, own, last = (
            sorted(
                (one for one in targets if can_run_on(one, capability)),
                key=preference,
                reverse=True,
            )
            for targets in (self.linked or (), self.sizes, self.input)
        )
        return (*first, *own, *last) if own else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCosts:
    """Targets of a subject, and their bytes.

    Attributes:
        name: to show.
        size: bytes of the whole: of the download, if there is one.
        in_download: True if sizes are bytes of a download.
        is_release: True if each target is a wheel of its own.
        is_split: True for packs, from which `archsplit slim` can't remove code.
    """

    name: str
    size: int
    in_download: bool
    is_release: bool
    groups: tuple[ContainerGroup, ...] = field(repr=False)
    is_split: bool = False

    @property
    def sizes(self) -> dict[Target, int]:
        """Bytes of each target in all containers."""
        sums: Counter[Target] = Counter()
        for group in self.groups:
            sums.update(group.sizes)
        return {target: sums[target] for target in sorted(sums)}

    def gaps(self, capability: Capability) -> int:
        """Return the number of containers without any code for a GPU."""
        return sum(group.containers for group in self.groups if group.is_gap(capability))

    @property
    def fixed(self) -> int:
        """Bytes that remain without any target."""
        return self.size - sum(self.sizes.values())


def inventory_costs(inventory: Inventory) -> TargetCosts:
    """Return the costs of the targets that ``archsplit slim`` could remove."""
    groups = (one for one in code_groups(inventory) if one.sizes)
    return TargetCosts(
        name=inventory.name,
        size=download_size(inventory),
        in_download=inventory.is_wheel,
        is_release=False,
        is_split=any(unit.fat is not None for unit in inventory.units()),
        groups=tuple(
            ContainerGroup(
                containers=0 if _is_unused(group.facts) else group.containers,
                sizes=dict(group.sizes),
                linked=None if linked is None else frozenset[Target]().union(*linked),
                input=group.facts.code.input,
            )
            for group in groups
            if group.facts.code.place is not Place.OUTSIDE
            for linked in (group.facts.code.linked,)
        ),
    )


def _is_unused(facts: ContainerFacts) -> bool:
    """Return True if no GPU misses anything that has no code in such a container."""
    return facts.is_stub or (facts.code.place is Place.RELOCATABLE and facts.code.linked is None)


def release_costs(report: Release, *, name: str) -> TargetCosts:
    """Return the costs of a build's plugins; a GPU takes the best of them, as of images."""
    sizes = {Target.parse(one.plugin.targets[0]): one.size for one in report.plugins if one.plugin}
    return TargetCosts(
        name=name,
        size=sum(wheel.size for wheel in report.wheels),
        in_download=True,
        is_release=True,
        groups=(ContainerGroup(containers=1, sizes=sizes),),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A list of targets.

    Attributes:
        mask: the list's bits.
        targets: ascending.
        size: bytes of the subject with this list.
        machine_code: the part of the users that runs machine code of it.
        served: the part that runs anything of it, PTX included.
        coverage_by_capability: the coverage of each capability.
    """

    mask: int
    targets: tuple[Target, ...]
    size: int
    machine_code: float
    served: float
    coverage_by_capability: Mapping[Capability, Coverage] = field(repr=False)

    @property
    def order(self) -> tuple[float, ...]:
        """Sort key: by size, then by users served."""
        return (self.size, -self.machine_code, -self.served, self.mask)

    @property
    def score(self) -> tuple[float, float, int]:
        """Rank of a proposal: machine code first, then any code, then fewer bytes."""
        return (self.machine_code, self.served, -self.size)


class TargetSearch:
    """Lists of targets as bits: bit n is the target n, ascending."""

    def __init__(self, costs: TargetCosts, users: GpuTable, candidates: tuple[Target, ...]) -> None:
        sizes = costs.sizes
        # What may not be proposed comes last, so that it is only in the list of all targets.
        wanted = sorted(target for target in sizes if target in candidates)
        self.targets = (*wanted, *(target for target in sizes if target not in wanted))
        self._wanted = len(wanted)
        self._fixed = costs.fixed
        self._sizes = [sizes[target] for target in self.targets]
        self._shares = users.shares
        self._preferences = {
            capability: self._preference_order(costs, capability) for capability in users.shares
        }

    @property
    def useful(self) -> tuple[int, ...]:
        """Bits of targets that may be proposed and that serve a listed GPU."""
        return tuple(
            1 << number
            for number, target in enumerate(self.targets[: self._wanted])
            if any(can_run_on(target, capability) for capability in self._shares)
        )

    def with_new_ptx(self, mask: int) -> int:
        """Replace PTX by the newest that each GPU which runs PTX can use.

        PTX that serves no GPU is removed.
        """
        now, new = self.proposal(mask), mask
        for capability, coverage in now.coverage_by_capability.items():
            if coverage is Coverage.PTX:
                fitting = (
                    number
                    for number, target in enumerate(self.targets[: self._wanted])
                    if target.kind is CodeKind.PTX and can_run_on(target, capability)
                )
                new |= 1 << max(fitting, key=lambda number: self.targets[number])
        for number, target in enumerate(self.targets):
            less = new & ~(1 << number)
            if mask >> number & 1 and target.kind is CodeKind.PTX and new != mask:
                point = self.proposal(less)
                # PTX that no GPU runs any more only costs bytes.
                if (point.machine_code, point.served) == (now.machine_code, now.served):
                    new = less
        return new

    def proposal(self, mask: int) -> Proposal:
        """Return the list of some bits as a proposal."""
        numbers = [number for number in range(len(self.targets)) if mask >> number & 1]
        worst = {
            capability: _worst_coverage(preferences, mask)
            for capability, preferences in self._preferences.items()
        }
        machine_code, served = (
            # Sums of the same shares in another order differ in their last bits.
            round(sum(self._shares[one] for one, grade in worst.items() if grade < end), _DIGITS)
            for end in (_PTX, _NONE)
        )
        return Proposal(
            mask=mask,
            targets=tuple(sorted(self.targets[number] for number in numbers)),
            size=self._fixed + sum(self._sizes[number] for number in numbers),
            machine_code=machine_code,
            served=served,
            coverage_by_capability={one: _ORDER[grade] for one, grade in worst.items()},
        )

    def greedy_lists(self, useful: tuple[int, ...]) -> Iterator[int]:
        """Yield the lists of a greedy search: upwards from none, then downwards from all.

        Each step adds the target that brings most users a byte, or removes the one that brings
        fewest.
        """
        mask = 0
        yield mask
        while left := [bit for bit in useful if not mask & bit]:
            # Each step takes what is best now; a list that needs two steps at once is missed.
            mask |= max(left, key=lambda bit: self._gain(mask, mask | bit))
            yield from (mask, self._without_useless(mask))
        while held := [bit for bit in useful if mask & bit]:
            mask &= ~min(held, key=lambda bit: self._gain(mask & ~bit, mask))
            yield mask

    def _without_useless(self, mask: int) -> int:
        """Remove targets that a later one has made useless."""
        for number in range(len(self.targets)):
            less = mask & ~(1 << number)
            if less != mask and self._gain(less, mask)[0] <= 0:
                mask = less
        return mask

    def _gain(self, less: int, more: int) -> tuple[float, float]:
        first, second = self.proposal(less), self.proposal(more)
        users = second.machine_code - first.machine_code + (second.served - first.served) / 2
        return (users / max(1, second.size - first.size), first.size - second.size)

    def _preference_order(self, costs: TargetCosts, capability: Capability) -> _Preferences:
        """Return for each kind of container the targets that a GPU prefers, best first."""
        bits = {target: 1 << number for number, target in enumerate(self.targets)}
        preferences: dict[tuple[tuple[int, int], ...], None] = {}
        for group in costs.groups:
            ordered = group.choices(capability) if group.containers else ()
            if ordered:
                choices = [
                    (bits[one], _ORDER.index(classify_coverage(one, capability))) for one in ordered
                ]
                preferences[tuple(choices)] = None
        return tuple(preferences)


def _worst_coverage(preferences: _Preferences, mask: int) -> int:
    """Return a GPU's coverage by a list, which is its worst container's coverage."""
    worst = 0 if preferences else _NONE
    for choices in preferences:
        coverage = next((grade for bit, grade in choices if mask & bit), _NONE)
        worst = max(worst, coverage)
    return worst


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposals:
    """Result of a search.

    Attributes:
        everything: the list of all targets.
        front: the lists of the search without those that a smaller one equals; ascending by bytes.
        updated: for each list of the front the same with the newest PTX.
    """

    everything: Proposal
    front: tuple[Proposal, ...]
    updated: tuple[Proposal, ...]

    def best(self, budget: int | None = None) -> Proposal | None:
        """Return the proposal of the highest score within a budget, or None."""
        fitting = (one for one in self.front if budget is None or one.size <= budget)
        return max(fitting, key=lambda proposal: proposal.score, default=None)

    def with_new_ptx(self, best: Proposal, budget: int | None = None) -> Proposal:
        """Return a list of the front with the newest PTX, if that keeps the budget.

        Older PTX is smaller, and drivers make slower code of it for newer GPUs.
        """
        updated = self.updated[self.front.index(best)]
        return updated if budget is None or updated.size <= budget else best


def search_targets(costs: TargetCosts, users: GpuTable, candidates: Iterable[Target]) -> Proposals:
    """Search proposals among some of a subject's targets."""
    search = TargetSearch(costs, users, tuple(candidates))
    lists = search.greedy_lists(search.useful)
    # PTX is updated afterwards: in the search, older PTX wins by its bytes.
    front = _best_by_size(map(search.proposal, lists))
    return Proposals(
        everything=search.proposal((1 << len(search.targets)) - 1),
        front=tuple(front),
        updated=tuple(search.proposal(search.with_new_ptx(one.mask)) for one in front),
    )


def _best_by_size(points: Iterable[Proposal]) -> list[Proposal]:
    front: list[Proposal] = []
    for point in sorted(points, key=lambda point: point.order):
        if point.served and not any(
            other.machine_code >= point.machine_code and other.served >= point.served
            for other in front
        ):
            front.append(point)
    return front
