"""``[project]`` table of a ``pyproject.toml`` beside a recipe.

Resolvers read that table without running the build backend: uv, pip's dependency groups, editors.
The recipe is the one source of the metadata. So the table has the recipe's name, and all other
fields are in ``dynamic``, for which resolvers run the hook of the backend. The hook compiles
nothing.

Source: https://packaging.python.org/en/latest/specifications/pyproject-toml/
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from archsplit.errors import RecipeError
from archsplit.system.fs import read_file
from archsplit.system.toml import TOMLDecodeError, loads

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from archsplit.recipe.model import Project

__pure__ = True

PROJECT_FILE = "pyproject.toml"
BACKEND = "archsplit.backend"

_GENERATED = ("entry-points", "optional-dependencies")
"""Fields that no recipe has: archsplit writes an extra for each target, and one entry point."""
_FIELDS = {
    "authors": "authors",
    "classifiers": "classifiers",
    "dependencies": "dependencies",
    "description": "summary",
    "keywords": "keywords",
    "license": "license",
    "license-files": "license_files",
    "readme": "readme",
    "requires-python": "requires_python",
    "urls": "urls",
    "version": "version",
}
"""Fields that a recipe has, with the attributes of `Project`."""


def names_backend(root: Path) -> bool:
    """Return True if the folder has a ``pyproject.toml`` with archsplit's build backend.

    Raises:
        InputError: the file can't be read.
        RecipeError: the file is not TOML.
    """
    if not (root / PROJECT_FILE).exists():
        return False
    system = _read_project_file(root).get("build-system")
    return isinstance(system, dict) and system.get("build-backend") == BACKEND


def _read_project_file(root: Path) -> dict[str, object]:
    path = root / PROJECT_FILE
    try:
        return loads(read_file(path).decode())
    except (UnicodeDecodeError, TOMLDecodeError) as error:
        raise RecipeError(f"{path} can't be read: {error}") from None


def check_project_table(project: Project, root: Path) -> None:
    """Compare the ``[project]`` table of ``pyproject.toml``, if there is one, with the recipe.

    Args:
        project: the recipe's table.
        root: the folder of both files.

    Raises:
        InputError: the file can't be read.
        RecipeError: the file is not TOML, or contradicts the recipe; lists every fault.
    """
    # A program may call the hooks for a folder that no frontend knows.
    content = _read_project_file(root) if (root / PROJECT_FILE).exists() else {}
    table = content.get("project")
    if table is None:
        return
    if not isinstance(table, dict):
        raise RecipeError(f"{root / PROJECT_FILE}: project is not a table")
    own = (name for name, key in _FIELDS.items() if getattr(project, key))
    required = sorted((*own, *_GENERATED))
    if faults := sorted(_faults(table, project.name, required)):
        lines = ["[project]", f'name = "{project.name}"', "dynamic = ["]
        correct = "\n".join([*lines, *(f'    "{name}",' for name in required), "]"])
        raise RecipeError(
            "\n".join(f"{PROJECT_FILE}: {fault}" for fault in faults),
            hint=f"the recipe has the metadata; write\n{correct}",
        )


def _faults(table: dict[str, object], expected: str, required: list[str]) -> Iterator[str]:
    name, dynamic = table.get("name"), table.get("dynamic", [])
    if not (isinstance(dynamic, list) and all(isinstance(each, str) for each in dynamic)):
        yield "project.dynamic is not a list of names"
        return
    if not isinstance(name, str) or canonicalize_name(name) != expected:
        yield f"project.name is {name!r}, expected {expected!r}"
    for field in sorted({*table} - {"name", "dynamic"}):
        yield f"project.{field} has a value; the recipe has the metadata of all wheels"
    for field in sorted({*dynamic} - {*_FIELDS, *_GENERATED}):
        yield f"project.dynamic has {field}, which no wheel of a recipe has"
    for field in sorted({*required} - {*dynamic}):
        yield f"project.{field} is not in project.dynamic"
