"""The tables of ``recipe.toml`` as records; their docstrings are the schema's descriptions.

A key of the file is the attribute's name with ``-`` for ``_``. Fields that take patterns of file
names hold, once `archsplit.recipe.load.load_recipe` has returned them, the files that match.
"""

# ruff: noqa: TC001 (pydantic reads the annotations when it runs)

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, StrictBool, with_config

from archsplit.recipe.flags import RELOCATABLE, HostFlag, NvccFlag
from archsplit.recipe.paths import (
    DeclaredSymbol,
    FilePath,
    Folder,
    IncludeFolder,
    PythonPattern,
    SourcePattern,
)
from archsplit.recipe.policy import Policy
from archsplit.recipe.project import Project
from archsplit.recipe.values import (
    TABLE_CONFIG,
    Define,
    InvalidValue,
    LibraryFile,
    LibraryName,
    Package,
    ProvidedLibrary,
    Ptx,
    Sass,
    Some,
    Standard,
    Unique,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from archsplit.arch.target import Target

__pure__ = True

_PYTHON_ROOT = PurePosixPath("python")


@with_config(TABLE_CONFIG)
@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is compiled.

    Attributes:
        files: patterns of the sources; each must match a file. They are compiled sorted by path.
        include: folders to look for headers in, in this order.
        defines: macros for all sources, NAME or NAME=VALUE.
    """

    files: Some[SourcePattern]
    include: Unique[IncludeFolder] = ()
    defines: Unique[Define] = ()


@with_config(TABLE_CONFIG)
@dataclass(frozen=True, slots=True, kw_only=True)
class Compile:
    """How it is compiled.

    Attributes:
        std: the C++ standard.
        nvcc_flags: further flags for nvcc, one argument an entry.
        host_flags: flags for the host compiler, one an entry, without -Xcompiler.
        host_pass: compile the host side once for all targets, or per target, for sources whose
            host code depends on the list of targets.
        rdc: relocatable device code: sources use each other's device functions and variables, and
            each target gets a device link of its own.
    """

    std: Standard = "c++17"
    nvcc_flags: tuple[NvccFlag, ...] = ()
    host_flags: tuple[HostFlag, ...] = ()
    host_pass: Literal["once", "per-target"] = "once"
    rdc: StrictBool = False

    @property
    def relocatable(self) -> bool:
        """Whether there is a device link: ``rdc`` says so, or a flag of nvcc."""
        return self.rdc or not RELOCATABLE.isdisjoint(self.nvcc_flags)

    @property
    def other_flags(self) -> tuple[str, ...]:
        """``nvcc_flags`` without those that say what ``rdc`` says."""
        return tuple(flag for flag in self.nvcc_flags if flag not in RELOCATABLE)


@with_config(TABLE_CONFIG)
@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How it is linked.

    Attributes:
        library: the file name of the library in every plugin; lib<package>.so if left out.
        libraries: system libraries to link with, by the name that follows -l.
        library_folders: folders to look for them in.
        provided: shared libraries that plugins need and no wheel of this recipe has, though not
            every Linux has them either, as in libgomp.so.1.
    """

    library: LibraryFile = ""
    libraries: Unique[LibraryName] = ()
    library_folders: Unique[Folder] = ()
    provided: Unique[ProvidedLibrary] = ()


@with_config(TABLE_CONFIG)
@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """For which GPUs; each target becomes a plugin of its own.

    Attributes:
        sass: machine code, as in sm_90, sm_90a or sm_120f.
        ptx: portable code that the driver compiles, as in compute_120.
    """

    sass: Unique[Sass] = ()
    ptx: Unique[Ptx] = ()

    def __post_init__(self) -> None:
        if not (self.sass or self.ptx):
            raise InvalidValue("names no target", hint='write, for example, sass = ["sm_90"]')

    @property
    def all(self) -> tuple[Target, ...]:
        """SASS and PTX, each ascending."""
        return tuple(sorted((*self.sass, *self.ptx)))


@with_config(TABLE_CONFIG)
@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """What the library offers to the core; its hash ties plugins to cores.

    Attributes:
        header: the public C header.
        symbols: the functions that the library exports; each must occur in the header.
    """

    header: FilePath
    symbols: Some[DeclaredSymbol]


@with_config(TABLE_CONFIG)
@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    """The Python side of the core.

    Attributes:
        package: the import package; the project's name with "_" for "-" if left out.
        root: the folder that holds the package; files are installed relative to it.
        files: patterns of the core's files, relative to root; each must match a file. **/*.py if
            left out.
    """

    package: Package = ""
    root: Annotated[Folder, Field(validate_default=True)] = _PYTHON_ROOT
    files: Annotated[Some[PythonPattern], Field(validate_default=True)] = field(
        default_factory=lambda: (PurePosixPath("**/*.py"),)
    )


@with_config(TABLE_CONFIG)
@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """What a user installs.

    Attributes:
        mode: core builds the core and the plugins; meta also builds a wheel that requires them all.
    """

    mode: Literal["core", "meta"] = "core"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A recipe without faults: every path exists, every name is valid, every default is filled in.

    All paths but ``root`` are relative: those of `Python` to its root, the others to ``root``.

    Attributes:
        root: the recipe's folder, absolute.
        file: the recipe's file, relative to ``root``.
        input_files: every file of the recipe that can change what is built, sorted.
        policies: by their names.
        applied: the name of the policy that this is a recipe for the builds of; "" for releases.
        release: the targets of a release, which nvcc is told whatever a policy leaves out.
    """

    root: Path
    file: PurePosixPath
    project: Project
    source: Source
    compile: Compile
    link: Link
    targets: Targets
    interface: Interface
    python: Python
    install: Install
    input_files: tuple[PurePosixPath, ...]
    policies: Mapping[str, Policy] = field(default_factory=dict)
    applied: str = ""
    release: tuple[Target, ...] = ()

    @property
    def policy(self) -> Policy | None:
        """The policy that was applied, or None."""
        return self.policies[self.applied] if self.applied else None


TABLES: dict[str, type] = {
    "project": Project,
    "source": Source,
    "compile": Compile,
    "link": Link,
    "targets": Targets,
    "interface": Interface,
    "python": Python,
    "install": Install,
}
"""Every table that a recipe can have, by its name in the file, in the order of the manual."""
