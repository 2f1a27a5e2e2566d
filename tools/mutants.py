"""Mutation tests: change one place of a copy of the tree, and run the nearest tests.

In: a seed and a number of mutants. Out: a line for each mutant, and the share that was killed.
cosmic-ray makes the mutants of the Python packages; the rules for the loader's C are here. The
sample is random by place, so that an expression with many operators counts once. No test can see a
mutant in an annotation, a docstring or the flags of a record, so these are left out.

Each job has a copy of the tree. A mutant's tests run from the nearest file to the farthest, until
one fails or the time is up. A test that fails counts only if it passes without the mutant.
A run that ends early names what it left out, and --survivors of its output goes on there.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from queue import SimpleQueue
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
C_BUILD = (
    *("gcc", "-std=c11", "-Os", "-fPIC", "-fvisibility=hidden", "-shared"),
    "-Wl,-soname,libarchsplit_loader.so",
)

SECONDS = 60
"""A test that takes longer than this is one that the mutant stops."""

UNSEEN = {"slots", "kw_only", "frozen", "maxsize"}
"""Flags of decorators that change a promise, or memory, and no result."""

COMPILING = ("tests/devicecode/test_scan.py", "tests/formats/test_formats_fatbin.py")
"""Tests with files that several folders share."""

CACHES = {"cache", "lru_cache", "functools.cache", "functools.lru_cache"}
"""Decorators that change only the time."""

FAR = 4
"""So many imports from a module that a test is not about it."""

NO_TESTS = 5
"""pytest's exit code if no tests were collected."""

FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+\.py(?:::.*?)?)(?: - .*)?$", re.MULTILINE)

SAME = {"Is_Eq", "Eq_Is", "IsNot_NotEq", "NotEq_IsNot"}
"""Comparisons that differ only for types of which the tree compares none by identity."""

