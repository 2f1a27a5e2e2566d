"""Which parts and tools the bill of a built wheel names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from archsplit.release.identity import LOADER_LIBRARY
from archsplit.release.sbom import BUILT, Bill, BillComponent, distribution_address, encode_bill
from archsplit.release.tool_parts import loader_part
from archsplit.system.fs import sha256
from archsplit.wheels.member_names import WheelMember

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from archsplit.build.provenance import Origins
    from archsplit.release.manifest import Tool
    from archsplit.wheels.writer import WheelPlan

NVIDIA_LICENSE = "NVIDIA Software License Agreement"

_NVIDIA_EXPRESSION = "LicenseRef-NVIDIA-Software-License"
_CCCL_LICENSE = "Apache-2.0 WITH LLVM-exception AND Apache-2.0 AND BSD-3-Clause"
_PROGRAMS = {"libcudart_static.a": "CUDA runtime", "libcudadevrt.a": "CUDA device runtime"}


def with_bill(plan: WheelPlan, origins: Origins, *, epoch: int) -> WheelPlan:
    """The same wheel with its bill of materials; a wheel without files has nothing to list."""
    if not plan.members:
        return plan
    loader = next((one.content for one in plan.members if one.name.endswith(LOADER_LIBRARY)), None)
    if loader is None:
        plan = _with_licenses(plan, origins)
    metadata = plan.metadata
    parts = _in_plugin(origins) if loader is None else _in_core(origins, loader)
    bill = Bill(
        subject=BillComponent(
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
    return replace(plan, sboms=(WheelMember(name=BUILT, content=encode_bill(bill)),))


def _with_licenses(plan: WheelPlan, origins: Origins) -> WheelPlan:
    """Say in METADATA, too, under what a plugin is: the project's licence is not all of it."""
    own = plan.metadata.license_expression
    named = [_NVIDIA_EXPRESSION] if origins.runtime else []
    named += [_CCCL_LICENSE] if origins.cccl is not None else []
    # Without a word of the project's own an expression would speak for all of the wheel.
    expression = " AND ".join((f"({own})" if " OR " in own.upper() else own, *named)) if own else ""
    there = {file.name for file in plan.licenses}
    more = {name: text for name, text in origins.licenses.items() if name not in there}
    metadata = replace(
        plan.metadata,
        license_expression=expression,
        license_files=(*plan.metadata.license_files, *more),
    )
    files = tuple(WheelMember(name=name, content=text) for name, text in more.items())
    return replace(plan, metadata=metadata, licenses=(*plan.licenses, *files))


def _in_plugin(origins: Origins) -> Iterator[BillComponent]:
    """What the linker and the compiler put into a plugin's library."""
    for one in origins.runtime:
        yield BillComponent(
            name=one.name,
            version=one.version,
            sha256=one.sha256 or "",
            license=NVIDIA_LICENSE,
            description=f"{_PROGRAMS[one.name]}, linked statically.",
        )
    if origins.cccl is not None:
        yield BillComponent(
            name="CCCL",
            version=origins.cccl,
            license=_CCCL_LICENSE,
            description="CUDA C++ Core Libraries: headers, compiled in.",
            address=f"pkg:github/nvidia/cccl@v{origins.cccl}",
        )


def _in_core(origins: Origins, loader: bytes | Path) -> Iterator[BillComponent]:
    versions = {one.name: one.version for one in origins.toolchain}
    if not isinstance(loader, bytes):
        yield loader_part(sha256(loader), versions["archsplit"])


def _tool(tool: Tool) -> BillComponent:
    return BillComponent(
        name=tool.name, version=tool.version, kind="application", sha256=tool.sha256 or ""
    )
