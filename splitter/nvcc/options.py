"""Spell what is asked of the compiler as nvcc's command line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from splitter.arch.target import CodeKind, Target

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path, PurePosixPath

    from splitter.nvcc.toolkit import Toolkit


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """What every source of a library is compiled with.

    Attributes:
        include: folders, relative to where nvcc runs.
        defines: ``NAME`` or ``NAME=VALUE``.
        standard: ``c++17``.
        nvcc_flags: further flags, as a user would type them.
        host_flags: flags for the host compiler alone.
        host_compiler: what nvcc's ``-ccbin`` names.
    """

    include: tuple[PurePosixPath, ...]
    defines: tuple[str, ...]
    standard: str
    nvcc_flags: tuple[str, ...]
    host_flags: tuple[str, ...]
    host_compiler: Path


def dryrun_command(
    toolkit: Toolkit,
    options: CompileOptions,
    *,
    source: PurePosixPath,
    targets: Iterable[Target],
    folder: Path,
) -> tuple[str, ...]:
    """The command whose transcript says how ``source`` becomes an object.

    ``--keep-dir`` with a folder of our own gives every intermediate file a name that is known
    beforehand and carries no process number; nothing is deleted behind our back.

    Args:
        source: relative to where nvcc runs, so that no absolute path gets into ``__FILE__``.
        targets: every target of the release, so that ``__CUDA_ARCH_LIST__`` is the same however
            many of them are built now.
        folder: an existing folder for this source alone.
    """
    host_flags = ("-fPIC", "-fvisibility=hidden", *_prefix_maps(toolkit), *options.host_flags)
    return (
        str(toolkit.nvcc),
        "--dryrun",
        "--keep",
        "--keep-dir",
        str(folder),
        "-c",
        "-ccbin",
        str(options.host_compiler),
        f"-std={options.standard}",
        *(argument for flag in host_flags for argument in ("-Xcompiler", flag)),
        *(f"-I{include}" for include in options.include),
        *(f"-D{_list_item(define)}" for define in options.defines),
        *options.nvcc_flags,
        *code_flags(targets),
        str(source),
        "-o",
        str(folder / "host.o"),
    )


def _list_item(define: str) -> str:
    # nvcc takes -D for a list with commas, in which a backslash makes the next character plain. It
    # prints a backslash as it is into double quotes, where the shell halves it once more.
    return re.sub(r'([,"])', r"\\\1", define.replace("\\", "\\" * 4))


def _prefix_maps(toolkit: Toolkit) -> tuple[str, str]:
    # __FILE__ in the toolkit's own headers (CUB's asserts have it) must not name this machine's
    # folders. nvcc spells them with bin/.., and gcc follows the links in a system header's path.
    maps = (f"{toolkit.root}=/cuda", f"{toolkit.nvcc.parent}/..=/cuda")
    return (f"-ffile-prefix-map={maps[0]}", f"-ffile-prefix-map={maps[1]}")


def code_flags(targets: Iterable[Target]) -> tuple[str, ...]:
    """Spell nvcc's ``-gencode`` arguments for exactly these targets, in their order.

    Source: "Options for Steering GPU Code Generation" in NVIDIA's nvcc documentation.
    """
    flags: list[str] = []
    for target in targets:
        virtual = Target(kind=CodeKind.PTX, capability=target.capability, suffix=target.suffix)
        flags += ["-gencode", f"arch={virtual},code={target}"]
    return tuple(flags)
