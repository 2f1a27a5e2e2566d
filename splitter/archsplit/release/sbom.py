"""Bills of materials in CycloneDX: the components of a wheel and the tools that made it.

They lie in ``<dist-info>/sboms/`` (PEP 770). Nothing in them is random: the serial number is made
from the content, the time is the build's own.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

from archsplit import __version__
from archsplit.release.loader import ZIG
from archsplit.release.manifest import Tool
from archsplit.system.env import ZIP_EPOCH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cyclonedx.model.component import Component

__pure__ = True

BUILT, SPLIT = "archsplit.cdx.json", "archsplit-split.cdx.json"
"""File names of the bills of built and of split wheels."""

_OWN_PACKAGES = ("archsplit", "cyclonedx-python-lib", "deflate")
_INDEX_PACKAGES = frozenset((*_OWN_PACKAGES, "ziglang"))
"""Tools that are distributions on the index."""

_LOADER_PROJECT = "archsplit"
"""Distribution in whose name a fault of the loader would be published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BillComponent:
    """Something that is in a wheel, or that it was made with.

    Attributes:
        kind: of CycloneDX's kinds.
        address: a package URL; "" where it has none. Scanners look for language packages by the
            component's name and the type in this address, so both have the same name.
        cpe: the name in the National Vulnerability Database; "" for none. Scanners look for
            software that is on no package index only by this name.
        sha256: of the file; "" if it isn't a file, or is unknown.
        license: an SPDX expression, or another name in words; "" if unknown.
    """

    name: str
    version: str
    kind: Literal["library", "application", "file"] = "library"
    address: str = ""
    cpe: str = ""
    sha256: str = ""
    license: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Bill of materials of one wheel.

    Attributes:
        subject: the wheel.
        parts: what is in it that the project didn't write itself.
        tools: what it was made with.
        ancestor: the wheel that it was made from, or None.
        epoch: when it was made, in seconds since 1970; None for no time.
    """

    subject: BillComponent
    parts: tuple[BillComponent, ...] = ()
    tools: tuple[BillComponent, ...] = ()
    ancestor: BillComponent | None = None
    epoch: int | None = None


def distribution_address(name: str, version: str, *, file: str = "") -> str:
    """Return the package URL of a distribution, or of one of its files."""
    return f"pkg:pypi/{name}@{version}" + (f"?file_name={file}" if file else "")


def cuda_cpe(version: str) -> str:
    """Return the CPE of a CUDA toolkit, under which NVIDIA's faults are published."""
    return f"cpe:2.3:a:nvidia:cuda_toolkit:{version}:*:*:*:*:*:*:*"


def encode_bill(bill: Bill) -> bytes:
    """Write a bill: CycloneDX 1.6, JSON, sorted keys."""
    # Imported where they are needed: no other verb should wait for them.
    from cyclonedx.model.bom import Bom, BomMetaData  # noqa: PLC0415
    from cyclonedx.model.component import Pedigree  # noqa: PLC0415
    from cyclonedx.model.tool import ToolRepository  # noqa: PLC0415
    from cyclonedx.output.json import JsonV1Dot6  # noqa: PLC0415

    subject = _component(bill.subject)
    if bill.ancestor is not None:
        ancestor = _component(bill.ancestor)
        subject.pedigree = Pedigree(
            ancestors=[ancestor], notes="Its device code was moved into wheels of their own."
        )
    parts = [_component(part) for part in bill.parts]
    tools = ToolRepository(components=[_component(tool, use="tool:") for tool in bill.tools])
    bom = Bom(metadata=BomMetaData(component=subject, tools=tools), components=parts)
    bom.register_dependency(subject, parts)
    document: dict[str, Any] = json.loads(JsonV1Dot6(bom).output_as_string())
    # The library fills in a random number and the current time.
    del document["serialNumber"], document["metadata"]["timestamp"]
    # Without SOURCE_DATE_EPOCH each build would have another time.
    if bill.epoch is not None and bill.epoch != ZIP_EPOCH:
        moment = datetime.fromtimestamp(bill.epoch, tz=timezone.utc)
        document["metadata"]["timestamp"] = moment.isoformat()
    content = json.dumps(document, sort_keys=True)
    serial = uuid.uuid5(uuid.NAMESPACE_URL, f"{bill.subject.address}#{content}")
    document["serialNumber"] = f"urn:uuid:{serial}"
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()


def _component(part: BillComponent, use: str = "") -> Component:
    """Return a component of the library.

    Args:
        use: the beginning of the reference; a document may have a package as a part and as a tool.
    """
    from cyclonedx.model import HashAlgorithm, HashType  # noqa: PLC0415
    from cyclonedx.model.component import Component, ComponentType  # noqa: PLC0415
    from packageurl import PackageURL  # noqa: PLC0415

    digest = [HashType(alg=HashAlgorithm.SHA_256, content=part.sha256)] if part.sha256 else []
    return Component(
        name=part.name,
        version=part.version,
        type=ComponentType(part.kind),
        bom_ref=use + (part.address or f"{part.name}@{part.version}"),
        cpe=part.cpe or None,
        purl=PackageURL.from_string(part.address) if part.address else None,
        hashes=digest,
        licenses=_licenses(part.license),
        description=part.description or None,
    )


def _licenses(text: str) -> list[Any]:
    from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression  # noqa: PLC0415
    from packaging.licenses import (  # noqa: PLC0415
        InvalidLicenseExpression,
        canonicalize_license_expression,
    )

    if not text:
        return []
    try:
        return [LicenseExpression(canonicalize_license_expression(text))]
    # Old METADATA has a license in free words.
    except InvalidLicenseExpression:
        return [DisjunctiveLicense(name=text)]


def wheel_component(name: str, version: str, *, license_name: str, summary: str) -> BillComponent:
    """Return the component for a wheel that a bill is about."""
    return BillComponent(
        name=name,
        version=version,
        address=distribution_address(name, version),
        license=license_name,
        description=summary,
    )


def tool_component(tool: Tool) -> BillComponent:
    """Return the component for a program or package that the wheels were made with."""
    address = distribution_address(tool.name, tool.version) if tool.name in _INDEX_PACKAGES else ""
    return BillComponent(
        name=tool.name,
        version=tool.version,
        kind="application",
        address=address,
        sha256=tool.sha256 or "",
    )


def own_tools() -> Iterator[Tool]:
    """Return archsplit's own packages that decide bytes of wheels."""
    for name in _OWN_PACKAGES:
        yield Tool(name=name, version=version(name))
    # Not installed here: it compiled the loader when archsplit's own wheel was made.
    yield Tool(name="ziglang", version=ZIG)


def loader_part(sha256: str) -> BillComponent:
    """Return the component for the loader in every core."""
    return BillComponent(
        name=_LOADER_PROJECT,
        version=__version__,
        address=distribution_address(_LOADER_PROJECT, __version__),
        sha256=sha256,
        license="Apache-2.0",
        description="The loader: finds, checks, chooses and opens plugins.",
    )
