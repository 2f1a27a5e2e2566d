"""The manifest of a build from a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

from archsplit.release.images import library_images
from archsplit.release.manifest import Manifest, WheelRecord
from archsplit.wheels.filename import plugin_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from archsplit.build.provenance import Origins
    from archsplit.release.identity import Identity
    from archsplit.release.manifest import ManifestImage
    from archsplit.release.report import Report

_Role = Literal["core", "plugin", "meta"]


def built_manifest(
    report: Report, identity: Identity, origins: Origins, libraries: Mapping[str, Path]
) -> Manifest:
    """Say what a build made.

    Args:
        report: of its wheels.
        identity: the core's.
        origins: what it was made from.
        libraries: the one of each target's plugin.

    Raises:
        BinaryFormatError: a library is damaged.
    """
    images = {
        target: library_images(path, plugin_path(identity.import_package, target, identity.library))
        for target, path in libraries.items()
    }
    return Manifest(
        origin="recipe",
        project=report.project,
        version=report.version,
        build_id=report.build_id,
        interface_hash=report.interface_hash,
        epoch=report.epoch,
        sources=tuple(sorted(origins.sources, key=lambda source: source.path)),
        toolchain=origins.toolchain,
        flags=origins.flags,
        wheels=tuple(_records(report, images)),
    )


def _records(
    report: Report, images: Mapping[str, tuple[ManifestImage, ...]]
) -> Iterator[WheelRecord]:
    for wheel in report.wheels:
        yield WheelRecord(
            file=wheel.file,
            role=cast("_Role", wheel.role),
            distribution=wheel.distribution,
            targets=wheel.targets,
            size=wheel.size,
            sha256=wheel.sha256,
            images=tuple(image for target in wheel.targets for image in images[target]),
        )
