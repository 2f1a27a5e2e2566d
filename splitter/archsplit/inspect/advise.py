"""What is advised: proposals, one of them chosen, and what it means to each GPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.arch.compat import best_target
from archsplit.arch.target import CodeKind
from archsplit.inspect.target_search import search_targets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archsplit.arch.target import Capability, Target
    from archsplit.devicecode.select import Coverage
    from archsplit.inspect.gpu_table import GpuTable
    from archsplit.inspect.target_search import Proposal, Proposals, TargetCosts

__pure__ = True

DEFAULT_POLICY = "nightly"
_MEGABYTE = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceRequest:
    """What is asked for.

    Attributes:
        budget: bytes of the whole, with the targets that are chosen; None for any.
        max_wheel: bytes of each plugin; None for any.
        ptx: whether PTX may be proposed.
        policy: the name of the recipe's policy that is proposed; None for one only where there is
            a recipe: for a build.
    """

    budget: int | None = None
    max_wheel: int | None = None
    ptx: bool = True
    policy: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetListEffect:
    """What a list of targets means to the GPUs of one capability.

    Attributes:
        share: of the users.
        before: how everything serves it.
        after: how the list does.
        plugin: bytes of the device code that it takes of everything, which a plugin of its own
            would hold.
        gaps: in how many containers of everything there is nothing for it.
    """

    capability: Capability
    share: float
    before: Coverage
    after: Coverage
    plugin: int
    gaps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The answer.

    Attributes:
        best: the proposal of most merit that keeps the budget; None where none does.
    """

    offer: TargetCosts
    users: GpuTable
    wish: AdviceRequest
    proposals: Proposals
    best: Proposal | None
    fates: tuple[TargetListEffect, ...] = field(repr=False)

    @property
    def too_big(self) -> tuple[TargetListEffect, ...]:
        """The GPUs whose own plugin would be more than one may be."""
        most = self.wish.max_wheel
        return tuple(fate for fate in self.fates if most is not None and fate.plugin > most)

    def snippet(self) -> str:
        """The best list as a table of a recipe; "" without one, and where no recipe is known."""
        if self.best is None or (self.wish.policy is None and not self.offer.is_release):
            return ""
        lists = {
            "sass": [one for one in self.best.targets if one.kind is CodeKind.SASS],
            "ptx": [one for one in self.best.targets if one.kind is CodeKind.PTX],
        }
        lines = [f"[policy.{self.wish.policy or DEFAULT_POLICY}]"]
        for key, targets in lists.items():
            if targets or key == "sass":
                names = ", ".join(f'"{target}"' for target in targets)
                lines.append(f"{key} = [{names}]")
        if self.wish.max_wheel is not None:
            lines.append(f'max-wheel = "{_written(self.wish.max_wheel)}"')
        if self.wish.budget is not None:
            lines.append(f'budget = "{_written(self.wish.budget)}"')
        return "\n".join(lines) + "\n"

    def split_arguments(self, subject: str) -> tuple[str, ...]:
        """What makes a core and packs for these targets; () for what is no finished wheel."""
        if self.best is None or self.offer.is_release or not subject.endswith(".whl"):
            return ()
        names = ",".join(map(str, self.best.targets))
        return ("archsplit", "split", subject, "--targets", names, "--out", "split")

    def slim_arguments(self, subject: str) -> tuple[str, ...]:
        """What ``archsplit slim`` is to be told to make it; () where there is nothing to slim."""
        if self.best is None or self.offer.is_release or self.offer.is_split:
            return ()
        names = ",".join(map(str, self.best.targets))
        return ("archsplit", "slim", subject, "--keep", names, "--keep-ptx", "none")


def advise(
    offer: TargetCosts, users: GpuTable, wish: AdviceRequest, plugins: Mapping[Capability, int]
) -> Advice:
    """Weigh what may be proposed, and choose.

    Args:
        plugins: what each GPU of the table takes of everything, in bytes.
    """
    candidates = [
        target
        for target, size in offer.sizes.items()
        if (wish.ptx or target.kind is CodeKind.SASS) and _may_be(offer, wish, size)
    ]
    proposals = search_targets(offer, users, candidates)
    best = proposals.best(wish.budget)
    best = None if best is None else proposals.with_new_ptx(best, wish.budget)
    after = (best or proposals.everything).services
    return Advice(
        offer=offer,
        users=users,
        wish=wish,
        proposals=proposals,
        best=best,
        fates=tuple(
            TargetListEffect(
                capability=capability,
                share=share,
                before=proposals.everything.services[capability],
                after=after[capability],
                plugin=plugins[capability],
                gaps=offer.gaps(capability),
            )
            for capability, share in users.shares.items()
        ),
    )


def plugin_sizes(offer: TargetCosts, users: GpuTable) -> dict[Capability, int]:
    """The plugin that each GPU of the table takes of a build; 0 where none runs."""
    sizes: Mapping[Target, int] = offer.sizes
    best = {capability: best_target(capability, sizes) for capability in users.shares}
    return {
        capability: 0 if target is None else sizes[target] for capability, target in best.items()
    }


def _written(size: int) -> str:
    return f"{size // _MEGABYTE}MB" if size % _MEGABYTE == 0 else str(size)


def _may_be(offer: TargetCosts, wish: AdviceRequest, size: int) -> bool:
    # In a fat wheel no target is a file of its own.
    return not offer.is_release or wish.max_wheel is None or size <= wish.max_wheel
