"""Device packs: images for one kind of GPU, from the containers of all libraries of a core.

A pack is a head, a descriptor, an index (rows of libraries, containers and images, then text) and
the containers themselves, aligned and ready for the driver. The core has a pack of its own, the
table, which lists all images and contains none. `read_pack` checks the whole index against the
containers; `lay_out_pack` gives the blocks of a pack, which needn't fit into memory. The contract,
with its numbered rules, is ``plugin_loader/include/archsplit/plugin.h``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import TYPE_CHECKING, Any, TypeVar

from archsplit.arch.target import Capability, Target
from archsplit.errors import BinaryFormatError, DevicePackError
from archsplit.formats import descriptor as note
from archsplit.formats.descriptor import KIND_NUMBERS, TARGET_KINDS, TARGET_SUFFIXES
from archsplit.formats.fatbin import CONTAINER_LAYOUT, Compression, container_header, read_container
from archsplit.formats.reader import align_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from archsplit.formats.descriptor import Descriptor
    from archsplit.formats.reader import Window

# The first byte isn't ASCII and the last is a line feed, as in PNG: a transfer that takes the file
# for text damages it visibly.
PACK_MAGIC = b"\x89ASPACK\n"
PACK_FILE, TABLE_FILE = "device.pack", "core.pack"

# The records of plugin.h in its order. The sizes of the rows are in the head, so a later minor
# version can make rows longer.
HEAD = Struct("<8sIIQIIIIHHHH32sI12x")
_HASHED_FROM = 80
"""End of the digest in the head: the digest covers all that follows."""
LIBRARY = Struct("<6I")
PACK_CONTAINER = Struct("<4Q4I32s")
IMAGE = Struct("<II4HQQ32s")
IMAGE_WITH_FORM = Struct("<II4HQQ32sQIIQQ32s32s")
ZSTD_DRIVER = 12040
"""First CUDA driver that reads zstd frames."""
PAGE = 0x10000
"""Alignment of the first container: a multiple of every kernel's page."""
CACHE_LINE = 64
"""Alignment of the other containers: a line of every processor's cache."""

_HEAD_END = Struct("<I12x")
"""Part of the head after the digest."""
_ALIGNMENT = 8
_UNUSED, _LINKED, _INPUT = 1, 2, 4
_Block = TypeVar("_Block")

