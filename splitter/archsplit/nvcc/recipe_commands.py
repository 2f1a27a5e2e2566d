"""The dry-run commands of a recipe's sources.

In: the options of a recipe, a source and the targets. Out: nvcc's arguments. Source: "NVCC Command
Options" in NVIDIA's nvcc documentation.
"""

from __future__ import annotations

import re
import shlex
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
    """The options for all sources of a library.

    Attributes:
        include: folders, relative to nvcc's working folder.
        defines: ``NAME`` or ``NAME=VALUE``.
        standard: ``c++17``.
        nvcc_flags: further flags, as a user would type them.
        host_flags: flags only for the host compiler.
        host_compiler: the value of nvcc's ``-ccbin``.
        relocatable: True if sources use each other's device code, which a device link resolves.
        system_include: absolute folders whose headers are the system's: no warnings about them.
    """

    include: tuple[PurePosixPath, ...]
    defines: tuple[str, ...]
    standard: str
    nvcc_flags: tuple[str, ...]
    host_flags: tuple[str, ...]
    host_compiler: Path
    relocatable: bool = False
    system_include: tuple[Path, ...] = ()


def dryrun_command(
    toolkit: Toolkit,
    options: CompileOptions,
    *,
    source: PurePosixPath,
    targets: Iterable[Target],
    folder: Path,
) -> tuple[str, ...]:
    """Return the dry-run command for the compilation of ``source`` to an object.

    ``--keep-dir`` gives every intermediate file a name without a process number, and keeps nvcc
    from deleting any of them.

    Args:
        toolkit: the nvcc to run.
        options: the options for all sources.
        source: relative to nvcc's working folder, so that no absolute path gets into ``__FILE__``.
        targets: all targets of the release, so that ``__CUDA_ARCH_LIST__`` doesn't depend on the
            targets that are built now.
        folder: an existing folder only for this source.
    """
    return (
        *_dryrun_prefix(toolkit, folder),
        "-c",
        *(("-rdc=true",) if options.relocatable else ()),
        *_flags(toolkit, options),
        *(f"-I{include}" for include in options.include),
        *(word for path in options.system_include for word in ("-isystem", str(path))),
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
    """Return the dry-run command for the device link of ``objects`` for one target.

    Args:
        toolkit: the nvcc to run.
        options: the options for all sources.
        objects: absolute paths, of files that may not exist yet.
        libraries: the arguments ``-L…`` and ``-l…``.
        target: the only target of the objects' code.
        folder: an existing folder only for this device link.
    """
    # A driver that links PTX takes every registered object, also an unused device runtime, which
    # nvlink leaves out when it links machine code.
    runtime = ("-cudadevrt=none",) if target.kind is CodeKind.PTX else ()
    return (
        *_dryrun_prefix(toolkit, folder),
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


def _dryrun_prefix(toolkit: Toolkit, folder: Path) -> tuple[str, ...]:
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
    # nvcc reads the value of -D as a list with commas, in which a backslash quotes the next
    # character. It prints a backslash as it is into double quotes, where the shell halves it again.
    return re.sub(r'([,"])', r"\\\1", define.replace("\\", "\\" * 4))


def _prefix_maps(toolkit: Toolkit) -> tuple[str, str]:
    # __FILE__ in the toolkit's own headers (CUB's asserts have it) must not name this machine's
    # folders. nvcc spells them with bin/.., and gcc follows the links in a system header's path.
    maps = (f"{toolkit.root}=/cuda", f"{toolkit.nvcc.parent}/..=/cuda")
    # nvcc hands the flag to a shell as it is: a toolkit in a folder with a space needs quotes.
    return (
        shlex.quote(f"-ffile-prefix-map={maps[0]}"),
        shlex.quote(f"-ffile-prefix-map={maps[1]}"),
    )


def code_flags(targets: Iterable[Target]) -> tuple[str, ...]:
    """Return nvcc's ``-gencode`` arguments for exactly these targets, in their order.

    Source: "Options for Steering GPU Code Generation" in NVIDIA's nvcc documentation.
    """
    flags: list[str] = []
    for target in targets:
        virtual = Target(kind=CodeKind.PTX, capability=target.capability, suffix=target.suffix)
        flags += ["-gencode", f"arch={virtual},code={target}"]
    return tuple(flags)
