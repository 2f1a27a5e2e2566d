"""Comparison with nvcc (``--verify``): run nvcc as well, and compare the outputs of both.

Intermediate files and outputs are compared byte by byte; of ELF files the sections that get into a
program, because the others name temporary files.
"""

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

    from archsplit.compiler.wrapper_graph import Compilation

_INTERMEDIATE = {".ptx", ".cubin", ".fatbin", ".ltoir", ".o"}
_ALLOCATED = 2
"""SHF_ALLOC: the section is part of the program, not of its description."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvccReference:
    """Outputs of nvcc itself.

    Attributes:
        kept: the folder with nvcc's intermediate files.
        outputs: copies of the files that nvcc wrote, by their paths.
        names: nvcc's names of translation units, by the files that hold the names here.
    """

    kept: Path
    outputs: Mapping[Path, Path]
    names: Mapping[Path, str]


def run_nvcc(compilation: Compilation) -> NvccReference:
    """Run nvcc before the steps, which take over its names of translation units.

    Raises:
        FallBackToNvccError: nvcc fails, so that there is nothing to compare with.
    """
    dryrun, invocation = compilation.dryrun, compilation.invocation
    kept = compilation.folder / "theirs"
    kept.mkdir()
    # Sources of one name would overwrite each other's kept files.
    keeping = () if dryrun.numbered else ("--keep", "--keep-dir", str(kept))
    argv = (str(invocation.nvcc), *keeping, *dryrun.arguments.query)
    command = Command(argv=argv, cwd=invocation.cwd, env=invocation.environment)
    if compilation.context.runner.run(command).returncode != 0:
        raise FallBackToNvccError("it fails, so there is nothing to verify")
    module_ids = (path for path in dryrun.transcript.module_ids if path in compilation.texts)
    files = {path: kept / path.name for path in module_ids}
    return NvccReference(
        kept=kept,
        outputs=_set_aside(compilation, kept),
        names={ours: theirs.read_text() for ours, theirs in files.items() if theirs.is_file()},
    )


def _set_aside(compilation: Compilation, kept: Path) -> dict[Path, Path]:
    """Copy the outputs of nvcc, which the steps write again."""
    copies = {}
    written = (path for step in compilation.graph.steps for path in step.writes)
    outputs = (compilation.staged.get(path, path) for path in written)
    for number, path in enumerate(outputs):
        if not path.is_relative_to(compilation.folder) and path.is_file():
            copies[path] = kept / f"output-{number}"
            shutil.copy2(path, copies[path])
    return copies


def compare_outputs(reference: NvccReference, compilation: Compilation) -> None:
    """Compare PTX, cubins, containers, objects and outputs with those of nvcc.

    Raises:
        VerifyError: lists the files that are different.
    """
    # An archive is still in the private folder when it is compared.
    staged = {final: private for private, final in compilation.staged.items()}
    pairs = [(staged.get(path, path), theirs) for path, theirs in reference.outputs.items()]
    pairs += [
        (path, reference.kept / path.name)
        for step in compilation.dryrun.transcript.steps
        for path in step.writes
        if path.suffix in _INTERMEDIATE
    ]
    # Not each run of nvcc leaves each file.
    both = [(ours, theirs) for ours, theirs in pairs if ours.is_file() and theirs.is_file()]
    faults = sorted({str(ours) for ours, theirs in both if _differ(ours, theirs)})
    if faults:
        raise VerifyError(
            "nvcc makes something else of\n  " + "\n  ".join(faults),
            hint="compile without archsplit, and report this command line",
        )


def _differ(ours: Path, theirs: Path) -> bool:
    content, expected = ours.read_bytes(), theirs.read_bytes()
    return content != expected and list(_parts(content, "")) != list(_parts(expected, ""))


def _parts(content: bytes, name: str) -> Iterator[tuple[str, bytes]]:
    """Yield the sections of a file that get into a program; without sections, the whole file."""
    window = Window(content, source=name)
    # Members have times and owners, which get into no program.
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
