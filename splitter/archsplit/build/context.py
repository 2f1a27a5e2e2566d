"""Context of a build: the recipe, the tools that were found for it, and a private folder."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.nvcc.cmdline import CompileOptions
from archsplit.system.process import Command

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import PurePosixPath

    from archsplit.arch.target import Target
    from archsplit.nvcc.cuda_libraries import CudaLibrary
    from archsplit.nvcc.host_tools import HostTools
    from archsplit.nvcc.toolkit import Toolkit, ToolkitProbe
    from archsplit.recipe.model import Recipe


DRYRUN_SECONDS = 120.0
"""Timeout of ``nvcc --dryrun``, which compiles nothing: far more than a busy machine takes."""

_COMPILERS_OWN = {Path("/usr/include"), Path("/usr/local/include")}


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """The inputs that all stages of a build from sources share.

    Attributes:
        tried: the places where nvcc was searched, each with its result.
        environment: the environment of all programs.
        folder: the private folder of the build, removed at its end.
        cuda_libraries: the libraries of CUDA that plugins are linked with.
        epoch: the modification time of all output files, in seconds since 1970.
        name: the start of this context's step and file names; "" for the only one of a build.
        by_toolkit: a context for each toolkit of a build with several, with its targets alone.
    """

    recipe: Recipe
    toolkit: Toolkit
    tried: tuple[ToolkitProbe, ...]
    host: HostTools
    environment: Mapping[str, str] = field(repr=False)
    folder: Path
    epoch: int
    cuda_libraries: tuple[CudaLibrary, ...] = ()
    name: str = ""
    by_toolkit: tuple[BuildContext, ...] = ()

    @property
    def parts(self) -> tuple[BuildContext, ...]:
        """The contexts that compile: one for each toolkit."""
        return self.by_toolkit or (self,)

    @property
    def toolkit_releases(self) -> str:
        """The versions of all toolkits, for people."""
        return ", ".join(part.toolkit.release for part in self.parts)

    def part_of(self, target: Target) -> BuildContext:
        """Return the context whose toolkit compiles for a target of the recipe."""
        return next(part for part in self.parts if target in part.recipe.targets.all)

    @property
    def compile_options(self) -> CompileOptions:
        """The compile options of the recipe, for nvcc's command line."""
        # The toolkit's headers warn about themselves, which nobody here can mend. Debian's toolkit
        # has them in /usr/include, whose place in the compiler's own list must not change.
        own = self.toolkit.root / "include"
        headers = [own, *(one.include for one in self.cuda_libraries if one.include)]
        system = (path for path in headers if path.resolve() not in _COMPILERS_OWN)
        return CompileOptions(
            include=self.recipe.source.include,
            system_include=tuple(dict.fromkeys(system)),
            defines=self.recipe.source.defines,
            standard=self.recipe.compile.std,
            nvcc_flags=self.recipe.compile.other_flags,
            host_flags=self.recipe.compile.host_flags,
            relocatable=self.recipe.compile.relocatable,
            host_compiler=self.host.compiler,
        )

    @property
    def plugin_requires(self) -> tuple[str, ...]:
        """The requirements of each plugin beside its core: the wheels of CUDA's libraries."""
        return tuple(dict.fromkeys(library.requirement for library in self.cuda_libraries))

    def options_for(self, source: PurePosixPath) -> CompileOptions:
        """Return the compile options of one source: those of its groups after those of all."""
        options = self.compile_options
        groups = self.recipe.source.groups_of(source)
        return replace(
            options,
            include=self.recipe.source.include_of(source),
            defines=(*options.defines, *(one for group in groups for one in group.defines)),
            nvcc_flags=(
                *options.nvcc_flags,
                *(one for group in groups for one in group.nvcc_flags),
            ),
            host_flags=(
                *options.host_flags,
                *(one for group in groups for one in group.host_flags),
            ),
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
