"""What is compared: the same compiles by nvcc, by others on top of it, and by archsplit."""

from __future__ import annotations

import itertools
import shlex
import shutil
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nvcc_bench.sources import HEADERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

FIRST = "archsplit, first run"
LEARNED = "archsplit"
"""The same again, with the durations that the first run has learned."""
ONE_PROCESS = "archsplit, one process"
FAT = "nvcc"
SINGLES = "make -j, nvcc, one target each"
FAT_LIBRARY = "nvcc -t0 -shared"
LIBRARIES = "make -j, nvcc -shared, one target each"
WHEELS = "archsplit build, a wheel per target"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The commands that are compared, and how many of them run at once.

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
    """One compile: its command, what it writes, and what is added to its environment."""

    argv: tuple[str, ...]
    outputs: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    def line(self) -> str:
        """The command for a shell."""
        names = (f"{name}={shlex.quote(value)}" for name, value in self.env.items())
        return " ".join((*names, shlex.join(self.argv)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """One way of making the objects of a case.

    Attributes:
        name: a row of the table.
        compiles: independent of each other; several are run by ``make -j``.
        ours: it is archsplit, and not one of its peers.
        server: it needs an sccache server.
    """

    name: str
    compiles: tuple[Compile, ...]
    ours: bool = False
    server: bool = False

    def command(self, folder: Path, jobs: int) -> tuple[tuple[str, ...], Mapping[str, str]]:
        """What is run in ``folder``, and what is added to its environment."""
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


def builds(
    sources: tuple[Path, ...], *, tools: Tools, targets: tuple[str, ...], options: str = ""
) -> tuple[Build, ...]:
    """All ways of compiling the sources for the targets, the peers first.

    Args:
        sources: one makes a single compile, several a build by make.
        tools: the commands.
        targets: capabilities without a point: ``"90"``.
        options: more of them for archsplit.
    """
    several = len(sources) > 1
    make = "make -j, " if several else ""
    threads = ("-t0",)
    shared = ("-t0", "-split-compile", "0")
    every = [
        Build(name=make + FAT, compiles=_each(sources, tools.nvcc, targets)),
        Build(name=f"{make}nvcc -t0", compiles=_each(sources, tools.nvcc, targets, threads)),
        Build(
            name=f"{make}nvcc -t0 -split-compile 0",
            compiles=_each(sources, tools.nvcc, targets, shared),
        ),
        Build(name=SINGLES, compiles=_singles(sources, tools.nvcc, targets)),
    ]
    if several:
        argv = (*tools.nvcc, *threads)
        every.append(Build(name="nvcc -t0, one process", compiles=_at_once(sources, argv, targets)))
    if tools.sccache:
        wrapped = (tools.sccache, *tools.nvcc)
        name = f"{make}sccache, cold"
        every.append(Build(name=name, compiles=_each(sources, wrapped, targets), server=True))
    for name, draw in ((FIRST, True), (LEARNED, False)):
        compiles = tuple(
            replace(
                one,
                env=ours(tools, options, table=path.stem, graph=path.stem if draw else ""),
            )
            for path, one in zip(sources, _each(sources, tools.archsplit, targets), strict=True)
        )
        every.append(Build(name=make + name, compiles=compiles, ours=True))
    if several:
        (at_once,) = _at_once(sources, tools.archsplit, targets)
        at_once = replace(at_once, env=ours(tools, options))
        every.append(Build(name=ONE_PROCESS, compiles=(at_once,), ours=True))
    return tuple(every)


def library_builds(recipe: Path, *, tools: Tools, targets: tuple[str, ...]) -> tuple[Build, ...]:
    """One fat library, a library per target, and the wheels of the recipe; all linked."""
    (source,) = (recipe / "src").glob("*.cu")
    linking = (*tools.nvcc, "-t0", "-shared", "-Xcompiler=-fPIC", str(source))
    nvcc = ("--nvcc", found(tools.nvcc))
    wheels = (*tools.archsplit_build, str(recipe), "--no-core", "--quiet", "--out", "wheels", *nvcc)

    def library(*some: str) -> Compile:
        name = f"lib{'-'.join(some)}.so"
        return Compile(argv=(*linking, *_flags(some), "-o", name), outputs=(name,))

    report = ("wheels/archsplit-report.json",)
    return (
        Build(name=FAT_LIBRARY, compiles=(library(*targets),)),
        Build(name=LIBRARIES, compiles=tuple(map(library, targets))),
        Build(name=WHEELS, compiles=(Compile(argv=wheels, outputs=report),), ours=True),
    )


def _each(
    sources: tuple[Path, ...],
    compiler: tuple[str, ...],
    targets: tuple[str, ...],
    options: tuple[str, ...] = (),
) -> tuple[Compile, ...]:
    return tuple(
        Compile(
            argv=(*compiler, *options, *_flags(targets), "-c", str(path), "-o", f"{path.stem}.o"),
            outputs=(f"{path.stem}.o",),
        )
        for path in sources
    )


def _singles(
    sources: tuple[Path, ...], compiler: tuple[str, ...], targets: tuple[str, ...]
) -> tuple[Compile, ...]:
    return tuple(
        Compile(
            argv=(*compiler, *_flags((target,)), "-c", str(path), "-o", f"{path.stem}.{target}.o"),
            outputs=(f"{path.stem}.{target}.o",),
        )
        for path, target in itertools.product(sources, targets)
    )


def _at_once(
    sources: tuple[Path, ...], compiler: tuple[str, ...], targets: tuple[str, ...]
) -> tuple[Compile, ...]:
    return (
        Compile(
            argv=(*compiler, *_flags(targets), "-c", *map(str, sources)),
            outputs=tuple(f"{path.stem}.o" for path in sources),
        ),
    )


def ours(tools: Tools, options: str = "", *, table: str = "", graph: str = "") -> dict[str, str]:
    """The environment that tells archsplit which nvcc it stands for, and what else to do.

    Args:
        tools: the commands.
        options: more of them for archsplit.
        table: the name of the table of its steps.
        graph: the name of the graph and of the trace; drawing them takes time.
    """
    words = ["--nvcc", found(tools.nvcc), *shlex.split(options)]
    if table:
        words += ["--table", f"{table}.csv"]
    if graph:
        words += ["--graph", f"{graph}.dot", "--trace", f"{graph}.trace.json"]
    return {"ARCHSPLIT_NVCC_OPTIONS": shlex.join(words)}


def found(command: tuple[str, ...]) -> str:
    """The path of a program."""
    return shutil.which(command[0]) or command[0]


def _flags(targets: tuple[str, ...]) -> Iterator[str]:
    yield f"-I{HEADERS}"
    for target in targets:
        yield f"-gencode=arch=compute_{target},code=sm_{target}"
