"""Run nvcc as well, and compare what it makes with what its steps made here."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.compiler.invocation import FallBackToNvccError
from archsplit.errors import VerifyError
from archsplit.formats.ar import AR_MAGIC, read_members
from archsplit.formats.elf import ELF_MAGIC, Elf
from archsplit.formats.reader import Window
from archsplit.system.process import Command

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from archsplit.compiler.dryrun_query import DryRunResult
    from archsplit.compiler.invocation import Invocation
    from archsplit.compiler.wrapper_graph import WrapperGraph
    from archsplit.system.process import Runner

_INTERMEDIATE = {".ptx", ".cubin", ".fatbin", ".ltoir", ".o"}
_ALLOCATED = 2
"""SHF_ALLOC: the section is part of the program, not of what is said about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvccReference:
    """What nvcc itself made of a command line.

    Attributes:
        kept: the folder with its intermediate files.
        outputs: for each file that it made, the copy that was set aside.
        names: what it calls each translation unit, by the file that says so here.
    """

    kept: Path
    outputs: Mapping[Path, Path]
    names: Mapping[Path, str]


def run_nvcc(
    order: Invocation, answer: DryRunResult, todo: WrapperGraph, folder: Path, runner: Runner
) -> NvccReference:
    """Run nvcc as well, before its steps are run here: they take over its names of units.

    Raises:
        LeftToNvccError: nvcc fails, so that there is nothing to compare with.
    """
    kept = folder / "theirs"
    kept.mkdir()
    keeping = () if answer.numbered else ("--keep", "--keep-dir", str(kept))
    argv = (str(order.nvcc), *keeping, *answer.arguments.query)
    if runner.run(Command(argv=argv, cwd=order.cwd, env=order.environment)).returncode != 0:
        raise FallBackToNvccError("it fails, so there is nothing to verify")
    named = {path: kept / path.name for path in answer.transcript.module_ids if path in todo.texts}
    return NvccReference(
        kept=kept,
        outputs=_set_aside(todo, folder, kept),
        names={ours: theirs.read_text() for ours, theirs in named.items() if theirs.is_file()},
    )


def _set_aside(todo: WrapperGraph, folder: Path, kept: Path) -> dict[Path, Path]:
    aside = {}
    made = (todo.staged.get(path, path) for step in todo.graph.steps for path in step.writes)
    for number, path in enumerate(made):
        if not path.is_relative_to(folder) and path.is_file():
            aside[path] = kept / f"output-{number}"
            shutil.copy2(path, aside[path])
    return aside


def compare_outputs(reference: NvccReference, answer: DryRunResult, todo: WrapperGraph) -> None:
    """Compare PTX, cubins, containers, objects and what came out with what nvcc made.

    Raises:
        VerifyError: lists the files that are different.
    """
    made = {final: private for private, final in todo.staged.items()}
    pairs = [(made.get(path, path), theirs) for path, theirs in reference.outputs.items()]
    pairs += [
        (path, reference.kept / path.name)
        for step in answer.transcript.steps
        for path in step.writes
        if path.suffix in _INTERMEDIATE
    ]
    both = [(ours, theirs) for ours, theirs in pairs if ours.is_file() and theirs.is_file()]
    faults = sorted({str(ours) for ours, theirs in both if _differ(ours, theirs)})
    if faults:
        raise VerifyError(
            "nvcc makes something else of\n  " + "\n  ".join(faults),
            hint="compile without archsplit, and report this command line",
        )


def _differ(ours: Path, theirs: Path) -> bool:
    one, other = ours.read_bytes(), theirs.read_bytes()
    return one != other and list(_parts(one, "")) != list(_parts(other, ""))


def _parts(content: bytes, name: str) -> Iterator[tuple[str, bytes]]:
    """What matters of a file: sections that get into a program; all of it where it has none."""
    window = Window(content, source=name)
    if content.startswith(AR_MAGIC):
        for member in read_members(window):
            yield from _parts(member.content.to_bytes(), member.name)
    elif content.startswith(ELF_MAGIC):
        elf = Elf(window)
        for section in elf.sections():
            if section.flags & _ALLOCATED:
                yield section.name, elf.content(section).to_bytes()
    else:
        yield name, content
