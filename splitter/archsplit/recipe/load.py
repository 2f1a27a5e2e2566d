"""The loader of recipes with sources: a file and its folder in, a `Recipe` or all faults out."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from archsplit.errors import InputError, RecipeError
from archsplit.recipe.apply_policy import find_policy_faults, read_policies
from archsplit.recipe.cuda_majors import find_cuda_faults
from archsplit.recipe.faults import RecipeFault, raise_faults, translate_faults, unknown_key_fault
from archsplit.recipe.inputs import find_input_files
from archsplit.recipe.interface import find_undeclared
from archsplit.recipe.model import RECIPE_TABLES, Python, Recipe
from archsplit.recipe.policy import POLICY_TABLE
from archsplit.recipe.prebuilt import refuse_prebuilt
from archsplit.recipe.toml_document import read_document
from archsplit.recipe.values import InvalidValue, check_package_name, matching_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from dataclasses import Field
    from pathlib import Path

    from archsplit.recipe.model import Source

__pure__ = True

GENERATED_NAMES = ("doctor.py", "_archsplit")
"""Names in the core's package that are reserved for archsplit."""

_PACKAGE = ("python", "package")
_FILES = ("python", "files")

_ADAPTERS: dict[str, TypeAdapter[object]] = {
    name: TypeAdapter(table) for name, table in RECIPE_TABLES.items()
}


def load_recipe(path: Path) -> Recipe:
    """Read a recipe and find all its files.

    Args:
        path: the file, or the folder of a ``recipe.toml``.

    Raises:
        InputError: the file can't be read.
        RecipeError: the file is not UTF-8, not TOML, or invalid; lists every fault.
    """
    document = read_document(path)
    refuse_prebuilt(document.content, document.file)
    root = document.root
    tables, faults = _decode(document.content, root)
    # Also with faults: so a missing file is reported together with a misspelled key.
    faults += _complete(tables, root)
    raise_faults(faults, document)
    name = PurePosixPath(document.file.name)
    recipe = Recipe(root=root, file=name, input_files=(), **tables)
    return replace(recipe, input_files=find_input_files(recipe), release=recipe.targets.all)


def _decode(content: Mapping[str, object], root: Path) -> tuple[dict[str, Any], list[RecipeFault]]:
    """Decode each table separately, so that a fault in one hides none in another."""
    tables: dict[str, Any] = {}
    faults = [
        unknown_key_fault((key,)) for key in content if key not in {*RECIPE_TABLES, POLICY_TABLE}
    ]
    for name, adapter in _ADAPTERS.items():
        required = _required_keys(RECIPE_TABLES[name])
        # A missing table with defaults alone is an empty table.
        if name not in content and required:
            hint = f"write [{name}] with at least {', '.join(required)}"
            faults.append(RecipeFault(path=(name,), message="the table is missing", hint=hint))
            continue
        try:
            tables[name] = adapter.validate_python(content.get(name, {}), context=root)
        # Faults are collected, so that one run shows all of them.
        except ValidationError as error:
            faults += translate_faults(error, name)
    tables["policies"], found = read_policies(content.get(POLICY_TABLE, {}))
    return tables, [*faults, *found]


def _required_keys(table: type) -> list[str]:
    return [field.name.replace("_", "-") for field in fields(table) if _is_required(field)]


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _complete(tables: dict[str, Any], root: Path) -> list[RecipeFault]:
    """Replace patterns by files, and missing names by defaults, in valid tables."""
    # A table with faults is missing here.
    if project := tables.get("project"):
        tables["project"] = replace(
            project, license_files=list_matching_files(root, project.license_files)
        )
    faults: list[RecipeFault] = []
    if source := tables.get("source"):
        source = replace(source, files=list_matching_files(root, source.files))
        tables["source"], faults = _complete_groups(source, root)
    return [
        *faults,
        *complete_package(tables, root),
        *_no_device_code(tables),
        *_undeclared(tables, root),
        *find_policy_faults(tables),
        *find_cuda_faults(tables),
    ]


