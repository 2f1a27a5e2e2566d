"""Recipes of single builds: one policy or one major version of CUDA out of those in the file.

In: a recipe, and the name of a policy or a major; out: the recipe for that build, or the faults of
all policies and majors at once.

The major is in the name of the distributions, ``foo-cu12``: the index has no local versions. The
import package keeps its name, so that code which imports it is the same for all majors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from archsplit.errors import UsageError
from archsplit.recipe.document import RecipeFault, translate_faults
from archsplit.recipe.policy import POLICIES, POLICY_TABLE, Policy, find_version_fault
from archsplit.wheels.filename import CUDA_IN_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

    from archsplit.arch.target import Target
    from archsplit.recipe.model import Recipe, Targets
    from archsplit.recipe.prebuilt import SplitRecipe

__pure__ = True

_DEFAULTS = Policy()


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
            hint = 'write it like "{next}.dev{date}" or "1.1.0.dev{date}"'
            yield RecipeFault(path=(POLICY_TABLE, name, "version"), message=message, hint=hint)


def find_prebuilt_policy_faults(tables: dict[str, Any]) -> Iterator[RecipeFault]:
    """Return the faults of policies that a prebuilt file doesn't allow."""
    yield from find_policy_faults(tables)
    for name, policy in tables["policies"].items():
        # Without both lists a policy would choose nothing.
        if "targets" not in tables and policy.sass is None:
            yield RecipeFault(
                path=(POLICY_TABLE, name, "sass"),
                message="is missing, and the recipe has no table of targets to take them from",
                hint='write, for example, sass = ["sm_90"]',
            )
        if "project" not in tables and policy.version != _DEFAULTS.version:
            yield RecipeFault(
                path=(POLICY_TABLE, name, "version"),
                message="is for libraries: a wheel has a version, which stays",
                hint="change the version in the project that builds the wheel",
            )


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
    kept = keep_targets(recipe, frozenset(policy.targets(recipe.release)))
    version = policy.version_on(day, recipe.project.version)
    # nvcc still gets the targets of a release.
    return replace(
        recipe,
        applied=name,
        project=replace(recipe.project, version=version),
        targets=kept.targets,
    )


def apply_policy_to_prebuilt(recipe: SplitRecipe, name: str, *, day: str) -> SplitRecipe:
    """Return the recipe for the splits of one of its policies.

    Args:
        recipe: the recipe for releases.
        name: the policy's name.
        day: the date of the split, as YYYYMMDD.

    Raises:
        UsageError: the recipe has no such policy.
    """
    policy = select_policy(recipe, name)
    # Without [targets] a release has the policy's targets: the fat wheel is not read here.
    release = (*(policy.sass or ()), *policy.ptx) if recipe.targets is None else recipe.targets
    project = recipe.project
    if project is not None:
        project = replace(project, version=policy.version_on(day, project.version))
    return replace(
        recipe, applied=name, project=project, targets=policy.targets(tuple(sorted(release)))
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


def find_cuda_faults(tables: dict[str, Any]) -> Iterator[RecipeFault]:
    """Return the contradictions between ``[cuda]`` and the project's name."""
    cuda, project = tables.get("cuda"), tables.get("project")
    if cuda and cuda.majors and project and CUDA_IN_NAME.search(project.name):
        yield RecipeFault(
            path=("project", "name"),
            message=f"{project.name} has the major of CUDA in it, and [cuda] adds one",
            hint="leave it out of the name, or leave out cuda.majors",
        )


def check_cuda_major(recipe: Recipe, major: int | None) -> None:
    """Refuse a major that a recipe lacks, and a recipe whose major is not chosen.

    Raises:
        UsageError: the recipe lacks the major, or makes several releases and none is chosen.
    """
    majors = ", ".join(map(str, recipe.cuda.majors))
    if major is None and recipe.cuda.majors:
        raise UsageError(
            f"the recipe is for CUDA {majors}, and makes a release for each",
            hint="choose one, such as --cuda 12; `archsplit build` without it builds all",
        )
    if major is not None and major not in recipe.cuda.majors:
        raise UsageError(
            f"the recipe is not for CUDA {major}: its cuda.majors are {majors or 'not set'}",
            hint="write majors = [12, 13] in [cuda], or leave out --cuda",
        )


def select_cuda_major(recipe: Recipe, major: int, supported: AbstractSet[Target]) -> Recipe:
    """Return the recipe for the release of one major.

    Args:
        supported: the targets of the major's toolkit; the others are left out.
    """
    project = replace(recipe.project, name=f"{recipe.project.name}-cu{major}")
    return replace(keep_targets(recipe, supported), project=project)


def keep_targets(recipe: Recipe, targets: AbstractSet[Target]) -> Recipe:
    """Return the recipe without its other targets."""
    kept = replace(
        recipe.targets,
        sass=tuple(target for target in recipe.targets.sass if target in targets),
        ptx=tuple(target for target in recipe.targets.ptx if target in targets),
    )
    release = tuple(target for target in recipe.release if target in targets)
    return replace(recipe, targets=kept, release=release)
