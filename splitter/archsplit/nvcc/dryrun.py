"""The parser of ``nvcc --dryrun``: text in, a `Transcript` of typed steps out; pure.

The transcript is the only source of knowledge about a compilation. Files are found by flag, never
by position, and each step's inputs by the names of earlier outputs. A line that isn't recognized is
an error with that line, never skipped. A line may have quotes, and names of variables in double
quotes; any other shell syntax is refused, because no shell runs the steps.
"""

from __future__ import annotations

import enum
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from archsplit.errors import TranscriptError
from archsplit.system.patterns import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__pure__ = True

_MEBIBYTE = 1 << 20


class StepKind(enum.Enum):
    """Kinds of steps; the values are the words in messages and tables."""

    PREPROCESS = "preprocess"
    CUDAFE = "cudafe++"
    CICC = "cicc"
    PTXAS = "ptxas"
    TILEIRAS = "tileiras"
    FATBINARY = "fatbinary"
    HOST_COMPILE = "host compile"
    HOST_ASSEMBLY = "host compile to assembly"
    ASSEMBLE = "assemble"
    EXCHANGE = "objcopy"
    NVLINK = "nvlink"
    HOST_LINK = "host link"
    ARCHIVE = "ar"


WEIGHTS: Mapping[StepKind, float] = {
    StepKind.PREPROCESS: 1.0,
    StepKind.CUDAFE: 1.5,
    StepKind.CICC: 6.0,
    StepKind.PTXAS: 0.9,
    StepKind.TILEIRAS: 0.9,
    StepKind.FATBINARY: 0.1,
    StepKind.HOST_COMPILE: 4.0,
    StepKind.HOST_ASSEMBLY: 3.8,
    StepKind.ASSEMBLE: 0.2,
    StepKind.EXCHANGE: 0.1,
    StepKind.NVLINK: 0.5,
    StepKind.HOST_LINK: 0.5,
    StepKind.ARCHIVE: 0.1,
}
"""Seconds by kind, measured on a thrust sort; only their ratio matters."""

SECONDS_PER_BYTE: Mapping[StepKind, float] = {StepKind.PTXAS: 1.5e-6}
"""Seconds for each byte of input, if they are a better guess than `WEIGHTS`.

Measured: 0.9e-6 to 1.9e-6 for PTX of 0.14 to 1.4 MB, of products of matrices, sorts and plain maps.
"""

FIRST_MEMORY: Mapping[StepKind, tuple[int, float]] = {
    StepKind.PREPROCESS: (100 * _MEBIBYTE, 0),
    StepKind.CUDAFE: (100 * _MEBIBYTE, 75),
    StepKind.CICC: (100 * _MEBIBYTE, 95),
    StepKind.PTXAS: (60 * _MEBIBYTE, 32),
    StepKind.TILEIRAS: (150 * _MEBIBYTE, 32),
    StepKind.FATBINARY: (50 * _MEBIBYTE, 1),
    StepKind.HOST_COMPILE: (60 * _MEBIBYTE, 60),
    StepKind.HOST_ASSEMBLY: (60 * _MEBIBYTE, 60),
    StepKind.ASSEMBLE: (50 * _MEBIBYTE, 10),
    StepKind.EXCHANGE: (50 * _MEBIBYTE, 2),
    StepKind.NVLINK: (100 * _MEBIBYTE, 10),
    StepKind.HOST_LINK: (100 * _MEBIBYTE, 5),
    StepKind.ARCHIVE: (50 * _MEBIBYTE, 1),
}
"""Memory estimate by kind, before the first measurement: bytes, and bytes per byte read.

Measured on sorts, products of matrices and big tables, with errors of up to a fifth.
"""


class NvccStep(NamedTuple):
    """A command of a compilation.

    Attributes:
        kind: the kind of step.
        argv: program and arguments, as nvcc would start them.
        reads: inputs that other steps write.
        writes: outputs; none for a check, and for a step that prints.
        target: the name of the step's target; "" for host steps and steps for several targets.
    """

    kind: StepKind
    argv: tuple[str, ...]
    reads: tuple[Path, ...]
    writes: tuple[Path, ...]
    target: str = ""


class DepfileOutput(NamedTuple):
    """A depfile that nvcc itself would write.

    Attributes:
        sources: the preprocessed texts whose line markers have the files.
        path: the file to write, or None for standard output.
        position: number of steps before the depfile in nvcc's order.
    """

    sources: tuple[Path, ...]
    path: Path | None
    position: int


