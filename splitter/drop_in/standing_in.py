"""Carry out one command line of nvcc: ask, plan, run, and leave what nvcc would leave."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING

from splitter.drop_in.asking import ask
from splitter.drop_in.option_files import with_all_options
from splitter.drop_in.order import LeftToNvccError
from splitter.drop_in.planning import history_group, plan
from splitter.nvcc.rules import makes_more, rule_text
from splitter.system.files import private_folder, put_file, stable_folder, write_over, writing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from splitter.cache.settings import Settings
    from splitter.drop_in.asking import Answer
    from splitter.drop_in.caching import Caching
    from splitter.drop_in.order import Order
    from splitter.drop_in.planning import Plan
    from splitter.drop_in.running import Engine
    from splitter.engine.memo import Memo
    from splitter.engine.outcome import Finished, Outcome
    from splitter.system.run import Runner

_ANY_FAILURE = 255
_KEPT_TEXTS = {".c", ".cpp", ".gpu", ".ii", ".ptx", ".s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The effects that a compilation works with.

    Attributes:
        runner: starts programs.
        engine: runs graphs.
        stdout: where what the tools print goes.
        stderr: where their warnings and errors go.
        warn: tells a person something of archsplit's own.
        cache: how the cache is set; None to do without.
        explain_cache: say what was known, and why the rest wasn't.
    """

    runner: Runner
    engine: Engine
    stdout: IO[bytes]
    stderr: IO[bytes]
    warn: Callable[[str], None]
    cache: Settings | None = None
    explain_cache: bool = False

    def say(self, stdout: str, stderr: str) -> None:
        """Print what tools have said, byte for byte."""
        self.stdout.write(stdout.encode(errors="surrogateescape"))
        self.stderr.write(stderr.encode(errors="surrogateescape"))
        self.stdout.flush()
        self.stderr.flush()


def stand_in(order: Order, around: Surroundings) -> int:
    """Do what nvcc would do, and return its exit code.

    Raises:
        LeftToNvccError: only nvcc itself can do it; nothing has been printed or made.
        VerifyError: it was to be verified, and nvcc makes something else.
    """
    order = with_all_options(order)
    if around.cache is None or not order.is_cacheable:
        return _compile(order, around, None)
    # Not worth its import where there's no cache.
    from splitter.drop_in.caching import Caching  # noqa: PLC0415

    with contextlib.closing(Caching(order, around, around.cache)) as caching:
        return 0 if caching.recall() else _compile(order, around, caching)


def _compile(order: Order, around: Surroundings, caching: Caching | None) -> int:
    with _folder(order) as folder:
        answer = ask(order, folder, around.runner)
        todo = plan(order, answer, folder, around.runner)
        memo = None
        if caching is not None:
            todo = caching.listed(todo, folder)
            memo = caching.memory(todo, folder)
        run = _run_verified if order.verify else partial(_run, memo=memo)
        outcome = run(order, answer, todo, folder, around)
        _say(answer, outcome, around)
        _write_rules(answer, todo, outcome, around)
        _leave(answer, todo, outcome, order.cwd, folder)
        if order.files.any:
            _write_artefacts(order, todo, outcome, around)
        if caching is not None:
            caching.remember(answer, todo, outcome, folder)
        return _exit_code(answer, outcome)


def _folder(order: Order) -> AbstractContextManager[Path]:
    """Give the folder for intermediate files: debug information and sanitizers tell its name."""
    if not order.reproducible:
        return private_folder()
    # In another checkout the name is the same.
    return stable_folder("\0".join(order.argv).replace(str(order.cwd), ""))


def _exit_code(answer: Answer, outcome: Outcome) -> int:
    if outcome.failure is None:
        return 0
    # With threads of its own, nvcc doesn't say which of its steps failed how.
    return _ANY_FAILURE if answer.arguments.threaded else outcome.failure.returncode


