"""The loader of recipes for prebuilt wheels and libraries.

In: a file and its folder; out: a `SplitRecipe`, or all faults at once, each with key and hint. The
compression of device code and a wheel's version are properties of the prebuilt file, so policies
can choose packs and limit sizes, but not set these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from archsplit.recipe.apply_policy import find_policy_faults, read_policies, select_policy
from archsplit.recipe.faults import RecipeFault, raise_faults, translate_faults, unknown_key_fault
from archsplit.recipe.load import complete_package, list_matching_files
from archsplit.recipe.model import RECIPE_TABLES, Source
from archsplit.recipe.policy import POLICY_TABLE, Policy
from archsplit.recipe.prebuilt import PREBUILT_TABLES, PrebuiltSource, SplitRecipe, is_prebuilt
from archsplit.recipe.toml_document import read_document
from archsplit.recipe.values import matching_files
from archsplit.system.fs import input_errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from archsplit.recipe.toml_document import RecipeDocument

__pure__ = True

_COMPRESSION_KEYS = ("device_compression", "wheel_compression")
_DEFAULTS = Policy()

_SOURCE_KEYS = tuple(Source.__dataclass_fields__)
_OPTIONAL = ("targets", "project", "python")
_LIBRARY_ONLY = ("project", "python")

_ADAPTERS: dict[str, TypeAdapter[object]] = {
    name: TypeAdapter(table) for name, table in PREBUILT_TABLES.items()
}


def find_prebuilt_policy_faults(tables: dict[str, Any]) -> Iterator[RecipeFault]:
    """Return the faults of policies that a prebuilt file doesn't allow."""
    yield from find_policy_faults(tables)
    for name, policy in tables["policies"].items():
        for key in _COMPRESSION_KEYS:
            # Only a key that differs from its default was written by the user.
            if getattr(policy, key) != getattr(_DEFAULTS, key):
                yield RecipeFault(
                    path=(POLICY_TABLE, name, key.replace("_", "-")),
                    message="is for recipes with sources",
                    hint="a prebuilt file is compressed already; use `archsplit slim --recompress`",
                )
        # Without both lists a policy would choose nothing.
        if "targets" not in tables and policy.sass is None:
            yield RecipeFault(
                path=(POLICY_TABLE, name, "sass"),
                message="is missing, and the recipe has no table of targets to take them from",
                hint='write, for example, sass = ["sm_90"]',
            )
        if "project" not in tables and policy.version != _DEFAULTS.version:
            yield RecipeFault(
                path=(POLICY_TABLE, name, "version"),
                message="is for libraries: a wheel has a version, which stays",
                hint="have what builds the wheel give it another one",
            )


def apply_policy_to_prebuilt(recipe: SplitRecipe, name: str, *, day: str) -> SplitRecipe:
    """Return the recipe for the splits of one of its policies.

    Args:
        recipe: the recipe for releases.
        name: the policy's name.
        day: the date of the split, as YYYYMMDD.

    Raises:
        UsageError: the recipe has no such policy.
    """
    policy = select_policy(recipe, name)
    # Without [targets] a release has the policy's targets: the fat wheel is not read here.

    release = (*(policy.sass or ()), *policy.ptx) if recipe.targets is None else recipe.targets
    project = recipe.project
    if project is not None:
        project = replace(project, version=policy.version_on(day, project.version))
    return replace(
        recipe, applied=name, project=project, targets=policy.targets(tuple(sorted(release)))
    )


def load_split_recipe(path: Path) -> SplitRecipe | None:
    """Read a recipe for a prebuilt file; return None for a recipe with sources.

    Args:
        path: the file, or the folder of a ``recipe.toml``.

    Raises:
        InputError: the file can't be read.
        RecipeError: the file is not UTF-8, not TOML, or invalid; lists every fault.
    """
    document = read_document(path)
    # None in place of an error: the caller tries the other kind of recipe.
    if not is_prebuilt(document.content):
        return None
    root = document.root
    tables, faults = _decode(document.content, root)
    faults += _find_contradictions(tables, document.content)
    faults += complete_package(tables, root) if tables.get("python") else []
    product, found = _find_product(tables.get("source"), root)
    raise_faults([*faults, *found], document)
    return _make_recipe(document, tables, product)


def _decode(content: Mapping[str, object], root: Path) -> tuple[dict[str, Any], list[RecipeFault]]:
    tables: dict[str, Any] = {}
    faults = [
        _unknown_table_fault(key) for key in content if key not in {*PREBUILT_TABLES, POLICY_TABLE}
    ]
    for name, adapter in _ADAPTERS.items():
        # Unlike an empty table, a missing one leaves the choice to the fat wheel.
        if name not in content and name in _OPTIONAL:
            continue
        given = content.get(name, {})
        # Each key of sources gets a fault of its own; pydantic would only call it unknown.
        if name == "source":
            given, source_faults = _without_sources(given)
            faults += source_faults
        try:
            tables[name] = adapter.validate_python(given, context=root)
        except ValidationError as error:
            faults += translate_faults(error, name, PREBUILT_TABLES)
    tables["policies"], found = read_policies(content.get(POLICY_TABLE, {}))
    return tables, [*faults, *found, *find_prebuilt_policy_faults(tables)]


def _unknown_table_fault(table: str) -> RecipeFault:
    # A valid table of the other kind deserves a better hint than "unknown".
    if table in RECIPE_TABLES:
        message = "is a table of recipes with sources"
        hint = "this one has source.wheel, source.library or source.build: leave it out"
        return RecipeFault(path=(table,), message=message, hint=hint)
    return unknown_key_fault((table,), PREBUILT_TABLES)


def _without_sources(given: object) -> tuple[object, list[RecipeFault]]:
    assert isinstance(given, Mapping), "is_prebuilt has checked that"
    hint = "a recipe has sources or a prebuilt file, not both"
    faults = [
        RecipeFault(path=("source", key), message="is for recipes with sources", hint=hint)
        for key in given
        if key in _SOURCE_KEYS
    ]
    return {key: value for key, value in given.items() if key not in _SOURCE_KEYS}, faults


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
    if targets is not None and targets.manylinux:
        hint = "the wheels of a split keep the platform tags of the fat wheel; leave it out"
        message = "is for recipes with sources"
        yield RecipeFault(path=("targets", "manylinux"), message=message, hint=hint)
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


def _make_recipe(
    document: RecipeDocument, tables: dict[str, Any], product: PurePosixPath | None
) -> SplitRecipe:
    targets, project = tables.pop("targets", None), tables.pop("project", None)
    if project is not None:
        project = replace(
            project, license_files=list_matching_files(document.root, project.license_files)
        )
    return SplitRecipe(
        root=document.root,
        file=PurePosixPath(document.file.name),
        product=product,
        targets=None if targets is None else targets.all,
        project=project,
        **tables,
    )
