"""Plugin wheels of a split: the device packs, one per wheel.

In: a `Core`, and the images of each pack as `plan_packs` shares them. Out: the pack's file and its
wheel. A pack requires exactly the core that it was split from.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from archsplit.arch.target import CodeKind
from archsplit.devicecode.scan import release_pages
from archsplit.formats.device_pack import PACK_FILE, write_pack
from archsplit.release.requirements import plugin_pins
from archsplit.split.provenance import SBOM_MEMBER, pack_bill
from archsplit.system.scratch import free_ranges
from archsplit.wheels.filename import distribution_name
from archsplit.wheels.metadata import CoreMetadata, WheelInfo, encode_metadata
from archsplit.wheels.rewrite import write_members
from archsplit.wheels.zip_writer import pack, pack_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from archsplit.devicecode.partition import PackContents
    from archsplit.devicecode.registered import RegisteredContainer
    from archsplit.formats.descriptor import Descriptor
    from archsplit.formats.device_pack import PackImage, PackLibrary
    from archsplit.formats.fatbin import FatbinEntry
    from archsplit.split.model import Core
    from archsplit.wheels.filename import WheelName

OLDEST_CUDA = 11000
"""The CUDA version of packs without PTX, which no driver refuses."""

# cudaDriverGetVersion reports 12040 for CUDA 12.4; the minor number counts tens.
_CUDA_BY_ISA = {(7, 0): 11000, (8, 0): 12000, (9, 0): 13000}
_SHARED_ISA = (8, 5)
"""The CUDA release of each major version's first PTX ISA. Minor versions go together, but for
ISA 8.5, which both 12.5 and 12.6 have. Source: PTX ISA, "Release Notes"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackWriter:
    """The writer of the packs of one core.

    Attributes:
        licenses: the license files of the fat wheel, by their name below ``licenses/``.
    """

    core: Core
    generator: str
    licenses: dict[str, bytes] = field(repr=False)

    def libraries(self, contents: PackContents) -> tuple[PackLibrary, ...]:
        """Return the rows of the table with only one pack's images."""
        # One set for each container of all libraries, in the table's order.
        offsets = iter(contents.offsets)
        rows = []
        for library in self.core.libraries:
            containers = tuple(
                replace(row, images=_select_images(row.images, registered, next(offsets)))
                for row, registered in zip(library.table.containers, library.moved, strict=True)
            )
            rows.append(replace(library.table, containers=containers))
        return tuple(rows)

    def write_pack(self, contents: PackContents, path: Path) -> None:
        """Write a pack's file."""
        with path.open("wb") as file:
            write_pack(file.write, self.descriptor(contents), self.libraries(contents), self._image)
        for library in self.core.libraries:
            release_pages(library.window)

    def image_bytes(self, contents: PackContents) -> int:
        """Return the bytes of a pack's images together."""
        chosen = zip(self._containers(), contents.offsets, strict=True)
        entries = (
            (entry, offsets) for registered, offsets in chosen for entry in registered.entries
        )
        return sum(entry.size for entry, offsets in entries if entry.offset in offsets)

    def descriptor(self, contents: PackContents) -> Descriptor:
        """Return the descriptor of a pack."""
        entries = [
            entry
            for registered, offsets in zip(self._containers(), contents.offsets, strict=True)
            for entry in registered.entries
            if entry.offset in offsets
        ]
        targets = {entry.target for entry in entries if entry.target is not None}
        all_entries = (entry for registered in self._containers() for entry in registered.entries)
        # A pack of machine code alone still belongs to a toolkit: that of the wheel's PTX.
        versions = _ptx_isa_versions(entries) or _ptx_isa_versions(all_entries)
        return self.core.descriptor(targets, cuda=min_cuda_version(versions))

    def name(self, contents: PackContents) -> WheelName:
        """Return the wheel's name, with the core's tags: a pack belongs to one core.

        A release may have a core for each Python, and a second build of each.
        """
        project = distribution_name(self.core.distribution(contents.name))
        # No other part of the name may differ: the pins are for this very build.
        return replace(self.core.name, project=project)

    def write_wheel(self, file: BinaryIO, contents: PackContents, device_pack: Path) -> None:
        """Write the wheel of a pack."""
        name = self.name(contents)
        path = f"{self.core.package}_plugins/cuda/{contents.name}/{PACK_FILE}"
        info = WheelInfo(
            generator=self.generator,
            tags=name.tags,
            # Plugins lie where the core's loader looks: in the same site-packages.
            purelib=self.core.wheel.info.purelib,
            build=name.build,
        )
        metadata = self._metadata(contents, name)
        dist_info = {
            "METADATA": encode_metadata(metadata),
            "WHEEL": info.encode(),
            SBOM_MEMBER: pack_bill(self.core, metadata.name, metadata.summary),
            **{f"licenses/{each}": text for each, text in self.licenses.items()},
        }
        members = {f"{name.dist_info}/{each}": pack(text) for each, text in dist_info.items()}
        write_members(file, name, {path: pack_file(device_pack), **members})

    def _metadata(self, contents: PackContents, name: WheelName) -> CoreMetadata:
        raw = self.core.raw_metadata
        project = self.core.name.project
        gpus = (
            f"GPUs of capability {', '.join(map(str, contents.serves))}"
            if contents.serves
            else contents.name
        )
        return CoreMetadata(
            name=name.project,
            version=name.version,
            summary=f"Device code of {project} for {gpus}.",
            # An index's page without a text is what `twine check --strict` refuses.
            description=f"Device code of {project} for {gpus}. It comes with {project}'s extras.\n",
            description_content_type="text/plain",
            # The device code has the license of the wheel that it comes from.
            license_expression=raw.get("license_expression", ""),
            license_files=tuple(self.licenses),
            # A pack must be installable wherever its core is.
            requires_python=raw.get("requires_python", ""),
            requires=plugin_pins(self.core.identity, contents.name),
        )

    def _containers(self) -> Iterator[RegisteredContainer]:
        return (registered for library in self.core.libraries for registered in library.moved)

    def _image(self, library: int, container: int, image: PackImage) -> memoryview:
        registered = self.core.libraries[library].moved[container]
        entry = registered.entries[image.number]
        return registered.container.body.at(entry.offset, entry.size, "image").data


