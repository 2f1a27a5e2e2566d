"""The parser of ``nvcc --dryrun``: text in, a `Transcript` of typed steps out.

The transcript is the only source of knowledge about a compilation. Files are found by flag, never
by position, and each step's inputs by the names of earlier outputs. A line that isn't recognized is
an error with that line, never skipped.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from archsplit.errors import TranscriptError
from archsplit.nvcc.step_args import (
    command_words,
    fatbinary_images,
    mentioned_files,
    module_ids,
    option_values,
    step_kind,
    step_outputs,
    step_target,
)
from archsplit.nvcc.steps import DependencyList, NvccStep, StepKind, Transcript

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from archsplit.arch.target import Target

__pure__ = True

_PREFIX = "#$ "
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_FILTER = re.compile(r"-- Filter Dependencies --(?: > (.+?))?\s*")
_REMOVAL = re.compile(r"rm ([^;&|$`\"']+?)\s*")
"""A removal; nvcc never quotes the name."""
_EXPORTED = ("PATH", "LD_LIBRARY_PATH", "CICC_PATH", "NVVMIR_LIBRARY_DIR")


def parse_dryrun(text: str, *, folder: Path, cwd: Path) -> Transcript:
    """Parse a transcript into steps.

    Args:
        text: standard error of ``nvcc --dryrun --keep --keep-dir FOLDER …``, or of ``nvcc
            --dryrun …`` with ``TMPDIR=FOLDER``.
        folder: the private folder, absolute.
        cwd: nvcc's working folder, absolute.

    Raises:
        TranscriptError: a line has shell syntax, an unknown program or an unknown file.
    """
    variables: dict[str, str] = {}
    reader = _Reader(folder, cwd)
    diagnostics = []
    for line in text.splitlines():
        if not line.startswith(_PREFIX):
            diagnostics.append(line)
        elif assignment := _ASSIGNMENT.fullmatch(line.removeprefix(_PREFIX)):
            variables[assignment[1]] = assignment[2].strip()
        else:
            reader.read(line.removeprefix(_PREFIX), variables.get("CICC_PATH", ""))
    reader.check_removals()
    return Transcript(
        environment=_environment(variables),
        steps=tuple(reader.steps),
        images=reader.images,
        module_ids=tuple(dict.fromkeys(reader.module_ids)),
        dependencies=tuple(reader.dependencies),
        diagnostics=tuple(line for line in diagnostics if line.strip()),
    )


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    # nvcc leaves an empty last entry in LD_LIBRARY_PATH, which ld.so takes for the current folder.
    wanted = {name: variables[name].strip(":") for name in _EXPORTED if name in variables}
    return {name: value for name, value in wanted.items() if value}


class _Reader:
    """The steps so far, and the files that they write."""

    def __init__(self, folder: Path, cwd: Path) -> None:
        self.steps: list[NvccStep] = []
        self.images: dict[Target, Path] = {}
        self.module_ids: list[Path] = []
        self.dependencies: list[DependencyList] = []
        self._folder = folder
        self._cwd = cwd
        self._writers: dict[Path, NvccStep] = {}
        self._preprocessed: list[Path] = []
        self._removed: set[Path] = set()

    def read(self, line: str, cicc_folder: str) -> None:
        """Add the step, removal or depfile of one line."""
        if rule := _FILTER.fullmatch(line):
            self._read_rule(rule[1])
            return
        if removal := _REMOVAL.fullmatch(line):
            self._removed.add(self._cwd / removal[1])
            return
        try:
            self._add(command_words(line, cicc_folder), line)
        except ValueError as error:
            raise _unknown(str(error), line) from None

    def check_removals(self) -> None:
        """Refuse a transcript that removes a file which no step writes."""
        # nvcc removes an archive before it writes the archive anew.
        for path in sorted(self._removed):
            is_written = path in self._writers or self._is_private(path)
            if not is_written:
                raise _unknown(f"why {path.name} is removed", f"rm {path}")

    def _read_rule(self, name: str | None) -> None:
        path = None if name is None else self._cwd / name
        rule = DependencyList(
            sources=tuple(self._preprocessed), path=path, position=len(self.steps)
        )
        self.dependencies.append(rule)
        self._preprocessed.clear()

    def _add(self, argv: tuple[str, ...], line: str) -> None:
        kind = step_kind(argv)
        if kind is None:
            raise _unknown(f"the program {argv[0]}", line)
        written = tuple(self._cwd / name for name in step_outputs(argv, kind))
        if kind is StepKind.FATBINARY:
            self.images = fatbinary_images(argv) if "-link" not in argv else self.images
        self.module_ids += [self._cwd / name for name in module_ids(argv)]
        writes = tuple(path for path in written if path not in self._writers)
        step = NvccStep(
            kind=kind,
            argv=argv,
            reads=self._reads(argv, kind, written),
            writes=writes,
            target=step_target(argv, kind),
        )
        self._check(step, written, line)
        self._append(step, written)

    def _reads(
        self, argv: tuple[str, ...], kind: StepKind, written: tuple[Path, ...]
    ) -> tuple[Path, ...]:
        reads = [path for path in mentioned_files(argv, self._folder) if path not in written]
        # A link reads objects that an earlier step may have put anywhere.
        reads += [path for word in argv[1:] if (path := self._cwd / word) in self._writers]
        # Two programs that write one file run one after the other.
        reads += [self._writers[path].writes[-1] for path in written if path in self._writers]
        if kind in {StepKind.HOST_COMPILE, StepKind.PREPROCESS}:
            reads += self._included_files(reads)
        return tuple(path for path in dict.fromkeys(reads) if path not in written)

    def _included_files(self, reads: list[Path]) -> list[Path]:
        # cudafe++ writes a file that includes the stub by its bare name. The stub includes the
        # embedded fatbin, by a bare name that is an argument of the cicc that writes the stub.
        included = []
        for path in reads:
            if path in self._writers and self._writers[path].kind is StepKind.CUDAFE:
                stub = self._option_file(self._writers[path], "--stub_file_name")
                fatbin = self._option_file(self._writers[stub], "--include_file_name")
                included += [stub, fatbin]
        return included

    def _option_file(self, step: NvccStep, flag: str) -> Path:
        paths = [self._folder / name for name in option_values(step.argv, (flag,))]
        if len(paths) != 1 or paths[0] not in self._writers:
            raise ValueError(f"the file that {flag} names")
        return paths[0]

    def _check(self, step: NvccStep, written: tuple[Path, ...], line: str) -> None:
        for path in step.reads:
            if path not in self._writers:
                raise _unknown(f"the file {path.name}, which no step before it writes", line)
        # Several nvlinks write one registration file; two writers are an error otherwise.
        if len(step.writes) != len(written) and step.kind is not StepKind.NVLINK:
            again = next(path for path in written if path in self._writers)
            raise _unknown(f"that it writes {again.name}, as a step before it does", line)
        # ptxas may only check, and a preprocessor may print.
        if not written and step.kind not in {StepKind.PTXAS, StepKind.PREPROCESS}:
            raise _unknown("what it writes", line)

    def _append(self, step: NvccStep, written: tuple[Path, ...]) -> None:
        self.steps.append(step)
        self._writers |= dict.fromkeys(written, step)
        if step.kind is StepKind.PREPROCESS and not step.reads:
            self._preprocessed += step.writes

    def _is_private(self, path: Path) -> bool:
        return path.is_relative_to(self._folder)


def _unknown(what: str, line: str) -> TranscriptError:
    return TranscriptError(
        f"nvcc --dryrun printed a step of which archsplit doesn't understand {what}:\n  {line}",
        hint="take the flag that causes it out of the recipe, and report this line",
    )
