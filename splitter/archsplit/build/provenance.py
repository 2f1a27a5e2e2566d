"""What a build is made from, with what, and how: read from where it happens."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.release.manifest import SourceFile, Tool
from archsplit.release.tool_parts import own_tools
from archsplit.system.fs import read_file, sha256

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from archsplit.build.context import BuildContext
    from archsplit.nvcc.toolkit import Toolkit
    from archsplit.recipe.model import Recipe

STATIC_RUNTIME = "libcudart_static.a"
STATIC_DEVICE_RUNTIME = "libcudadevrt.a"

_HOST_TOOLS = ("host compiler", "objcopy", "assembler", "linker")
"""What decides bytes of wheels and comes from the index: bills of materials, the loader."""

_CUDART = re.compile(rb"^#define\s+CUDART_VERSION\s+(\d+)", re.MULTILINE)
_CCCL = re.compile(rb"^#define\s+CCCL_VERSION\s+(\d+)", re.MULTILINE)
_CCCL_PLACES = ("include/cccl/cuda/std/__cccl/version.h", "include/cuda/std/__cccl/version.h")
_CCCL_INCLUDE = re.compile(rb"^\s*#\s*include\s*<(?:cub|thrust|cuda|nv)/", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origins:
    """Where a build comes from.

    Attributes:
        runtime: the static libraries of CUDA that are linked into every plugin.
        cccl: the version of CUDA's C++ headers; None where no file of the recipe includes them.
        flags: by the name of the option.
        licenses: the texts of NVIDIA's that came with the toolkit, by the names that plugins give
            them: of the runtime, and of the C++ headers where they are used.
    """

    sources: tuple[SourceFile, ...] = field(repr=False)
    toolchain: tuple[Tool, ...] = field(repr=False)
    runtime: tuple[Tool, ...]
    cccl: str | None
    flags: Mapping[str, tuple[str, ...]] = field(repr=False)
    licenses: Mapping[str, bytes] = field(default_factory=dict, repr=False)


def origins_of(site: BuildContext) -> Origins:
    """Read and hash what a build works with.

    Raises:
        InputError: one of the files can't be read.
    """
    recipe = site.recipe
    runtime = tuple(_runtime(site.toolkit, relocatable=recipe.compile.relocatable))
    cccl = _cccl(site.toolkit.root) if _uses_cccl(recipe) else None
    return Origins(
        sources=tuple(
            SourceFile(path=str(path), sha256=sha256(recipe.root / path))
            for path in recipe.input_files
        ),
        toolchain=(*_toolchain(site), *runtime, *own_tools()),
        runtime=runtime,
        cccl=cccl,
        flags=_flags(recipe),
        licenses=dict(_licenses(site.toolkit.root, ("runtime", *(["cccl"] if cccl else [])))),
    )


def _toolchain(site: BuildContext) -> Iterator[Tool]:
    toolkit = site.toolkit
    programs = list(toolkit.tools)
    if site.recipe.compile.relocatable:
        programs.append(toolkit.root / "bin" / "nvlink")
    for path in programs:
        yield Tool(name=path.name, version=toolkit.release, sha256=sha256(path))
    for name, words in zip(_HOST_TOOLS, site.host.versions, strict=False):
        yield Tool(name=name, version=words)


def _runtime(toolkit: Toolkit, *, relocatable: bool) -> Iterator[Tool]:
    header = read_file(toolkit.root / "include" / "cuda_runtime_api.h")
    found = _CUDART.search(header)
    number = int(found[1]) if found else toolkit.cuda_version
    known = f"{number // 1000}.{number // 10 % 100}"
    names = (STATIC_RUNTIME, *((STATIC_DEVICE_RUNTIME,) if relocatable else ()))
    for name in names:
        digest = sha256(toolkit.library_folder / name)
        yield Tool(name=name, version=known, sha256=digest)


def _uses_cccl(recipe: Recipe) -> bool:
    """Whether a file of the recipe includes CUDA's C++ headers by their names."""
    text = (".cu", ".cuh", ".h", ".hpp", ".cpp", ".cc", ".cxx", ".inl")
    paths = (recipe.root / path for path in recipe.input_files if path.suffix in text)
    return any(_CCCL_INCLUDE.search(read_file(path)) for path in paths)


def _cccl(root: Path) -> str:
    """The version that the headers give themselves: 3000001 is 3.0.1."""
    for place in _CCCL_PLACES:
        if (root / place).is_file() and (found := _CCCL.search(read_file(root / place))):
            number = int(found[1])
            return f"{number // 1_000_000}.{number // 1_000 % 1_000}.{number % 1_000}"
    return "unknown"


def _licenses(root: Path, parts: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """The texts beside a toolkit of the index's wheels, or in one that an installer made."""
    for part in parts:
        beside = root.parents[1].glob(f"nvidia_cuda_{part}*.dist-info/licenses/*")
        own = {"runtime": "EULA.txt", "cccl": "include/cccl/LICENSE"}[part]
        texts = [path for path in (*sorted(beside), root / own) if path.is_file()]
        if texts:
            yield f"nvidia-cuda-{part}.txt", read_file(texts[0])


def _flags(recipe: Recipe) -> Mapping[str, tuple[str, ...]]:
    source, compiling, link = recipe.source, recipe.compile, recipe.link
    return {
        "std": (compiling.std,),
        "nvcc-flags": compiling.nvcc_flags,
        "host-flags": compiling.host_flags,
        "host-pass": (compiling.host_pass,),
        "rdc": (str(compiling.relocatable).lower(),),
        "defines": source.defines,
        "include": tuple(map(str, source.include)),
        "libraries": link.libraries,
        "targets": tuple(map(str, recipe.targets.all)),
    }
