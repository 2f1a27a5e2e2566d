"""Arguments of the steps in a transcript: words, kind, and the files in the flags.

In: one POSIX shell line of a dry run; out: its words, then facts about the words. A line may have
quotes; any other shell syntax is refused, because no shell runs the steps.
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

_HOST_COMPILER = re.compile(r"(?:.*-)?(?:gcc|g\+\+|clang|clang\+\+|c\+\+|cc)(?:-[\d.]+)?")
_PIECE = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*"|[^\\'"]+|.""", re.DOTALL)
_SYNTAX = re.compile(r"[`$|;&<>]")
_EXPANSION = re.compile(r"[`$]")
_UNUSABLE = re.compile(r"""[,"$`\\\x00-\x1f\x7f]""")
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
"""Flags whose value is an output."""
ID_FLAG = "--gen_module_id_file"
"""The flag by which cudafe++ or cicc generates a module id and writes its file."""


def command_words(line: str, cicc_folder: str) -> tuple[str, ...]:
    """Return the words of a transcript's line, as a shell would split them.

    Args:
        line: without its ``#$``.
        cicc_folder: the value of ``$CICC_PATH``.

    Raises:
        ValueError: as for `shell_words`.
    """
    text = _REDIRECTION.sub("", line).replace("$CICC_PATH", cicc_folder)
    archiver = _ARCHIVER.match(text)
    if archiver is None:
        return shell_words(text)
    # The line queries the compiler for its archiver; the step keeps the compiler as its program.
    return (archiver[1], *shell_words(text[archiver.end() :]))


def shell_words(line: str) -> tuple[str, ...]:
    """Split a line as a shell would.

    Raises:
        ValueError: the line has shell syntax besides quotes, or a quote without its end.
    """
    for piece in _PIECE.findall(line):
        if character := _active_character(piece):
            raise ValueError(f"the shell syntax {character!r}")
    try:
        return tuple(shlex.split(line))
    except ValueError as error:
        raise ValueError(f"its quotes ({error})") from None


def unusable_character(path: str) -> str | None:
    """Return the first character of a path that nvcc can't handle, or None."""
    # nvcc splits a path at commas, and doesn't quote the others for the shell.
    match = _UNUSABLE.search(path)
    return None if match is None else match[0]


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
    return (*option_values(argv, flags), *(module_ids(argv) if ID_FLAG in argv else ()))


def module_ids(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the file, one or none, of the module id."""
    return tuple(option_values(argv, ("--module_id_file_name",)))


def fatbinary_images(argv: tuple[str, ...]) -> dict[Target, Path]:
    """Return the image files of a ``fatbinary`` command by target.

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
            name = f"{_IMAGE_KINDS[image[1]].value}_{image[2]}"
            images[Target.parse(name)] = Path(image[3])
    return images


def step_target(argv: tuple[str, ...], kind: StepKind) -> Target | None:
    """Return the target in a command's flags, or None."""
    if kind not in {StepKind.CICC, StepKind.PTXAS, StepKind.NVLINK}:
        return None
    named = (value for value in option_values(argv, ("-arch", "--arch")) if _TARGET.match(value))
    return next(map(Target.parse, named), None)


def option_values(argv: tuple[str, ...], flags: tuple[str, ...]) -> Iterator[str]:
    """Return the values of ``flags``: the next word, or the text behind an equals sign."""
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
    """Return all files of ``folder`` in the arguments, also within flags and macros."""
    inside = f"{folder}/"
    for argument in argv[1:]:
        at = argument.find(inside)
        if at >= 0 and (at == 0 or argument[at - 1] in '="'):
            yield Path(argument[at:].rstrip('"'))
