"""Write what says how a compilation went: graph, table, trace, commands, intermediate files."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from archsplit.scheduler.explain import explain_run
from archsplit.scheduler.reports import graph_dot
from archsplit.scheduler.table import steps_table
from archsplit.scheduler.trace import chrome_trace
from archsplit.system.fs import is_replaceable, output_errors, replacing, write_file, write_over
from archsplit.system.process import Command, run_checked

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.compiler.invocation import Invocation
    from archsplit.compiler.wrapper import WrapperContext
    from archsplit.scheduler.graph import Graph
    from archsplit.scheduler.outcome import Outcome
    from archsplit.system.process import Runner

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
        _draw(order, graph_dot(graph, outcome), files.graph, around.runner)
    if files.table is not None:
        write_file(files.table, steps_table(graph, outcome))
    if files.trace is not None:
        write_file(files.trace, chrome_trace(outcome))
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
    with replacing(path.with_suffix(".svg")) as picture:
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
                    write_over(folder / f"{number:02}-{path.name}", path.read_bytes())
