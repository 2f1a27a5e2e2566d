"""Context of a build: the recipe, the toolkits found for it, and a private folder.

The identity of the core follows from it: the build id is one hash over everything that decides the
wheels' bytes, which are the recipe's input files, the toolkit, the versions of the host's tools and
of archsplit.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.cache.file_digests import FileDigests
from archsplit.errors import TargetError
from archsplit.nvcc.recipe_commands import CompileOptions
from archsplit.nvcc.toolkit import (
    NvccCandidate,
    ToolkitProbe,
    find_major_toolkits,
    installed_toolkits,
    nvcc_candidates,
    probe_toolkits,
    unsupported_target_text,
)
from archsplit.recipe.inputs import hash_interface
from archsplit.release.identity import Identity
from archsplit.system.env import cache_dir
from archsplit.system.fs import sha256
from archsplit.system.process import Command
from archsplit.wheels.filename import plugin_distribution, plugins_package

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import PurePosixPath

    from archsplit.nvcc.cuda_libraries import CudaLibrary
    from archsplit.nvcc.toolkit import HostTools, Toolkit
    from archsplit.recipe.model import Recipe
    from archsplit.release.context import Effects

DRYRUN_SECONDS = 120.0
"""Timeout of ``nvcc --dryrun``, which compiles nothing: far more than a busy machine takes."""

_INSTALLED = Path("/usr/local")
"""Folder of NVIDIA's packages and images: ``/usr/local/cuda-12.9``."""
_TOOLKIT_GROUP = "toolkits"
"""Group of the digests of a toolkit's files."""
_COMPILERS_OWN = {Path("/usr/include"), Path("/usr/local/include")}


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """Inputs that all stages of a build from sources share.

    Attributes:
        tried: the places where nvcc was searched, each with its result.
        environment: the environment of all programs.
        folder: the private folder of the build, removed at its end.
        cuda_libraries: the libraries of CUDA that plugins are linked with.
        epoch: the modification time of all output files, in seconds since 1970.
        digests: digests of the toolkits' files from earlier builds.
    """

    recipe: Recipe
    toolkit: Toolkit
    tried: tuple[ToolkitProbe, ...]
    host: HostTools
    environment: Mapping[str, str] = field(repr=False)
    folder: Path
    epoch: int
    cuda_libraries: tuple[CudaLibrary, ...] = ()
    digests: FileDigests = field(default_factory=lambda: FileDigests(None), repr=False)

    def toolkit_sha256(self, path: Path) -> str:
        """Return the SHA-256 of a toolkit's file; read it again only after a change.

        The programs are 150 MB, there are thousands of headers, and each plugin names the programs.

        Raises:
            InputError: the file can't be read.
        """
        # Without a digest, the error says why.
        return self.digests.digest(str(path), group=_TOOLKIT_GROUP) or sha256(path)

    @property
    def compile_options(self) -> CompileOptions:
        """Compile options of the recipe, for nvcc's command line."""
        # The toolkit's headers cause warnings that a project can't fix. Debian's toolkit
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
        """Requirements of each plugin beside its core: the wheels of CUDA's libraries."""
        return tuple(dict.fromkeys(library.requirement for library in self.cuda_libraries))

    def options_for(self, source: PurePosixPath) -> CompileOptions:
        """Return a source's compile options: the common ones, then its groups' options."""
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
            environment: variables to add to the build's.
        """
        # nvcc's own variables win: its dry run has set them for this step.
        merged = {**self.environment, **(environment or {})}
        return Command(argv=argv, cwd=self.recipe.root, env=merged, timeout=timeout)


def identify(context: BuildContext, *, version: str) -> Identity:
    """Return the identity that a core and the plugins of its build share.

    Args:
        version: the version of archsplit.

    Raises:
        InputError: an input file can't be read.
    """
    recipe = context.recipe
    name = recipe.project.name
    context.digests.recheck()
    return Identity(
        package=name,
        version=recipe.project.version,
        build_id=_build_id(context, version=version),
        interface_hash=hash_interface(recipe).hex(),
        library=recipe.link.library,
        plugins_package=plugins_package(recipe.python.package),
        distribution=name,
        targets={
            str(target): plugin_distribution(name, str(target)) for target in recipe.targets.all
        },
        provided=(*recipe.link.provided, *(one.soname for one in context.cuda_libraries)),
    )


def _build_id(context: BuildContext, *, version: str) -> str:
    # In: the recipe's own files with their relative names, the toolkit's programs and headers, the
    # versions of the host's tools and of archsplit, and the time of __DATE__.
    # Out: every absolute path, the clock, the user, and which of the targets are built now, so that
    # several machines may build one release.
    digest = hashlib.sha256()
    for line in _lines(context, version):
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()


def _lines(context: BuildContext, version: str) -> Iterator[str]:
    yield f"archsplit {version}"
    yield f"SOURCE_DATE_EPOCH {context.epoch}"
    yield from context.host.versions
    yield from _toolkit_lines(context)
    if context.recipe.compile.relocatable:
        yield from _device_link_lines(context)
    for library in context.cuda_libraries:
        yield f"{library.soname} {library.requirement}"
    for path in context.recipe.input_files:
        yield f"{path} {sha256(context.recipe.root / path)}"
    # A release of some targets has another core than the whole release has.
    if not context.recipe.applied and context.recipe.targets.all != context.recipe.release:
        yield f"release of {' '.join(map(str, context.recipe.targets.all))}"
    # A policy changes the version, and so the pins between the wheels.
    if context.recipe.applied:
        yield f"policy {context.recipe.applied} {context.recipe.project.version}"


def _toolkit_lines(context: BuildContext) -> Iterator[str]:
    toolkit = context.toolkit
    yield f"CUDA {toolkit.release}"
    static_runtime = toolkit.library_folder / "libcudart_static.a"
    for path in (*toolkit.tools, *_driver_files(toolkit), static_runtime):
        yield f"{path.name} {context.toolkit_sha256(path)}"
    yield f"headers {_tree_digest(context, toolkit.root / 'include')}"


def _driver_files(toolkit: Toolkit) -> Iterator[Path]:
    """Yield nvcc's profile, and the bitcode library that cicc takes functions from."""
    profile = toolkit.root / "bin" / "nvcc.profile"
    # The wheels of some CUDA versions have no profile.
    if profile.is_file():
        yield profile
    yield from sorted((toolkit.root / "nvvm" / "libdevice").glob("*.bc"))


