"""Toolkits of a build: one, or one for each CUDA major of the recipe.

In: a recipe and the values of ``--nvcc``. Out: the probes of one toolkit; or the toolkits of all
majors. With ``[cuda] one-core`` a context of each toolkit has the targets that it compiles: each
target belongs to the lowest major that can, because more drivers run that code. Host code of a
plugin and its device code come from one toolkit, so the plugins of one core may have different
ones.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.errors import TargetError
from archsplit.nvcc.toolkit import (
    NvccCandidate,
    ToolkitProbe,
    find_major_toolkits,
    installed_toolkits,
    nvcc_candidates,
    probe_toolkits,
    unsupported_target_text,
)
from archsplit.recipe.single_build import keep_targets, targets_by_major

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from archsplit.build.context import BuildContext
    from archsplit.nvcc.toolkit import Toolkit
    from archsplit.recipe.model import Recipe
    from archsplit.release.context import Effects

_INSTALLED = Path("/usr/local")
"""The folder of NVIDIA's packages and images: ``/usr/local/cuda-12.9``."""


def find_toolkit(effects: Effects, explicit: Path | None) -> tuple[ToolkitProbe, ...]:
    """Search nvcc; return each place with its result."""
    places = nvcc_candidates(
        explicit=explicit, environment=effects.environment, site_folders=effects.site_folders
    )
    return probe_toolkits(places, effects.runner)


def find_recipe_toolkits(
    recipe: Recipe, nvcc: Sequence[Path], effects: Effects
) -> dict[int, Toolkit]:
    """Return the toolkit of each major of a recipe.

    Args:
        nvcc: compilers or toolkits that the caller names, in any order; without any, they are
            searched.

    Raises:
        ToolNotFoundError: there is no toolkit of a major.
        TargetError: no toolkit can compile for a target of the recipe.
    """
    candidates = _candidates(nvcc, effects)
    toolkits = find_major_toolkits(recipe.cuda.majors, candidates, effects.runner)
    _check_all_targets(recipe, toolkits)
    return toolkits


def toolkit_contexts(
    site: BuildContext, toolkits: Mapping[int, Toolkit]
) -> tuple[BuildContext, ...]:
    """Return a context for each toolkit that compiles a target of the recipe."""
    supported = {major: toolkit.targets for major, toolkit in toolkits.items()}
    return tuple(
        replace(
            site,
            recipe=keep_targets(site.recipe, targets),
            toolkit=toolkits[major],
            name=f"cu{major}-",
        )
        for major, targets in targets_by_major(site.recipe, supported).items()
    )


def _candidates(nvcc: Sequence[Path], effects: Effects) -> tuple[NvccCandidate, ...]:
    explicit = [candidate for path in nvcc for candidate in _places(path, effects)]
    found = explicit or [*_places(None, effects), *installed_toolkits(_INSTALLED)]
    return tuple(found)


def _places(path: Path | None, effects: Effects) -> Iterator[NvccCandidate]:
    # What the caller names needs no other place to be searched.
    folders = effects.site_folders if path is None else ()
    yield from nvcc_candidates(explicit=path, environment=effects.environment, site_folders=folders)


def _check_all_targets(recipe: Recipe, toolkits: Mapping[int, Toolkit]) -> None:
    known = frozenset().union(*(toolkit.targets for toolkit in toolkits.values()))
    if unknown := sorted(set(recipe.release) - known):
        lines = "\n  ".join(unsupported_target_text(target, known) for target in unknown)
        raise TargetError(
            f"no toolkit of CUDA {', '.join(map(str, toolkits))} can compile for\n  {lines}",
            hint="take these targets out of the recipe, or use other toolkits with --nvcc",
        )
