"""Builds of one recipe for several CUDA majors, and for several machines.

In: a recipe with ``[cuda] majors`` or ``[platforms] machines``, and the places where toolkits may
be. Out: a release for each major, ``foo-cu12`` in ``cu12/``, and the front package ``foo``; and a
folder with all of it for each machine, ``aarch64/``. All folders are written, or none. A target
that one toolkit doesn't know is left out of its release, and is an error if no toolkit knows it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from archsplit.build.pipeline import build_recipe
from archsplit.errors import OutputError, TargetError
from archsplit.nvcc.toolkit import (
    NvccCandidate,
    find_major_toolkits,
    installed_toolkits,
    nvcc_candidates,
    unsupported_target_text,
)
from archsplit.recipe.load import load_recipe
from archsplit.release.front_package import (
    CudaReleases,
    refuse_cuda_folders,
    write_front_package,
)
from archsplit.system.env import source_date_epoch
from archsplit.system.fs import output_dir, replace_all, temporary_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from archsplit.build.plan import BuildRequest
    from archsplit.nvcc.toolkit import Toolkit
    from archsplit.recipe.model import Recipe
    from archsplit.release.context import Effects

Built = TypeVar("Built")

_INSTALLED = Path("/usr/local")
"""The folder of NVIDIA's packages and images: ``/usr/local/cuda-12.9``."""


def build_machines(
    machines: Sequence[str], build: Callable[[Effects, Path], Built], effects: Effects, *, out: Path
) -> dict[str, Built]:
    """Build into a folder for each machine; all folders or none.

    Args:
        build: builds for the machine of its effects, into a folder.

    Raises:
        OutputError: the folder of a machine is there already.
        ArchsplitError: a build failed.
    """
    with output_dir(out) as folder, temporary_dir(folder) as staging:
        # Folders can't be exchanged at once, so there is none before.
        if existing := [name for name in machines if (folder / name).exists()]:
            raise OutputError(
                f"{folder} has {', '.join(existing)} already",
                hint="choose another folder with --out",
            )
        done = {}
        for machine in machines:
            done[machine] = build(replace(effects, machine=machine), staging / machine)
        replace_all(list(machines), source=staging, target=folder)
    return done


def build_cuda_majors(
    order: BuildRequest, effects: Effects, *, out: Path, nvcc: Sequence[Path] = ()
) -> CudaReleases:
    """Build the releases of all majors of a recipe, and the front package; all files or none.

    Args:
        nvcc: compilers or toolkits that the caller names, in any order; without any, they are
            searched.

    Raises:
        ToolNotFoundError: there is no toolkit of a major.
        ArchsplitError: see `build_recipe`.
    """
    recipe = load_recipe(order.recipe)
    toolkits = find_major_toolkits(recipe.cuda.majors, _candidates(nvcc, effects), effects.runner)
    _check_all_targets(recipe, toolkits)
    with output_dir(out) as folder, temporary_dir(folder) as staging:
        refuse_cuda_folders(folder, toolkits)
        releases = {}
        for major, toolkit in sorted(toolkits.items()):
            _note_left_out(recipe, major, toolkit, effects)
            part = replace(order, cuda_major=major, nvcc=toolkit.nvcc)
            releases[major] = build_recipe(part, effects, out=staging / f"cu{major}")
        front = write_front_package(
            staging,
            recipe.project.name,
            # A policy may have given all releases another version.
            next(iter(releases.values())).version,
            releases,
            requires_python=recipe.project.requires_python,
            epoch=source_date_epoch(effects.environment),
        )
        replace_all([*(f"cu{major}" for major in releases), front], source=staging, target=folder)
    return CudaReleases(front=front, releases=releases)


def _candidates(nvcc: Sequence[Path], effects: Effects) -> tuple[NvccCandidate, ...]:
    explicit = [
        candidate
        for path in nvcc
        for candidate in nvcc_candidates(
            explicit=path, environment=effects.environment, site_folders=()
        )
    ]
    if explicit:
        return tuple(explicit)
    found = nvcc_candidates(
        explicit=None, environment=effects.environment, site_folders=effects.site_folders
    )
    return (*found, *installed_toolkits(_INSTALLED))


def _check_all_targets(recipe: Recipe, toolkits: Mapping[int, Toolkit]) -> None:
    known = frozenset().union(*(toolkit.targets for toolkit in toolkits.values()))
    if unknown := sorted(set(recipe.release) - known):
        lines = "\n  ".join(unsupported_target_text(target, known) for target in unknown)
        raise TargetError(
            f"no toolkit of CUDA {', '.join(map(str, toolkits))} can compile for\n  {lines}",
            hint="take these targets out of the recipe, or use other toolkits with --nvcc",
        )


def _note_left_out(recipe: Recipe, major: int, toolkit: Toolkit, effects: Effects) -> None:
    if left_out := [str(target) for target in recipe.release if target not in toolkit.targets]:
        effects.progress.note(
            f"CUDA {toolkit.release} has no {', '.join(left_out)}: not in the release cu{major}"
        )
