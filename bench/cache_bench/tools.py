"""Caches that are compared, each with a store of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess  # noqa: TID251 - a bench starts its peers as their users do
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from nvcc_bench.sccache import serving
from program_usage import children_cpu

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

OURS = "archsplit"


class PartFailedError(Exception):
    """A program failed, and what should have been measured with it wasn't."""


class Took(NamedTuple):
    """Duration and output of a compilation.

    Attributes:
        cpu: seconds of the process and its children, without a server's.
    """

    wall: float
    cpu: float
    said: str

    @property
    def lines(self) -> tuple[str, ...]:
        """Return archsplit's explanation of the steps that it ran."""
        lines = (line.removeprefix("archsplit: ") for line in self.said.splitlines())
        return tuple(line for line in lines if ": run" in line)

    @property
    def ran(self) -> tuple[str, ...]:
        """Return the steps that archsplit reports as run."""
        return tuple(line.partition(": run")[0] for line in self.lines)


def measured(argv: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> Took:
    """Run a program that must succeed."""
    before, began = children_cpu(), time.monotonic()
    done = subprocess.run(  # noqa: S603 - the commands are the bench's own
        argv, cwd=cwd, env=environment, check=False, capture_output=True, text=True
    )
    wall, cpu = time.monotonic() - began, children_cpu() - before
    if done.returncode:
        words = " ".join(argv)
        raise PartFailedError(f"exit status {done.returncode} of {words}\n{done.stderr}")
    return Took(wall, cpu, done.stderr)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A way to compile: a program that is put before nvcc, and its variables."""

    name: str
    program: str
    nvcc: Path
    environment: dict[str, str]

    def compile(self, folder: Path, *flags: str, **variables: str) -> Took:
        """Compile ``k.cu`` there to ``k.o``."""
        return measured(
            (self.program, str(self.nvcc), "-c", "k.cu", "-o", "k.o", *flags),
            folder,
            {**os.environ, **self.environment, **variables},
        )

    def with_nvcc(self, nvcc: Path) -> Tool:
        """Return the same tool with another nvcc."""
        return replace(self, nvcc=nvcc)

    def best(self, times: int, folder: Path, *flags: str) -> Took:
        """Return the shortest of several runs."""
        return min(self.compile(folder, *flags) for _ in range(times))

    def fresh(self, folder: Path, *flags: str, **variables: str) -> bytes:
        """Return the object that is made without a cache; only `OURS` makes the same each time."""
        kept = (folder / "k.o").read_bytes()
        replace(self, environment={**self.environment, "ARCHSPLIT_CACHE": "off"}).compile(
            folder, *flags, **variables
        )
        fresh = (folder / "k.o").read_bytes()
        (folder / "k.o").write_bytes(kept)
        return fresh


@contextlib.contextmanager
def tools(
    nvcc: Path, folder: Path, *, sccache: str | None, ccache: str | None
) -> Iterator[tuple[Tool, ...]]:
    """Yield the caches that are installed, each with an empty store below the folder."""
    ours = {
        "ARCHSPLIT_CACHE": "on",
        "ARCHSPLIT_CACHE_DIR": str(folder / "archsplit-store"),
        "ARCHSPLIT_NVCC_OPTIONS": "--reproducible --explain",
    }
    found = [Tool(name=OURS, program="archsplit-nvcc", nvcc=nvcc, environment=ours)]
    with contextlib.ExitStack() as stack:
        if program := shutil.which(sccache or "sccache"):
            try:
                server = stack.enter_context(serving(program, folder / "sccache"))
            except SystemExit as error:
                # The others can still be measured.
                print(error)  # noqa: T201 - the bench's own talk
            else:
                extra = dict(server.env)
                found.append(Tool(name="sccache", program=program, nvcc=nvcc, environment=extra))
        if program := shutil.which(ccache or "ccache"):
            extra = {"CCACHE_DIR": str(folder / "ccache-store")}
            found.append(Tool(name="ccache", program=program, nvcc=nvcc, environment=extra))
        for name in sorted({"sccache", "ccache"} - {tool.name for tool in found}):
            print(f"{name} is not there")  # noqa: T201 - the bench's own talk
        yield tuple(found)
