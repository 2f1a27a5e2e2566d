"""What is ordered: nvcc's command line, and how archsplit shall carry it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class FallBackToNvccError(Exception):
    """The command line is one that only nvcc itself can carry out; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """One compilation.

    Attributes:
        nvcc: the real compiler driver.
        argv: its arguments, as its user gave them.
        cwd: where it would run, absolute.
        environment: what it would see.
        faithful: run nvcc's own commands unmodified.
        sequential: run one command at a time, in nvcc's order.
        reproducible: give no step more than one core, for that changes bytes.
        verify: run nvcc too, and compare.
        files: what else to write.
        direct: the key by which a hit is remembered for the next call; "" for none.
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
    direct: str = ""

    @property
    def is_cacheable(self) -> bool:
        """Whether results may come from earlier compilations, and serve later ones."""
        return not (self.faithful or self.sequential or self.verify)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFiles:
    """What says how it was done; each file or folder is None when it isn't wanted.

    Attributes:
        graph: the steps and what they wait for, in the DOT language; also as SVG, beside it, where
            graphviz is installed.
        table: a CSV row for each step: seconds, peak memory, bytes read and written.
        save: a folder for all intermediate files, named with the number of their step.
        verbose: all commands, numbered, one argument a line.
        trace: what ran when, in the format of Chrome's and Perfetto's trace viewers.
        explain: whether standard error says why each step started when it did.
    """

    graph: Path | None = None
    table: Path | None = None
    save: Path | None = None
    verbose: Path | None = None
    trace: Path | None = None
    explain: bool = False

    @property
    def any(self) -> bool:
        """Whether anything is wanted at all."""
        return self != ReportFiles()
