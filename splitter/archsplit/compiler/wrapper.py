"""Carry out one command line of nvcc: ask, plan, run, and leave what nvcc would leave.

Run a compilation's graph with the engine, and remember what its steps took.

Write what says how a compilation went: graph, table, trace, commands, intermediate files.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass, replace
from functools import partial
from typing import IO, TYPE_CHECKING

from archsplit.compiler.dryrun_query import query_dryrun
from archsplit.compiler.invocation import FallBackToNvccError
from archsplit.compiler.option_files import with_all_options
from archsplit.compiler.wrapper_graph import history_group, plan_graph
from archsplit.nvcc.depfile import depfile_text, has_other_outputs
from archsplit.scheduler.graph import Graph
from archsplit.scheduler.history import History
from archsplit.scheduler.outcome import Outcome
from archsplit.scheduler.reports import (
    explain_run,
    format_chrome_trace,
    format_graph_dot,
    format_steps_table,
)
from archsplit.scheduler.runner import run_graph
from archsplit.system.fs import (
    atomic_replace,
    is_replaceable,
    output_errors,
    overwrite_file,
    put_file,
    stable_dir,
    temporary_dir,
    write_file,
)
from archsplit.system.process import Command, run_checked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from archsplit.cache.config import Settings
    from archsplit.compiler.dryrun_query import DryRunResult
    from archsplit.compiler.invocation import Invocation
    from archsplit.compiler.wrapper_cache import WrapperCacheSession
    from archsplit.compiler.wrapper_graph import WrapperGraph
    from archsplit.scheduler.outcome import FinishedStep
    from archsplit.scheduler.pool import Pool
    from archsplit.scheduler.runner import ResultCache
    from archsplit.system.process import Runner, Starter
    from archsplit.system.progress import ProgressSink

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
    return stable_dir("\0".join(order.argv).replace(str(order.cwd), ""))


def _exit_code(answer: DryRunResult, outcome: Outcome) -> int:
    if outcome.failure is None:
        return 0
    # With threads of its own, nvcc doesn't say which of its steps failed how.
    return _ANY_FAILURE if answer.arguments.is_threaded else outcome.failure.returncode


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
                _name_kept(path, folder, answer.arguments.kept_prefix)
                _move(path, cwd / answer.arguments.keep / path.name)


def _name_kept(path: Path, folder: Path, kept_prefix: str) -> None:
    """Name the folder in a kept text where the text will be, as nvcc does."""
    old = f"{folder}/".encode()
    content = path.read_bytes() if path.suffix in _KEPT_TEXTS else b""
    if old in content:
        path.write_bytes(content.replace(old, os.fsencode(kept_prefix)))


def _remove(todo: WrapperGraph, first: int, folder: Path) -> None:
    """Take away what the steps from ``first`` on have made."""
    for step in todo.graph.steps[first:]:
        for path in step.writes:
            if not path.is_relative_to(folder):
                path.unlink(missing_ok=True)


def _write_rules(
    answer: DryRunResult, todo: WrapperGraph, outcome: Outcome, around: WrapperContext
) -> None:
    made = has_other_outputs(answer.transcript)
    steps = todo.graph.steps
    last = len(steps) if outcome.failure is None else outcome.failure.position
    there = {path for step in steps[:last] for path in step.writes}
    for rule in answer.transcript.dependencies:
        if not there.issuperset(rule.sources):
            continue
        texts = (path.read_bytes() for path in rule.sources)
        text = depfile_text(texts, options=answer.arguments.depfile, made=made)
        if rule.path is None:
            around.stdout.write(text)
            around.stdout.flush()
        else:
            with output_errors(rule.path):
                overwrite_file(rule.path, text)


def _write_artefacts(
    order: Invocation, todo: WrapperGraph, outcome: Outcome, around: WrapperContext
) -> None:
    # As above: not worth its import in most calls.

    write_reports(order, todo.graph, outcome, around)


def _move(source: Path, target: Path) -> None:
    with output_errors(target):
        put_file(source, target)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapperRunner:
    """What runs graphs.

    Attributes:
        pool: cores and memory.
        runner: starts programs.
        progress: is told of steps.
        history: the folder of what earlier runs took.
    """

    pool: Pool
    runner: Starter
    progress: ProgressSink
    history: Path

    def run(
        self, graph: Graph, *, group: str, spread: bool, memo: ResultCache | None = None
    ) -> Outcome:
        """Run a graph; ``group`` is what its steps are remembered under."""
        return run_graph(
            graph,
            pool=self.pool,
            runner=self.runner,
            progress=self.progress,
            history=History(self.history, group),
            parallel=spread,
            result_cache=memo,
        )

    def run_in_order(self, graph: Graph) -> Outcome:
        """Run one step after the other, in the graph's own order."""
        outcome = Outcome(finished=(), failure=None, starts=(), seconds=0.0)
        for position, step in enumerate(graph.steps):
            alone = Graph(steps=(step,))
            one = run_graph(
                alone, pool=self.pool, runner=self.runner, progress=self.progress, parallel=False
            )
            outcome = _followed_by(outcome, one, position)
            if outcome.failure is not None:
                break
        return outcome


def _followed_by(before: Outcome, one: Outcome, position: int) -> Outcome:
    ran = before.seconds
    finished = tuple(
        replace(done, position=position, started=done.started + ran, ended=done.ended + ran)
        for done in one.finished
    )
    starts = tuple(
        replace(each, position=position, ready=each.ready + ran, started=each.started + ran)
        for each in one.starts
    )
    return Outcome(
        finished=before.finished + finished,
        failure=finished[0] if one.failure is not None else None,
        starts=before.starts + starts,
        seconds=ran + one.seconds,
    )


_LAYOUT = "dot"
"""The program of graphviz that lays out directed graphs."""


def write_reports(
    order: Invocation, graph: Graph, outcome: Outcome, around: WrapperContext
) -> None:
    """Write each file that is wanted, also when a step has failed.

    Raises:
        OutputError: one of them can't be written.
    """
    files = order.files
    if files.graph is not None:
        _draw(order, format_graph_dot(graph, outcome), files.graph, around.runner)
    if files.table is not None:
        write_file(files.table, format_steps_table(graph, outcome))
    if files.trace is not None:
        write_file(files.trace, format_chrome_trace(outcome))
    if files.verbose is not None:
        write_file(files.verbose, _commands(graph))
    if files.save is not None:
        _save(graph, files.save)
    if files.explain:
        around.stderr.write(explain_run(outcome).encode())
        around.stderr.flush()


def _draw(order: Invocation, text: str, path: Path, runner: Runner) -> None:
    write_file(path, text)
    program = shutil.which(_LAYOUT, path=order.environment.get("PATH", ""))
    # What was written to a device can't be read again, and has nothing beside it.
    if program is None or not is_replaceable(path):
        return
    with atomic_replace(path.with_suffix(".svg")) as picture:
        argv = (program, "-Tsvg", str(path), "-o", str(picture))
        command = Command(argv=argv, cwd=order.cwd, env=order.environment)
        run_checked(runner, command, what="drawing the graph")


def _commands(graph: Graph) -> str:
    lines = []
    for step in graph.steps:
        lines.append(step.name)
        lines += [f"    {word}" for word in step.command.argv]
    return "\n".join(lines) + "\n"


def _save(graph: Graph, folder: Path) -> None:
    with output_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for number, step in enumerate(graph.steps):
            for path in step.writes:
                if path.is_file():
                    overwrite_file(folder / f"{number:02}-{path.name}", path.read_bytes())
