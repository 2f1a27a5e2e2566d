"""Words that a colleague would not say: in messages, docstrings, comments, tests and pages.

Each has a plain replacement. `budget.toml` has how many are left in each part; the goal is none.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from archsplit.system.toml import loads

ROOT = Path(__file__).parents[2]
LEFT = loads(Path(__file__).with_name("budget.toml").read_text(encoding="utf-8"))["idioms"]
IDIOMS = {
    r"\bth(?:at|ose) of\b": 'name the thing: "gcc\'s output", "the output of gcc"',
    r"(?<!leave it )(?<!stand )(?<!let )\balone\b(?!ne)": "only",
    r"\bis no (?!longer\b|more\b|less\b|such\b|other\b|way\b|need\b|room\b|space\b)\w+": "is not a",
    r"\b(?:nobody|whoever)\b": "no user, no program; any user, the user who",
    r"\ball the same\b": "still",
    r"\bfor ever\b": "forever, permanently",
    r"\bnone of\b": "no, not one of",
}
"""Patterns, and what to write in their place."""
SUFFIXES = {".py", ".c", ".h", ".md", ".js", ".html", ".toml", ".cff", ".yml"}
FOLDERS = ("splitter", "plugin_loader", "tests", "docs", "tools", "bench", "recipes")


def part(path: Path) -> str:
    """Return the part of the tree that counts a file."""
    match path.relative_to(ROOT).parts:
        case ("splitter", _, package, _, *_):
            return package
        case ("splitter", *_):
            return "archsplit"
        case ("plugin_loader", folder, *_):
            return folder if folder == "archsplit_loader" else "c"
        case ("docs", *_) | (_,):
            return "pages"
        case (folder, *_):
            return folder
    raise AssertionError(path)


@cache
def found() -> dict[str, list[str]]:
    """Find the idioms of each part, each as ``path:line: text``."""
    idioms: defaultdict[str, list[str]] = defaultdict(list)
    anything = re.compile("|".join(IDIOMS), re.IGNORECASE)
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    for path in sorted([*paths, *ROOT.glob("*.md"), *ROOT.glob("*.py")]):
        # This folder has the words, and measurements have what other programs wrote.
        if path.suffix not in SUFFIXES or {"house", "measured"} & {*path.parts}:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if match := anything.search(line):
                place = f"{path.relative_to(ROOT)}:{number}"
                idioms[part(path)].append(f"{place}: {match[0]}: {line.strip()}")
    return idioms


@pytest.mark.parametrize("where", sorted(LEFT))
def test_unidiomatic_words_are_refused(where: str) -> None:
    idioms = found()[where]
    assert len(idioms) <= LEFT[where], "\n".join(idioms)


def test_idioms_are_refused_in_every_other_part() -> None:
    assert {
        where: idioms for where, idioms in found().items() if where not in LEFT and idioms
    } == {}


def test_docstring_of_a_function_begins_with_a_verb() -> None:
    articles = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for folder in ("splitter", "plugin_loader")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and (ast.get_docstring(node) or "").startswith("The ")
    ]
    assert len(articles) <= LEFT["articles"], "\n".join(articles)


def test_name_of_a_test_has_no_relative_clause() -> None:
    words = "what|who|whose|whoever|whatever|where|wherever|which|that|how"
    clause = re.compile(rf"def (test_(?:(?:\w+_)?(?:{words})|whether|it)(?:_\w+)?)\(")
    clauses = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in clause.findall(path.read_text(encoding="utf-8"))
    ]
    assert clauses == []
