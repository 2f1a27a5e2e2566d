"""Policies of a recipe: read, checked against the other tables, and applied.

In: a recipe and the name of a policy; out: the recipe for the builds of that policy, or the faults
of all policies at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from archsplit.arch.target import CodeKind
from archsplit.errors import UsageError
from archsplit.recipe.faults import RecipeFault, translate_faults
from archsplit.recipe.policy import POLICIES, POLICY_TABLE, find_version_fault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.recipe.model import Compile, Recipe, Targets
    from archsplit.recipe.policy import Policy
    from archsplit.recipe.prebuilt import SplitRecipe

__pure__ = True

_COMPRESS = "--compress-mode"
_COMPRESSION_FLAGS = (_COMPRESS, _COMPRESS[1:], "--no-compress", "-no-compress")


def read_policies(content: object) -> tuple[dict[str, Policy], list[RecipeFault]]:
    """Return the policies by name, or the faults; one fault leaves no policy."""
    try:
        return POLICIES.validate_python(content), []
    except ValidationError as error:
        return {}, list(translate_faults(error, POLICY_TABLE))


def find_policy_faults(tables: dict[str, Any]) -> Iterator[RecipeFault]:
    """Return the contradictions between policies and other tables, if these are valid."""
    for name, policy in tables["policies"].items():
        # A table with faults is missing here.
        if targets := tables.get("targets"):
            yield from _target_faults(name, policy, targets)
        project = tables.get("project")
        if project and (message := find_version_fault(policy, project.version)):
            hint = 'write it as in "{next}.dev{date}" or "1.1.0.dev{date}"'
            yield RecipeFault(path=(POLICY_TABLE, name, "version"), message=message, hint=hint)


def apply_policy(recipe: Recipe, name: str, *, day: str) -> Recipe:
    """Return the recipe for the builds of one of its policies.

    Args:
        recipe: the recipe for releases.
        name: the policy's name.
        day: the date of the build, as YYYYMMDD.

    Raises:
        UsageError: the recipe has no such policy.
    """
    policy = select_policy(recipe, name)
    targets = policy.targets(recipe.release)
    version = policy.version_on(day, recipe.project.version)
    return replace(
        recipe,
        applied=name,
        project=replace(recipe.project, version=version),
        targets=replace(
            recipe.targets,
            sass=tuple(target for target in targets if target.kind is CodeKind.SASS),
            ptx=tuple(target for target in targets if target.kind is CodeKind.PTX),
        ),
        compile=_set_compression(recipe.compile, policy.device_compression),
    )


def select_policy(recipe: Recipe | SplitRecipe, name: str) -> Policy:
    """Return a recipe's policy by its name.

    Raises:
        UsageError: the recipe has no such policy.
    """
    if name in recipe.policies:
        return recipe.policies[name]
    names = ", ".join(sorted(recipe.policies)) or "none"
    raise UsageError(
        f"the recipe has no policy {name}; it has {names}",
        hint=f"write a table [policy.{name}] into {recipe.file}",
    )


def _target_faults(name: str, policy: Policy, targets: Targets) -> Iterator[RecipeFault]:
    lists = (("sass", policy.sass or (), targets.sass), ("ptx", policy.ptx, targets.ptx))
    for key, wanted, there in lists:
        for index, target in enumerate(wanted):
            if target not in there:
                yield RecipeFault(
                    path=(POLICY_TABLE, name, key, index),
                    message=f"{target} is not in targets.{key}",
                    hint="a policy leaves targets out; add it there: all builds compile for the"
                    " same list, and share results",
                )
    # Without targets.sass, a policy that names nothing would select nothing.
    if policy.sass is None and not (targets.sass or policy.ptx):
        message = "names no target"
        yield RecipeFault(
            path=(POLICY_TABLE, name), message=message, hint="write some of targets.ptx in ptx"
        )


def _set_compression(compile_: Compile, mode: str) -> Compile:
    # nvcc refuses two modes: the policy's replaces the recipe's.
    if mode == "default":
        return compile_
    flags = (
        flag for flag in compile_.nvcc_flags if flag.partition("=")[0] not in _COMPRESSION_FLAGS
    )
    return replace(compile_, nvcc_flags=(*flags, f"{_COMPRESS}={mode}"))
