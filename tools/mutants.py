"""Mutation tests: change one place of a copy of the tree, and run the nearest tests.

In: a seed and a number of mutants. Out: a line for each mutant, and the share that was killed.
cosmic-ray makes the mutants of the Python packages; the rules for the loader's C are here. The
sample is random by place, so that an expression with many operators counts once. No test can see a
mutant in an annotation or a docstring, so these are left out.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Edit = Callable[[str], "str | None"]

ROOT = Path(__file__).parents[1]
PACKAGES = ("formats", "devicecode", "split", "slim", "wheels", "cache", "compiler", "arch")
FOLDERS = ("bench", "docs", "plugin_loader", "recipes", "splitter", "tests", "tools")
C_CHECK = ("gcc", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only")

SECONDS = 120
"""A test that takes longer than this is one that the mutant stops."""

C_RULES = (
    (r" == ", " != "), (r" != ", " == "), (r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "),
    (r" >= ", " > "), (r" && ", " || "), (r" \|\| ", " && "), (r" \+ ", " - "), (r" - ", " + "),
    (r"\+\+", "--"), (r"\b1\b", "2"), (r"\b0\b", "1"), (r"\btrue\b", "false"),
    (r"\bfalse\b", "true"), (r"\breturn -1;", "return 0;"), (r"\bcontinue;", "break;"),
    (r"^( +)[a-z_]+\(.*\);$", r"\1;"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A changed file.

    Attributes:
        file: relative to the tree.
        line: of the change, from 1.
        change: in a few words.
    """

    file: Path
    line: int
    change: str
    text: str


def main() -> None:
    """Try a random sample of mutants, as the options say."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--package", action="append", choices=[*PACKAGES, "loader"])
    parser.add_argument("--minutes", type=float, default=600, help="begin no mutant after these")
    parser.add_argument("folder", type=Path, help="for the copy of the tree; it is replaced")
    options = parser.parse_args()
    tree = options.folder.absolute() / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.glob("*.*"):
        if path.is_file():
            shutil.copy(path, tree)
    clock = random.Random(options.seed)
    found = list(mutants(tree, options.package or [*PACKAGES, "loader"], clock, options.count))
    broken = failing(tree, sorted({test for each in found for test in nearest(tree, each.file)}))
    end = time.monotonic() + 60 * options.minutes
    counts = {"killed": 0, "survived": 0, "invalid": 0}
    for each in found:
        if time.monotonic() > end:
            break
        result = outcome(tree, each, broken)
        counts[result] += 1
        print(f"{result}: {each.file}:{each.line}: {each.change}", flush=True)
    judged = counts["killed"] + counts["survived"]
    share = 100 * counts["killed"] / max(judged, 1)
    print(f"{counts['killed']} of {judged} mutants were killed, {share:.1f} %")


def mutants(
    tree: Path, packages: Sequence[str], clock: random.Random, count: int
) -> Iterator[Mutant]:
    """Yield a sample of mutants."""
    found: dict[tuple[Path, int, int], list[Edit]] = {}
    for place, edit in (*python_edits(tree, packages), *c_edits(tree, packages)):
        found.setdefault(place, []).append(edit)
    places = sorted(found)
    clock.shuffle(places)
    for place in places:
        path, line, _ = place
        old = path.read_text()
        new = clock.choice(found[place])(old)
        is_silent_change = path.suffix == ".py" and new is not None and meaning(old) == meaning(new)
        if new is None or is_silent_change:
            continue
        before, after = old.splitlines()[line - 1], new.splitlines()[line - 1]
        change = f"{before.strip()}  ->  {after.strip()}"
        yield Mutant(file=path.relative_to(tree), line=line, change=change, text=new)
        count -= 1
        if not count:
            return


def python_edits(
    tree: Path, packages: Sequence[str]
) -> Iterator[tuple[tuple[Path, int, int], Edit]]:
    """Yield the edits of cosmic-ray, each with its file, line and column."""
    kinds = [get_operator(name) for name in operator_names()]
    operators = [kind() for kind in kinds if not kind.arguments()]
    python = [path for one in packages for path in tree.glob(f"splitter/archsplit/{one}/*.py")]
    for path in sorted(python):
        nodes = list(ast_nodes(get_ast_from_path(path)))
        for operator in operators:
            starts = [one[0] for node in nodes for one in operator.mutation_positions(node)]
            for number, start in enumerate(starts):
                yield (path, *start), partial(edit_python, operator, number)


def edit_python(operator: object, occurrence: int, text: str) -> str | None:
    """Return the text with one of cosmic-ray's edits; None if it can't make it."""
    try:
        new: str | None = mutate_code(text, operator, occurrence)
        ast.parse(new or "")
    # Its operators don't know all of the grammar, as exceptions with dotted names.
    except (AttributeError, IndexError, SyntaxError):
        return None
    return new


def c_edits(tree: Path, packages: Sequence[str]) -> Iterator[tuple[tuple[Path, int, int], Edit]]:
    """Yield the edits of the loader's C."""
    for path in sorted(tree.glob("plugin_loader/src/*.c")) if "loader" in packages else ():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            # Comments and the preprocessor's lines.
            if not line.lstrip().startswith(("/", "*", "#")):
                for rule in C_RULES:
                    for match in re.finditer(rule[0], line):
                        yield (path, number, 0), partial(edit_line, number, match.start(), rule)


