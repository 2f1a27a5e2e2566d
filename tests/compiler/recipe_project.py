"""A small recipe for tests of the cache, and builds of it that stop at the libraries."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from archsplit.build import pipeline
from archsplit.build.plan import BuildRequest, plan_build
from archsplit.cache.config import Settings
from archsplit.compiler.cache_session import open_build_session
from archsplit.recipe.load import load_recipe
from archsplit.release.context import Effects
from archsplit.system.terminal import SilentProgress

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.arch.target import Target

RECIPE = """\
[project]
name = "small"
version = "1.0"
summary = "A kernel."
license = "Apache-2.0"
license-files = ["LICENSE"]

[source]
files = ["src/k.cu", "src/n.cpp"]
include = ["first", "second"]
defines = []

[compile]
nvcc-flags = []

[targets]
sass = ["sm_80", "sm_90"]

[interface]
header = "second/api.h"
symbols = ["small_name", "small_run"]
"""
SOURCE = """\
#include "api.h"
#include "value.h"
static __global__ void kernel(int *p) { p[threadIdx.x] = VALUE; }
SHOWN int small_run(int *p) { kernel<<<1, 32>>>(p); return VALUE; }
"""
HEADER = """\
#pragma once
#define SHOWN extern "C" __attribute__((visibility("default")))
SHOWN int small_run(int *);
SHOWN const char *small_name();
"""


class Told(SilentProgress):
    """Keeps what a person would be told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


@dataclass(frozen=True, kw_only=True)
class Built:
    """The result of a build.

    Attributes:
        libraries: by target.
        told: what a person is told.
        ran: names of the programs that ran before linking, with the sources' names.
    """

    libraries: dict[str, bytes]
    told: list[str]
    ran: list[str]

    @property
    def is_known(self) -> bool:
        """True if nothing was preprocessed or compiled, and nvcc was not started."""
        return self.ran == [] and any(" from the cache, " in line for line in self.told)


@dataclass(frozen=True, kw_only=True)
class Project:
    """A recipe's folder, a store, and what it is built with."""

    folder: Path
    store: Path
    nvcc: Path
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    settings: dict[str, object] = field(default_factory=dict)
    jobs: int = 2

    def lay_out(self) -> None:
        """Write all files."""
        self.write("recipe.toml", RECIPE)
        self.write("LICENSE", "Free.\n")
        self.write("src/k.cu", SOURCE)
        self.write("src/n.cpp", '#include "api.h"\nconst char *small_name() { return "small"; }\n')
        self.write("second/api.h", HEADER)
        self.write("second/value.h", "#define VALUE 1\n")
        self.write("first/README", "Nothing yet.\n")
        self.write("python/small/__init__.py", "")

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        # A file that changes while it is compiled is never known: a new one is a moment old.
        time.sleep(0.05)

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.folder / name).read_text()
        assert old in text
        self.write(name, text.replace(old, new))

    def build(self, *targets: Target, cached: bool = True) -> Built:
        """Build the libraries."""
        told = Told()
        fields: dict[str, object] = {"folder": self.store, "min_seconds": 0.0, **self.settings}
        effects = Effects(
            progress=told,
            # Cores aren't shared with whatever else runs on the machine.
            environment={**self.environment, "XDG_RUNTIME_DIR": str(self.store.parent)},
            jobs=self.jobs,
            cache=Settings(**fields) if cached else None,  # type: ignore[arg-type]
            explain=True,
        )
        order = BuildRequest(
            recipe=load_recipe(self.folder), targets=targets or None, core=False, nvcc=(self.nvcc,)
        )
        with (
            open_build_session(
                effects.cache, runner=effects.runner, progress=told, explain=True
            ) as session,
            plan_build(order, effects, session=session) as plan,
        ):
            # Wheels are made only from the libraries, and would take longer than all else.
            pipeline.compile_plan(plan, effects, session)
            return Built(
                libraries={str(t): path.read_bytes() for t, path in plan.libraries.items()},
                told=told.lines,
                ran=[step.name for step in plan.graph.steps if "/" in step.name],
            )

    def fresh(self) -> dict[str, bytes]:
        """Return the files of a build without the cache."""
        return self.build(cached=False).libraries

    def moved(self, folder: Path) -> Project:
        """The same project in another folder."""
        return replace(self, folder=folder)


def steps_that_ran(built: Built) -> list[str]:
    """The steps of nvcc's that had to run, without their sources."""
    lines = (line.partition(": ")[2] for line in built.told if ": cache miss" in line)
    return sorted(line.partition(":")[0] for line in lines)
