"""What to say of a target that a toolkit can't compile for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.arch.compat import RENAMED_CAPABILITIES, capability_text, is_published

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from archsplit.arch.target import Target


def unsupported_targets(target: Target, supported: AbstractSet[Target]) -> str:
    """One line: the nearest that the toolkit has, and whether anybody has heard of the target."""
    return f"{target}: the nearest it knows are {_nearest(target, supported)}; {_what(target)}"


def _what(target: Target) -> str:
    renamed = RENAMED_CAPABILITIES.get(target.capability)
    if renamed is not None:
        return f"CUDA 13 renamed it to {target.kind.value}_{renamed.sm_number}{target.suffix}"
    if is_published(target):
        return f"it is for {capability_text(target.capability)}"
    return "it is not a published target that archsplit knows"


def _nearest(target: Target, supported: AbstractSet[Target]) -> str:
    wanted = target.capability.sm_number
    same_kind = [known for known in supported if known.kind is target.kind]
    ranked = sorted(same_kind, key=lambda known: (abs(known.capability.sm_number - wanted), known))
    return ", ".join(str(known) for known in sorted(ranked[:3]))
