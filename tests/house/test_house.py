"""Rules of CONTRIBUTING that a program can check, for all modules of the tool and the loader."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from build_loader import stale_files

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
SOURCES = {"archsplit": ROOT / "splitter", "archsplit_loader": ROOT / "plugin_loader"}
SCRIPTS = ("bench", "docs", "recipes", "tools")
INSTALLED = {"python", "overlay"}  # folders of recipes whose files are in the wheels
FIRST_WORDS = {
    *("What", "Who", "Whether", "Where", "Which", "How", "Whose", "Why", "It", "They", "One"),
}
MOST_WORDS = 15
VERB_NAMES = {"add_to", "run"}  # what each module of the command line has, for `cli.main`


@cache
def modules() -> dict[str, ast.Module]:
    """All modules by dotted name."""
    found = {}
    for package, root in SOURCES.items():
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring, those of constants and fields too."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            match statement:
                case ast.Expr(value=ast.Constant(value=str() as text)):
                    yield statement.lineno, text.strip()


def scripts() -> dict[str, ast.Module]:
    """All scripts by path, without the files that recipes install."""
    paths = [path for folder in SCRIPTS for path in sorted((ROOT / folder).rglob("*.py"))]
    return {
        str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8"))
        for path in paths
        # Their bytes are in released wheels, so they change with a release of that project only.
        if INSTALLED.isdisjoint(path.parts)
    }


def test_docstrings_begin_with_a_statement() -> None:
    wrong = [
        f"{name}:{line}: {text.splitlines()[0]}"
        for name, tree in (*modules().items(), *scripts().items())
        for line, text in docstrings(tree)
        if re.split(r"\W", text, maxsplit=1)[0] in FIRST_WORDS
    ]
    assert wrong == []


def test_the_first_sentence_of_a_docstring_is_short() -> None:
    sentence = re.compile(r"[.;:](?:\s|$)|\n\n")
    wrong = [
        f"{name}:{line}: {first}"
        for name, tree in modules().items()
        for line, text in docstrings(tree)
        if len((first := sentence.split(text, maxsplit=1)[0]).split()) > MOST_WORDS
    ]
    assert wrong == []


def test_a_public_name_has_one_meaning() -> None:
    places = defaultdict(set)
    for name, tree in modules().items():
        for public in public_names(tree):
            # The functions of the API are named as what they call.
            if public not in VERB_NAMES and name != "archsplit.api":
                # The loader package ships alone: its names are its own.
                places[name.partition(".")[0], public].add(name)
    assert {name: sorted(found) for name, found in places.items() if len(found) > 1} == {}


def public_names(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names = [name]
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names = [name]
            case _:
                names = []
        # Without `typing`, which is slow, a module sets this constant for type checkers itself.
        yield from (name for name in names if not name.startswith("_") and name != "TYPE_CHECKING")


def test_imports_form_no_cycle_even_for_types() -> None:
    known = modules()
    graph: dict[str, set[str]] = {name: set() for name in known}
    for name, tree in known.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    target = inner if inner in known else node.module
                    if target in known and target != name:
                        graph[name].add(target)
    while leaves := {name for name, uses in graph.items() if not uses}:
        graph = {name: uses - leaves for name, uses in graph.items() if name not in leaves}
    # What is left lies on a ring or above one; without what nobody left needs, rings alone remain.
    while spare := set(graph) - {use for uses in graph.values() for use in uses}:
        graph = {name: uses - spare for name, uses in graph.items() if name not in spare}
    assert {name: sorted(uses) for name, uses in graph.items()} == {}


@pytest.mark.parametrize(
    "script",
    [
        "tools/package_tree.py",
        "tools/gpu_tables.py",
        "tools/man_pages.py",
        "tools/schemas.py",
        "recipes/stack/chart.py",
    ],
)
def test_generated_files_are_current(script: str) -> None:
    subprocess.run([sys.executable, ROOT / script, "--check"], check=True)


def test_compiled_loader_is_as_of_todays_sources() -> None:
    folder = ROOT / "plugin_loader" / "prebuilt"
    again = "run `nox -s loader` (python tools/build_loader.py), and commit the result"
    assert stale_files(folder) == (), again


def test_every_file_of_tests_is_collected(pytestconfig: pytest.Config) -> None:
    # pytest leaves out folders by name, and says nothing.
    patterns = pytestconfig.getini("norecursedirs")
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    left_out = [
        str(folder.relative_to(ROOT))
        for folder in sorted(folders)
        for part in folder.relative_to(ROOT).parts
        if any(fnmatch(part, pattern) for pattern in patterns)
    ]
    assert left_out == []