def _complete_groups(source: Source, root: Path) -> tuple[Source, list[RecipeFault]]:
    """Replace the patterns of groups by the sources that they match."""
    groups, faults = [], []
    for index, group in enumerate(source.group):
        files = list_matching_files(root, group.files)
        groups.append(replace(group, files=tuple(file for file in files if file in source.files)))
        # A pattern that matches headers alone, or a source that nothing compiles.
        if not groups[-1].files:
            path = ("source", "group", index, "files")
            message = f"none of {', '.join(map(str, files))} is one of source.files"
            hint = "a group has options for sources; name them in source.files, too"
            faults.append(RecipeFault(path=path, message=message, hint=hint))
    return replace(source, group=tuple(groups)), faults


def _undeclared(tables: dict[str, Any], root: Path) -> Iterator[RecipeFault]:
    interface, source = tables.get("interface"), tables.get("source")
    if interface is None:
        return
    include = () if source is None else source.all_include
    header = interface.header
    try:
        for index, symbol in find_undeclared(root, interface, include):
            yield RecipeFault(
                path=("interface", "symbols", index),
                message=f"{symbol} does not occur in {header}",
                hint="declare it there or in a header that it includes, or leave it out",
            )
    except (InputError, RecipeError) as error:
        yield RecipeFault(path=("interface", "header"), message=error.args[0], hint=error.hint)


def _no_device_code(tables: dict[str, Any]) -> Iterator[RecipeFault]:
    source = tables.get("source")
    if source and not any(file.suffix == ".cu" for file in source.files):
        hint = "nvcc looks for it in .cu files alone; without any there is nothing to split"
        yield RecipeFault(path=("source", "files"), message="no source has device code", hint=hint)


def complete_package(tables: dict[str, Any], root: Path) -> list[RecipeFault]:
    """Set the import package's and library's missing names from the project's name."""
    project, python = tables.get("project"), tables.get("python")
    if not (project and python):
        return []
    try:
        # A project may have a name that is no identifier, such as 3d-tools.
        package = python.package or check_package_name(project.name.replace("-", "_"))
    except InvalidValue as reason:
        return [RecipeFault(path=_PACKAGE, message=str(reason), hint="set python.package")]
    files = list_matching_files(root / python.root, python.files)
    tables["python"] = replace(python, package=package, files=files)
    # Only here, because the default needs the name from another table.
    if (link := tables.get("link")) and not link.library:
        tables["link"] = replace(link, library=f"lib{package}.so")
    return list(_misplaced(tables["python"]))


def list_matching_files(
    root: Path, patterns: tuple[PurePosixPath, ...]
) -> tuple[PurePosixPath, ...]:
    """Return all files that match one of the patterns, sorted."""
    return tuple(sorted({file for pattern in patterns for file in matching_files(root, pattern)}))


def _misplaced(python: Python) -> Iterator[RecipeFault]:
    """Return the faults of files that can't form the import package."""
    package = PurePosixPath(python.package)
    for file in python.files:
        # Files outside of the package would overwrite those of other projects in site-packages.
        if package not in file.parents:
            hint = f"move it to {python.root / package}, or set python.package"
            yield RecipeFault(path=_FILES, message=f"{file} is outside of {package}", hint=hint)
        # A generated file would replace it in the wheel.
        elif file.relative_to(package).parts[0] in GENERATED_NAMES:
            yield RecipeFault(
                path=_FILES, message=f"{file} has the name of a file that archsplit makes"
            )
    # A package without it would be a namespace package, into which anything can be installed.
    if package / "__init__.py" not in python.files:
        hint = f"make {python.root / package}/__init__.py, or set python.package"
        message = f"{package}/__init__.py is not among the core's files"
        yield RecipeFault(path=_FILES, message=message, hint=hint)
