"""Commands to compare: compiles, and builds that are made of them."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Commands that are compared, and how many of them run at once.

    Attributes:
        nvcc: the real one.
        archsplit: what stands for nvcc.
        archsplit_build: what builds the wheels of a recipe.
        sccache: the program, or None to leave it out.
        jobs: the cores of the machine; what ``make -j`` gets.
    """

    nvcc: tuple[str, ...]
    archsplit: tuple[str, ...]
    archsplit_build: tuple[str, ...]
    sccache: str | None
    jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compile:
    """A compile: its command, its output, and additional environment variables."""

    argv: tuple[str, ...]
    outputs: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    def line(self) -> str:
        """Return the command for a shell."""
        names = (f"{name}={shlex.quote(value)}" for name, value in self.env.items())
        return " ".join((*names, shlex.join(self.argv)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A way to make the objects of a case.

    Attributes:
        name: a row of the table.
        compiles: independent of each other; several are run by ``make -j``.
        ours: True for archsplit, False for its peers.
        server: True if it needs an sccache server.
    """

    name: str
    compiles: tuple[Compile, ...]
    ours: bool = False
    server: bool = False

    def command(self, folder: Path, jobs: int) -> tuple[tuple[str, ...], Mapping[str, str]]:
        """Return the command to run in ``folder``, and its additional environment variables."""
        if len(self.compiles) == 1:
            return self.compiles[0].argv, self.compiles[0].env
        rules = (
            f"all: {one.outputs[0]}\n{one.outputs[0]}:\n\t@{_escaped(one.line())}\n"
            for one in self.compiles
        )
        (folder / "Makefile").write_text("".join(("all:\n", *rules)))
        # Recipes without a "+", as people write them: make then passes no jobserver down.
        return ("make", f"-j{jobs}", "all"), {}


def _escaped(line: str) -> str:
    return line.replace("$", "$$")


def ours(tools: Tools, options: str = "", *, tell: str = "", draw: bool = False) -> dict[str, str]:
    """Return the environment that tells archsplit which nvcc it replaces, and its settings.

    Args:
        tools: the commands.
        options: more of them for archsplit.
        tell: the name of the table of its steps, or empty for none.
        draw: write their graph too, which takes time.
    """
    words = ["--nvcc", found(tools.nvcc), *shlex.split(options)]
    if tell:
        words += ["--table", f"{tell}.csv"]
    if draw:
        words += ["--graph", f"{tell}.dot"]
    return {"ARCHSPLIT_NVCC_OPTIONS": shlex.join(words)}


def found(command: tuple[str, ...]) -> str:
    """Return the path of a program."""
    return shutil.which(command[0]) or command[0]
