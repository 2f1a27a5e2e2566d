"""Carry out one command line of nvcc: ask, plan, run, and leave what nvcc would leave."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING

from archsplit.compiler.dryrun_query import query_dryrun
from archsplit.compiler.invocation import FallBackToNvccError
from archsplit.compiler.option_files import with_all_options
from archsplit.compiler.wrapper_graph import history_group, plan_graph
from archsplit.nvcc.depfile import makes_more, rule_text
from archsplit.system.fs import output_errors, put_file, stable_folder, temporary_dir, write_over

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from archsplit.cache.config import Settings
    from archsplit.compiler.dryrun_query import DryRunResult
    from archsplit.compiler.invocation import Invocation
    from archsplit.compiler.running import WrapperRunner
    from archsplit.compiler.wrapper_cache import WrapperCacheSession
    from archsplit.compiler.wrapper_graph import WrapperGraph
    from archsplit.scheduler.memo import ResultCache
    from archsplit.scheduler.outcome import FinishedStep, Outcome
    from archsplit.system.process import Runner

_ANY_FAILURE = 255
_KEPT_TEXTS = {".c", ".cpp", ".gpu", ".ii", ".ptx", ".s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapperContext:
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
    engine: WrapperRunner
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


def run_wrapper(order: Invocation, around: WrapperContext) -> int:
    """Do what nvcc would do, and return its exit code.

    Raises:
        LeftToNvccError: only nvcc itself can do it; nothing has been printed or made.
        VerifyError: it was to be verified, and nvcc makes something else.
    """
    order = with_all_options(order)
    if around.cache is None or not order.is_cacheable:
        return _compile(order, around, None)
    # Not worth its import where there's no cache.
    from archsplit.compiler.wrapper_cache import WrapperCacheSession  # noqa: PLC0415

    with contextlib.closing(WrapperCacheSession(order, around, around.cache)) as caching:
        return 0 if caching.recall() else _compile(order, around, caching)


def _compile(order: Invocation, around: WrapperContext, caching: WrapperCacheSession | None) -> int:
    with _folder(order) as folder:
        answer = query_dryrun(order, folder, around.runner)
        todo = plan_graph(order, answer, folder, around.runner)
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


def _folder(order: Invocation) -> AbstractContextManager[Path]:
    """Give the folder for intermediate files: debug information and sanitizers tell its name."""
    if not order.reproducible:
        return temporary_dir()
    # In another checkout the name is the same.
    return stable_folder("\0".join(order.argv).replace(str(order.cwd), ""))


def _exit_code(answer: DryRunResult, outcome: Outcome) -> int:
    if outcome.failure is None:
        return 0
    # With threads of its own, nvcc doesn't say which of its steps failed how.
    return _ANY_FAILURE if answer.arguments.threaded else outcome.failure.returncode


def _run(
    order: Invocation,
    answer: DryRunResult,
    todo: WrapperGraph,
    folder: Path,
    around: WrapperContext,
    *,
    memo: ResultCache | None = None,
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
        raise FallBackToNvccError(f"{outcome.failure.name} {outcome.failure.fault}")
    return outcome


def _run_verified(
    order: Invocation,
    answer: DryRunResult,
    todo: WrapperGraph,
    folder: Path,
    around: WrapperContext,
) -> Outcome:
    # Few calls want this, of the thousands that a build makes.
    from archsplit.compiler.compare_with_nvcc import compare_outputs, run_nvcc  # noqa: PLC0415

    reference = run_nvcc(order, answer, todo, folder, around.runner)
    outcome = _run(order, answer, todo.renamed(reference.names), folder, around)
    if outcome.failure is None:
        compare_outputs(reference, answer, todo)
    return outcome


def _say(answer: DryRunResult, outcome: Outcome, around: WrapperContext) -> None:
    """Print what the tools said, in nvcc's order, up to the one that failed."""
    diagnostics = [f"{line}\n" for line in answer.transcript.diagnostics]
    done = tuple(_until_failure(outcome))
    around.say(
        "".join(each.stdout for each in done),
        "".join([*diagnostics, *(each.stderr for each in done)]),
    )


def _until_failure(outcome: Outcome) -> Iterable[FinishedStep]:
    last = outcome.failure.position if outcome.failure is not None else None
    return (done for done in outcome.finished if last is None or done.position <= last)


def _leave(
    answer: DryRunResult, todo: WrapperGraph, outcome: Outcome, cwd: Path, folder: Path
) -> None:
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


def _remove(todo: WrapperGraph, first: int, folder: Path) -> None:
    """Take away what the steps from ``first`` on have made."""
    for step in todo.graph.steps[first:]:
        for path in step.writes:
            if not path.is_relative_to(folder):
                path.unlink(missing_ok=True)


def _write_rules(
    answer: DryRunResult, todo: WrapperGraph, outcome: Outcome, around: WrapperContext
) -> None:
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
            with output_errors(rule.path):
                write_over(rule.path, text)


def _write_artefacts(
    order: Invocation, todo: WrapperGraph, outcome: Outcome, around: WrapperContext
) -> None:
    # As above: not worth its import in most calls.
    from archsplit.compiler.artefacts import write_reports  # noqa: PLC0415

    write_reports(order, todo.graph, outcome, around)


def _move(source: Path, target: Path) -> None:
    with output_errors(target):
        put_file(source, target)