ImageKey = tuple[int, int, int]
"""Numbers of an image: its library, its container, and its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageForm:
    """Vendor's form of an image that a pack stores as a zstd frame.

    Four fields of the entry's header differ; all others are the same in both forms. With them and
    the encoder, `archsplit.devicecode.recompress.remake_image` makes the vendor's bytes again.

    Attributes:
        encoder: the number of the encoder that makes the payload; never 0.
        size: bytes of header, payload and padding.
        compressed_size, uncompressed_size, flags: as in the entry's header.
        digest: SHA-256 of header, payload and padding.
        raw_digest: SHA-256 of the decompressed image.
    """

    encoder: int
    size: int
    compressed_size: int
    uncompressed_size: int
    flags: int
    digest: bytes = field(repr=False)
    raw_digest: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackImage:
    """An image in the index.

    Attributes:
        number: position in the container that was split.
        target: the architecture that the image was built for.
        size: bytes of header, payload and padding.
        digest: SHA-256 of those bytes.
        offset: offset in the pack; 0 in a table.
        form: the vendor's form; None if the pack has the image in that form.
    """

    number: int
    target: Target
    size: int
    digest: bytes = field(repr=False)
    offset: int = 0
    form: ImageForm | None = None

    @property
    def original(self) -> PackImage:
        """Row of the image as the vendor stored it, without a place in a pack."""
        vendor = self.form or self
        return replace(self, size=vendor.size, digest=vendor.digest, offset=0, form=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackContainer:
    """A container in the index: its images in the pack, and its place in the library.

    Attributes:
        images: the images of this pack; all images in a table.
        wrapper: address of the wrapper that registers the container; 0 in a pack.
        address: address of the empty container that the library keeps; 0 in a pack.
        offset: offset in the pack; 0 if the pack has no image of the container.
        is_unused: True if a GPU without code in the container loses nothing.
        is_linked: True if a device link wrote it.
        is_input: True for input of that link, which no GPU needs that has machine code in each
            linked container of the library.
        key: SHA-256 of all image rows of the container that was split.
    """

    images: tuple[PackImage, ...] = field(repr=False)
    wrapper: int = 0
    address: int = 0
    offset: int = 0
    is_unused: bool = False
    is_linked: bool = False
    is_input: bool = False
    key: bytes = field(default=bytes(32), repr=False)

    @property
    def size(self) -> int:
        """Bytes of the header and the images."""
        return CONTAINER_LAYOUT.size + sum(image.size for image in self.images)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackLibrary:
    """A library without its device code: its place in the core's wheel, and its stub."""

    name: str
    stub: str
    containers: tuple[PackContainer, ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """A pack whose index was checked.

    Attributes:
        driver_version: the oldest CUDA driver that reads the images as they are: 12040 for 12.4; 0
            for any.
    """

    descriptor: Descriptor
    libraries: tuple[PackLibrary, ...]
    window: Window = field(repr=False)
    driver_version: int = 0

    def images(self) -> Iterator[tuple[ImageKey, PackImage]]:
        """Return all images, each with the numbers of its library, container and itself."""
        for i, library in enumerate(self.libraries):
            for j, container in enumerate(library.containers):
                yield from (((i, j, image.number), image) for image in container.images)

    def images_in(self, table: Pack) -> Iterator[tuple[ImageKey, PackImage]]:
        """Return the images that serve a core, with their numbers in the core's table.

        Containers belong together by their keys. One image may serve several containers of the
        core, or none.
        """
        rows = {row.key: row for library in self.libraries for row in library.containers}
        for i, library in enumerate(table.libraries):
            for j, container in enumerate(library.containers):
                for image in rows[container.key].images if container.key in rows else ():
                    yield (i, j, image.number), image

    def content(self, image: PackImage) -> Window:
        """Return an image's bytes as the pack stores them; see `PackImage.form`."""
        return self.window.part(image.offset, image.size, "image")


def read_pack(window: Window, *, is_table: bool = False) -> Pack:
    """Read a pack's head, descriptor and index, but no image.

    Args:
        window: the whole file.
        is_table: True for the table of a core.

    Raises:
        DevicePackError: the file is not a pack, is damaged, or has another major contract.
    """
    try:
        return _read_pack(window, is_table=is_table)
    except BinaryFormatError as error:
        # An exit code of its own: a damaged pack is replaced by installing it again, a damaged
        # library isn't.
        raise DevicePackError(str(error)) from None


def is_core_table(window: Window) -> bool:
    """Return True if a pack ends with its index, as a core's table does.

    Raises:
        DevicePackError: the file is shorter than the head of a pack.
    """
    try:
        row = window.unpack(HEAD, 0, "head of a pack")
    except BinaryFormatError as error:
        raise DevicePackError(str(error)) from None
    head_size, descriptor_size, file_size, index_size = row[1:5]
    # A pack with images is longer: they follow the index.
    return file_size == head_size + align_up(descriptor_size, _ALIGNMENT) + index_size


def _read_pack(window: Window, *, is_table: bool) -> Pack:
    row = window.unpack(HEAD, 0, "head of a pack")
    _expect(window, 0, "magic of a pack", row[0], PACK_MAGIC)
    head_size, descriptor_size, file_size, index_size = row[1:5]
    _expect(window, 16, "size of the file", file_size, len(window))
    at = head_size + align_up(descriptor_size, _ALIGNMENT)
    front = window.part(head_size, at - head_size + index_size, "index of a pack")
    hashed = window.part(_HASHED_FROM, at - _HASHED_FROM + index_size, "index of a pack")
    # Rule 13 of plugin.h: before this comparison, nothing of the index may be used. The images have
    # digests of their own in it.
    _expect(window, 48, "digest of the index", hashlib.sha256(hashed.data).digest(), row[12])
    # Rule 11 of plugin.h: a pack is not an ELF file, so its descriptor has no note around it.
    descriptor = note.decode_note(
        front.part(0, descriptor_size, "descriptor").data, source=window.source, start=head_size
    )
    index = _Index(window.part(at, index_size, "index"), row[5:8], row[8:11], is_table=is_table)
    libraries = tuple(index.libraries())
    # Rule 20 of plugin.h: a core whose plugins are libraries has a table too.
    if descriptor.shape is not note.Shape.DEVICE and not is_table:
        raise window.fault(head_size, "shape", str(int(descriptor.shape)), "2")
    pack = Pack(descriptor=descriptor, libraries=libraries, window=window, driver_version=row[13])
    # Rule 17 of plugin.h: a table lists images without containing them, so its offsets are 0.
    for library in () if is_table else libraries:
        for container in library.containers:
            _check_container(window, container, pack.driver_version)
    return pack


def _check_container(window: Window, container: PackContainer, driver: int) -> None:
    """Check that a container, as a driver reads it, has the images of the index."""
    if not container.images:
        return
    in_file = read_container(window, container.offset)
    # The driver reads the container and not the index: a difference would load other code than
    # `verify` and `join` believe.
    stored = tuple(in_file.entries())
    entries = [(entry.offset, entry.size, entry.target) for entry in stored]
    listed = [(image.offset, image.size, image.target) for image in container.images]
    _expect(window, container.offset, "images of a container", entries, listed)
    # Rule 25 of plugin.h: a loader gives such images to any driver, and older ones can't read them.
    if driver < ZSTD_DRIVER and any(one.compression is Compression.ZSTD for one in stored):
        expected = f"{ZSTD_DRIVER} or more, because it has zstd images"
        raise window.fault(_HASHED_FROM, "CUDA version of a pack's driver", str(driver), expected)


class _Index:
    """Tables of an index.

    The head has the length of the rows, which may be longer in a later minor version.
    """

    def __init__(
        self, window: Window, counts: tuple[int, ...], sizes: tuple[int, ...], *, is_table: bool
    ) -> None:
        self._window = window
        self._is_table = is_table
        self._sizes = sizes
        containers = counts[0] * sizes[0]
        # Rule 12 of plugin.h: libraries, containers and images back to back, then texts.
        self._starts = (0, containers, containers + counts[1] * sizes[1])
        self._counts = counts

    def libraries(self) -> Iterator[PackLibrary]:
        for number in range(self._counts[0]):
            row = self._row(LIBRARY, 0, number)
            yield PackLibrary(
                name=self._text(row[0], row[1]),
                stub=self._text(row[2], row[3]),
                containers=tuple(map(self._container, range(row[4], row[4] + row[5]))),
            )

    def _container(self, number: int) -> PackContainer:
        row = self._row(PACK_CONTAINER, 1, number)
        offset, _, wrapper, address, first, count, flags, _, key = row
        return PackContainer(
            offset=offset,
            wrapper=wrapper,
            address=address,
            images=tuple(map(self._image, range(first, first + count))),
            is_unused=bool(flags & _UNUSED),
            is_linked=bool(flags & _LINKED),
            is_input=bool(flags & _INPUT),
            key=key,
        )

    def _image(self, number: int) -> PackImage:
        has_forms = self._sizes[2] >= IMAGE_WITH_FORM.size
        row = self._row(IMAGE_WITH_FORM if has_forms else IMAGE, 2, number)
        # Rule 7 of plugin.h: refused, not skipped. A reader that skips an image would find less
        # code than the pack has.
        if row[2] not in TARGET_KINDS or row[5] not in TARGET_SUFFIXES:
            raise self._window.fault(0, "target of an image", f"{row[2:6]}", "one that is known")
        target = Target(
            kind=TARGET_KINDS[row[2]],
            capability=Capability(row[3], row[4]),
            suffix=TARGET_SUFFIXES[row[5]],
        )
        offset = 0 if self._is_table else row[6]
        return PackImage(
            number=row[0],
            target=target,
            size=row[7],
            digest=row[8],
            offset=offset,
            # Rule 26 of plugin.h: an image in the vendor's form has encoder 0.
            form=_decode_form(row[1], row[9:]) if has_forms and row[1] else None,
        )

    def _row(self, layout: Struct, table: int, number: int) -> tuple[Any, ...]:
        # With only the file's bounds checked, a row could be read from the table after it.
        if number >= self._counts[table]:
            raise self._window.fault(0, "row of the index", str(number), "one that is there")
        at = self._starts[table] + number * self._sizes[table]
        return self._window.unpack(layout, at, "row of the index")

    def _text(self, offset: int, size: int) -> str:
        return (
            self._window.part(offset, size, "text of the index").to_bytes().decode(errors="replace")
        )


def _decode_form(encoder: int, fields: tuple[Any, ...]) -> ImageForm:
    size, compressed_size, _, uncompressed_size, flags, digest, raw_digest = fields
    return ImageForm(
        encoder=encoder,
        size=size,
        compressed_size=compressed_size,
        uncompressed_size=uncompressed_size,
        flags=flags,
        digest=digest,
        raw_digest=raw_digest,
    )


def _expect(window: Window, at: int, what: str, found: object, expected: object) -> None:
    if found != expected:
        raise window.fault(at, what, f"{found!r:.100}", f"{expected!r:.100}")


def encode_table(descriptor: Descriptor, libraries: Iterable[PackLibrary]) -> bytes:
    """Return the whole file of a core's table."""
    libraries = tuple(libraries)
    front = _encode_front(descriptor, libraries, is_table=True)
    return _encode_head(descriptor, libraries, front, HEAD.size + len(front), driver=0) + front


def container_key(images: Iterable[PackImage]) -> bytes:
    """Return the key of a container: SHA-256 of the rows of all images that it had.

    The vendor's forms count: a container has the same key, however its images are stored.
    """
    rows = (_encode_image(one.original, IMAGE, is_table=True) for one in images)
    return hashlib.sha256(b"".join(rows)).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class PackLayout:
    """A pack before it is written: its front, and rows with the offsets of all images."""

    front: bytes = field(repr=False)
    libraries: tuple[PackLibrary, ...] = field(repr=False)
    size: int

    def blocks(self, images: Callable[[int, int, PackImage], _Block]) -> Iterator[bytes | _Block]:
        """Yield the bytes of the pack in their order; the images needn't fit into memory.

        Args:
            images: returns the bytes of an image, by its library's and container's number.
        """
        yield self.front
        written = len(self.front)
        for i, library in enumerate(self.libraries):
            for j, container in enumerate(library.containers):
                if container.images:
                    # Zeros up to the alignment.
                    yield bytes(container.offset - written)
                    yield container_header(container.size - CONTAINER_LAYOUT.size)
                    for image in container.images:
                        yield images(i, j, image)
                    written = container.offset + container.size


def lay_out_pack(
    descriptor: Descriptor, libraries: Iterable[PackLibrary], *, driver_version: int = 0
) -> PackLayout:
    """Place the containers and images of a pack.

    Args:
        descriptor: ties the pack to its core.
        libraries: rows with the images of this pack; their offsets are set here.
        driver_version: see `Pack`; a pack with images in another form needs `ZSTD_DRIVER` or more.
    """
    libraries = tuple(libraries)
    if _image_layout(one for library in libraries for one in library.containers) is not IMAGE:
        driver_version = max(driver_version, ZSTD_DRIVER)
    # The index is encoded twice: its length doesn't depend on the offsets, but they depend on its
    # length.
    size = HEAD.size + len(_encode_front(descriptor, libraries, is_table=False))
    placed, end = _place_containers(libraries, align_up(size, PAGE))
    # A pack without images ends with its index.
    end = end or size
    front = _encode_front(descriptor, placed, is_table=False)
    head = _encode_head(descriptor, placed, front, end, driver=driver_version)
    return PackLayout(front=head + front, libraries=placed, size=end)


def _place_containers(
    libraries: tuple[PackLibrary, ...], start: int
) -> tuple[tuple[PackLibrary, ...], int]:
    """Set the offsets of the containers that have images, and of the images.

    Returns:
        The rows, and the end of the last container; 0 if there is none.
    """
    at, end = start, 0
    placed = []
    for library in libraries:
        containers = []
        for container in library.containers:
            if container.images:
                containers.append(_place_images(container, at))
                end = at + container.size
                at = align_up(end, CACHE_LINE)
            else:
                # Rule 14 of plugin.h: all packs of a build list the same containers.
                containers.append(replace(container, offset=0))
        placed.append(replace(library, containers=tuple(containers)))
    return tuple(placed), end


def _place_images(container: PackContainer, offset: int) -> PackContainer:
    images, at = [], offset + CONTAINER_LAYOUT.size
    for image in container.images:
        images.append(replace(image, offset=at))
        at += image.size
    return replace(container, offset=offset, images=tuple(images))


def _encode_front(
    descriptor: Descriptor, libraries: tuple[PackLibrary, ...], *, is_table: bool
) -> bytes:
    return _pad(descriptor.encode()) + _encode_tables(libraries, is_table=is_table)


def _encode_head(
    descriptor: Descriptor,
    libraries: tuple[PackLibrary, ...],
    front: bytes,
    size: int,
    *,
    driver: int,
) -> bytes:
    content = descriptor.encode()
    containers = [container for library in libraries for container in library.containers]
    end = _HEAD_END.pack(driver)
    return HEAD.pack(
        PACK_MAGIC,
        HEAD.size,
        len(content),
        size,
        len(front) - len(_pad(content)),
        len(libraries),
        len(containers),
        sum(len(container.images) for container in containers),
        LIBRARY.size,
        PACK_CONTAINER.size,
        _image_layout(containers).size,
        0,
        hashlib.sha256(end + front).digest(),
        driver,
    )


def _encode_tables(libraries: tuple[PackLibrary, ...], *, is_table: bool) -> bytes:
    containers = [container for library in libraries for container in library.containers]
    images = [image for container in containers for image in container.images]
    tables = LIBRARY.size * len(libraries)
    layout = _image_layout(containers)
    tables += PACK_CONTAINER.size * len(containers) + layout.size * len(images)
    rows, texts = _encode_libraries(libraries, tables)
    rows += _encode_containers(containers, is_table=is_table)
    rows += (_encode_image(image, layout, is_table=is_table) for image in images)
    return _pad(b"".join(rows) + texts)


def _encode_libraries(libraries: tuple[PackLibrary, ...], at: int) -> tuple[list[bytes], bytes]:
    rows, texts, first = [], b"", 0
    for library in libraries:
        # Names of wheel members are UTF-8, as texts in the index are (rule 6 of plugin.h).
        name, stub = library.name.encode(), library.stub.encode()
        name_at = at + len(texts)
        texts += name + stub
        count = len(library.containers)
        rows.append(LIBRARY.pack(name_at, len(name), name_at + len(name), len(stub), first, count))
        first += count
    return rows, texts


def _encode_containers(containers: list[PackContainer], *, is_table: bool) -> Iterator[bytes]:
    first = 0
    for container in containers:
        count = len(container.images)
        # A table lists images without containing them.
        is_in_file = count > 0 and not is_table
        offset, size = (container.offset, container.size) if is_in_file else (0, 0)
        flags = _UNUSED if container.is_unused else 0
        flags |= (_LINKED if container.is_linked else 0) | (_INPUT if container.is_input else 0)
        places = (offset, size, container.wrapper, container.address)
        yield PACK_CONTAINER.pack(*places, first, count, flags, 0, container.key)
        first += count


def _image_layout(containers: Iterable[PackContainer]) -> Struct:
    """Return the layout of image rows: longer if the vendor had an image in another form."""
    has_forms = any(image.form for container in containers for image in container.images)
    return IMAGE_WITH_FORM if has_forms else IMAGE


def _encode_image(image: PackImage, layout: Struct, *, is_table: bool) -> bytes:
    target, form = image.target, image.form
    row: tuple[int | bytes, ...] = (
        image.number,
        form.encoder if form else 0,
        KIND_NUMBERS[target.kind],
        target.capability.major,
        target.capability.minor,
        ord(target.suffix) if target.suffix else 0,
        0 if is_table else image.offset,
        image.size,
        image.digest,
    )
    if layout is IMAGE_WITH_FORM:
        row += _form_fields(form) if form else (0, 0, 0, 0, 0, b"", b"")
    return layout.pack(*row)


def _form_fields(form: ImageForm) -> tuple[int | bytes, ...]:
    return (
        form.size,
        form.compressed_size,
        0,  # reserved for the number of a solid stream
        form.uncompressed_size,
        form.flags,
        form.digest,
        form.raw_digest,
    )


def _pad(content: bytes) -> bytes:
    return content + bytes(-len(content) % _ALIGNMENT)
