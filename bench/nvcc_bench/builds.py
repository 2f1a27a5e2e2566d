"""Compared builds: the same compiles by nvcc, by other wrappers, and by archsplit."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from nvcc_bench.commands import Build, Compile, found, ours
from nvcc_bench.sources import HEADERS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nvcc_bench.commands import Tools

FIRST = "archsplit, first run"
LEARNED = "archsplit"
"""Second run, with the durations that the first run has learned."""
ONE_PROCESS = "archsplit, one process"
FAT = "nvcc"
SINGLES = "make -j, nvcc, one target each"
FAT_LIBRARY = "nvcc -t0 -shared"
LIBRARIES = "make -j, nvcc -shared, one target each"
WHEELS = "archsplit build, a wheel per target"


def builds(
    sources: tuple[Path, ...], *, tools: Tools, targets: tuple[str, ...], options: str = ""
) -> tuple[Build, ...]:
    """Return all ways of compiling the sources for the targets, the peers first.

    Args:
        sources: one makes a single compile, several a build by make.
        tools: the commands.
        targets: capabilities without a point: ``"90"``.
        options: more of them for archsplit.
    """
    return (*_peers(sources, tools, targets), *_ours(sources, tools, targets, options))


def _peers(sources: tuple[Path, ...], tools: Tools, targets: tuple[str, ...]) -> Iterator[Build]:
    make = _make(sources)
    for options in ("", " -t0", " -t0 -split-compile 0"):
        compiler = (*tools.nvcc, *options.split())
        yield Build(name=f"{make}nvcc{options}", compiles=_each(sources, compiler, targets))
    yield Build(name=SINGLES, compiles=_singles(sources, tools.nvcc, targets))
    if make:
        at_once = _at_once(sources, (*tools.nvcc, "-t0"), targets)
        yield Build(name="nvcc -t0, one process", compiles=(at_once,))
    if tools.sccache:
        compiles = _each(sources, (tools.sccache, *tools.nvcc), targets)
        yield Build(name=f"{make}sccache, cold", compiles=compiles, server=True)


def _ours(
    sources: tuple[Path, ...], tools: Tools, targets: tuple[str, ...], options: str
) -> Iterator[Build]:
    make = _make(sources)
    compiles = _each(sources, tools.archsplit, targets)
    for name, drawn in ((FIRST, True), (LEARNED, False)):
        told = (ours(tools, options, tell=path.stem, draw=drawn) for path in sources)
        some = tuple(replace(one, env=env) for one, env in zip(compiles, told, strict=True))
        yield Build(name=make + name, compiles=some, ours=True)
    if make:
        at_once = replace(_at_once(sources, tools.archsplit, targets), env=ours(tools, options))
        yield Build(name=ONE_PROCESS, compiles=(at_once,), ours=True)


def _make(sources: tuple[Path, ...]) -> str:
    """Return the prefix of a build's name: make compiles several files."""
    return "make -j, " if len(sources) > 1 else ""


def library_builds(recipe: Path, *, tools: Tools, targets: tuple[str, ...]) -> tuple[Build, ...]:
    """Return the builds of a fat library, of a library per target, and of the recipe's wheels."""
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
) -> tuple[Compile, ...]:
    return tuple(
        Compile(
            argv=(*compiler, *_flags(targets), "-c", str(path), "-o", f"{path.stem}.o"),
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
) -> Compile:
    return Compile(
        argv=(*compiler, *_flags(targets), "-c", *map(str, sources)),
        outputs=tuple(f"{path.stem}.o" for path in sources),
    )


def _flags(targets: tuple[str, ...]) -> Iterator[str]:
    yield f"-I{HEADERS}"
    for target in targets:
        yield f"-gencode=arch=compute_{target},code=sm_{target}"