class Transcript(NamedTuple):
    """The parsed output of a dry run.

    Attributes:
        environment: variables that nvcc sets for its tools.
        steps: in nvcc's order.
        images: the files with code by the target's name; of the last source if there are several.
        module_id_files: one for each source with CUDA.
        depfiles: in nvcc's order.
        diagnostics: other lines, to pass on to the user.
    """

    environment: Mapping[str, str]
    steps: tuple[NvccStep, ...]
    images: Mapping[str, Path]
    module_id_files: tuple[Path, ...]
    depfiles: tuple[DepfileOutput, ...]
    diagnostics: tuple[str, ...]

    @property
    def module_id_file(self) -> Path | None:
        """Return the file of the first module id, or None for a source without CUDA."""
        return self.module_id_files[0] if self.module_id_files else None

    @property
    def host_step(self) -> NvccStep:
        """Return the step in which the host compiler reads the source.

        Without CUDA that is the compile itself, else the preprocessing before cudafe++.
        """
        # Without CUDA, cudafe++ and the text before it are missing.
        if not self.module_id_files:
            return next(step for step in self.steps if step.kind is StepKind.HOST_COMPILE)
        parsed = next(step for step in self.steps if step.kind is StepKind.CUDAFE)
        return next(step for step in self.steps if set(step.writes) & set(parsed.reads))


_HOST_COMPILER = lazy_pattern(r"(?:.*-)?(?:gcc|g\+\+|clang|clang\+\+|c\+\+|cc)(?:-[\d.]+)?")
_PIECE = lazy_pattern(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*"|[^\\'"]+|.""", re.DOTALL)
_SYNTAX = lazy_pattern(r"[`$|;&<>]")
_EXPANSION = lazy_pattern(r"[`$]")
_SHELL_VARIABLE = lazy_pattern(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})", re.ASCII)
_WORD = lazy_pattern(r'(?:[^ \t\r\n"]|"[^"]*")+')
_IN_QUOTES = lazy_pattern(rf'\\([\\"$`])|{_SHELL_VARIABLE.pattern}', re.ASCII)
_QUOTED = lazy_pattern(r'["\\]')
_UNUSABLE = lazy_pattern(r"""[,"$`\\\x00-\x1f\x7f]""")
_IMAGE = lazy_pattern(r"--image3=kind=(elf|ptx|nvvm|tileir),sm=(\d+[af]?),file=(.+)", re.DOTALL)
_IMAGE_KINDS = {"elf": "sm", "ptx": "compute"}
_TARGET = lazy_pattern(r"(?:sm|compute)_")
_REDIRECTION = lazy_pattern(r" > (\S+)_stdout 2>\1_stderr\s*$")
_ARCHIVER = lazy_pattern(r'^"`(\S+) -print-prog-name=ar`" ')
_TOOLS = {
    kind.value: kind
    for kind in (
        StepKind.CUDAFE,
        StepKind.CICC,
        StepKind.PTXAS,
        StepKind.TILEIRAS,
        StepKind.FATBINARY,
        StepKind.NVLINK,
    )
}
_ARCHIVING = "cr"
_HOST_MARK = "-D__CUDA_ARCH"
_WRITES: Mapping[StepKind, tuple[str, ...]] = {
    StepKind.PREPROCESS: ("-o",),
    StepKind.CUDAFE: ("--gen_c_file_name",),
    StepKind.CICC: (
        "-o",
        "-olto",
        "--stub_file_name",
        "--gen_c_file_name",
        "--gen_device_file_name",
        "--tile_bc_file_name",
    ),
    StepKind.PTXAS: ("-o",),
    StepKind.TILEIRAS: ("-o",),
    StepKind.FATBINARY: ("--create", "--embedded-fatbin"),
    StepKind.HOST_COMPILE: ("-o",),
    StepKind.NVLINK: ("-o", "--register-link-binaries"),
    StepKind.HOST_LINK: ("-o",),
}
_EMBEDDED_NAMES = ("--include_file_name", "--include_alt_file_name")
OUTPUT_FLAGS = frozenset(flag for flags in _WRITES.values() for flag in flags)
"""Flags whose value is an output."""
ID_FLAG = "--gen_module_id_file"
"""The flag by which cudafe++ or cicc generates a module id and writes its file."""


def command_words(
    line: str, cicc_folder: str, environment: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Return the words of a transcript's line, as a shell would split them.

    Args:
        line: without its ``#$``.
        cicc_folder: the value of ``$CICC_PATH``.
        environment: see `shell_words`.

    Raises:
        ValueError: as for `shell_words`.
    """
    text = _REDIRECTION.sub("", line).replace("$CICC_PATH", cicc_folder)
    archiver = _ARCHIVER.match(text)
    if archiver is None:
        return shell_words(text, environment)
    # The line queries the compiler for its archiver; the step keeps the compiler as its program.
    return (archiver[1], *shell_words(text[archiver.end() :], environment))


def shell_words(line: str, environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Split a line as a shell would.

    Args:
        line: a command.
        environment: of the shell; None to refuse variables.

    Raises:
        ValueError: the line has shell syntax besides quotes and names of variables in double
            quotes, or a quote without its end.
    """
    text = ""
    for piece in _PIECE.findall(line):
        is_quoted = piece[0] == '"'
        plain = _IN_QUOTES.sub(_refused if environment is None else "", piece)
        if character := _active_character(plain if is_quoted else piece):
            raise ValueError(f"the shell syntax {character!r}")
        text += _expand(piece, environment or {}) if is_quoted else piece
    # `shlex` takes ten times as long, and nearly no line has other quotes.
    if "\\" not in text and "'" not in text and text.count('"') % 2 == 0:
        return tuple(word.replace('"', "") for word in _WORD.findall(text))
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"its quotes ({error})") from None


