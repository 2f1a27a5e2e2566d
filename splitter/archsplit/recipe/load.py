"""Loader of recipes: a file and its folder in, a record or all faults out.

A recipe with sources becomes a `Recipe`. A recipe for a prebuilt wheel, a library or a project's
own build becomes a `SplitRecipe`. A wheel has its version, so its policies choose packs and limit
sizes only.
"""

from __future__ import annotations

import shlex
from dataclasses import MISSING, fields, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from archsplit.errors import InputError, RecipeError
from archsplit.recipe.document import (
    RecipeFault,
    raise_faults,
    read_document,
    translate_faults,
    unknown_key_fault,
)
from archsplit.recipe.inputs import find_input_files, find_undeclared
from archsplit.recipe.model import RECIPE_TABLES, Python, Recipe, Source
from archsplit.recipe.policy import POLICY_TABLE
from archsplit.recipe.prebuilt import PREBUILT_TABLES, PrebuiltSource, SplitRecipe, is_prebuilt
from archsplit.recipe.single_build import (
    find_cuda_faults,
    find_policy_faults,
    find_prebuilt_policy_faults,
    read_policies,
)
from archsplit.recipe.values import InvalidValue, check_package_name, matching_files
from archsplit.system.fs import input_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from dataclasses import Field
    from pathlib import Path

    from archsplit.recipe.document import RecipeDocument

__pure__ = True

GENERATED_NAMES = ("doctor.py", "_archsplit")
"""Names in the core's package that are reserved for archsplit."""

_PACKAGE = ("python", "package")
_FILES = ("python", "files")

_OPTIONAL = ("targets", "project", "python")
"""Tables of a prebuilt file's recipe that differ, if missing, from empty ones."""
_LIBRARY_ONLY = ("project", "python")
_SOURCES_ONLY = {
    "dropped": 'write, for example, dropped = ["cc70"] in [split]',
    "manylinux": "the wheels of a split keep the platform tags of the fat wheel; leave it out",
}
"""Keys of [targets] that a prebuilt file's recipe can't have, with their hints."""

_ADAPTERS: dict[type, TypeAdapter[object]] = {
    table: TypeAdapter(table) for table in {*RECIPE_TABLES.values(), *PREBUILT_TABLES.values()}
}


def load(path: Path) -> Recipe | SplitRecipe:
    """Read a recipe and find all its files.

    Args:
        path: the file, or the folder of a ``recipe.toml``.

    Raises:
        InputError: the file can't be read.
        RecipeError: the file is not UTF-8, not TOML, or invalid; lists every fault.
    """
    document = read_document(path)
    kinds = PREBUILT_TABLES if is_prebuilt(document.content) else RECIPE_TABLES
    tables, faults = _decode(document, kinds)
    if kinds is PREBUILT_TABLES:
        return _split_recipe(document, tables, faults)
    root = document.root
    # Also with faults: so a missing file is reported together with a misspelled key.
    faults += _complete(tables, root)
    raise_faults(faults, document)
    name = PurePosixPath(document.file.name)
    recipe = Recipe(root=root, file=name, input_files=(), **tables)
    return replace(recipe, input_files=find_input_files(recipe), release=recipe.targets.all)


def load_recipe(path: Path) -> Recipe:
    """Read a recipe with sources.

    Raises:
        RecipeError: the recipe is for a prebuilt file.
        ArchsplitError: see `load`.
    """
    recipe = load(path)
    if isinstance(recipe, SplitRecipe):
        raise RecipeError(
            f"{recipe.root / recipe.file} splits a prebuilt file, and this needs sources",
            hint=f"archsplit build {shlex.quote(str(path))} --out DIR makes all of its wheels",
        )
    return recipe


def _decode(
    document: RecipeDocument, kinds: Mapping[str, type]
) -> tuple[dict[str, Any], list[RecipeFault]]:
    """Decode each table separately, so that a fault in one hides none in another."""
    content = document.content
    tables: dict[str, Any] = {}
    faults = [
        unknown_key_fault((key,), kinds) for key in content if key not in {*kinds, POLICY_TABLE}
    ]
    for name, table in kinds.items():
        if name not in content and kinds is PREBUILT_TABLES and name in _OPTIONAL:
            continue
        # A missing table that has only defaults is an empty table.
        if name not in content and (required := _required_keys(table)):
            hint = f"write [{name}] with at least {', '.join(required)}"
            faults.append(RecipeFault(path=(name,), message="the table is missing", hint=hint))
            continue
        try:
            tables[name] = _ADAPTERS[table].validate_python(
                content.get(name, {}), context=document.root
            )
        # Faults are collected, so that one run shows all of them.
        except ValidationError as error:
            faults += translate_faults(error, name, kinds)
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
        tables["project"] = replace(project, license_files=_list_files(root, project.license_files))
    faults: list[RecipeFault] = []
    if source := tables.get("source"):
        source = replace(source, files=_list_files(root, source.files))
        tables["source"], faults = _complete_groups(source, root)
    return [
        *faults,
        *_complete_package(tables, root),
        *_no_device_code(tables),
        *_undeclared(tables, root),
        *find_policy_faults(tables),
        *find_cuda_faults(tables),
    ]


