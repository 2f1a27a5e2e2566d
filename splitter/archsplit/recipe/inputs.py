"""Which files of a recipe can change what is built from it."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from archsplit.recipe.globs import matching_files
from archsplit.recipe.includes import included_files, name_inside
from archsplit.system.fs import input_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path, PurePosixPath

    from archsplit.recipe.model import Recipe

__pure__ = True

_C_FAMILY = tuple(
    f"*.{suffix}"
    for suffix in "c cc cpp cu cuh cxx h hh hpp hxx inc inl ipp tpp".split()  # noqa: SIM905 (short)
)
_LIBRARIES = ("*.a", "*.so", "*.so.*")


def input_files(recipe: Recipe) -> tuple[PurePosixPath, ...]:
    """List them, sorted and relative to the recipe's folder.

    They are the files that the recipe names; every file that its sources include by name, also by
    way of others; what looks like C++ below the include folders and the folders of the sources,
    whether or not it is included; and the libraries below the library folders.

    Raises:
        InputError: a file or folder can't be read.
        RecipeError: a source includes a file from outside of the recipe's folder.
    """
    source = recipe.source
    found = {recipe.file, recipe.interface.header, *recipe.project.license_files}
    found.update(filter(None, [recipe.project.readme]))
    found.update(recipe.python.root / file for file in recipe.python.files)
    found.update(included_files(recipe.root, source.files, source.include))
    for folder in {*source.include, *(file.parent for file in source.files)}:
        found.update(_below(recipe, folder, _C_FAMILY))
    for folder in recipe.link.library_folders:
        found.update(_below(recipe, folder, _LIBRARIES))
    return tuple(sorted(found))


def unlisted_inputs(recipe: Recipe, listed: Iterable[Path], toolkit: Path) -> Iterator[str]:
    """Say what a compiler read that `input_files` doesn't list, apart from the toolkit's own.

    Args:
        listed: what it says it read, without system headers; relative to the recipe's folder.
        toolkit: the toolkit's root folder.
    """
    known = frozenset(recipe.input_files)
    ours = (toolkit, (toolkit / "include").resolve())
    for path in (recipe.root / each for each in listed):
        if any(name_inside(folder, path) for folder in ours):
            continue
        name = name_inside(recipe.root, path)
        if name is None:
            yield f"{path} is included, which is outside of {recipe.root}"
        elif name not in known:
            yield f"{name} is included, but not by a name that is written in a source"


def _below(
    recipe: Recipe, folder: PurePosixPath, names: tuple[str, ...]
) -> Iterator[PurePosixPath]:
    with input_errors(recipe.root / folder):
        files = matching_files(recipe.root, folder / "**")
    return (file for file in files if any(fnmatchcase(file.name, name) for name in names))
