"""The manifest of a release: wheels, device code, sources and tools.

The report (``archsplit-report.json``) is for the next steps of a pipeline, the manifest for the
users of a release. Built and split releases have the same manifest. ``docs/manifest.schema.json``
is made from these records and their docstrings by ``tools/schemas.py``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping  # noqa: TC003 - pydantic reads the annotations
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from archsplit.formats.elf import Elf
from archsplit.formats.fatbin import host_containers
from archsplit.formats.reader import open_file
from archsplit.release.report import merge_listings, read_listing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from archsplit.formats.device_pack import PackLibrary
    from archsplit.release.report import Release

__pure__ = True

MANIFEST_SCHEMA = 1
MANIFEST_FILE = "archsplit-manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file that a release was made from.

    Attributes:
        path: relative to the recipe's folder; of a fat wheel or library, its file name.
        sha256: of its content, 64 hexadecimal digits.
    """

    path: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A program or library that decides what comes out.

    Attributes:
        name: such as ptxas, or libcudart_static.a.
        version: as the tool prints it.
        sha256: of the file; null if only the version counts.
    """

    name: str
    version: str
    sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestImage:
    """An image: one target's code in one container.

    Attributes:
        library: the library's place in the wheel that users would import it from.
        container: its number in the library, from 0.
        number: the image's number in the container; in a pack, in the container that was split.
        target: such as sm_90 or compute_90; what it is where it is neither SASS nor PTX.
        size: bytes, with its header and padding.
        sha256: of those bytes.
    """

    library: str
    container: int
    number: int
    target: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelRecord:
    """A wheel of the release.

    Attributes:
        file: its name.
        role: core, plugin or meta.
        distribution: the name that pip knows it by.
        targets: whose device code is inside, sorted.
        serves: capabilities of the GPUs that need no other plugin; only for split wheels.
        size: bytes.
        sha256: of the file.
        images: all device code in it.
    """

    file: str
    role: Literal["core", "plugin", "meta"]
    distribution: str
    targets: tuple[str, ...]
    size: int
    sha256: str
    serves: tuple[str, ...] = ()
    images: tuple[ManifestImage, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A release, as far as it is the same on every machine: no path, no time, no user.

    Attributes:
        origin: a recipe that was built, or a fat wheel (or a library) that was split.
        project: the core's distribution.
        version: of all wheels.
        build_id: 64 hexadecimal digits, also in the core and in every plugin.
        interface_hash: what ties plugins to the core beside the build id.
        epoch: the time that all files carry, in seconds since 1970; null for a split.
        sources: what it was made from, sorted by path.
        toolchain: what it was made with.
        flags: how, by the name of the option.
        wheels: sorted by file name.
    """

    origin: Literal["recipe", "wheel"]
    project: str
    version: str
    build_id: str
    interface_hash: str
    epoch: int | None
    sources: tuple[SourceFile, ...]
    toolchain: tuple[Tool, ...]
    flags: Mapping[str, tuple[str, ...]]
    wheels: tuple[WheelRecord, ...]

    def together_with(self, path: Path) -> Manifest:
        """Return this manifest with the existing wheels of an earlier one of the same build.

        Raises:
            InputError: there is a manifest, and it can't be read.
        """
        # Plugins of one build may be built one after the other into one folder.
        earlier = read_manifest(path) if path.exists() else self
        # An older build in the same folder is replaced, not merged.
        if (earlier.build_id, earlier.version) != (self.build_id, self.version):
            return self
        return replace(self, wheels=merge_listings(self.wheels, earlier.wheels, path.parent))

    def as_json(self) -> str:
        """Return the text of the file: sorted keys, one final newline."""
        content = {"schema": MANIFEST_SCHEMA, **asdict(self)}
        return json.dumps(content, indent=1, sort_keys=True) + "\n"


def release_manifest(
    report: Release,
    images: Mapping[str, tuple[ManifestImage, ...]],
    *,
    sources: Iterable[SourceFile],
    toolchain: Iterable[Tool],
    flags: Mapping[str, tuple[str, ...]],
) -> Manifest:
    """Return the manifest of a release with this report.

    Args:
        images: by the name of the plugin, or by the file: a pack may have several files.
    """
    wheels = tuple(
        WheelRecord(
            file=wheel.file,
            role=wheel.role,
            distribution=wheel.distribution,
            targets=() if wheel.plugin is None else wheel.plugin.targets,
            serves=() if wheel.plugin is None else wheel.plugin.serves,
            size=wheel.size,
            sha256=wheel.sha256,
            # By file first: files of one pack for several Pythons have different images.
            images=images.get(wheel.file, images.get(wheel.label, ())),
        )
        for wheel in sorted(report.wheels, key=lambda wheel: wheel.file)
    )
    return Manifest(
        origin="recipe" if report.split is None else "wheel",
        project=report.project,
        version=report.version,
        build_id=report.build_id,
        interface_hash=report.interface_hash,
        # A split has no build date.
        epoch=None if report.build is None else report.build.epoch,
        sources=tuple(sorted(sources, key=lambda source: source.path)),
        toolchain=tuple(toolchain),
        flags=flags,
        wheels=wheels,
    )


def read_manifest(path: Path) -> Manifest:
    """Read a manifest's file.

    Raises:
        InputError: it can't be read, or is not a manifest of this schema.
    """
    return read_listing(path, Manifest, schema=MANIFEST_SCHEMA, what="a release's manifest")


def library_images(path: Path, name: str) -> tuple[ManifestImage, ...]:
    """Return all images of a library.

    Args:
        path: of the file.
        name: the library's place in the wheel.

    Raises:
        InputError: the file can't be read.
        BinaryFormatError: it is not an ELF file, or it is damaged.
    """
    window = open_file(path)
    return tuple(
        ManifestImage(
            library=name,
            container=index,
            number=number,
            # Code of a kind without a target is listed too, so that the sum of bytes is complete.
            target=str(entry.target or entry.kind_name),
            size=entry.size,
            sha256=hashlib.sha256(
                container.body.at(entry.offset, entry.size, "image").data
            ).hexdigest(),
        )
        for index, (_, container) in enumerate(host_containers(Elf(window)))
        for number, entry in enumerate(container.entries())
    )


def pack_images(libraries: Iterable[PackLibrary]) -> Iterator[ManifestImage]:
    """Yield all images in the index of a pack, with their digests there."""
    for library in libraries:
        for index, container in enumerate(library.containers):
            for image in container.images:
                yield ManifestImage(
                    library=library.name,
                    container=index,
                    number=image.number,
                    target=str(image.target),
                    size=image.size,
                    sha256=image.digest.hex(),
                )
