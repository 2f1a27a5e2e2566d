"""Provenance of a build from a recipe: its origins, its manifest and its bills of materials.

In: the context of a build, its report and its libraries. Out: the `Manifest`, and wheels with a
bill of materials. `Origins` is the common source of both: input files, tools with their digests,
flags, NVIDIA's static libraries and licenses. All of it is read from the tools and files that the
build works with.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.release.identity import LOADER_LIBRARY
from archsplit.release.manifest import SourceFile, Tool, library_images, release_manifest
from archsplit.release.sbom import (
    BUILT,
    Bill,
    BillComponent,
    cuda_cpe,
    encode_bill,
    loader_part,
    own_tools,
    tool_component,
    wheel_component,
)
from archsplit.system.fs import read_file, sha256
from archsplit.wheels.filename import plugin_path
from archsplit.wheels.writer import wheel_members

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from archsplit.build.context import BuildContext
    from archsplit.recipe.model import Recipe
    from archsplit.release.identity import Identity
    from archsplit.release.manifest import Manifest
    from archsplit.release.report import Release
    from archsplit.wheels.metadata import CoreMetadata
    from archsplit.wheels.writer import WheelDraft


NVIDIA_LICENSE = "NVIDIA Software License Agreement"

_NVIDIA_EXPRESSION = "LicenseRef-NVIDIA-Software-License"
_CCCL_LICENSE = "Apache-2.0 WITH LLVM-exception AND Apache-2.0 AND BSD-3-Clause"

STATIC_RUNTIME = "libcudart_static.a"
STATIC_DEVICE_RUNTIME = "libcudadevrt.a"
_TITLES = {STATIC_RUNTIME: "CUDA runtime", STATIC_DEVICE_RUNTIME: "CUDA device runtime"}

_HOST_TOOLS = ("host compiler", "objcopy", "assembler", "linker")
"""Host's tools, in the order of `HostTools.versions`."""

