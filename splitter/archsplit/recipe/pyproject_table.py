"""The ``[project]`` table of a ``pyproject.toml`` beside a recipe.

Resolvers read that table without running the build backend: uv, pip's dependency groups, editors.
The recipe stays the one source of the metadata. So each field of the table must be the recipe's,
or be in ``dynamic``, for which resolvers run the hook of the backend. The hook compiles nothing.

Source: https://packaging.python.org/en/latest/specifications/pyproject-toml/
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, get_type_hints

from packaging.utils import canonicalize_name
from pydantic import TypeAdapter, ValidationError

from archsplit.errors import RecipeError
from archsplit.recipe.document import translate_faults
from archsplit.recipe.model import Author, Project
from archsplit.recipe.values import matching_files
from archsplit.system.fs import read_file
from archsplit.system.toml import TOMLDecodeError, loads

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__pure__ = True

PROJECT_FILE = "pyproject.toml"
BACKEND = "archsplit.backend"

_GENERATED = ("entry-points", "optional-dependencies")
"""Fields that no recipe has: archsplit writes an extra for each target, and one entry point."""
_UNSUPPORTED = ("gui-scripts", "import-names", "import-namespaces", "maintainers", "scripts")
_FIELDS = (
    "authors",
    "classifiers",
    "dependencies",
    "description",
    "keywords",
    "license",
    "license-files",
    "readme",
    "requires-python",
    "urls",
    "version",
)


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
        project: the recipe's table, with the version of the applied policy.
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
    if faults := sorted(_ProjectTable(table=table, project=project, root=root).faults()):
        raise RecipeError(
            "\n".join(f"{PROJECT_FILE}: {fault}" for fault in faults),
            hint=f"the recipe has the metadata; write\n{_correct_table(project)}",
        )


def _correct_table(project: Project) -> str:
    lines = ["[project]", f'name = "{project.name}"', "dynamic = ["]
    return "\n".join([*lines, *(f'    "{name}",' for name in _required(project)), "]"])


def _required(project: Project) -> list[str]:
    """Return the fields of the core that the table has to account for."""
    own = [name for name in _FIELDS if _recipe_value(project, name)]
    return sorted([*own, *_GENERATED])


def _attribute(name: str) -> str:
    return {"description": "summary"}.get(name, name.replace("-", "_"))


def _recipe_value(project: Project, name: str) -> object:
    value: object = getattr(project, _attribute(name))
    return value


_TYPES = get_type_hints(Project, include_extras=True)
_ADAPTERS: dict[str, TypeAdapter[object]] = {
    name: TypeAdapter(_TYPES[_attribute(name)]) for name in _FIELDS
}
"""The checks of a recipe's own values, by the fields of this table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProjectTable:
    table: dict[str, object]
    project: Project
    root: Path = field(repr=False)

    def faults(self) -> Iterator[str]:
        table = self.table
        dynamic = table.get("dynamic", [])
        if not (isinstance(dynamic, list) and all(isinstance(name, str) for name in dynamic)):
            yield "project.dynamic is not a list of names"
            return
        yield from self._name_faults(dynamic)
        known = {"dynamic", "name", *_FIELDS, *_GENERATED, *_UNSUPPORTED}
        for name in sorted({*table, *dynamic} - known):
            yield f"project.{name} is not a field of this table"
        for name in sorted({*table} & {*dynamic}):
            yield f"project.{name} has a value, and is in project.dynamic too"
        for name in sorted({*table} & {*_GENERATED, *_UNSUPPORTED}):
            yield f"project.{name} has a value, which no wheel of a recipe would have"
        for name in _required(self.project):
            if name not in table and name not in dynamic:
                yield f"project.{name} is neither there nor in project.dynamic"
        for name in _FIELDS:
            if name in table and name not in dynamic:
                yield from self._value_faults(name)

    def _name_faults(self, dynamic: list[str]) -> Iterator[str]:
        name = self.table.get("name")
        if "name" in dynamic:
            yield "project.name can't be in project.dynamic"
        elif not isinstance(name, str) or canonicalize_name(name) != self.project.name:
            yield f"project.name is {name!r}, expected {self.project.name!r}"

    def _value_faults(self, name: str) -> Iterator[str]:
        given, expected = self.table[name], _recipe_value(self.project, name)
        if name == "readme" and isinstance(given, dict):
            given = given.get("file")
        try:
            value = _ADAPTERS[name].validate_python(given, context=self.root)
        except ValidationError as error:
            found = next(iter(translate_faults(error, "project")))
            yield f"project.{name} is not valid: {found.message}"
            return
        if name == "license-files" and isinstance(value, tuple):
            value = {file for pattern in value for file in matching_files(self.root, pattern)}
        if _unordered(value) != _unordered(expected):
            shown = repr(_plain(expected)) if expected else "nothing"
            yield f"project.{name} is {self.table[name]!r}, and the recipe has {shown}"


def _unordered(value: object) -> object:
    """Return a value for a comparison: the order of keywords or classifiers has no meaning."""
    return sorted(map(repr, value)) if isinstance(value, (tuple, set)) else value


def _plain(value: object) -> object:
    """Return a value of a recipe as TOML would have it."""
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Author):
        pairs = {"name": value.name, "email": value.email}
        return {key: text for key, text in pairs.items() if text}
    return value if isinstance(value, dict) else str(value)