class ImageSpace:
    """The space of images in unpacked libraries; an image's space is freed after its last pack."""

    def __init__(self, core: Core) -> None:
        self._libraries = core.libraries
        self._lock = threading.Lock()
        self._packs = Counter(key for pack in core.pack_plan.packs for key in _image_keys(pack))

    def release(self, contents: PackContents) -> None:
        """Free the space of images that no other pack waits for.

        Raises:
            OSError: a file can't be written.
        """
        keys = set(_image_keys(contents))
        with self._lock:
            # Several packs may have one image, and two threads write packs at the same time.
            self._packs.subtract(keys)
            free = {key for key in keys if not self._packs[key]}
        number = 0
        for library in self._libraries:
            ranges = []
            for registered in library.moved:
                ranges += [
                    (e.offset, e.size) for e in registered.entries if (number, e.offset) in free
                ]
                number += 1
            free_ranges(library.image_file, ranges)


def _image_keys(contents: PackContents) -> Iterator[tuple[int, int]]:
    """Yield the container and the offset of each image of a pack."""
    return ((number, each) for number, offsets in enumerate(contents.offsets) for each in offsets)


def min_cuda_version(versions: list[tuple[int, int]]) -> int:
    """Return the CUDA version that a driver needs for PTX of these ISA versions."""
    major, minor = max(versions, default=(0, 0))
    # No PTX, or PTX of a toolkit that is newer than this table: the driver decides.
    if (major, 0) not in _CUDA_BY_ISA:
        return OLDEST_CUDA
    is_after_shared = (major, minor) > _SHARED_ISA and major == _SHARED_ISA[0]
    return _CUDA_BY_ISA[major, 0] + 10 * (minor + is_after_shared)


def _ptx_isa_versions(entries: Iterable[FatbinEntry]) -> list[tuple[int, int]]:
    return [one.version for one in entries if one.target and one.target.kind is CodeKind.PTX]


def _select_images(
    images: tuple[PackImage, ...], registered: RegisteredContainer, offsets: frozenset[int]
) -> tuple[PackImage, ...]:
    return tuple(image for image in images if registered.entries[image.number].offset in offsets)