def _device_link_lines(context: BuildContext) -> Iterator[str]:
    programs = context.toolkit.root / "bin"
    runtime = context.toolkit.library_folder / "libcudadevrt.a"
    for path in (programs / "nvlink", programs / "crt" / "link.stub", runtime):
        yield f"{path.name} {context.toolkit_sha256(path)}"


def _tree_digest(context: BuildContext, folder: Path) -> str:
    digest = hashlib.sha256()
    real = folder.resolve()
    # Sorted, because a folder's order differs between file systems.
    for path in sorted(path for path in real.rglob("*") if path.is_file()):
        name = path.relative_to(real).as_posix()
        digest.update(f"{name} {context.toolkit_sha256(path)}\n".encode())
    return digest.hexdigest()


def open_digests(environment: Mapping[str, str], group: str = _TOOLKIT_GROUP) -> FileDigests:
    """Return the digests of files that earlier builds have stored; of toolkits by default."""
    digests = FileDigests(Path(cache_dir(environment)) / "digests")
    digests.load(group)
    return digests


def probe_nvcc(effects: Effects, explicit: Path | None) -> tuple[ToolkitProbe, ...]:
    """Search nvcc; return each place with its result."""
    return probe_toolkits(_places(explicit, effects), effects.runner)


def _places(explicit: Path | None, effects: Effects) -> tuple[NvccCandidate, ...]:
    return nvcc_candidates(
        explicit=explicit, environment=effects.environment, site_folders=effects.site_folders
    )


def find_recipe_toolkits(
    recipe: Recipe, nvcc: Sequence[Path], effects: Effects
) -> dict[int, Toolkit]:
    """Return the toolkit of each major of a recipe.

    Args:
        nvcc: compilers or toolkits that the caller names, in any order; without any, they are
            searched.

    Raises:
        ToolNotFoundError: no toolkit of a major was found.
        TargetError: no toolkit can compile for a target of the recipe.
    """
    named = tuple(candidate for path in nvcc for candidate in _places(path, effects))
    candidates = named or (*_places(None, effects), *installed_toolkits(_INSTALLED))
    toolkits = find_major_toolkits(recipe.cuda.majors, candidates, effects.runner)
    _check_all_targets(recipe, toolkits)
    return toolkits


def _check_all_targets(recipe: Recipe, toolkits: Mapping[int, Toolkit]) -> None:
    known = frozenset().union(*(toolkit.targets for toolkit in toolkits.values()))
    if unknown := sorted(set(recipe.release) - known):
        lines = "\n  ".join(unsupported_target_text(target, known) for target in unknown)
        raise TargetError(
            f"no toolkit of CUDA {', '.join(map(str, toolkits))} can compile for\n  {lines}",
            hint="take these targets out of the recipe, or use other toolkits with --nvcc",
        )
