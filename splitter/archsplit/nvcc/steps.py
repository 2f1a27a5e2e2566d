"""What nvcc would do for one command line, as records."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from archsplit.arch.target import Target


class StepKind(enum.Enum):
    """What a step does; the values are the words for messages and tables."""

    PREPROCESS = "preprocess"
    CUDAFE = "cudafe++"
    CICC = "cicc"
    PTXAS = "ptxas"
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
    StepKind.FATBINARY: 0.1,
    StepKind.HOST_COMPILE: 4.0,
    StepKind.HOST_ASSEMBLY: 3.8,
    StepKind.ASSEMBLE: 0.2,
    StepKind.EXCHANGE: 0.1,
    StepKind.NVLINK: 0.5,
    StepKind.HOST_LINK: 0.5,
    StepKind.ARCHIVE: 0.1,
}
"""Seconds, as measured on a thrust sort; only their ratio matters."""

_MEBIBYTE = 1 << 20
FIRST_MEMORY: Mapping[StepKind, tuple[int, float]] = {
    StepKind.PREPROCESS: (100 * _MEBIBYTE, 0),
    StepKind.CUDAFE: (100 * _MEBIBYTE, 75),
    StepKind.CICC: (100 * _MEBIBYTE, 95),
    StepKind.PTXAS: (60 * _MEBIBYTE, 32),
    StepKind.FATBINARY: (50 * _MEBIBYTE, 1),
    StepKind.HOST_COMPILE: (60 * _MEBIBYTE, 60),
    StepKind.HOST_ASSEMBLY: (60 * _MEBIBYTE, 60),
    StepKind.ASSEMBLE: (50 * _MEBIBYTE, 10),
    StepKind.EXCHANGE: (50 * _MEBIBYTE, 2),
    StepKind.NVLINK: (100 * _MEBIBYTE, 10),
    StepKind.HOST_LINK: (100 * _MEBIBYTE, 5),
    StepKind.ARCHIVE: (50 * _MEBIBYTE, 1),
}
"""Bytes, and bytes more for each byte that is read, before anything is known of a file.

Measured on sorts, products of matrices and big tables; they fit within a fifth.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvccStep:
    """One command of a compilation.

    Attributes:
        kind: what it does.
        argv: program and arguments, as nvcc would start them.
        reads: files that other steps make and it needs.
        writes: files that it makes; none for a check, and for what goes to standard output.
        target: the target it works for, or None for the host's and for all together.
    """

    kind: StepKind
    argv: tuple[str, ...]
    reads: tuple[Path, ...]
    writes: tuple[Path, ...]
    target: Target | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DependencyList:
    """A rule for make that nvcc itself would write.

    Attributes:
        sources: the preprocessed texts whose line markers name the files.
        path: the file to write, or None for standard output.
        position: how many steps come before it in nvcc's order.
    """

    sources: tuple[Path, ...]
    path: Path | None
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """What nvcc said it would do.

    Attributes:
        environment: variables that nvcc sets for its tools.
        steps: in nvcc's order.
        images: the file that holds each target's code; of the last source where there are several.
        module_ids: the files that name the translation units, one for each source with CUDA.
        dependencies: rules for make, in nvcc's order.
        diagnostics: lines that are no part of the plan, to pass on.
    """

    environment: Mapping[str, str]
    steps: tuple[NvccStep, ...]
    images: Mapping[Target, Path]
    module_ids: tuple[Path, ...]
    dependencies: tuple[DependencyList, ...]
    diagnostics: tuple[str, ...]

    @property
    def module_id(self) -> Path | None:
        """The file that names the only translation unit, or None for a source without CUDA."""
        return self.module_ids[0] if self.module_ids else None

    @property
    def host_step(self) -> NvccStep:
        """The step by which the host's compiler reads the source.

        Without CUDA that is the compile itself, else the preprocessing that cudafe++ waits for.
        """
        if not self.module_ids:
            return next(step for step in self.steps if step.kind is StepKind.HOST_COMPILE)
        parsed = next(step for step in self.steps if step.kind is StepKind.CUDAFE)
        return next(step for step in self.steps if set(step.writes) & set(parsed.reads))
