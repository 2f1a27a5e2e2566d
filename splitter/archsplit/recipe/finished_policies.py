"""Policies of a recipe for something finished: which packs are made of it, and what they may weigh.

What compiling decides is decided already: how device code is packed, and what a wheel is called.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from archsplit.recipe.apply_policy import chosen_policy, policy_faults
from archsplit.recipe.faults import Fault
from archsplit.recipe.policy import POLICY, Policy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.recipe.prebuilt import SplitRecipe

__pure__ = True

_PACKED = ("device_compression", "wheel_compression")
_LEFT_OUT = Policy()


def prebuilt_policy_faults(tables: dict[str, Any]) -> Iterator[Fault]:
    """What policies say that something finished doesn't go with."""
    yield from policy_faults(tables)
    for name, policy in tables["policies"].items():
        for key in _PACKED:
            if getattr(policy, key) != getattr(_LEFT_OUT, key):
                yield Fault(
                    path=(POLICY, name, key.replace("_", "-")),
                    message="is for recipes with sources",
                    hint="what is finished is packed; `archsplit slim --recompress` packs it anew",
                )
        if "targets" not in tables and policy.sass is None:
            yield Fault(
                path=(POLICY, name, "sass"),
                message="is missing, and the recipe has no table of targets to take them from",
                hint='write, for example, sass = ["sm_90"]',
            )
        if "project" not in tables and policy.version != _LEFT_OUT.version:
            yield Fault(
                path=(POLICY, name, "version"),
                message="is for libraries: a wheel has a version, which stays",
                hint="have what builds the wheel give it another one",
            )


def apply_policy_to_prebuilt(recipe: SplitRecipe, name: str, *, day: str) -> SplitRecipe:
    """The recipe for the splits of one of its policies.

    Args:
        name: the policy's.
        day: the split's, as YYYYMMDD.

    Raises:
        UsageError: there is no such policy.
    """
    policy = chosen_policy(recipe, name)
    release = (*(policy.sass or ()), *policy.ptx) if recipe.targets is None else recipe.targets
    project = recipe.project
    if project is not None:
        project = replace(project, version=policy.version_on(day, project.version))
    return replace(
        recipe, applied=name, project=project, targets=policy.targets(tuple(sorted(release)))
    )
