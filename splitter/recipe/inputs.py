"""Which files of a recipe can change what is built from it."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from splitter.recipe.globs import matching_files
from splitter.system.files import reading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from splitter.recipe.tables import Recipe

_C_FAMILY = frozenset(
    ".c .cc .cpp .cu .cuh .cxx .h .hh .hpp .hxx .inc .inl .ipp .tpp".split()  # noqa: SIM905 (short)
)
_HERE = PurePosixPath()


def input_files(recipe: Recipe) -> tuple[PurePosixPath, ...]:
    """List them, sorted and relative to the recipe's folder.

    They are the files that the recipe names, everything below its include and library folders, and
    what looks like C++ below the folders of its sources, because ``#include "…"`` looks there.
    Below the recipe's folder itself, which may hold anything, only what looks like C++ counts.

    Raises:
        InputError: a folder can't be listed.
    """
    found = {recipe.file, recipe.interface.header, *recipe.source.files}
    found.update(recipe.project.license_files)
    found.update(filter(None, [recipe.project.readme]))
    found.update(recipe.python.root / file for file in recipe.python.files)
    for folder in {*recipe.source.include, *recipe.link.library_folders} - {_HERE}:
        found.update(_below(recipe, folder))
    for folder in {*_source_folders(recipe), *recipe.source.include}:
        found.update(path for path in _below(recipe, folder) if path.suffix in _C_FAMILY)
    return tuple(sorted(found))


def _source_folders(recipe: Recipe) -> Iterator[PurePosixPath]:
    return (file.parent for file in recipe.source.files)


def _below(recipe: Recipe, folder: PurePosixPath) -> tuple[PurePosixPath, ...]:
    with reading(recipe.root / folder):
        return matching_files(recipe.root, folder / "**")
