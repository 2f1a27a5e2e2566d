"""Tables of a recipe whose device code is compiled already: a wheel, a library, or a build.

Their docstrings are the schema's descriptions, as those in `archsplit.recipe.model`.
"""

# ruff: noqa: TC003 (pydantic reads the annotations when it runs)

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, StrictBool

from archsplit.recipe.model import Project, ProjectName, Python, Targets, parse_file_pattern
from archsplit.recipe.values import DroppedExtra, InvalidValue, RecipeTable, TextValidator, Unique

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.arch.target import Target
    from archsplit.recipe.policy import Policy

__pure__ = True

OUT_PLACEHOLDER = "{out}"
"""Placeholder of the command's output folder, in the command and before a pattern."""

_KEYS = ("wheel", "library", "build")
_SHELL_OPERATORS = frozenset(("&&", "||", "|", ";", "&", ">", ">>", "<", "2>", "2>&1"))


def _product(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidValue(f"must be text, not {value!r}")
    parse_file_pattern(value.removeprefix(f"{OUT_PLACEHOLDER}/"))
    return value


def _command(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidValue(
            f"invalid command {text!r}: {error}", hint="quote it as for a shell"
        ) from None
    if not words:
        raise InvalidValue("is an empty command")
    # Without a shell, `&&` would be passed to the program as an argument.
    if operator := next((word for word in words if word in _SHELL_OPERATORS), None):
        hint = "write sh -c '…', or put it into a script of the recipe's folder"
        raise InvalidValue(f"has {operator} in it, but no shell runs it", hint=hint)
    return text


ProductPattern = Annotated[str, TextValidator(_product)]
BuildCommand = Annotated[str, AfterValidator(_command)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrebuiltSource(RecipeTable):
    """Prebuilt wheel or library to split, or the command that makes it.

    Attributes:
        wheel: a pattern that one wheel matches. Beside build, {out}/ at its start is the output
            folder of the command.
        library: the same for a library that is in no wheel.
        build: the command that makes the file. It runs in the recipe's folder, without a shell;
            {out} in it, and the variable ARCHSPLIT_OUT, are an empty output folder.
        wrapper: run the command with the compiler wrapper in nvcc's place, and its cache.
    """

    wheel: ProductPattern = ""
    library: ProductPattern = ""
    build: BuildCommand = ""
    wrapper: StrictBool = True

    def __post_init__(self) -> None:
        # A release has one core.
        if self.wheel and self.library:
            raise InvalidValue("names a wheel and a library", hint="make it two recipes")
        # Only a command has an output folder.
        if not self.build and self.pattern.startswith(f"{OUT_PLACEHOLDER}/"):
            hint = "write source.build, too, or a path of the recipe's folder"
            raise InvalidValue(f"{self.pattern!r} is where nothing is built", hint=hint)

    @property
    def pattern(self) -> str:
        """Pattern of the file to split."""
        return self.wheel or self.library or f"{OUT_PLACEHOLDER}/*.whl"

    @property
    def words(self) -> tuple[str, ...]:
        """Words of the command; () without a command."""
        return tuple(shlex.split(self.build))


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTable(RecipeTable):
    """Options of the split.

    Attributes:
        name: the core's distribution, if its name is not the wheel's.
        by: capability makes a pack for each kind of GPU, with all code for it; target makes one for
            each target, and extras with all targets for a GPU.
        release: true gives the core the wheel's file name, to be published in its place; false
            gives the core a build tag, which installers prefer. The default is true if build makes
            the wheel, else false.
        recompress: the level of zstd frames for images, 19 for the smallest packs; off keeps the
            vendor's bytes.
        dropped: extras that were published once and have no packs any more, as in cc70: an update
            leaves these users the earlier core and pack.
    """

    name: ProjectName | None = None
    by: Literal["capability", "target"] = "capability"
    release: bool | None = None
    recompress: Literal["9", "19", "off"] = "9"
    dropped: Unique[DroppedExtra] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitInstallTable(RecipeTable):
    """Wheels for users to install.

    Attributes:
        mode: core leaves the packs to extras; all has the core require every pack; meta also
            makes a wheel that requires core and packs.
    """

    mode: Literal["core", "all", "meta"] = "core"


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRecipe:
    """A recipe without faults for a prebuilt file.

    Attributes:
        root: the recipe's folder, absolute.
        file: the recipe's file, relative to ``root``.
        product: the file to split, relative to ``root``; None if a command makes it.
        targets: limits the packs to these targets; None for all code.
        project: the metadata of a library's core; None for a wheel, which has its own.
        python: the Python files of a library's core, if it has any.
        policies: the policies by name.
        applied: the name of the applied policy; "" for none.
    """

    root: Path
    file: PurePosixPath
    source: PrebuiltSource
    split: SplitTable
    install: SplitInstallTable
    product: PurePosixPath | None = None
    targets: tuple[Target, ...] | None = None
    project: Project | None = None
    python: Python | None = None
    policies: Mapping[str, Policy] = field(default_factory=dict)
    applied: str = ""

    @property
    def policy(self) -> Policy | None:
        """Policy that was applied, or None."""
        return self.policies[self.applied] if self.applied else None

    @property
    def is_release(self) -> bool:
        """True if the core is published in the fat wheel's place."""
        # A build is made to be published; a downloaded wheel has its own publisher.
        return bool(self.source.build) if self.split.release is None else self.split.release

    @property
    def splits_library(self) -> bool:
        """True if a library is split, False for a wheel."""
        return bool(self.source.library)


PREBUILT_TABLES: dict[str, type] = {
    "source": PrebuiltSource,
    "split": SplitTable,
    "targets": Targets,
    "project": Project,
    "python": Python,
    "install": SplitInstallTable,
}
"""Record of each table of such a recipe by its name."""


def is_prebuilt(content: Mapping[str, object]) -> bool:
    """Return True if the content of a recipe is about a prebuilt file."""
    source = content.get("source")
    return isinstance(source, Mapping) and any(key in source for key in _KEYS)
