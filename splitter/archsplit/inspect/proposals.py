"""Lists of targets that no other one beats.

Of a few targets, every list is weighed; of many, those that are likely to be good.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.inspect.target_search import TargetSearch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from archsplit.arch.target import Target
    from archsplit.inspect.gpu_table import GpuTable
    from archsplit.inspect.offer import TargetCosts
    from archsplit.inspect.target_search import Point, Proposal

__pure__ = True

MOST_EXACT = 15
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


def propose(offer: TargetCosts, users: GpuTable, candidates: Iterable[Target]) -> Proposals:
    """Weigh lists of some of an offer's targets."""
    weighing = TargetSearch(offer, users, tuple(candidates))
    useful = weighing.useful
    exact = len(useful) <= MOST_EXACT
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


def _unbeaten(points: Iterable[Point]) -> list[Point]:
    front: list[Point] = []
    for point in sorted(points, key=lambda point: point.order):
        if point.served and not any(
            other.machine_code >= point.machine_code and other.served >= point.served
            for other in front
        ):
            front.append(point)
    return front
