"""Read ``nvcc --dryrun --keep`` as typed steps; what isn't understood is an error that shows it.

The transcript is the only source of how nvcc compiles. Files are found by flag, never by position,
and each step's inputs by the names that earlier steps wrote.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from splitter.arch.target import CodeKind, Target
from splitter.errors import TranscriptError
from splitter.nvcc.shell import shell_words
from splitter.nvcc.steps import NvccStep, StepKind, Transcript

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PREFIX = "#$ "
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_IMAGE = re.compile(r"--image3=kind=(elf|ptx),sm=(\d+[af]?),file=(.+)", re.DOTALL)


def parse(text: str, *, folder: Path, host_compiler: str) -> Transcript:
    """Turn a transcript into steps.

    Args:
        text: standard error of ``nvcc --dryrun --keep --keep-dir FOLDER -c … -o FOLDER/…``.
        folder: the private folder, absolute.
        host_compiler: the base name of the program that ``-ccbin`` names.

    Raises:
        TranscriptError: a line has shell syntax, an unknown program or an unknown file.
    """
    variables: dict[str, str] = {}
    reader = _Reader(folder, host_compiler)
    diagnostics = []
    for line in text.splitlines():
        if not line.startswith(_PREFIX):
            diagnostics.append(line)
        elif assignment := _ASSIGNMENT.fullmatch(line.removeprefix(_PREFIX)):
            variables[assignment[1]] = assignment[2].strip()
        else:
            reader.read(line.removeprefix(_PREFIX), variables)
    return Transcript(
        environment=_environment(variables),
        steps=tuple(reader.steps),
        images=reader.images,
        module_id=reader.module_id,
        diagnostics=tuple(line for line in diagnostics if line.strip()),
    )


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    # nvcc leaves an empty last entry in LD_LIBRARY_PATH, which ld.so takes for the current folder.
    wanted = {
        name: variables[name].strip(":")
        for name in ("PATH", "LD_LIBRARY_PATH")
        if name in variables
    }
    return {name: value for name, value in wanted.items() if value}


class _Reader:
    """Collects steps; remembers which files earlier steps wrote."""

    def __init__(self, folder: Path, host_compiler: str) -> None:
        self.steps: list[NvccStep] = []
        self.images: dict[Target, Path] = {}
        self.module_id: Path | None = None
        self._folder = folder
        self._host_compiler = host_compiler
        self._included: list[Path] = []

    def read(self, line: str, variables: Mapping[str, str]) -> None:
        """Add the step that ``line`` describes."""
        argv = _argv(line, variables)
        kind = self._kind(argv, line)
        writes = tuple(self._folder / value for value in _values(argv, _WRITES[kind]))
        if kind is StepKind.FATBINARY:
            self._read_images(argv, line)
        if kind in {StepKind.CUDAFE, StepKind.CICC}:
            self._read_shared_names(argv, kind)
        reads = [path for path in self._mentioned(argv) if path not in writes]
        if kind is StepKind.HOST_COMPILE and self.module_id is not None:
            reads += self._included
        step = NvccStep(
            kind=kind, argv=argv, reads=tuple(reads), writes=writes, target=_target(argv, kind)
        )
        self._check(step, line)
        self.steps.append(step)

    def _kind(self, argv: tuple[str, ...], line: str) -> StepKind:
        program = Path(argv[0]).name
        if program == self._host_compiler:
            return StepKind.PREPROCESS if "-E" in argv else StepKind.HOST_COMPILE
        if program in _TOOLS:
            return _TOOLS[program]
        raise _unknown(f"the program {program}", line)

    def _mentioned(self, argv: tuple[str, ...]) -> Iterator[Path]:
        inside = f"{self._folder}/"
        for argument in argv[1:]:
            at = argument.find(inside)
            if at >= 0 and (at == 0 or argument[at - 1] == "="):
                yield Path(argument[at:])

    def _read_images(self, argv: tuple[str, ...], line: str) -> None:
        for argument in argv:
            if not argument.startswith("--image"):
                continue
            image = _IMAGE.fullmatch(argument)
            if image is None:
                raise _unknown(f"the image {argument}", line)
            prefix = CodeKind.SASS.value if image[1] == "elf" else CodeKind.PTX.value
            self.images[Target.parse(f"{prefix}_{image[2]}")] = Path(image[3])

    def _read_shared_names(self, argv: tuple[str, ...], kind: StepKind) -> None:
        # cudafe++ writes a file that includes the stub by its bare name, and the stub includes the
        # embedded fatbin, whose bare name cicc is told.
        for value in _values(argv, ("--module_id_file_name",)):
            self.module_id = self._folder / value
        flag = "--stub_file_name" if kind is StepKind.CUDAFE else "--include_file_name"
        for value in _values(argv, (flag,)):
            path = self._folder / value
            if path not in self._included:
                self._included.append(path)

    def _check(self, step: NvccStep, line: str) -> None:
        known = {path for earlier in self.steps for path in earlier.writes}
        known |= {path for path in self._included if step.kind is StepKind.HOST_COMPILE}
        if self.module_id is not None:
            known.add(self.module_id)
        for path in step.reads:
            if path not in known:
                raise _unknown(f"the file {path.name}, which no step before it writes", line)
        if not step.writes and step.kind is not StepKind.PTXAS:
            raise _unknown("what it writes", line)


_TOOLS = {
    kind.value: kind
    for kind in (StepKind.CUDAFE, StepKind.CICC, StepKind.PTXAS, StepKind.FATBINARY)
}
_WRITES: Mapping[StepKind, tuple[str, ...]] = {
    StepKind.PREPROCESS: ("-o",),
    StepKind.CUDAFE: ("--gen_c_file_name",),
    StepKind.CICC: ("-o", "--stub_file_name", "--gen_c_file_name", "--gen_device_file_name"),
    StepKind.PTXAS: ("-o",),
    StepKind.FATBINARY: ("--create", "--embedded-fatbin"),
    StepKind.HOST_COMPILE: ("-o",),
}


def _argv(line: str, variables: Mapping[str, str]) -> tuple[str, ...]:
    text = line.replace("$CICC_PATH", variables.get("CICC_PATH", "$CICC_PATH"))
    try:
        return shell_words(text)
    except ValueError as error:
        raise _unknown(str(error), line) from None


def _values(argv: tuple[str, ...], flags: tuple[str, ...]) -> Iterator[str]:
    for position, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        if name in flags and equals:
            yield value
        elif argument in flags and position + 1 < len(argv):
            yield argv[position + 1]


def _target(argv: tuple[str, ...], kind: StepKind) -> Target | None:
    if kind not in {StepKind.CICC, StepKind.PTXAS}:
        return None
    return next((Target.parse(value) for value in _values(argv, ("-arch",))), None)


def _unknown(what: str, line: str) -> TranscriptError:
    return TranscriptError(
        f"nvcc --dryrun printed a step of which archsplit doesn't understand {what}:\n  {line}",
        hint="take the flag that causes it out of the recipe, and report this line",
    )
