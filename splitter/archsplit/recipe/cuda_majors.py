"""Recipes for several major versions of CUDA: checked, and turned into the recipe of one major.

The major is in the name of the distributions, ``foo-cu12``: the index has no local versions. The
import package keeps its name, so that code which imports it is the same for all majors.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from archsplit.errors import UsageError
from archsplit.recipe.faults import RecipeFault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

    from archsplit.arch.target import Target
    from archsplit.recipe.model import Recipe

__pure__ = True

CUDA_IN_NAME = re.compile(r"-cu(?:da)?-?(\d\d)x?$")
"""The end of a distribution's name with the major of its CUDA."""


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
        UsageError: they don't fit.
    """
    majors = ", ".join(map(str, recipe.cuda.majors))
    if major is None and recipe.cuda.majors:
        raise UsageError(
            f"the recipe is for CUDA {majors}, and makes a release for each",
            hint="choose one, as in --cuda 12; `archsplit build` without it builds all",
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
    targets = replace(
        recipe.targets,
        sass=tuple(target for target in recipe.targets.sass if target in supported),
        ptx=tuple(target for target in recipe.targets.ptx if target in supported),
    )
    release = tuple(target for target in recipe.release if target in supported)
    return replace(recipe, project=project, targets=targets, release=release)