C_RULES = (
    (r" == ", " != "), (r" != ", " == "), (r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "),
    (r" >= ", " > "), (r" && ", " || "), (r" \|\| ", " && "), (r" \+ ", " - "), (r" - ", " + "),
    (r"\+\+", "--"), (r"\b1\b", "2"), (r"\b0\b", "1"), (r"\btrue\b", "false"),
    (r"\bfalse\b", "true"), (r"\breturn -1;", "return 0;"), (r"\bcontinue;", "break;"),
    (r"^( +)(?!va_end)[a-z_]+\(.*\);$", r"\1;"),
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

    @property
    def package(self) -> str:
        """Folder of the changed file."""
        return "loader" if self.file.suffix == ".c" else self.file.parent.name


def main() -> None:
    """Try a random sample of mutants, as the options say."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--package", action="append", choices=[*PACKAGES, "loader"])
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants at once")
    parser.add_argument("--minutes", type=float, default=600, help="end after these")
    parser.add_argument("--seconds", type=float, default=300, help="of tests for each mutant")
    parser.add_argument("--survivors", type=Path, help="try what a run didn't kill")
    parser.add_argument("folder", type=Path, help="for copies of the tree; it is replaced")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    folder = options.folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    packages = options.package or [*PACKAGES, "loader"]
    with ThreadPoolExecutor() as pool:
        folders = [folder / name for name in ("clean", *map(str, range(options.jobs)))]
        clean, *copies = pool.map(partial(copy_tree, builds="loader" in packages), folders)
    trees: SimpleQueue[Path] = SimpleQueue()
    for tree in copies:
        trees.put(tree)
    chance = random.Random(options.seed)
    if options.survivors:
        found = survivors(ROOT, packages, options.survivors.read_text())
    else:
        found = list(mutants(ROOT, packages, chance, options.count))
    judge = Judge(clean=clean, seconds=options.seconds, end=end)
    # Before the machine is full: what they share is compiled.
    with ThreadPoolExecutor() as pool:
        list(pool.map(judge.broken, COMPILING))

    def attempt(mutant: Mutant) -> tuple[str, str]:
        tree = trees.get()
        began = time.monotonic()
        result, by = judge.outcome(tree, mutant)
        trees.put(tree)
        took = f"[{time.monotonic() - began:.0f} s{by and ', ' + by}]"
        # One write, because several jobs end at once.
        line = f"{result}: {mutant.file}:{mutant.line}: {mutant.change} {took}\n"
        print(line, end="", flush=True)
        return mutant.package, result

    with ThreadPoolExecutor(options.jobs) as pool:
        counts = Counter(pool.map(attempt, found))
    print_table(counts)


def copy_tree(folder: Path, *, builds: bool) -> Path:
    """Copy what tests read of the tree into a folder, and return the copy.

    Args:
        builds: compile the loader, too. On a new system it is larger than the wheel's, and needs a
            newer glibc, so that tests of whole releases fail.
    """
    tree = folder / "tree"
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.glob("*.*"):
        if path.is_file():
            shutil.copy(path, tree)
    if builds:
        build_loader(tree)
    return tree


def build_loader(tree: Path) -> bool:
    """Compile the loader of a tree, which most of its tests take as it is in the wheel."""
    folder = tree / "plugin_loader"
    # A copy of the tree has no links: this folder is the one that the package reads.
    library = folder.joinpath("archsplit_loader", "prebuilt", "x86_64", "libarchsplit_loader.so")
    # What has the old one open or mapped keeps it.
    library.unlink(missing_ok=True)
    sources = map(str, sorted(folder.glob("src/*.c")))
    words = (*C_BUILD, f"-Wl,--version-script={folder / 'src' / 'loader.map'}", *sources)
    end = ("-I", str(folder / "include"), "-o", str(library), "-ldl", "-lpthread")
    done = subprocess.run([*words, *end], capture_output=True, check=False)
    if done.returncode == 0:
        # The package refuses a loader with another digest.
        sums = library.parents[1] / "SHA256SUMS"
        rows = [re.split(r"(?<=^[0-9a-f]{64})(?=  )", row) for row in sums.read_text().splitlines()]
        for row in rows:
            if len(row) > 1:
                content = (sums.parent / row[1].strip()).read_bytes()
                row[0] = hashlib.sha256(content).hexdigest()
        sums.write_text("".join("".join(row) + "\n" for row in rows))
    return done.returncode == 0


def print_table(counts: Counter[tuple[str, str]]) -> None:
    """Print a line for each package, and the share of mutants that was killed."""
    for package in (*sorted({package for package, _ in counts}), "all"):
        of = {"killed": 0, "survived": 0, "not judged": 0, "invalid": 0, "left out": 0}
        for (each, result), count in counts.items():
            of[result] += count if package in (each, "all") else 0
        judged = of["killed"] + of["survived"]
        share = 100 * of["killed"] / max(judged, 1)
        print(f"{package:11} {of['killed']:4} of {judged:4} killed, {share:5.1f} %", of)


def survivors(tree: Path, packages: Sequence[str], output: str) -> list[Mutant]:
    """Return what an earlier run's output names as not killed, in its order, wherever it is now."""
    pattern = re.compile(
        r"^(?:survived|not judged|left out): (.+?):(\d+): (.*?)(?: \[\d+ s.*\])?$", re.MULTILINE
    )
    rows = [(Path(file), int(line), change) for file, line, change in pattern.findall(output)]
    changed = {change.partition("  ->  ")[0] for *_, change in rows}
    found: dict[tuple[Path, str], list[Mutant]] = {}
    for (path, line, _), edit in (*python_edits(tree, packages), *c_edits(tree, packages)):
        old = path.read_text()
        if old.splitlines()[line - 1].strip() in changed and (new := edit(old)) is not None:
            mutant = make_mutant(tree, path, line, old, new)
            found.setdefault((mutant.file, mutant.change), []).append(mutant)
    wanted = []
    for file, line, change in rows:
        if same := found.get((file, change)):
            # Lines of one text: the nearest to where it was.
            wanted.append(min(same, key=lambda each: abs(each.line - line)))
        else:
            print(f"no longer there: {file}:{line}: {change}")
    return wanted


def make_mutant(tree: Path, path: Path, line: int, old: str, new: str) -> Mutant:
    """Return the record of a changed file."""
    before, after = old.splitlines()[line - 1], new.splitlines()[line - 1]
    change = f"{before.strip()}  ->  {after.strip()}"
    return Mutant(file=path.relative_to(tree), line=line, change=change, text=new)


def mutants(
    tree: Path, packages: Sequence[str], chance: random.Random, count: int
) -> Iterator[Mutant]:
    """Yield a sample of mutants."""
    found: dict[tuple[Path, int, int], list[Edit]] = {}
    for place, edit in (*python_edits(tree, packages), *c_edits(tree, packages)):
        found.setdefault(place, []).append(edit)
    places = sorted(found)
    chance.shuffle(places)
    for place in places:
        path, line, _ = place
        old = path.read_text()
        new = chance.choice(found[place])(old)
        is_silent_change = path.suffix == ".py" and new is not None and meaning(old) == meaning(new)
        if new is None or is_silent_change:
            continue
        yield make_mutant(tree, path, line, old, new)
        count -= 1
        if not count:
            return


def python_edits(
    tree: Path, packages: Sequence[str]
) -> Iterator[tuple[tuple[Path, int, int], Edit]]:
    """Yield the edits of cosmic-ray, each with its file, line and column."""
    names = [name for name in operator_names() if not name.endswith(tuple(SAME))]
    kinds = [get_operator(name) for name in names]
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
    """Return a module's syntax without what no test can see."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if hasattr(node, name):
                setattr(node, name, None)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "field":
            node.keywords = [word for word in node.keywords if word.arg != "repr"]
        decorators = getattr(node, "decorator_list", None)
        if isinstance(decorators, list):
            kept = [one for one in decorators if ast.unparse(one).partition("(")[0] not in CACHES]
            decorators[:] = kept
            for one in kept:
                if isinstance(one, ast.Call):
                    one.keywords = [word for word in one.keywords if word.arg not in UNSEEN]
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not is_silent(one)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def is_silent(node: ast.AST) -> bool:
    """Return True for a docstring, ``if TYPE_CHECKING:``, and the mark of a pure module."""
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.dump(node.test)
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]) in ("__pure__", "__slots__")
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def nearest(tree: Path, file: Path) -> list[str]:
    """Return test files, the nearest first.

    Of C: the loader's tests, first those that name the module. Of Python: by name, then by
    the number of imports to the module, and last the rest of its package's folder. A file that
    compiles comes after those that don't.
    """
    if file.suffix == ".c":
        tests = sorted((tree / "tests" / "loader").glob("test_*.py"))
        # Any change makes the compiled files stale.
        tests.remove(tree / "tests" / "loader" / "test_loader_stage.py")
        tests.sort(key=lambda path: file.stem not in path.stem + path.read_text())
        return [str(path.relative_to(tree)) for path in tests]
    far = distances(tree, f"{file.parent.name}.{file.stem}")
    texts = {path: path.read_text() for path in (tree / "tests").glob("*/*.py")}
    # Tests may reach a module by what several of them share.
    helpers = {path.stem: imported(text, far) for path, text in texts.items()}
    ranks: dict[Path, tuple[float, bool, int]] = {}
    for path, text in texts.items():
        used = re.findall(r"^\s*(?:from|import) (\w+)", text, re.MULTILINE)
        steps = min(helpers[path.stem], *(helpers.get(each, FAR) for each in used), FAR)
        is_own = path.parent.name == file.parent.name
        is_named = is_own and path.stem.endswith(file.stem.strip("_"))
        if path.stem.startswith("test_") and (is_own or steps <= 1):
            rank = 0 if is_named else steps + 1 if is_own else steps + 1.5
            ranks[path] = (rank, "nvcc" in text or "samples" in text, len(text))
    return [str(path.relative_to(tree)) for path in sorted(ranks, key=ranks.__getitem__)]


@cache
def distances(tree: Path, module: str) -> dict[str, int]:
    """Return the number of imports from modules to one module."""
    sources = {
        f"{path.parent.name}.{path.stem}": re.findall(
            r"^\s*from archsplit\.(\w+\.\w+) import", path.read_text(), re.MULTILINE
        )
        for path in tree.glob("splitter/archsplit/*/*.py")
    }
    far = {module: 0}
    for steps in range(1, FAR):
        near = {name for name, used in sources.items() if not far.keys().isdisjoint(used)}
        far |= dict.fromkeys(near - far.keys(), steps)
    return far


def imported(text: str, far: dict[str, int]) -> int:
    """Return the distance of the nearest module that a test file imports."""
    names = re.findall(r"archsplit\.(\w+\.\w+) import", text)
    names += [
        f"{package}.{name}"
        for package, these in re.findall(r"from archsplit\.(\w+) import ([\w, ]+)", text)
        for name in these.split(", ")
    ]
    return min((far.get(name, FAR) for name in names), default=FAR)


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Runs tests on mutants.

    Attributes:
        clean: a tree without a mutant.
        seconds: of tests for each mutant.
        end: of all tests, by the monotonic clock.
        lock: guards ``locks``.
        locks: one for each file of tests.
        failing: the tests of each file that fail without a mutant.
        sound: the tests that pass without a mutant.
    """

    clean: Path
    seconds: float
    end: float
    lock: threading.Lock = field(default_factory=threading.Lock)
    locks: dict[str, threading.Lock] = field(default_factory=dict)
    failing: dict[str, frozenset[str]] = field(default_factory=dict)
    sound: set[str] = field(default_factory=set)

    def outcome(self, tree: Path, mutant: Mutant) -> tuple[str, str]:
        """Return the result, as in the table, and by what.

        C that can't be compiled is invalid. A mutant is not judged if its time is up, and left out
        if the run's time is up.
        A mutant that stops pytest, or its collection, was killed as well.
        """
        path = tree / mutant.file
        old = path.read_text()
        replace_source(path, mutant.text)
        try:
            if path.suffix == ".c":
                words = (*C_CHECK, "-I", str(tree / "plugin_loader" / "include"), str(path))
                if subprocess.run(words, capture_output=True, check=False).returncode:
                    return "invalid", ""
                if not build_loader(tree):
                    return "invalid", ""
            return self.killer(tree, nearest(tree, mutant.file))
        finally:
            replace_source(path, old)

    def killer(self, tree: Path, tests: Sequence[str]) -> tuple[str, str]:
        """Run tests until one fails that passes on the clean tree."""
        tests = list(tests)
        end = min(time.monotonic() + self.seconds, self.end)
        while (left := end - time.monotonic()) > 0:
            broken = {name for file in tests for name in self.failing.get(file, ())}
            leave_out = [word for name in sorted(broken) for word in ("--deselect", name)]
            whole = [file for file in tests if file not in broken]
            code, output = run_tests(tree, whole, left, "-x", *leave_out)
            if code is None:
                break
            if code in (0, NO_TESTS):
                return "survived", ""
            failed = FAILURE.search(output)
            name = failed[1] if failed else ""
            file = name.partition("::")[0]
            if "::" in name and file in tests:
                # The files before it passed.
                del tests[: tests.index(file)]
            if name.endswith(".py"):
                # Helpers of one name: a file that can be read by itself, but not after another.
                collected, _ = run_tests(tree, [name], left, "--collect-only")
                if collected in (0, NO_TESTS):
                    self.failing[name] = frozenset({name})
                    continue
            is_killed = not failed or self.is_sound(name)
            if is_killed and time.monotonic() < self.end:
                return "killed", name or output.strip().rpartition("\n")[2]
        return ("left out", "") if end == self.end else ("not judged", "time is up")

    def is_sound(self, name: str) -> bool:
        """Return True if a test passes on the clean tree."""
        if name not in self.sound:
            # By itself first: its file may take minutes.
            code, _ = run_tests(self.clean, [name], min(10 * SECONDS, self.end - time.monotonic()))
            if code and name in self.broken(name.partition("::")[0]):
                return False
            self.sound.add(name)
        return True

    def broken(self, file: str) -> frozenset[str]:
        """Return the tests of a file that fail on the clean tree."""
        with self.lock:
            lock = self.locks.setdefault(file, threading.Lock())
        with lock:
            if file not in self.failing:
                left = min(10 * SECONDS, self.end - time.monotonic())
                _, output = run_tests(self.clean, [file], left)
                failed = frozenset(match[1] for match in FAILURE.finditer(output))
                if failed:
                    why = re.findall(r"^E +(.*)", output, re.MULTILINE)[:1]
                    print(f"without a mutant {len(failed)} tests of {file} fail: {why}", flush=True)
                self.failing[file] = failed
            return self.failing[file]


def replace_source(path: Path, text: str) -> None:
    """Write a source file, and remove its bytecode, which Python compares by the second."""
    path.write_text(text)
    for each in path.parent.glob(f"__pycache__/{path.stem}.*"):
        each.unlink()


def run_tests(
    tree: Path, tests: Sequence[str], seconds: float, *options: str
) -> tuple[int | None, str]:
    """Run tests on a copy of the tree; return the exit code, or None if the time was up."""
    sources = os.pathsep.join(str(tree / name) for name in ("splitter", "plugin_loader"))
    # Without bytecode each start takes five times the CPU seconds.
    own = {"PYTHONPATH": sources, "PYTHONDONTWRITEBYTECODE": ""}
    own["ARCHSPLIT_CACHE_DIR"] = str(tree.parent / "cache")
    # Several files are run on the clean tree at once, and each ends with its folder.
    own["TMPDIR"] = tempfile.mkdtemp(dir=tree.parent)
    # Some tests start programs as another user.
    Path(own["TMPDIR"]).chmod(0o1777)
    # Made without archsplit: as good for each mutant, and half a minute of compiling.
    samples = Path(os.environ.get("ARCHSPLIT_TEST_SAMPLES", tree.parents[1] / "samples"))
    samples.mkdir(exist_ok=True)
    own["ARCHSPLIT_TEST_SAMPLES"] = str(samples)
    # Without fixtures, which compile when the machine is full.
    limit = (f"--timeout={SECONDS}", "-o", "timeout_func_only=true")
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *limit, *options)
    try:
        done = subprocess.run(
            [sys.executable, *words, *tests],
            cwd=tree, env={**os.environ, **own}, capture_output=True, text=True, check=False,
            timeout=seconds,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        shutil.rmtree(own["TMPDIR"], ignore_errors=True)
    return done.returncode, done.stdout


if __name__ == "__main__":
    main()
