"""A call of the compiler wrapper: nvcc's command line, and how archsplit carries it out.

Options are in files and in variables, too: CMake's "Unix Makefiles" puts include folders and
objects into files (``--options-file``). What they hold decides about outputs and rules for make, so
nvcc is asked about the words in them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from archsplit.nvcc.cmdline import apply_flag_variables, expand_options_files
from archsplit.nvcc.options import is_nvcc_query

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class FallBackToNvccError(Exception):
    """Only nvcc itself can carry out the command line; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """A call of the compiler wrapper.

    Attributes:
        nvcc: the real compiler driver.
        argv: nvcc's arguments, as the user gave them.
        cwd: nvcc's working directory, absolute.
        environment: nvcc's environment.
        faithful: run nvcc's own commands unmodified.
        sequential: run one command at a time, in nvcc's order.
        reproducible: give no step more than one core, because more change bytes.
        verify: run nvcc too, and compare.
        files: reports to write.
        direct_key: the key of the direct record; "" for none.
        option_files: the files whose options are in ``argv``, as absolute paths.
    """

    nvcc: Path
    argv: tuple[str, ...]
    cwd: Path
    environment: Mapping[str, str]
    faithful: bool = False
    sequential: bool = False
    reproducible: bool = False
    verify: bool = False
    files: ReportFiles
    direct_key: str = ""
    option_files: tuple[str, ...] = ()

    @property
    def is_cacheable(self) -> bool:
        """Return True if results may be read from the cache and stored in it."""
        return not (self.faithful or self.sequential or self.verify)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFiles:
    """Reports on a compilation; each file or folder is None when it isn't wanted.

    Attributes:
        graph: the steps and their dependencies, in the DOT language; also as SVG, beside it, where
            graphviz is installed.
        table: a CSV row for each step: seconds, peak memory, bytes read and written.
        save: a folder for all intermediate files, named with the number of their step.
        verbose: all commands, numbered, one argument a line.
    """

    graph: Path | None = None
    table: Path | None = None
    save: Path | None = None
    verbose: Path | None = None

    @property
    def any(self) -> bool:
        """Return True if at least one report is wanted."""
        return self != ReportFiles()


_MOST_FILES = 100
_MOST_CHARACTERS = 1 << 20
"""Half of what Linux takes for a program's arguments and environment."""


def with_all_options(order: Invocation) -> Invocation:
    """Return the order with the options of variables and of files on its command line.

    Raises:
        FallBackToNvccError: see `expand_options`, or the options ask something of nvcc itself.
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
        FallBackToNvccError: a file can be read only once, or there is too much in them.
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
