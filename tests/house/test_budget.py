"""The size of the product: it may shrink, and each shrinking is written down.

`budget.toml` has what is allowed. A number above its budget fails, and so does one far below it:
the commit that deletes also lowers the budget, so that what was won is not lost again.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from archsplit.cli.main import whole_parser
from archsplit.cli.verbs import VERBS
from archsplit.system.toml import loads

ROOT = Path(__file__).parents[2]
BUDGET = loads(Path(__file__).with_name("budget.toml").read_text(encoding="utf-8"))
SLACK = 60
"""Lines that a package may be below its budget: not each small change has to touch the file."""
NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENCODING),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}


def code_lines(text: str) -> int:
    """Count the lines of Python that are not blank, not a comment and not a docstring."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            match statement:
                case ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=last):
                    docstrings.update(range(first, (last or first) + 1))
    code = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(code - docstrings)


@cache
def measured_lines() -> Counter[str]:
    """Count the lines of each package; ``archsplit`` has the modules outside of the packages."""
    lines: Counter[str] = Counter()
    tool, loader = ROOT / "splitter" / "archsplit", ROOT / "plugin_loader"
    for path in tool.rglob("*.py"):
        parts = path.relative_to(tool).parts
        package = parts[0] if len(parts) > 1 else "archsplit"
        lines[package] += code_lines(path.read_text(encoding="utf-8"))
    for path in (loader / "archsplit_loader").rglob("*.py"):
        lines["archsplit_loader"] += code_lines(path.read_text(encoding="utf-8"))
    for folder, pattern in (("src", "*.[ch]"), ("include", "**/*.h"), ("stub", "*.c")):
        for path in (loader / folder).glob(pattern):
            lines["c"] += path.read_text(encoding="utf-8").count("\n")
    return lines


def all_options(parser: argparse.ArgumentParser) -> set[tuple[str, str | None]]:
    """Return name and help of each option and argument: what verbs share counts once."""
    found = set()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in set(action.choices.values()):
                found |= all_options(inner)
        elif not isinstance(action, argparse._HelpAction):
            found.add(((action.option_strings or [action.dest])[-1], action.help))
    return found


def test_each_package_has_a_budget() -> None:
    assert {*measured_lines()} <= {*BUDGET["lines"]}


@pytest.mark.parametrize("package", sorted(BUDGET["lines"]))
def test_lines_of_a_package_are_within_its_budget(package: str) -> None:
    lines, budget = measured_lines()[package], BUDGET["lines"][package]
    assert lines <= budget, "delete first; CONTRIBUTING.md says when a budget is raised"
    assert lines >= budget - SLACK, f"lower `{package}` in tests/house/budget.toml to {lines}"


def test_verbs_and_options_are_within_their_budget() -> None:
    options = len(all_options(whole_parser()))
    assert len(VERBS) == BUDGET["verbs"]
    assert options <= BUDGET["options"]
    assert options >= BUDGET["options"] - 5, f"lower `options` to {options}"
