"""From a recipe's file and folder to a `Recipe`: all faults at once, each with place and hint."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from archsplit.recipe.apply_policy import policy_faults, read_policies
from archsplit.recipe.faults import Fault, raise_all, recipe_faults, unknown_key
from archsplit.recipe.inputs import input_files
from archsplit.recipe.model import TABLES, Python, Recipe
from archsplit.recipe.policy import POLICY
from archsplit.recipe.prebuilt import refuse_prebuilt
from archsplit.recipe.toml_document import read_document
from archsplit.recipe.values import InvalidValue, matching_files, package_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from dataclasses import Field
    from pathlib import Path

__pure__ = True

GENERATED = ("doctor.py", "_archsplit")
"""What archsplit puts into the core's package, and a recipe can't."""

_PACKAGE = ("python", "package")
_FILES = ("python", "files")

_ADAPTERS: dict[str, TypeAdapter[object]] = {
    name: TypeAdapter(table) for name, table in TABLES.items()
}


def load_recipe(path: Path) -> Recipe:
    """Read a recipe and find all its files.

    Args:
        path: the file, or the folder that has it as ``recipe.toml``.

    Raises:
        InputError: the file can't be read.
        RecipeError: it is not UTF-8 or not TOML, or what it says is wrong; lists every fault.
    """
    document = read_document(path)
    refuse_prebuilt(document.content, document.file)
    root = document.root
    tables, faults = _decode(document.content, root)
    faults += _complete(tables, root)
    raise_all(faults, document)
    name = PurePosixPath(document.file.name)
    recipe = Recipe(root=root, file=name, input_files=(), **tables)
    return replace(recipe, input_files=input_files(recipe), release=recipe.targets.all)


def _decode(content: Mapping[str, object], root: Path) -> tuple[dict[str, Any], list[Fault]]:
    """Read each table for itself, so that a fault in one hides none in another."""
    tables: dict[str, Any] = {}
    faults = [unknown_key((key,)) for key in content if key not in {*TABLES, POLICY}]
    for name, adapter in _ADAPTERS.items():
        required = _required_keys(TABLES[name])
        if name not in content and required:
            hint = f"write [{name}] with at least {', '.join(required)}"
            faults.append(Fault(path=(name,), message="the table is missing", hint=hint))
            continue
        try:
            tables[name] = adapter.validate_python(content.get(name, {}), context=root)
        except ValidationError as error:
            faults += recipe_faults(error, name)
    tables["policies"], found = read_policies(content.get(POLICY, {}))
    return tables, [*faults, *found]


def _required_keys(table: type) -> list[str]:
    return [field.name.replace("_", "-") for field in fields(table) if _is_required(field)]


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _complete(tables: dict[str, Any], root: Path) -> list[Fault]:
    """Put files in the place of patterns and names where none was given, as far as tables allow."""
    if project := tables.get("project"):
        tables["project"] = replace(project, license_files=files_of(root, project.license_files))
    if source := tables.get("source"):
        tables["source"] = replace(source, files=files_of(root, source.files))
    return [
        *completed_package(tables, root),
        *_no_device_code(tables),
        *policy_faults(tables),
    ]


def _no_device_code(tables: dict[str, Any]) -> Iterator[Fault]:
    source = tables.get("source")
    if source and not any(file.suffix == ".cu" for file in source.files):
        hint = "nvcc looks for it in .cu files alone; without any there is nothing to split"
        yield Fault(path=("source", "files"), message="no source has device code", hint=hint)


def completed_package(tables: dict[str, Any], root: Path) -> list[Fault]:
    """Name the import package and the library after the project, where the recipe doesn't."""
    project, python = tables.get("project"), tables.get("python")
    if not (project and python):
        return []
    try:
        package = python.package or package_name(project.name.replace("-", "_"))
    except InvalidValue as reason:
        return [Fault(path=_PACKAGE, message=str(reason), hint="set python.package")]
    files = files_of(root / python.root, python.files)
    tables["python"] = replace(python, package=package, files=files)
    if (link := tables.get("link")) and not link.library:
        tables["link"] = replace(link, library=f"lib{package}.so")
    return list(_misplaced(tables["python"]))


def files_of(root: Path, patterns: tuple[PurePosixPath, ...]) -> tuple[PurePosixPath, ...]:
    """All files that some patterns match, sorted."""
    return tuple(sorted({file for pattern in patterns for file in matching_files(root, pattern)}))


def _misplaced(python: Python) -> Iterator[Fault]:
    """Whatever keeps the core's files from being its import package beside our own files."""
    package = PurePosixPath(python.package)
    for file in python.files:
        if package not in file.parents:
            hint = f"move it to {python.root / package}, or set python.package"
            yield Fault(path=_FILES, message=f"{file} is outside of {package}", hint=hint)
        elif file.relative_to(package).parts[0] in GENERATED:
            yield Fault(path=_FILES, message=f"{file} has the name of a file that archsplit makes")
    if package / "__init__.py" not in python.files:
        hint = f"make {python.root / package}/__init__.py, or set python.package"
        message = f"{package}/__init__.py is not among the core's files"
        yield Fault(path=_FILES, message=message, hint=hint)
