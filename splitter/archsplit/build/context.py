"""Context of a build: the recipe, the tools that were found for it, and a private folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.nvcc.cmdline import CompileOptions
from archsplit.system.process import Command

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from archsplit.nvcc.host_tools import HostTools
    from archsplit.nvcc.toolkit import Toolkit, ToolkitProbe
    from archsplit.recipe.model import Recipe


DRYRUN_SECONDS = 120.0
"""Timeout of ``nvcc --dryrun``, which compiles nothing: far more than a busy machine takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """The inputs that all stages of a build from sources share.

    Attributes:
        tried: the places where nvcc was searched, each with its result.
        environment: the environment of all programs.
        folder: the private folder of the build, removed at its end.
        epoch: the modification time of all output files, in seconds since 1970.
    """

    recipe: Recipe
    toolkit: Toolkit
    tried: tuple[ToolkitProbe, ...]
    host: HostTools
    environment: Mapping[str, str] = field(repr=False)
    folder: Path
    epoch: int

    @property
    def compile_options(self) -> CompileOptions:
        """The compile options of the recipe, for nvcc's command line."""
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
        """Return a command that runs in the recipe's folder.

        Args:
            environment: variables to add to those of the build.
        """
        # nvcc's own variables win: its dry run has set them for this step.
        merged = {**self.environment, **(environment or {})}
        return Command(argv=argv, cwd=self.recipe.root, env=merged, timeout=timeout)