def unusable_character(path: str) -> str | None:
    """Return the first character of a path that nvcc can't handle, or None."""
    # nvcc splits a path at commas, and doesn't quote the others for the shell.
    match = _UNUSABLE.search(path)
    return None if match is None else match[0]


def shell_variables(words: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the variables that a shell would replace in some words, sorted."""
    found = (match for word in words for match in _SHELL_VARIABLE.findall(word))
    return tuple(sorted({plain or braced for plain, braced in found}))


def _refused(found: re.Match[str]) -> str:
    return "" if found[1] else "$"


def _expand(quoted: str, environment: Mapping[str, str]) -> str:
    """Replace variables in a text in double quotes; a missing one is empty."""

    def replacement(found: re.Match[str]) -> str:
        if found[1]:
            # `shlex` takes a backslash before any other character for itself.
            return found[0] if _QUOTED.match(found[1]) else found[1]
        return _QUOTED.sub(r"\\\g<0>", environment.get(found[2] or found[3], ""))

    return _IN_QUOTES.sub(replacement, quoted)


def _active_character(piece: str) -> str | None:
    """Return the first character with a meaning for the shell, or None."""
    if piece[0] in "\\'" and len(piece) > 1:
        return None
    # Double quotes don't protect from expansions.
    match = (_EXPANSION if piece[0] == '"' else _SYNTAX).search(piece)
    return None if match is None else match[0]


def step_kind(argv: tuple[str, ...]) -> StepKind | None:
    """Return the kind of a command, or None for an unknown program."""
    program = Path(argv[0]).name
    if program in _TOOLS:
        return _TOOLS[program]
    if _ARCHIVING in argv:
        return StepKind.ARCHIVE
    # The host compiler has any name; nvcc defines its macros for no other program.
    if not any(word.startswith(_HOST_MARK) for word in argv[1:]):
        return None
    if "-E" in argv:
        return StepKind.PREPROCESS
    return StepKind.HOST_COMPILE if "-c" in argv else StepKind.HOST_LINK


def step_outputs(argv: tuple[str, ...], kind: StepKind) -> tuple[str, ...]:
    """Return the outputs in a command's flags, as spelled."""
    if kind is StepKind.ARCHIVE:
        behind = argv[argv.index(_ARCHIVING) + 1 :]
        return tuple(word for word in behind if not word.startswith("-"))[:1]
    flags = _WRITES[kind]
    return (*option_values(argv, flags), *(module_id_files(argv) if ID_FLAG in argv else ()))


def module_id_files(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the file, one or none, of the module id."""
    return tuple(option_values(argv, ("--module_id_file_name",)))


def fatbinary_images(argv: tuple[str, ...]) -> dict[str, Path]:
    """Return the image files of a ``fatbinary`` command by the target's name.

    Raises:
        ValueError: an image has an unknown kind.
    """
    images = {}
    for argument in argv:
        if not argument.startswith("--image"):
            continue
        image = _IMAGE.fullmatch(argument)
        if image is None:
            raise ValueError(f"the image {argument}")
        if image[1] in _IMAGE_KINDS:
            images[f"{_IMAGE_KINDS[image[1]]}_{image[2]}"] = Path(image[3])
    return images


def step_target(argv: tuple[str, ...], kind: StepKind) -> str:
    """Return the name of the target in a command's flags, or ""."""
    if kind not in {StepKind.CICC, StepKind.PTXAS, StepKind.TILEIRAS, StepKind.NVLINK}:
        return ""
    named = (value for value in option_values(argv, ("-arch", "--arch")) if _TARGET.match(value))
    return next(named, "")


def option_values(argv: tuple[str, ...], flags: tuple[str, ...]) -> Iterator[str]:
    """Yield the values of ``flags``: the next word, or the text behind an equals sign."""
    for position, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        if name in flags and equals:
            yield value
        elif argument in flags and position + 1 < len(argv):
            yield argv[position + 1]


def is_host_compiler(program: str) -> bool:
    """Return True if a program is a host compiler."""
    return _HOST_COMPILER.fullmatch(Path(program).name) is not None


def mentioned_files(argv: tuple[str, ...], folder: Path) -> Iterator[Path]:
    """Yield all files of ``folder`` in the arguments, also within flags and macros."""
    inside = f"{folder}/"
    for argument in argv[1:]:
        at = argument.find(inside)
        if at >= 0 and (at == 0 or argument[at - 1] in '="'):
            yield Path(argument[at:].rstrip('"'))


_PREFIX = "#$ "
_ASSIGNMENT = lazy_pattern(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_FILTER = lazy_pattern(r"-- Filter Dependencies --(?: > (.+?))?\s*")
_REMOVAL = lazy_pattern(r"rm ([^;&|$`\"']+?)\s*")
"""A removal; nvcc never quotes the name."""
_EXPORTED = ("PATH", "LD_LIBRARY_PATH", "CICC_PATH", "NVVMIR_LIBRARY_DIR")


def parse_dryrun(
    text: str, *, folder: Path, cwd: Path, environment: Mapping[str, str] | None = None
) -> Transcript:
    """Parse a transcript into steps.

    Args:
        text: standard error of ``nvcc --dryrun --keep --keep-dir FOLDER …``, or of ``nvcc
            --dryrun …`` with ``TMPDIR=FOLDER``.
        folder: the private folder, absolute.
        cwd: nvcc's working folder, absolute.
        environment: of nvcc, for variables in paths; None to refuse variables.

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
            # nvcc's shell has the variables that nvcc sets, too.
            shell = None if environment is None else {**environment, **variables}
            reader.read(line.removeprefix(_PREFIX), variables.get("CICC_PATH", ""), shell)
    reader.check_removals()
    return Transcript(
        environment=_environment(variables),
        steps=tuple(reader.steps),
        images=reader.images,
        module_id_files=tuple(dict.fromkeys(reader.module_id_files)),
        depfiles=tuple(reader.depfiles),
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
        self.images: dict[str, Path] = {}
        self.module_id_files: list[Path] = []
        self.depfiles: list[DepfileOutput] = []
        self._folder = folder
        self._cwd = cwd
        self._writers: dict[Path, NvccStep] = {}
        self._preprocessed: list[Path] = []
        self._removed: set[Path] = set()

    def read(self, line: str, cicc_folder: str, environment: Mapping[str, str] | None) -> None:
        """Add the step, removal or depfile of one line."""
        if rule := _FILTER.fullmatch(line):
            self._read_depfile(rule[1])
            return
        if removal := _REMOVAL.fullmatch(line):
            self._removed.add(self._cwd / removal[1])
            return
        try:
            self._add(command_words(line, cicc_folder, environment), line)
        except ValueError as error:
            raise _unknown(str(error), line) from None

    def check_removals(self) -> None:
        """Refuse a transcript that removes a file which no step writes."""
        # nvcc removes an archive before it writes a new one.
        for path in sorted(self._removed):
            is_written = path in self._writers or path.is_relative_to(self._folder)
            if not is_written:
                raise _unknown(f"why {path.name} is removed", f"rm {path}")

    def _read_depfile(self, name: str | None) -> None:
        path = None if name is None else self._cwd / name
        rule = DepfileOutput(sources=tuple(self._preprocessed), path=path, position=len(self.steps))
        self.depfiles.append(rule)
        self._preprocessed.clear()

    def _add(self, argv: tuple[str, ...], line: str) -> None:
        kind = step_kind(argv)
        if kind is None:
            raise _unknown(f"the program {argv[0]}", line)
        written = tuple(self._cwd / name for name in step_outputs(argv, kind))
        if kind is StepKind.FATBINARY:
            self.images = fatbinary_images(argv) if "-link" not in argv else self.images
        self.module_id_files += [self._cwd / name for name in module_id_files(argv)]
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
        # embedded fatbins (of kernels, and of Tile kernels), by bare names that are arguments of
        # the cicc that writes the stub.
        included = []
        for path in reads:
            if path in self._writers and self._writers[path].kind is StepKind.CUDAFE:
                (stub,) = self._option_files(self._writers[path], "--stub_file_name")
                included += [stub, *self._option_files(self._writers[stub], *_EMBEDDED_NAMES)]
        return included

    def _option_files(self, step: NvccStep, *flags: str) -> list[Path]:
        """Return the files that some flags name, each at most once."""
        paths = [self._folder / name for name in option_values(step.argv, flags)]
        if not 1 <= len(paths) <= len(flags) or any(path not in self._writers for path in paths):
            raise ValueError(f"the file that {flags[0]} names")
        return paths

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


def _unknown(what: str, line: str) -> TranscriptError:
    return TranscriptError(
        f"nvcc --dryrun printed a step that archsplit can't read: {what}:\n  {line}",
        hint="take the flag that causes it out of the recipe, and report this line",
    )
