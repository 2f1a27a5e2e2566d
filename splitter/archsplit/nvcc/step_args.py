"""The POSIX shell lines that nvcc prints, as far as they are plain words and quotes.

What one command of nvcc's transcript is: its kind, and the files that its flags name.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.arch.target import CodeKind, Target
from archsplit.nvcc.steps import StepKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__pure__ = True

_PIECE = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*"|[^\\'"]+|.""", re.DOTALL)
_SYNTAX = re.compile(r"[`$|;&<>]")
_EXPANSION = re.compile(r"[`$]")
_UNUSABLE = re.compile(r"""[,"$`\\\x00-\x1f\x7f]""")


def shell_words(line: str) -> tuple[str, ...]:
    """Split a line as a shell would.

    Raises:
        ValueError: it has syntax that a shell would act on, or a quote without its end.
    """
    for piece in _PIECE.findall(line):
        if found := _active(piece):
            raise ValueError(f"the shell syntax {found!r}")
    try:
        return tuple(shlex.split(line))
    except ValueError as error:
        raise ValueError(f"its quotes ({error})") from None


def unusable_character(path: str) -> str | None:
    """The first character of a path that nvcc can't have: it splits there, or doesn't quote it."""
    found = _UNUSABLE.search(path)
    return None if found is None else found[0]


def _active(piece: str) -> str | None:
    """The first character that means something: quotes take it away, but "" not from all."""
    if piece[0] in "\\'" and len(piece) > 1:
        return None
    found = (_EXPANSION if piece[0] == '"' else _SYNTAX).search(piece)
    return None if found is None else found[0]


_IMAGE = re.compile(r"--image3=kind=(elf|ptx|nvvm),sm=(\d+[af]?),file=(.+)", re.DOTALL)
_IMAGE_KINDS = {"elf": CodeKind.SASS, "ptx": CodeKind.PTX}
_TARGET = re.compile(r"(?:sm|compute)_")
_REDIRECTION = re.compile(r" > (\S+)_stdout 2>\1_stderr\s*$")
_ARCHIVER = re.compile(r'^"`(\S+) -print-prog-name=ar`" ')
_TOOLS = {
    kind.value: kind
    for kind in (
        StepKind.CUDAFE,
        StepKind.CICC,
        StepKind.PTXAS,
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
    ),
    StepKind.PTXAS: ("-o",),
    StepKind.FATBINARY: ("--create", "--embedded-fatbin"),
    StepKind.HOST_COMPILE: ("-o",),
    StepKind.NVLINK: ("-o", "--register-link-binaries"),
    StepKind.HOST_LINK: ("-o",),
}
OUTPUT_FLAGS = frozenset(flag for flags in _WRITES.values() for flag in flags)
"""Flags that name what a program writes."""
ID_FLAG = "--gen_module_id_file"
"""Tells cudafe++ or cicc to make up the name of the translation unit and write it."""


def command_words(line: str, cicc_folder: str) -> tuple[str, ...]:
    """The words of a transcript's line, as the shell would pass them to the program.

    Args:
        line: without its ``#$``.
        cicc_folder: what ``$CICC_PATH`` stands for.

    Raises:
        ValueError: it has syntax that a shell would act on, or a quote without its end.
    """
    text = _REDIRECTION.sub("", line).replace("$CICC_PATH", cicc_folder)
    archiver = _ARCHIVER.match(text)
    if archiver is None:
        return shell_words(text)
    # The compiler is asked for its archiver; the step keeps the compiler as its program.
    return (archiver[1], *shell_words(text[archiver.end() :]))


def step_kind(argv: tuple[str, ...]) -> StepKind | None:
    """What the command does, or None for a program that nvcc isn't known to run."""
    program = Path(argv[0]).name
    if program in _TOOLS:
        return _TOOLS[program]
    if _ARCHIVING in argv:
        return StepKind.ARCHIVE
    if not any(word.startswith(_HOST_MARK) for word in argv[1:]):
        return None
    if "-E" in argv:
        return StepKind.PREPROCESS
    return StepKind.HOST_COMPILE if "-c" in argv else StepKind.HOST_LINK


def step_outputs(argv: tuple[str, ...], kind: StepKind) -> tuple[str, ...]:
    """The files that the command's flags tell it to write, as they are spelled."""
    if kind is StepKind.ARCHIVE:
        behind = argv[argv.index(_ARCHIVING) + 1 :]
        return tuple(word for word in behind if not word.startswith("-"))[:1]
    flags = _WRITES[kind]
    return (*option_values(argv, flags), *(module_ids(argv) if ID_FLAG in argv else ()))


def module_ids(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The files, one or none, that name the translation unit."""
    return tuple(option_values(argv, ("--module_id_file_name",)))


def fatbinary_images(argv: tuple[str, ...]) -> dict[Target, Path]:
    """The file of each target that ``fatbinary`` packs.

    Raises:
        ValueError: an image is of a kind that isn't known.
    """
    found = {}
    for argument in argv:
        if not argument.startswith("--image"):
            continue
        image = _IMAGE.fullmatch(argument)
        if image is None:
            raise ValueError(f"the image {argument}")
        if image[1] in _IMAGE_KINDS:
            name = f"{_IMAGE_KINDS[image[1]].value}_{image[2]}"
            found[Target.parse(name)] = Path(image[3])
    return found


def step_target(argv: tuple[str, ...], kind: StepKind) -> Target | None:
    """The target that the command works for, where its flags name one."""
    if kind not in {StepKind.CICC, StepKind.PTXAS, StepKind.NVLINK}:
        return None
    named = (value for value in option_values(argv, ("-arch", "--arch")) if _TARGET.match(value))
    return next(map(Target.parse, named), None)


def option_values(argv: tuple[str, ...], flags: tuple[str, ...]) -> Iterator[str]:
    """What follows each of ``flags``, as the next word or behind an equals sign."""
    for position, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        if name in flags and equals:
            yield value
        elif argument in flags and position + 1 < len(argv):
            yield argv[position + 1]


def mentioned_files(argv: tuple[str, ...], folder: Path) -> Iterator[Path]:
    """Every file inside ``folder`` that the arguments name, also inside of a flag or a macro."""
    inside = f"{folder}/"
    for argument in argv[1:]:
        at = argument.find(inside)
        if at >= 0 and (at == 0 or argument[at - 1] in '="'):
            yield Path(argument[at:].rstrip('"'))
