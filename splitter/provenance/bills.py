"""Which parts and tools the bill of a built wheel names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from splitter.identity import LOADER_LIBRARY
from splitter.provenance.sbom import BUILT, Bill, Part, distribution_address, encode
from splitter.system.files import sha256
from splitter.wheels.member import Member

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from splitter.provenance.manifest import Tool
    from splitter.provenance.origins import Origins
    from splitter.wheels.writer import WheelPlan

NVIDIA_LICENSE = "NVIDIA Software License Agreement"
LOADER = "archsplit-loader"

_CCCL_LICENSE = "Apache-2.0 WITH LLVM-exception AND Apache-2.0 AND BSD-3-Clause"
_PROGRAMS = {"libcudart_static.a": "CUDA runtime", "libcudadevrt.a": "CUDA device runtime"}


def with_bill(plan: WheelPlan, origins: Origins, *, epoch: int) -> WheelPlan:
    """The same wheel with its bill of materials; a wheel without files has nothing to list."""
    if not plan.members:
        return plan
    metadata = plan.metadata
    loader = next((one.content for one in plan.members if one.name.endswith(LOADER_LIBRARY)), None)
    parts = _in_plugin(origins) if loader is None else _in_core(origins, loader)
    bill = Bill(
        subject=Part(
            name=metadata.name,
            version=metadata.version,
            address=distribution_address(metadata.name, metadata.version),
            license=metadata.license_expression,
            description=metadata.summary,
        ),
        parts=tuple(parts),
        tools=tuple(_tool(tool) for tool in origins.toolchain if tool not in origins.runtime),
        epoch=epoch,
    )
    return replace(plan, sboms=(Member(name=BUILT, content=encode(bill)),))


def loader_part(sha256_of_it: str, version: str) -> Part:
    """The loader that every core carries."""
    return Part(
        name=LOADER,
        version=version,
        sha256=sha256_of_it,
        license="Apache-2.0",
        description="Finds, checks, chooses and opens plugins; part of archsplit.",
    )


def _in_plugin(origins: Origins) -> Iterator[Part]:
    """What the linker and the compiler put into a plugin's library."""
    for one in origins.runtime:
        yield Part(
            name=one.name,
            version=one.version,
            sha256=one.sha256 or "",
            license=NVIDIA_LICENSE,
            description=f"{_PROGRAMS[one.name]}, linked statically.",
        )
    if origins.cccl is not None:
        yield Part(
            name="CCCL",
            version=origins.cccl,
            license=_CCCL_LICENSE,
            description="CUDA C++ Core Libraries: headers, compiled in.",
            address=f"pkg:github/nvidia/cccl@v{origins.cccl}",
        )


def _in_core(origins: Origins, loader: bytes | Path) -> Iterator[Part]:
    versions = {one.name: one.version for one in origins.toolchain}
    if not isinstance(loader, bytes):
        yield loader_part(sha256(loader), versions["archsplit"])


def _tool(tool: Tool) -> Part:
    return Part(name=tool.name, version=tool.version, kind="application", sha256=tool.sha256 or "")
