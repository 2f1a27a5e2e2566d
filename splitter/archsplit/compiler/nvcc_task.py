"""Moved from archsplit.build.context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.nvcc.steps import FIRST_MEMORY, WEIGHTS, StepKind
from archsplit.scheduler.graph import Step

if TYPE_CHECKING:
    from archsplit.nvcc.steps import NvccStep
    from archsplit.system.process import Command


_READING = {StepKind.PREPROCESS, StepKind.HOST_COMPILE}


_C_SECONDS = 0.3


def step_from_nvcc(
    step: NvccStep,
    command: Command,
    *,
    name: str,
    key: str,
    wide: tuple[str, ...] = (),
    first: bool = False,
) -> Step:
    """One of nvcc's steps for the engine, with first guesses of what it takes."""
    memory, memory_per_byte = FIRST_MEMORY[step.kind]
    reads_source = not step.reads and step.kind in _READING
    is_c = reads_source and any(word.endswith(".c") for word in step.argv[1:])
    return Step(
        name=name,
        command=command,
        reads=step.reads,
        writes=step.writes,
        # C has no templates.
        weight=min(_C_SECONDS, WEIGHTS[step.kind]) if is_c else WEIGHTS[step.kind],
        memory=memory,
        memory_per_byte=memory_per_byte,
        key=key,
        wide=wide,
        reads_source=reads_source,
        first=first,
    )
