"""Read the options that aren't on nvcc's command line: in files and in variables.

CMake's "Unix Makefiles" puts include folders and objects into files (``--options-file``).
What they hold decides about outputs and rules for make, so nvcc is asked about the words in them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from archsplit.compiler.invocation import FallBackToNvccError
from archsplit.nvcc.cmdline import apply_flag_variables, expand_options_files
from archsplit.nvcc.options import is_nvcc_query

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from archsplit.compiler.invocation import Invocation

_MOST_FILES = 100
_MOST_CHARACTERS = 1 << 20
"""Half of what Linux takes for a program's arguments and environment."""


def with_all_options(order: Invocation) -> Invocation:
    """Return the order with the options of variables and of files on its command line.

    Raises:
        LeftToNvccError: see `expand_options`, or the options ask something of nvcc itself.
    """
    words, environment = apply_flag_variables(order.argv, order.environment)
    argv, files = expand_options(words, order.cwd)
    if argv != order.argv and is_nvcc_query(argv):
        raise FallBackToNvccError("")
    return replace(order, argv=argv, environment=environment, option_files=files)


def expand_options(argv: Sequence[str], cwd: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the command line with the words of its option files, and the files.

    What nvcc wouldn't take either stays as it is, so that nvcc refuses it in its own words.

    Raises:
        LeftToNvccError: a file can be read only once, or there is too much in them.
    """
    names: list[str] = []

    def read(name: str) -> str:
        names.append(name)
        path = cwd / name
        # A file may name itself.
        if len(names) > _MOST_FILES:
            raise FallBackToNvccError("it has too many files of options")
        # What a FIFO gave once, nvcc could not read again.
        if path.exists() and not path.is_file():
            raise FallBackToNvccError(f"its options are in {name}, which is no regular file")
        return path.read_text(errors="surrogateescape")

    try:
        words = tuple(expand_options_files(argv, read))
    except (OSError, ValueError):
        return tuple(argv), ()
    # The dry run gets the words as arguments, which the kernel limits.
    if names and sum(map(len, words)) > _MOST_CHARACTERS:
        raise FallBackToNvccError("there are too many options in its files")
    return words, tuple(str(cwd / name) for name in names)