def edit_line(number: int, start: int, rule: tuple[str, str], text: str) -> str:
    """Return the text with one line changed from a column on."""
    lines = text.splitlines(keepends=True)
    line = lines[number - 1]
    lines[number - 1] = line[:start] + re.sub(*rule, line[start:], count=1)
    return "".join(lines)


def meaning(text: str) -> str:
    """Return a module's syntax without annotations, docstrings and imports for types."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if hasattr(node, name):
                setattr(node, name, None)
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not is_silent(one)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def is_silent(node: ast.AST) -> bool:
    """Return True for a docstring and for ``if TYPE_CHECKING:``."""
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.dump(node.test)
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@cache
def nearest(tree: Path, file: Path) -> tuple[str, ...]:
    """Return the tests that import a module (of C: name it), or all of its package."""
    is_c = file.suffix == ".c"
    folder = tree / "tests" / ("loader" if is_c else file.parent.name)
    words = (
        [file.stem] if is_c else [f".{file.parent.name}.{file.stem} import", f"import {file.stem}"]
    )
    texts = {path: path.read_text() for path in sorted(folder.glob("*.py"))}
    helpers = {path.stem for path, text in texts.items() if any(one in text for one in words)}
    # Tests may reach a module by what several of them share.
    if not is_c:
        shared = sorted(name for name in helpers if not name.startswith("test_"))
        words += [f"from {name} import" for name in shared]
    tests = {path: text for path, text in texts.items() if path.name.startswith("test_")}
    near = [
        str(path)
        for path, text in tests.items()
        if any(one in text for one in words) or (is_c and file.stem in path.stem)
    ]
    return tuple(near or sorted(map(str, tests)))


def run_tests(tree: Path, tests: Sequence[str], *options: str) -> subprocess.CompletedProcess[str]:
    """Run tests on the copy of the tree."""
    sources = os.pathsep.join(str(tree / name) for name in ("splitter", "plugin_loader"))
    own = {"PYTHONPATH": sources, "PYTHONDONTWRITEBYTECODE": "1"}
    own |= {"ARCHSPLIT_CACHE_DIR": str(tree.parent / "cache"), "TMPDIR": str(tree.parent / "tmp")}
    Path(own["TMPDIR"]).mkdir(exist_ok=True)
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", f"--timeout={SECONDS}", *options)
    return subprocess.run(
        [sys.executable, *words, *tests],
        cwd=tree, env={**os.environ, **own}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def failing(tree: Path, tests: Sequence[str]) -> tuple[str, ...]:
    """Return options that leave out the tests that fail without a mutant."""
    done = run_tests(tree, tests, "-n", "2", "--timeout=600")
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    print(done.stdout.splitlines()[-1], *failed, flush=True)
    return tuple(word for one in failed for word in ("--deselect", one))


def outcome(tree: Path, mutant: Mutant, options: Sequence[str]) -> str:
    """Return ``killed``, ``survived`` or, for C that can't be compiled, ``invalid``."""
    path = tree / mutant.file
    old = path.read_text()
    path.write_text(mutant.text)
    try:
        if path.suffix == ".c":
            words = (*C_CHECK, "-I", str(tree / "plugin_loader" / "include"), str(path))
            if subprocess.run(words, capture_output=True, check=False).returncode:
                return "invalid"
        done = run_tests(tree, nearest(tree, mutant.file), "-x", *options)
        return "survived" if done.returncode == 0 else "killed"
    finally:
        path.write_text(old)
        shutil.rmtree(tree.parent / "tmp", ignore_errors=True)


if __name__ == "__main__":
    main()
