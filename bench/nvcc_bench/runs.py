"""Run builds, each in a folder of its own, and collect what they took as rows."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nvcc_bench.builds import FIRST
from nvcc_bench.measure import LOG, measure
from nvcc_bench.sccache import serving

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from nvcc_bench.commands import Build, Tools
    from nvcc_bench.limits import Group
    from nvcc_bench.measure import Measured
    from nvcc_bench.sccache import Server

FALLBACK = "archsplit: running nvcc itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Best of a build's runs.

    Attributes:
        case: which sources.
        build: what compiled them.
        ours: it is archsplit.
        wall, cpu: seconds.
        peak: bytes of resident memory of all processes together.
        trouble: why this row is not a result, or empty.
        folder: what the run left, for a closer look.
    """

    case: str
    build: str
    ours: bool
    wall: float
    cpu: float
    peak: int
    trouble: str
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Folder and tools of benchmark runs.

    Attributes:
        folder: for all files.
        tools: the commands.
        repeat: rounds; all builds run in turn in each.
    """

    folder: Path
    tools: Tools
    repeat: int

    def run(self, case: str, builds: Sequence[Build]) -> list[Row]:
        """Run all builds in turn, in all rounds; return the fastest run of each."""
        runs: dict[str, list[Row]] = {build.name: [] for build in builds}
        for at in range(self.repeat):
            for build in builds:
                runs[build.name].append(self.once(case, build, round_=at))
        return [min(some, key=lambda row: (bool(row.trouble), row.wall)) for some in runs.values()]

    def once(
        self,
        case: str,
        build: Build,
        *,
        round_: int = 0,
        group: Group | None = None,
        ceiling: int | None = None,
    ) -> Row:
        """Run a build in a new folder, perhaps with its memory limited."""
        folder = self.folder / case / f"{_slug(build.name)}-{round_}"
        folder.mkdir(parents=True)
        if build.name.endswith(FIRST):
            self.forget(case)
        command, added = build.command(folder, self.tools.jobs)
        with self._server(build, folder) as server:
            done = measure(
                group.inside(command) if group else command,
                cwd=folder,
                env={**self.environment(case), **(server.env if server else {}), **added},
                servers=(server.process,) if server else (),
                ceiling=ceiling,
            )
        row = _row(case, build, folder, done)
        _say(row, done)
        return row

    def _server(self, build: Build, folder: Path) -> AbstractContextManager[Server | None]:
        if build.server and self.tools.sccache:
            return serving(self.tools.sccache, folder / "sccache")
        return nullcontext()

    def environment(self, case: str) -> dict[str, str]:
        """Return the environment, with archsplit's stored files in a folder of the case."""
        state = self.folder / case / "state"
        runtime = self.folder / "runtime"
        for path in (state, runtime):
            path.mkdir(parents=True, exist_ok=True)
        runtime.chmod(0o700)
        homes = {f"XDG_{name}_HOME": str(state) for name in ("CACHE", "STATE", "DATA")}
        # What is measured is compiling; with the cache the second run would have nothing to do.
        ours = {"XDG_RUNTIME_DIR": str(runtime), "ARCHSPLIT_CACHE": "off"}
        return {**os.environ, **homes, **ours}

    def forget(self, case: str) -> None:
        """Remove what archsplit learned from earlier runs."""
        shutil.rmtree(self.folder / case / "state", ignore_errors=True)


def _row(case: str, build: Build, folder: Path, done: Measured) -> Row:
    return Row(
        case=case,
        build=build.name,
        ours=build.ours,
        wall=done.wall,
        cpu=done.cpu,
        peak=done.peak,
        trouble=_trouble(build, done, folder),
        folder=folder,
    )


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)


def _trouble(build: Build, done: Measured, folder: Path) -> str:
    if done.exceeded:
        return "killed: too much memory"
    if done.returncode != 0:
        return f"exit status {done.returncode}"
    if build.ours and FALLBACK in (folder / LOG).read_text(errors="replace"):
        return "fell back to nvcc"
    missing = [
        name
        for one in build.compiles
        for name in one.outputs
        if not (folder / name).is_file() or (folder / name).stat().st_size == 0
    ]
    return f"left no {missing[0]}" if missing else ""


def _say(row: Row, done: Measured) -> None:
    """Write a line about a run to standard error; after a failure also the program's output."""
    line = f"{row.case}: {row.build}: {row.wall:.2f} s, CPU {row.cpu:.1f} s, {row.trouble or 'ok'}"
    said = f"\n{done.said}" if row.trouble else ""
    sys.stderr.write(f"{line}{said}\n")
