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

_CUDA_OF_ISA = {(7, 0): 11000, (8, 0): 12000, (9, 0): 13000}
_LAST_OF_BOTH = (8, 5)
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

    def libraries(self, share: PackContents) -> tuple[PackLibrary, ...]:
        """Return the rows of the table with only one pack's images."""
        offsets = iter(share.offsets)
        rows = []
        for part in self.core.parts:
            containers = tuple(
                replace(row, images=_kept(row.images, place, next(offsets)))
                for row, place in zip(part.table.containers, part.moved, strict=True)
            )
            rows.append(replace(part.table, containers=containers))
        return tuple(rows)

    def write_pack(self, share: PackContents, path: Path) -> None:
        """Write a pack's file."""
        with path.open("wb") as file:
            write_pack(file.write, self.descriptor(share), self.libraries(share), self._image)
        for part in self.core.parts:
            release_pages(part.window)

    def image_bytes(self, share: PackContents) -> int:
        """Return the bytes of a pack's images together."""
        chosen = zip(self._places(), share.offsets, strict=True)
        entries = ((each, offsets) for place, offsets in chosen for each in place.entries)
        return sum(each.size for each, offsets in entries if each.offset in offsets)

    def descriptor(self, share: PackContents) -> Descriptor:
        """Return the descriptor of a pack."""
        entries = [
            entry
            for place, offsets in zip(self._places(), share.offsets, strict=True)
            for entry in place.entries
            if entry.offset in offsets
        ]
        targets = {entry.target for entry in entries if entry.target is not None}
        everything = (entry for place in self._places() for entry in place.entries)
        isa = _isa(entries) or _isa(everything)
        return self.core.descriptor(targets, cuda=cuda_of(isa))

    def name(self, share: PackContents) -> WheelName:
        """Return the wheel's name, with the core's tags: a pack belongs to one core.

        A release may have a core for each Python, and a second build of each.
        """
        project = distribution_name(self.core.distribution(share.name))
        return replace(self.core.name, project=project)

    def write_wheel(self, file: BinaryIO, share: PackContents, device_pack: Path) -> None:
        """Write the wheel of a pack."""
        name = self.name(share)
        place = f"{self.core.package}_plugins/cuda/{share.name}/{PACK_FILE}"
        info = WheelInfo(
            generator=self.generator,
            tags=name.tags,
            purelib=self.core.wheel.info.purelib,
            build=name.build,
        )
        metadata = self._metadata(share, name)
        own = {
            "METADATA": encode_metadata(metadata),
            "WHEEL": info.encode(),
            SBOM_MEMBER: pack_bill(self.core, metadata.name, metadata.summary),
            **{f"licenses/{each}": text for each, text in self.licenses.items()},
        }
        members = {f"{name.dist_info}/{each}": pack(text) for each, text in own.items()}
        write_members(file, name, {place: pack_file(device_pack), **members})

    def _metadata(self, share: PackContents, name: WheelName) -> CoreMetadata:
        raw = self.core.raw_metadata
        project = self.core.name.project
        gpus = (
            f"GPUs of capability {', '.join(map(str, share.serves))}"
            if share.serves
            else share.name
        )
        return CoreMetadata(
            name=name.project,
            version=name.version,
            summary=f"Device code of {project} for {gpus}.",
            # An index's page without a text is what `twine check --strict` refuses.
            description=f"Device code of {project} for {gpus}. It comes with {project}'s extras.\n",
            description_content_type="text/plain",
            license_expression=raw.get("license_expression", ""),
            license_files=tuple(self.licenses),
            requires_python=raw.get("requires_python", ""),
            requires=plugin_pins(self.core.identity, share.name),
        )

    def _places(self) -> Iterator[RegisteredContainer]:
        return (place for part in self.core.parts for place in part.moved)

    def _image(self, library: int, container: int, image: PackImage) -> memoryview:
        place = self.core.parts[library].moved[container]
        entry = place.entries[image.number]
        return place.container.body.at(entry.offset, entry.size, "image").data


class ImageSpace:
    """The space of images in unpacked libraries; an image's space is freed after its last pack."""

    def __init__(self, core: Core) -> None:
        self._parts = core.parts
        self._lock = threading.Lock()
        self._packs = Counter(key for pack in core.shares.packs for key in _image_keys(pack))

    def release(self, share: PackContents) -> None:
        """Free the space of images that no other pack waits for.

        Raises:
            OSError: a file can't be written.
        """
        keys = set(_image_keys(share))
        with self._lock:
            self._packs.subtract(keys)
            free = {key for key in keys if not self._packs[key]}
        number = 0
        for part in self._parts:
            ranges = []
            for place in part.moved:
                ranges += [(e.offset, e.size) for e in place.entries if (number, e.offset) in free]
                number += 1
            free_ranges(part.image_file, ranges)


def _image_keys(share: PackContents) -> Iterator[tuple[int, int]]:
    """Yield the container and the offset of each image of a pack."""
    return ((number, each) for number, offsets in enumerate(share.offsets) for each in offsets)


def cuda_of(isa: list[tuple[int, int]]) -> int:
    """Return the CUDA version that a driver needs for PTX of these ISA versions."""
    major, minor = max(isa, default=(0, 0))
    if (major, 0) not in _CUDA_OF_ISA:
        return OLDEST_CUDA
    skipped = (major, minor) > _LAST_OF_BOTH and major == _LAST_OF_BOTH[0]
    return _CUDA_OF_ISA[major, 0] + 10 * (minor + skipped)


def _isa(entries: Iterable[FatbinEntry]) -> list[tuple[int, int]]:
    return [one.version for one in entries if one.target and one.target.kind is CodeKind.PTX]


def _kept(
    images: tuple[PackImage, ...], place: RegisteredContainer, offsets: frozenset[int]
) -> tuple[PackImage, ...]:
    return tuple(one for one in images if place.entries[one.number].offset in offsets)
