"""A call of the compiler wrapper: nvcc's command line, and how archsplit carries it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from archsplit.compiler.early_dryrun import EarlyDryRun


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
        early: the dry run, if there was one before the plan; its folder is the private one then.
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
    early: EarlyDryRun | None = None
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
        trace: a timeline in the format of Chrome's and Perfetto's trace viewers.
        explain: write to standard error why each step started when it did.
    """

    graph: Path | None = None
    table: Path | None = None
    save: Path | None = None
    verbose: Path | None = None
    trace: Path | None = None
    explain: bool = False

    @property
    def any(self) -> bool:
        """Return True if at least one report is wanted."""
        return self != ReportFiles()
