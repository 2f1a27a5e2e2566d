"""Write what says how a compilation went: graph, table, trace, commands, intermediate files."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from splitter.engine.dot import dot
from splitter.engine.explain import explain
from splitter.engine.table import table
from splitter.engine.trace import trace
from splitter.system.files import is_replaceable, replacing, write_file, write_over, writing
from splitter.system.run import Command, check

if TYPE_CHECKING:
    from pathlib import Path

    from splitter.drop_in.order import Order
    from splitter.drop_in.standing_in import Surroundings
    from splitter.engine.graph import Graph
    from splitter.engine.outcome import Outcome
    from splitter.system.run import Runner

_LAYOUT = "dot"
"""The program of graphviz that lays out directed graphs."""


def write_artefacts(order: Order, graph: Graph, outcome: Outcome, around: Surroundings) -> None:
    """Write each file that is wanted, also when a step has failed.

    Raises:
        OutputError: one of them can't be written.
    """
    files = order.files
    if files.graph is not None:
        _draw(order, dot(graph, outcome), files.graph, around.runner)
    if files.table is not None:
        write_file(files.table, table(graph, outcome))
    if files.trace is not None:
        write_file(files.trace, trace(outcome))
    if files.verbose is not None:
        write_file(files.verbose, _commands(graph))
    if files.save is not None:
        _save(graph, files.save)
    if files.explain:
        around.stderr.write(explain(outcome).encode())
        around.stderr.flush()


def _draw(order: Order, text: str, path: Path, runner: Runner) -> None:
    write_file(path, text)
    program = shutil.which(_LAYOUT, path=order.environment.get("PATH", ""))
    # What was written to a device can't be read again, and has nothing beside it.
    if program is None or not is_replaceable(path):
        return
    with replacing(path.with_suffix(".svg")) as picture:
        argv = (program, "-Tsvg", str(path), "-o", str(picture))
        command = Command(argv=argv, cwd=order.cwd, env=order.environment)
        check(runner, command, what="drawing the graph")


def _commands(graph: Graph) -> str:
    lines = []
    for step in graph.steps:
        lines.append(step.name)
        lines += [f"    {word}" for word in step.command.argv]
    return "\n".join(lines) + "\n"


def _save(graph: Graph, folder: Path) -> None:
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for number, step in enumerate(graph.steps):
            for path in step.writes:
                if path.is_file():
                    write_over(folder / f"{number:02}-{path.name}", path.read_bytes())
