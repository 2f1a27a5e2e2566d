"""Where a build happens: a recipe, the tools that were found for it, and a folder of its own."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """What every stage of a build from sources works with.

    Attributes:
        tried: where nvcc was looked for, and what became of it.
        environment: what programs run in.
        folder: the build's private folder, gone afterwards.
        epoch: the time that all files carry, in seconds since 1970.
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
