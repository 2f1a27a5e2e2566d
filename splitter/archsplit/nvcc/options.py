"""Spell what is asked of the compiler as nvcc's command line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.arch.target import CodeKind, Target

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path, PurePosixPath

    from archsplit.nvcc.toolkit import Toolkit

__pure__ = True


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
        relocatable: sources use each other's device code, which a device link then resolves.
    """

    include: tuple[PurePosixPath, ...]
    defines: tuple[str, ...]
    standard: str
    nvcc_flags: tuple[str, ...]
    host_flags: tuple[str, ...]
    host_compiler: Path
    relocatable: bool = False


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
    return (
        *_dryrun(toolkit, folder),
        "-c",
        *(("-rdc=true",) if options.relocatable else ()),
        *_flags(toolkit, options),
        *(f"-I{include}" for include in options.include),
        *(f"-D{_list_item(define)}" for define in options.defines),
        *code_flags(targets),
        str(source),
        "-o",
        str(folder / "host.o"),
    )


def device_link_command(
    toolkit: Toolkit,
    options: CompileOptions,
    *,
    objects: Iterable[Path],
    libraries: Iterable[str],
    target: Target,
    folder: Path,
) -> tuple[str, ...]:
    """The command whose transcript says how ``objects`` get linked for one target.

    Args:
        objects: absolute; they need not be there yet.
        libraries: the arguments ``-L…`` and ``-l…``.
        target: code for it is in the objects, and for no other.
        folder: an existing folder for this device link alone.
    """
    # A driver that links PTX takes every object that is registered, also the device runtime that
    # no one calls, which nvlink leaves out where it links machine code.
    runtime = ("-cudadevrt=none",) if target.kind is CodeKind.PTX else ()
    return (
        *_dryrun(toolkit, folder),
        "-dlink",
        "-shared",
        *_flags(toolkit, options),
        *runtime,
        *code_flags((target,)),
        *map(str, objects),
        *libraries,
        f"-L{toolkit.library_folder}",
        "-o",
        str(folder / "device-link.o"),
    )


def _dryrun(toolkit: Toolkit, folder: Path) -> tuple[str, ...]:
    return (str(toolkit.nvcc), "--dryrun", "--keep", "--keep-dir", str(folder))


def _flags(toolkit: Toolkit, options: CompileOptions) -> tuple[str, ...]:
    host_flags = ("-fPIC", "-fvisibility=hidden", *_prefix_maps(toolkit), *options.host_flags)
    return (
        "-ccbin",
        str(options.host_compiler),
        f"-std={options.standard}",
        *(argument for flag in host_flags for argument in ("-Xcompiler", flag)),
        *options.nvcc_flags,
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
