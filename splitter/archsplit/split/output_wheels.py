"""The wheels of a split: the core, one plugin wheel per device pack, and the meta wheel.

In: fat wheels and their libraries, stripped of the images that moved, and the files of the packs.
Out: the core, which is the fat wheel member by member, with changed METADATA and the files of the
loader added; the packs; the manifest, and the bill of materials in each wheel.

A pack has no place of a library, so it serves all cores whose containers it has. It requires
exactly their version. The meta wheel has no files and requires the core with all of its packs.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from archsplit.devicecode.decompression import decompress
from archsplit.devicecode.select import is_ptx
from archsplit.errors import BinaryFormatError
from archsplit.formats.cubin import Cubin
from archsplit.formats.descriptor import Shape
from archsplit.formats.device_pack import (
    PACK_FILE,
    TABLE_FILE,
    ZSTD_DRIVER,
    PackContainer,
    PackLibrary,
    lay_out_pack,
)
from archsplit.formats.fatbin import Compression, EntryKind
from archsplit.formats.mapped import release_pages
from archsplit.formats.reader import Window
from archsplit.release.identity import CoreFiles, hook_entry_points
from archsplit.release.manifest import pack_images, release_manifest
from archsplit.release.requirements import (
    dropped_extras,
    meta_metadata,
    meta_name,
    pinned_extras,
    plugin_extras,
    plugin_pins,
)
from archsplit.release.sbom import (
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
from archsplit.split.model import OLDEST_CUDA, InstallDefaults
from archsplit.split.restore import RESTORE
from archsplit.split.stub import rename_stub
from archsplit.system.fs import sha256
from archsplit.system.scratch import free_ranges
from archsplit.wheels.filename import ALL_EXTRA, distribution_name
from archsplit.wheels.metadata import CoreMetadata, edit_metadata, edit_wheel_info, read_extras
from archsplit.wheels.rewrite import WheelRewrite, new_dist_info
from archsplit.wheels.writer import WheelDraft, WheelMember, wheel_members
from archsplit.wheels.zip_writer import Dense, pack, pack_blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from concurrent.futures import Future
    from pathlib import Path
    from typing import BinaryIO

    from archsplit.devicecode.partition import PackContents, PackFile
    from archsplit.formats.descriptor import Descriptor
    from archsplit.formats.device_pack import PackImage
    from archsplit.formats.fatbin import Container, FatbinEntry
    from archsplit.release.manifest import Manifest
    from archsplit.release.report import Release
    from archsplit.split.model import Core, ReleaseContents, SharedContainer, SplitRequest
    from archsplit.wheels.filename import WheelName
    from archsplit.wheels.zip_writer import PackedContent, ParallelDeflater


def split_manifest(writer: PackWriter, report: Release, request: SplitRequest) -> Manifest:
    """Return the manifest of a split."""
    # The images as written, read from the rows of each pack.
    images = {
        str(writer.name(file)): tuple(pack_images(writer.libraries(file)))
        for file in writer.contents.files
    }
    flags: Mapping[str, tuple[str, ...]] = {
        "by": (request.by.value,),
        "install": (request.install.value,),
        "targets": () if request.targets is None else tuple(map(str, request.targets)),
    }
    sources = (core.source for core in writer.cores)
    return release_manifest(report, images, sources=sources, toolchain=own_tools(), flags=flags)


def _bill(core: Core, distribution: str, summary: str = "", loader: Path | None = None) -> bytes:
    """Return the bill of a wheel.

    The ancestor of a pack is the release or library: no wheel of the release is named, because a
    pack is the same for any wheels that were split.

    Args:
        loader: in the core; None for a pack.
    """
    raw = core.wheel.raw_metadata
    license_name = raw.get("license_expression", "")
    bill = Bill(
        subject=wheel_component(
            distribution,
            core.name.version,
            license_name=license_name,
            summary=summary or raw.get("summary", ""),
        ),
        parts=() if loader is None else (loader_part(sha256(loader)),),
        tools=tuple(map(tool_component, own_tools())),
        ancestor=_ancestor(core, license_name, of_release=loader is None),
    )
    return encode_bill(bill)


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


def write_core(file: BinaryIO, core: Core, *, loader: Path, stub: Path) -> None:
    """Write the wheel of a core.

    Args:
        loader: the compiled loader.
        stub: the library that each stub is a renamed copy of.
    """
    fat = core.wheel
    info, metadata, entry_points = (
        f"{fat.dist_info}/{name}" for name in ("WHEEL", "METADATA", "entry_points.txt")
    )
    changed: dict[str, PackedContent | Future[PackedContent]] = {
        # Members before a library are copied while the library is packed.
        **{library.member: library.packed for library in core.libraries},
        metadata: pack(_metadata(core, fat.read(metadata))),
        info: pack(edit_wheel_info(fat.read(info), tags=core.name.tags, build=core.name.build)),
    }
    dist_info = new_dist_info(fat, core.name)
    loader_files = dict(_loader_files(core, stub.read_bytes()))
    files = CoreFiles(identity=core.identity, more=loader_files, existing=frozenset(fat.names))
    added = {name: pack(content) for name, content in files.members().items()}
    has_entry_points = entry_points in fat.names
    # One entry point announces the hook for PyInstaller; the project may have others of its own.
    old_points = fat.read(entry_points) if has_entry_points else b""
    content = hook_entry_points(core.package, old_points)
    if content is not None:
        if has_entry_points:
            changed[entry_points] = pack(content)
        else:
            added[f"{dist_info}/entry_points.txt"] = pack(content)
        added.update((name, pack(text)) for name, text in files.hook_members().items())
    # From the file, in blocks: only Python files are small enough for memory.
    added[files.library] = pack(loader)
    # A wheel that was split before has a bill with more of its origin than this split knows.
    if f"{fat.dist_info}/sboms/{SPLIT}" not in fat.names:
        added[f"{dist_info}/sboms/{SPLIT}"] = pack(_bill(core, core.name.project, loader=loader))
    WheelRewrite(wheel=fat, name=core.name, changed=changed, added=added).write(file)


def _loader_files(core: Core, stub: bytes) -> Iterator[tuple[str, bytes]]:
    for library in core.libraries:
        written = library.written.result()
        name = written.table.stub
        # One for each library: ld.so runs a library's constructor once per name.
        yield name, rename_stub(stub, name)
        yield f"{name}.{RESTORE}", written.restore.encode()
    yield TABLE_FILE, core.table


def _metadata(core: Core, text: bytes) -> bytes:
    """Return the fat wheel's METADATA with the core's name and the extras of its packs.

    Everything else stays byte for byte, whatever version of the format it is in.
    """
    present = read_extras(text)
    identity = core.identity
    extras = {
        **dropped_extras(core.dropped, identity.distribution, identity.version),
        **pinned_extras(plugin_extras(identity), identity.plugins, identity.version),
    }
    lines: list[str] = []
    for extra, pins in sorted(extras.items()):
        # An extra of the fat wheel may have the same name; declared twice, METADATA is invalid.
        lines += [] if extra in present else [f"Provides-Extra: {extra}"]
        lines += [f'Requires-Dist: {pin}; extra == "{extra}"' for pin in pins]
    # Requirements without a marker: every installation of the core gets every pack.
    if core.install is InstallDefaults.ALL:
        lines += [f"Requires-Dist: {pin}" for pin in extras[ALL_EXTRA]]
    old, new = core.wheel.name, core.name
    return edit_metadata(
        # Edited as text: parsing and writing again would change the description's bytes.
        text,
        name="" if new.project == old.project else new.project,
        version="" if new.version == old.version else new.version,
        fields=lines,
    )


def meta_draft(core: Core) -> WheelDraft:
    """Return the wheel that requires a core and all of its packs."""
    name, raw, project = meta_name(core.name), core.wheel.raw_metadata, core.name.project
    common = CoreMetadata(
        name=project,
        version=name.version,
        # `twine check --strict` refuses a page without a text.
        description=f"Requires {project} and the device code for every GPU that it supports.\n",
        description_content_type="text/plain",
        license_expression=raw.get("license_expression", ""),
        requires_python=raw.get("requires_python", ""),
    )
    return WheelDraft(name=name, metadata=meta_metadata(common), purelib=True)


_DENSE_BYTES = 64 << 10
"""Bytes of a frame of machine code from which deflate gains less than 0.1 %."""

_NOTED_IMAGES = 32
"""Images that are read for the toolkit of a pack: one release mostly has one toolkit."""

# cudaDriverGetVersion reports 12040 for CUDA 12.4; the minor number counts tens.
_CUDA_BY_ISA = {(7, 0): 11000, (8, 0): 12000, (9, 0): 13000}
_SHARED_ISA = (8, 5)
"""CUDA release of each major version's first PTX ISA. Minor versions go together, but for
ISA 8.5, which both 12.5 and 12.6 have. Source: PTX ISA, "Release Notes"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackWriter:
    """Writer of the packs of a release.

    Attributes:
        cores: all cores; a pack takes everything but its images from the first.
        licenses: the license files of the fat wheel, by their name below ``licenses/``.
    """

    cores: tuple[Core, ...]
    contents: ReleaseContents = field(repr=False)
    licenses: dict[str, bytes] = field(repr=False)

    @property
    def core(self) -> Core:
        """First core."""
        return self.cores[0]

    def libraries(self, file: PackFile) -> tuple[PackLibrary, ...]:
        """Return the index of a file: the containers that it has, by library."""
        return tuple(
            PackLibrary(
                # A pack serves libraries of several names; the texts are for reports.
                name=name,
                stub=name,
                containers=tuple(
                    PackContainer(images=images, key=one.row.key) for one, images in rows
                ),
            )
            for name, rows in self._rows(file).items()
        )

    def pack_images(self, file: PackFile, deflater: ParallelDeflater) -> PackedContent:
        """Pack the content of a pack: never unpacked as a whole, in memory or on the disk."""
        rows = list(self._rows(file).values())

        def image(library: int, container: int, image: PackImage) -> memoryview | bytes | Dense:
            place = rows[library][container][0].place
            entry, frame = place.entries[image.number], self.core.stored.content(image)
            content = frame or place.container.body.at(entry.offset, entry.size, "image").data
            # Deflate still finds names and headers around small frames, and literals of PTX in all.
            is_dense = entry.kind is EntryKind.CUBIN and len(content) >= _DENSE_BYTES
            is_dense &= bool(frame) or entry.compression is Compression.ZSTD
            return Dense(content) if is_dense else content

        is_zstd = any(one.compression is Compression.ZSTD for _, one in self._entries(file.pack))
        driver = ZSTD_DRIVER if is_zstd else 0
        layout = lay_out_pack(self.descriptor(file), self.libraries(file), driver_version=driver)
        packed = pack_blocks(layout.blocks(image), layout.size, deflater)
        for library in (one for core in self.cores for one in core.libraries):
            release_pages(library.window)
        return packed

    def descriptor(self, file: PackFile) -> Descriptor:
        """Return the descriptor of a pack's file."""
        entries = [entry for _, entry in self._entries(file.pack)]
        # A file may have nothing of its own, if its pack's images are in another.
        whole = next(one for one in self.contents.plan.packs if one.name == file.pack.name)
        everything = (entry for one in self.contents.containers for entry in one.place.entries)
        of_targets = entries or (entry for _, entry in self._entries(whole))
        targets = {entry.target for entry in of_targets if entry.target}
        isa = _ptx_isa_versions(entries) or _ptx_isa_versions(everything)
        # Machine code has no ISA version, but a note of the toolkit.
        cuda = min_cuda_version(isa) if isa else self._oldest_toolkit(file.pack)
        return self.core.identity.descriptor(sorted(targets), cuda=cuda, shape=Shape.DEVICE)

    def name(self, file: PackFile) -> WheelName:
        """Return the wheel's name: for any Python, or with the tags of its cores.

        A file for several machines is for any platform: only a core of this release requires it.
        """
        cores = [self.cores[number] for number in file.cores]
        own = distribution_name(self.core.distribution(file.pack.name))
        is_for_any = len({core.machine for core in cores}) > 1
        platforms = {tag for core in cores for tag in core.name.platforms}
        pythons = {tag for core in cores for tag in core.name.pythons}
        abis = {tag for core in cores for tag in core.name.abis}
        return replace(
            self.core.name,
            project=own,
            platforms=("any",) if is_for_any else tuple(sorted(platforms)),
            pythons=("py3",) if file.is_generic else tuple(sorted(pythons)),
            abis=("none",) if file.is_generic else tuple(sorted(abis)),
        )

    def draft(self, file: PackFile, content: PackedContent) -> WheelDraft:
        """Return the wheel of a pack's file."""
        name = self.name(file)
        metadata = self._metadata(file, name)
        bill = _bill(self.core, metadata.name, metadata.summary)
        place = f"{self.core.package}_plugins/cuda/{file.pack.name}/{PACK_FILE}"
        return WheelDraft(
            name=name,
            metadata=metadata,
            members=(WheelMember(name=place, content=content),),
            licenses=wheel_members(self.licenses),
            sboms=wheel_members({SPLIT: bill}),
            purelib=self.core.wheel.info.purelib,
        )

    def _metadata(self, file: PackFile, name: WheelName) -> CoreMetadata:
        raw = self.core.wheel.raw_metadata
        project, pack_name = self.core.name.project, file.pack.name
        serves = file.pack.serves
        gpus = f"GPUs of capability {', '.join(map(str, serves))}" if serves else pack_name
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
            requires=plugin_pins(self.core.identity, pack_name),
        )

    def _rows(
        self, file: PackFile
    ) -> dict[str, list[tuple[SharedContainer, tuple[PackImage, ...]]]]:
        """Return the containers of a file with their images in it, by library."""
        rows: dict[str, list[tuple[SharedContainer, tuple[PackImage, ...]]]] = {}
        for one, offsets in zip(self.contents.containers, file.pack.offsets, strict=True):
            if offsets:
                images = tuple(
                    self.core.stored.row(image)
                    for image in one.row.images
                    if one.place.entries[image.number].offset in offsets
                )
                rows.setdefault(one.library, []).append((one, images))
        return rows

    def _oldest_toolkit(self, pack: PackContents) -> int:
        """Return the oldest CUDA version that the machine code of a pack was made with.

        A driver refuses the images of a later major version; the oldest refuses too few of them,
        never too many.
        """
        images = islice(self._machine_code(pack), _NOTED_IMAGES)
        versions = (_noted_toolkit(image, pack.name) for image in images)
        return min((version for version in versions if version), default=OLDEST_CUDA)

    def _machine_code(self, pack: PackContents) -> Iterator[bytes]:
        for container, entry in self._entries(pack):
            if entry.kind is EntryKind.CUBIN:
                yield decompress(entry, container.payload(entry))

    def _entries(self, pack: PackContents) -> Iterator[tuple[Container, FatbinEntry]]:
        for one, offsets in zip(self.contents.containers, pack.offsets, strict=True):
            for entry in one.place.entries:
                if entry.offset in offsets:
                    yield one.place.container, entry


