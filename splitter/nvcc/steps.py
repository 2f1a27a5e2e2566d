"""What nvcc would do for one source, as records."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from splitter.arch.target import Target


class StepKind(enum.Enum):
    """What a step does; the values are the words for messages and tables."""

    PREPROCESS = "preprocess"
    CUDAFE = "cudafe++"
    CICC = "cicc"
    PTXAS = "ptxas"
    FATBINARY = "fatbinary"
    HOST_COMPILE = "host compile"
    EXCHANGE = "objcopy"


WEIGHTS: Mapping[StepKind, float] = {
    StepKind.PREPROCESS: 1.0,
    StepKind.CUDAFE: 1.5,
    StepKind.CICC: 6.0,
    StepKind.PTXAS: 3.0,
    StepKind.FATBINARY: 0.1,
    StepKind.HOST_COMPILE: 4.0,
    StepKind.EXCHANGE: 0.1,
}
"""Seconds, as measured on a thrust sort; only their ratio matters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvccStep:
    """One command of a compilation.

    Attributes:
        kind: what it does.
        argv: program and arguments, as nvcc would start them.
        reads: files of the private folder that it needs.
        writes: files that it makes.
        target: the target it works for, or None for the host's and for all together.
    """

    kind: StepKind
    argv: tuple[str, ...]
    reads: tuple[Path, ...]
    writes: tuple[Path, ...]
    target: Target | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """What nvcc said it would do for one source.

    Attributes:
        environment: variables that nvcc sets for its tools.
        steps: in nvcc's order.
        images: the file that holds each target's code.
        module_id: the file that names the translation unit, or None for a source without CUDA.
        diagnostics: lines that are no part of the plan, to pass on.
    """

    environment: Mapping[str, str]
    steps: tuple[NvccStep, ...]
    images: Mapping[Target, Path]
    module_id: Path | None
    diagnostics: tuple[str, ...]

    @property
    def host_view(self) -> NvccStep:
        """The step by which the host's compiler reads the source.

        Without CUDA that is the compile itself, else the preprocessing that cudafe++ waits for.
        """
        if self.module_id is None:
            return next(step for step in self.steps if step.kind is StepKind.HOST_COMPILE)
        parsed = next(step for step in self.steps if step.kind is StepKind.CUDAFE)
        return next(step for step in self.steps if set(step.writes) & set(parsed.reads))
