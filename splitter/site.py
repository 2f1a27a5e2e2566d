"""Where a build happens: a recipe, the tools that were found for it, and a folder of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from splitter.engine.graph import Step
from splitter.nvcc.options import CompileOptions
from splitter.nvcc.steps import FIRST_MEMORY, WEIGHTS, StepKind
from splitter.system.run import Command

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from splitter.nvcc.host import HostTools
    from splitter.nvcc.steps import NvccStep
    from splitter.nvcc.toolkit import Attempt, Toolkit
    from splitter.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSite:
    """What every stage of a build from sources works with.

    Attributes:
        tried: where nvcc was looked for, and what became of it.
        environment: what programs run in.
        folder: the build's private folder, gone afterwards.
        epoch: the time that all files carry, in seconds since 1970.
    """

    recipe: Recipe
    toolkit: Toolkit
    tried: tuple[Attempt, ...]
    host: HostTools
    environment: Mapping[str, str] = field(repr=False)
    folder: Path
    epoch: int

    @property
    def compile_options(self) -> CompileOptions:
        """What the recipe says about compiling, for nvcc's command line."""
        return CompileOptions(
            include=self.recipe.source.include,
            defines=self.recipe.source.defines,
            standard=self.recipe.compile.std,
            nvcc_flags=self.recipe.compile.other_flags,
            host_flags=self.recipe.compile.host_flags,
            relocatable=self.recipe.compile.relocatable,
            host_compiler=self.host.compiler,
        )

    def command(
        self,
        argv: tuple[str, ...],
        *,
        environment: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Command:
        """A command in the recipe's folder, with what ``environment`` sets beside the site's."""
        merged = {**self.environment, **(environment or {})}
        return Command(argv=argv, cwd=self.recipe.root, env=merged, timeout=timeout)


_READING = {StepKind.PREPROCESS, StepKind.HOST_COMPILE}
_C_SECONDS = 0.3


def as_step(
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