def _complete_groups(source: Source, root: Path) -> tuple[Source, list[RecipeFault]]:
    """Replace the patterns of groups by the sources that they match."""
    groups, faults = [], []
    for index, group in enumerate(source.group):
        files = _list_files(root, group.files)
        groups.append(replace(group, files=tuple(file for file in files if file in source.files)))
        # A pattern that matches only headers, or a source that nothing compiles.
        if not groups[-1].files:
            path = ("source", "group", index, "files")
            message = f"no source matches: {', '.join(map(str, files))}"
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
        hint = "nvcc looks for it only in .cu files; without any there is nothing to split"
        yield RecipeFault(path=("source", "files"), message="no source has device code", hint=hint)


def _complete_package(tables: dict[str, Any], root: Path) -> list[RecipeFault]:
    """Set the import package's and library's missing names from the project's name."""
    project, python = tables.get("project"), tables.get("python")
    if not (project and python):
        return []
    try:
        # A project may have a name that is not an identifier, such as 3d-tools.
        package = python.package or check_package_name(project.name.replace("-", "_"))
    except InvalidValue as reason:
        return [RecipeFault(path=_PACKAGE, message=str(reason), hint="set python.package")]
    files = _list_files(root / python.root, python.files)
    tables["python"] = replace(python, package=package, files=files)
    # Only here, because the default needs the name from another table.
    if (link := tables.get("link")) and not link.library:
        tables["link"] = replace(link, library=f"lib{package}.so")
    return list(_misplaced(tables["python"]))


def _list_files(root: Path, patterns: tuple[PurePosixPath, ...]) -> tuple[PurePosixPath, ...]:
    """Return all files that match one of the patterns, sorted."""
    return tuple(sorted({file for pattern in patterns for file in matching_files(root, pattern)}))


def _misplaced(python: Python) -> Iterator[RecipeFault]:
    """Return the faults of files that can't form the import package."""
    package = PurePosixPath(python.package)
    for file in python.files:
        # Files outside of the package would overwrite other projects' files in site-packages.
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


def _split_recipe(
    document: RecipeDocument, tables: dict[str, Any], faults: list[RecipeFault]
) -> SplitRecipe:
    root = document.root
    faults += find_prebuilt_policy_faults(tables)
    faults += _find_contradictions(tables, document.content)
    faults += _complete_package(tables, root) if tables.get("python") else []
    product, found = _find_product(tables.get("source"), root)
    raise_faults([*faults, *found], document)
    targets, project = tables.pop("targets", None), tables.pop("project", None)
    if project is not None:
        project = replace(project, license_files=_list_files(root, project.license_files))
    return SplitRecipe(
        root=root,
        file=PurePosixPath(document.file.name),
        product=product,
        targets=None if targets is None else targets.all,
        project=project,
        **tables,
    )


def _find_contradictions(
    tables: dict[str, Any], content: Mapping[str, object]
) -> Iterator[RecipeFault]:
    """Return the contradictions between tables."""
    source, split = tables.get("source"), tables.get("split")
    # The fault of the table is reported already.
    if source is None:
        return
    if source.library and "project" not in content:
        hint = "a library has no metadata: write name, version, summary, license, license-files"
        yield RecipeFault(path=("project",), message="the table is missing", hint=hint)
    if source.library and split and split.name:
        hint = "project.name is the core's"
        yield RecipeFault(path=("split", "name"), message="is for wheels", hint=hint)
    targets = tables.get("targets")
    for key, hint in _SOURCES_ONLY.items():
        if targets is not None and getattr(targets, key):
            message = "is for recipes with sources"
            yield RecipeFault(path=("targets", key), message=message, hint=hint)
    # A wheel brings its own metadata, and a second one could contradict it.
    for name in () if source.library else _LIBRARY_ONLY:
        if name in content:
            hint = "the wheel has its own, which stays; split.name gives it another name"
            yield RecipeFault(path=(name,), message="is for libraries", hint=hint)


def _find_product(
    source: PrebuiltSource | None, root: Path
) -> tuple[PurePosixPath | None, list[RecipeFault]]:
    """Return the prebuilt file, unless a command makes it, and its faults."""
    # The command makes the file later.
    if source is None or source.build:
        return None, []
    key = "library" if source.library else "wheel"
    with input_errors(root):
        files = matching_files(root, PurePosixPath(source.pattern))
    # Of several matches, the newest or the first would be a guess.
    if len(files) == 1:
        return files[0], []
    hint = f"it is looked for in {root}"
    message = f"no file matches {source.pattern}"
    if files:
        message = f"{len(files)} files match {source.pattern}: {', '.join(map(str, files))}"
        hint = "make it match one file"
    return None, [RecipeFault(path=("source", key), message=message, hint=hint)]
