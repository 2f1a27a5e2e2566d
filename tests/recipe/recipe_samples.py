"""A recipe and its folder, for the tests to spoil."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from archsplit.errors import RecipeError
from archsplit.recipe.load import load_recipe

if TYPE_CHECKING:
    from pathlib import Path

MINIMAL = """\
[project]
name = "vec-sort"
version = "1.2.3"
summary = "Sorts."
license = "Apache-2.0"
license-files = ["LICENSE"]

[source]
files = ["src/*.cu"]

[targets]
sass = ["sm_90", "sm_80"]

[interface]
header = "include/vec.h"
symbols = ["vec_sort"]
"""


def fill_folder(folder: Path, recipe: str = MINIMAL) -> Path:
    """Write the recipe and every file that `MINIMAL` names."""
    for name in ("src/b.cu", "src/a.cu", "LICENSE", "README.md", "python/vec_sort/__init__.py"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text\n")
    (folder / "include").mkdir(exist_ok=True)
    (folder / "include/vec.h").write_text("int vec_sort(void);\n")
    (folder / "recipe.toml").write_text(recipe)
    return folder


def message_for(folder: Path) -> str:
    """Return the error message about the recipe in ``folder``, without the folder's path."""
    with pytest.raises(RecipeError) as caught:
        load_recipe(folder)
    return str(caught.value).replace(f"{folder}/", "").replace(str(folder), "FOLDER")