class ImageSpace:
    """Space of images in unpacked libraries, freed when the last pack has an image."""

    def __init__(self, contents: ReleaseContents) -> None:
        self._containers = contents.containers
        self._lock = threading.Lock()
        self._packs = Counter(place for file in contents.files for place in file.pack.places)

    def release(self, pack: PackContents) -> None:
        """Free the space of images that no other file waits for.

        Raises:
            OSError: a file can't be written.
        """
        places = pack.places
        with self._lock:
            # Several packs may have one image, and two threads write packs at the same time.
            self._packs.subtract(places)
            free = {place for place in places if not self._packs[place]}
        ranges: dict[Path, list[tuple[int, int]]] = {}
        for number, one in enumerate(self._containers):
            own = [(e.offset, e.size) for e in one.place.entries if (number, e.offset) in free]
            ranges.setdefault(one.part.image_file, []).extend(own)
        for path, own in ranges.items():
            free_ranges(path, own)


def min_cuda_version(versions: list[tuple[int, int]]) -> int:
    """Return the CUDA version that a driver needs for PTX of these ISA versions."""
    major, minor = max(versions, default=(0, 0))
    # No PTX, or PTX of a toolkit that is newer than this table: the driver decides.
    if (major, 0) not in _CUDA_BY_ISA:
        return OLDEST_CUDA
    is_after_shared = (major, minor) > _SHARED_ISA and major == _SHARED_ISA[0]
    return _CUDA_BY_ISA[major, 0] + 10 * (minor + is_after_shared)


def _noted_toolkit(image: bytes, pack: str) -> int | None:
    # Images that no reader here knows can be moved, too: the driver decides about them.
    with suppress(BinaryFormatError):
        return Cubin(Window(image, source=pack)).toolkit_version()
    return None


def _ptx_isa_versions(entries: Iterable[FatbinEntry]) -> list[tuple[int, int]]:
    return [one.version for one in entries if is_ptx(one)]