_CUDART = re.compile(rb"^#define\s+CUDART_VERSION\s+(\d+)", re.MULTILINE)
_CCCL = re.compile(rb"^#define\s+CCCL_VERSION\s+(\d+)", re.MULTILINE)
_CCCL_HEADERS = ("include/cccl/cuda/std/__cccl/version.h", "include/cuda/std/__cccl/version.h")
_CCCL_INCLUDE = re.compile(rb"^\s*#\s*include\s*<(?:cub|thrust|cuda|nv)/", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origins:
    """Inputs and tools of a build.

    Attributes:
        sources: the input files of the recipe.
        toolchain: the programs and libraries whose versions change the bytes of wheels.
        runtime: the static libraries of CUDA that are linked into every plugin.
        cccl: the version of CUDA's C++ headers; None if no file of the recipe includes them.
        flags: the values of each option.
        licenses: NVIDIA's license texts from the toolkit, by their file name in plugins: of the
            runtime, and of the C++ headers if they are used.
    """

    sources: tuple[SourceFile, ...] = field(repr=False)
    toolchain: tuple[Tool, ...] = field(repr=False)
    runtime: tuple[Tool, ...]
    cccl: str | None
    flags: Mapping[str, tuple[str, ...]] = field(repr=False)
    licenses: Mapping[str, bytes] = field(default_factory=dict, repr=False)


def built_manifest(
    report: Release, identity: Identity, origins: Origins, libraries: Mapping[str, Path]
) -> Manifest:
    """Return the manifest of a build.

    Args:
        report: the report of its wheels.
        identity: the identity of its core.
        origins: the inputs and tools of the build.
        libraries: the library of each target's plugin.

    Raises:
        BinaryFormatError: a library is damaged.
    """
    images = {
        target: library_images(path, plugin_path(identity.import_package, target, identity.library))
        for target, path in libraries.items()
    }
    return release_manifest(
        report,
        images,
        sources=origins.sources,
        toolchain=origins.toolchain,
        flags=origins.flags,
    )


def add_bill(draft: WheelDraft, origins: Origins, *, epoch: int) -> WheelDraft:
    """Return a wheel's draft with a bill of materials; a wheel without files has none."""
    if not draft.members:
        return draft
    files = {one.name.rpartition("/")[2]: one.content for one in draft.members}
    # Only plugins contain NVIDIA's code, and only cores have the loader.
    if isinstance(loader := files.get(LOADER_LIBRARY), Path):
        parts = [loader_part(sha256(loader))]
    else:
        draft, parts = _with_licenses(draft, origins), list(_in_plugin(origins))
    metadata = draft.metadata
    subject = wheel_component(
        metadata.name,
        metadata.version,
        license_name=metadata.license_expression,
        summary=metadata.summary,
    )
    tools = (tool_component(tool) for tool in origins.toolchain if tool not in origins.runtime)
    bill = Bill(subject=subject, parts=tuple(parts), tools=tuple(tools), epoch=epoch)
    return replace(draft, sboms=wheel_members({BUILT: encode_bill(bill)}))


def _with_licenses(draft: WheelDraft, origins: Origins) -> WheelDraft:
    metadata, more = add_licenses(draft.metadata, origins)
    return replace(draft, metadata=metadata, licenses=(*draft.licenses, *wheel_members(more)))


def add_licenses(
    metadata: CoreMetadata, origins: Origins
) -> tuple[CoreMetadata, Mapping[str, bytes]]:
    """Add NVIDIA's licenses to the metadata of a plugin, beside the license of the project.

    Returns:
        The metadata, and the texts of the added license files by their names.
    """
    own = metadata.license_expression
    named = [_NVIDIA_EXPRESSION] if origins.runtime else []
    named += [_CCCL_LICENSE] if origins.cccl is not None else []
    # If the project has no expression, NVIDIA's would cover the project's code too.
    expression = " AND ".join((f"({own})" if " OR " in own.upper() else own, *named)) if own else ""
    more = {
        name: text for name, text in origins.licenses.items() if name not in metadata.license_files
    }
    files = (*metadata.license_files, *more)
    return replace(metadata, license_expression=expression, license_files=files), more


def _in_plugin(origins: Origins) -> Iterator[BillComponent]:
    """Yield NVIDIA's code that is linked or compiled into a plugin's library."""
    for one in origins.runtime:
        yield BillComponent(
            name=one.name,
            version=one.version,
            address=f"pkg:generic/nvidia/{one.name}@{one.version}",
            cpe=cuda_cpe(one.version),
            sha256=one.sha256 or "",
            license=NVIDIA_LICENSE,
            description=f"{_TITLES[one.name]}, linked statically.",
        )
    if origins.cccl is not None:
        yield BillComponent(
            name="CCCL",
            version=origins.cccl,
            license=_CCCL_LICENSE,
            description="CUDA C++ Core Libraries: headers, compiled in.",
            address=f"pkg:github/nvidia/cccl@v{origins.cccl}",
        )


def read_origins(context: BuildContext) -> Origins:
    """Read and hash the inputs and tools of a build.

    Raises:
        InputError: one of the files can't be read.
    """
    recipe = context.recipe
    runtime = tuple(_runtime(context))
    cccl = _cccl(context.toolkit.root) if _uses_cccl(recipe) else None
    return Origins(
        sources=tuple(
            SourceFile(path=str(path), sha256=sha256(recipe.root / path))
            for path in recipe.input_files
        ),
        toolchain=(*_toolchain(context), *runtime, *own_tools()),
        runtime=runtime,
        cccl=cccl,
        flags=_flags(recipe),
        licenses=dict(_licenses(context.toolkit.root, ("runtime", *(["cccl"] if cccl else [])))),
    )


def _toolchain(context: BuildContext) -> Iterator[Tool]:
    toolkit = context.toolkit
    programs = list(toolkit.tools)
    if context.recipe.compile.relocatable:
        programs.append(toolkit.root / "bin" / "nvlink")
    for path in programs:
        yield Tool(name=path.name, version=toolkit.release, sha256=context.toolkit_sha256(path))
    for name, words in zip(_HOST_TOOLS, context.host.versions, strict=False):
        yield Tool(name=name, version=words)


def _runtime(context: BuildContext) -> Iterator[Tool]:
    toolkit = context.toolkit
    header = read_file(toolkit.root / "include" / "cuda_runtime_api.h")
    # From its own header: in index wheels, the runtime and nvcc may have different versions.
    found = _CUDART.search(header)
    number = int(found[1]) if found else toolkit.cuda_version
    version = f"{number // 1000}.{number // 10 % 100}"
    names = (
        STATIC_RUNTIME,
        *((STATIC_DEVICE_RUNTIME,) if context.recipe.compile.relocatable else ()),
    )
    for name in names:
        digest = context.toolkit_sha256(toolkit.library_folder / name)
        yield Tool(name=name, version=version, sha256=digest)


def _uses_cccl(recipe: Recipe) -> bool:
    """Return True if a file of the recipe includes CUDA's C++ headers by their names."""
    suffixes = (".cu", ".cuh", ".h", ".hpp", ".cpp", ".cc", ".cxx", ".inl")
    paths = (recipe.root / path for path in recipe.input_files if path.suffix in suffixes)
    return any(_CCCL_INCLUDE.search(read_file(path)) for path in paths)


def _cccl(root: Path) -> str:
    """Return the version in the C++ headers of CUDA: 3000001 is 3.0.1."""
    for header in _CCCL_HEADERS:
        if (root / header).is_file() and (found := _CCCL.search(read_file(root / header))):
            number = int(found[1])
            return f"{number // 1_000_000}.{number // 1_000 % 1_000}.{number % 1_000}"
    return "unknown"


def _licenses(root: Path, parts: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Yield NVIDIA's license texts with their names in plugins.

    They are in the dist-info of NVIDIA's wheels, or in the folder of an installed toolkit.
    """
    for part in parts:
        beside = root.parents[1].glob(f"nvidia_cuda_{part}*.dist-info/licenses/*")
        own = {"runtime": "EULA.txt", "cccl": "include/cccl/LICENSE"}[part]
        texts = [path for path in (*sorted(beside), root / own) if path.is_file()]
        # NVIDIA's wheels have the text in dist-info, and an installed toolkit has it at its root.
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
        "cuda-libraries": link.cuda_libraries,
        "targets": tuple(map(str, recipe.targets.all)),
    }
