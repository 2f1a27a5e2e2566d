"""Records of a dry run: the steps of one nvcc command line, and their files."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from archsplit.arch.target import Target

_MEBIBYTE = 1 << 20


class StepKind(enum.Enum):
    """Kinds of steps; the values are the words in messages and tables."""

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
"""Seconds by kind, measured on a thrust sort; only their ratio matters."""

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
"""Memory estimate by kind, before the first measurement: bytes, and bytes per byte read.

Measured on sorts, products of matrices and big tables, with errors of up to a fifth.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvccStep:
    """A command of a compilation.

    Attributes:
        kind: the kind of step.
        argv: program and arguments, as nvcc would start them.
        reads: inputs that other steps write.
        writes: outputs; none for a check, and for a step that prints.
        target: the target of the step, or None for host steps and steps for several targets.
    """

    kind: StepKind
    argv: tuple[str, ...]
    reads: tuple[Path, ...]
    writes: tuple[Path, ...]
    target: Target | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DependencyList:
    """A depfile that nvcc itself would write.

    Attributes:
        sources: the preprocessed texts whose line markers have the files.
        path: the file to write, or None for standard output.
        position: number of steps before the depfile in nvcc's order.
    """

    sources: tuple[Path, ...]
    path: Path | None
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """The parsed output of a dry run.

    Attributes:
        environment: variables that nvcc sets for its tools.
        steps: in nvcc's order.
        images: the files with code by target; those of the last source if there are several.
        module_ids: the files of module ids, one for each source with CUDA.
        dependencies: depfiles, in nvcc's order.
        diagnostics: other lines, to pass on to the user.
    """

    environment: Mapping[str, str]
    steps: tuple[NvccStep, ...]
    images: Mapping[Target, Path]
    module_ids: tuple[Path, ...]
    dependencies: tuple[DependencyList, ...]
    diagnostics: tuple[str, ...]

    @property
    def module_id(self) -> Path | None:
        """The file of the first module id, or None for a source without CUDA."""
        return self.module_ids[0] if self.module_ids else None

    @property
    def host_step(self) -> NvccStep:
        """The step in which the host compiler reads the source.

        Without CUDA that is the compile itself, else the preprocessing before cudafe++.
        """
        # Without CUDA there is no cudafe++, and no text before it.
        if not self.module_ids:
            return next(step for step in self.steps if step.kind is StepKind.HOST_COMPILE)
        parsed = next(step for step in self.steps if step.kind is StepKind.CUDAFE)
        return next(step for step in self.steps if set(step.writes) & set(parsed.reads))
