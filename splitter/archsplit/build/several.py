"""Builds of one recipe for several CUDA majors, and for several machines.

In: a recipe with ``[cuda] majors`` or ``[platforms] machines``, and the places where toolkits may
be. Out: a release for each major, ``foo-cu12`` in ``cu12/``, and the front package ``foo``; and a
folder with all of it for each machine, ``aarch64/``. All folders are written, or none. A target
that one toolkit doesn't know is left out of its release, and is an error if no toolkit knows it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from archsplit.build.pipeline import build_recipe
from archsplit.build.toolkits import find_recipe_toolkits
from archsplit.errors import OutputError
from archsplit.recipe.load import load_recipe
from archsplit.release.front_package import (
    CudaReleases,
    refuse_cuda_folders,
    write_front_package,
)
from archsplit.system.env import source_date_epoch
from archsplit.system.fs import output_dir, replace_all, temporary_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from archsplit.build.plan import BuildRequest
    from archsplit.release.context import Effects

Built = TypeVar("Built")


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
    toolkits = find_recipe_toolkits(recipe, nvcc, effects)
    with output_dir(out) as folder, temporary_dir(folder) as staging:
        refuse_cuda_folders(folder, toolkits)
        releases = {}
        for major, toolkit in sorted(toolkits.items()):
            if left_out := [str(one) for one in recipe.release if one not in toolkit.targets]:
                effects.progress.note(
                    f"CUDA {toolkit.release} has no {', '.join(left_out)}: not in the release"
                    f" cu{major}"
                )
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
