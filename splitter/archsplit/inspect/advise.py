"""Advice on targets: proposals, the best of them, and its effect on each GPU.

In go the costs of targets, the GPUs of users and a request with limits; out comes an `Advice`. The
proposals are searched by `archsplit.inspect.target_search`; here one is chosen.
"""

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
    """Limits of a proposal.

    Attributes:
        budget: bytes of the whole, with the chosen targets; None for any.
        ptx: True if PTX may be proposed.
        policy: the name of the recipe's policy to propose; None for a policy only where the subject
            is a build, which has a recipe.
    """

    budget: int | None = None
    ptx: bool = True
    policy: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetListEffect:
    """Effect of a list of targets on the GPUs of one capability.

    Attributes:
        share: of the users.
        before: the coverage by all targets.
        after: the coverage by the list.
        plugin: bytes of the device code that the GPU takes of all targets, which a plugin of its
            own would hold.
        gaps: the number of containers without code for it.
    """

    capability: Capability
    share: float
    before: Coverage
    after: Coverage
    plugin: int
    gaps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Proposals, and the best of them.

    Attributes:
        best: the proposal of the highest score that keeps the budget; None if none does.
    """

    costs: TargetCosts
    users: GpuTable
    request: AdviceRequest
    proposals: Proposals
    best: Proposal | None
    effects: tuple[TargetListEffect, ...] = field(repr=False)

    def snippet(self) -> str:
        """Return the best list as a table of a recipe.

        The text is "" without a best list, and without a recipe.
        """
        # A recipe's table helps only where there is a recipe.
        if self.best is None or (self.request.policy is None and not self.costs.is_release):
            return ""
        lists = {
            "sass": [one for one in self.best.targets if one.kind is CodeKind.SASS],
            "ptx": [one for one in self.best.targets if one.kind is CodeKind.PTX],
        }
        lines = [f"[policy.{self.request.policy or DEFAULT_POLICY}]"]
        for key, targets in lists.items():
            # A policy must have `sass`, even if it is empty.
            if targets or key == "sass":
                names = ", ".join(f'"{target}"' for target in targets)
                lines.append(f"{key} = [{names}]")
        if self.request.budget is not None:
            lines.append(f'budget = "{_size_literal(self.request.budget)}"')
        return "\n".join(lines) + "\n"

    def split_arguments(self, subject: str) -> tuple[str, ...]:
        """Return the ``archsplit split`` command for these targets; () without a fat wheel."""
        if not (names := self._names) or not subject.endswith(".whl"):
            return ()
        return ("archsplit", "split", subject, "--targets", names, "--out", "split")

    def slim_arguments(self, subject: str) -> tuple[str, ...]:
        """Return the ``archsplit slim`` command for these targets; () if nothing can be slimmed."""
        if not (names := self._names) or self.costs.is_split:
            return ()
        return ("archsplit", "slim", subject, "--keep", names, "--keep-ptx", "none")

    @property
    def _names(self) -> str:
        """Targets of the best list for a command; "" for a build, which has a recipe."""
        if self.best is None or self.costs.is_release:
            return ""
        return ",".join(map(str, self.best.targets))


def advise(
    costs: TargetCosts, users: GpuTable, request: AdviceRequest, plugins: Mapping[Capability, int]
) -> Advice:
    """Search proposals and choose the best one.

    Args:
        costs: the subject's targets.
        users: the GPUs to serve.
        request: the limits.
        plugins: the bytes that each GPU of the table takes of all targets.
    """
    candidates = [target for target in costs.sizes if request.ptx or target.kind is CodeKind.SASS]
    proposals = search_targets(costs, users, candidates)
    best = proposals.best(request.budget)
    # The search prefers small PTX; newer PTX is better code where the budget allows it.
    best = None if best is None else proposals.with_new_ptx(best, request.budget)
    # Without a proposal the effect of the present targets is shown.
    after = (best or proposals.everything).coverage_by_capability
    return Advice(
        costs=costs,
        users=users,
        request=request,
        proposals=proposals,
        best=best,
        effects=tuple(
            TargetListEffect(
                capability=capability,
                share=share,
                before=proposals.everything.coverage_by_capability[capability],
                after=after[capability],
                plugin=plugins[capability],
                gaps=costs.gaps(capability),
            )
            for capability, share in users.shares.items()
        ),
    )


def plugin_sizes(costs: TargetCosts, users: GpuTable) -> dict[Capability, int]:
    """Return the plugin's size for each GPU of the table; 0 where none runs."""
    sizes: Mapping[Target, int] = costs.sizes
    best = {capability: best_target(capability, sizes) for capability in users.shares}
    return {
        capability: 0 if target is None else sizes[target] for capability, target in best.items()
    }


def _size_literal(size: int) -> str:
    return f"{size // _MEGABYTE}MB" if size % _MEGABYTE == 0 else str(size)