def _run(
    order: Order,
    answer: Answer,
    todo: Plan,
    folder: Path,
    around: Surroundings,
    *,
    memo: Memo | None = None,
) -> Outcome:
    for path, text in todo.texts.items():
        path.write_text(text)
    if order.sequential:
        outcome = around.engine.run_in_order(todo.graph)
    else:
        spread = not (order.reproducible or order.verify)
        group = history_group(order, answer)
        outcome = around.engine.run(todo.graph, group=group, spread=spread, memo=memo)
    if outcome.failure is not None and outcome.failure.returncode <= 0:
        # nvcc knows better what to make of a tool that died, or that left nothing behind.
        _remove(todo, 0, folder)
        raise LeftToNvccError(f"{outcome.failure.name} {outcome.failure.fault}")
    return outcome


def _run_verified(
    order: Order, answer: Answer, todo: Plan, folder: Path, around: Surroundings
) -> Outcome:
    # Few calls want this, of the thousands that a build makes.
    from splitter.drop_in.comparing import compare, run_nvcc  # noqa: PLC0415

    reference = run_nvcc(order, answer, todo, folder, around.runner)
    outcome = _run(order, answer, todo.renamed(reference.names), folder, around)
    if outcome.failure is None:
        compare(reference, answer, todo)
    return outcome


def _say(answer: Answer, outcome: Outcome, around: Surroundings) -> None:
    """Print what the tools said, in nvcc's order, up to the one that failed."""
    diagnostics = [f"{line}\n" for line in answer.transcript.diagnostics]
    done = tuple(_until_failure(outcome))
    around.say(
        "".join(each.stdout for each in done),
        "".join([*diagnostics, *(each.stderr for each in done)]),
    )


def _until_failure(outcome: Outcome) -> Iterable[Finished]:
    last = outcome.failure.position if outcome.failure is not None else None
    return (done for done in outcome.finished if last is None or done.position <= last)


def _leave(answer: Answer, todo: Plan, outcome: Outcome, cwd: Path, folder: Path) -> None:
    """Put what was made where nvcc would have it, and take away what it would not have made."""
    if outcome.failure is None:
        for private, final in todo.staged.items():
            _move(private, final)
    else:
        _remove(todo, outcome.failure.position + 1, folder)
    if answer.arguments.keep is not None:
        # What comes after a failure nvcc would not have begun.
        last = None if outcome.failure is None else outcome.failure.position + 1
        for path in (path for step in answer.transcript.steps[:last] for path in step.writes):
            if path.is_relative_to(folder) and path.exists():
                _name_kept(path, folder, answer.arguments.kept_as)
                _move(path, cwd / answer.arguments.keep / path.name)


def _name_kept(path: Path, folder: Path, kept_as: str) -> None:
    """Name the folder in a kept text where the text will be, as nvcc does."""
    old = f"{folder}/".encode()
    content = path.read_bytes() if path.suffix in _KEPT_TEXTS else b""
    if old in content:
        path.write_bytes(content.replace(old, os.fsencode(kept_as)))


def _remove(todo: Plan, first: int, folder: Path) -> None:
    """Take away what the steps from ``first`` on have made."""
    for step in todo.graph.steps[first:]:
        for path in step.writes:
            if not path.is_relative_to(folder):
                path.unlink(missing_ok=True)


def _write_rules(answer: Answer, todo: Plan, outcome: Outcome, around: Surroundings) -> None:
    made = makes_more(answer.transcript)
    steps = todo.graph.steps
    last = len(steps) if outcome.failure is None else outcome.failure.position
    there = {path for step in steps[:last] for path in step.writes}
    for rule in answer.transcript.dependencies:
        if not there.issuperset(rule.sources):
            continue
        texts = (path.read_bytes() for path in rule.sources)
        text = rule_text(texts, options=answer.arguments.rules, made=made)
        if rule.path is None:
            around.stdout.write(text)
            around.stdout.flush()
        else:
            with writing(rule.path):
                write_over(rule.path, text)


def _write_artefacts(order: Order, todo: Plan, outcome: Outcome, around: Surroundings) -> None:
    # As above: not worth its import in most calls.
    from splitter.drop_in.artefacts import write_artefacts  # noqa: PLC0415

    write_artefacts(order, todo.graph, outcome, around)


def _move(source: Path, target: Path) -> None:
    with writing(target):
        put_file(source, target)
