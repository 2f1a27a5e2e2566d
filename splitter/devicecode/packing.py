"""Write device packs: where everything goes, then the bytes."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from struct import Struct
from typing import TYPE_CHECKING

from splitter.arch.target import CodeKind
from splitter.binfmt.fatbin import MAGIC as CONTAINER_MAGIC
from splitter.devicecode.pack import (
    CONTAINER,
    CONTAINER_HEADER,
    EIGHT,
    HEAD,
    IMAGE,
    LIBRARY,
    MAGIC,
    SPARE,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from splitter.binfmt.note import Descriptor
    from splitter.devicecode.pack import PackContainer, PackImage, PackLibrary

    Images = Callable[[int, int, PackImage], bytes | memoryview]
    """The bytes of an image, by the numbers of its library and its container."""

PAGE = 0x10000
"""Where the images begin: a page of every kernel."""
LINE = 64
"""What containers are aligned to: a line of every processor's cache."""

_HEADER = Struct("<IHHQ")
_KINDS = {CodeKind.SASS: 1, CodeKind.PTX: 2}


def encode_table(descriptor: Descriptor, libraries: Iterable[PackLibrary]) -> bytes:
    """The core's own pack: the whole file."""
    libraries = tuple(libraries)
    front = _front(descriptor, libraries, is_table=True)
    return _head(descriptor, libraries, front, HEAD.size + len(front)) + front


def encode_index(libraries: Iterable[PackLibrary]) -> bytes:
    """The index of a table by itself, which says everything about a core's libraries."""
    return _index(tuple(libraries), is_table=True)


def write_pack(
    write: Callable[[bytes | memoryview], object],
    descriptor: Descriptor,
    libraries: Iterable[PackLibrary],
    images: Images,
) -> None:
    """Write a pack with these images, which need no offsets yet."""
    libraries = tuple(libraries)
    size = HEAD.size + len(_front(descriptor, libraries, is_table=False))
    placed, end = _placed(libraries, -(-size // PAGE) * PAGE)
    end = end or size
    front = _front(descriptor, placed, is_table=False)
    write(_head(descriptor, placed, front, end) + front)
    done = HEAD.size + len(front)
    for i, library in enumerate(placed):
        for j, container in enumerate(library.containers):
            if container.images:
                write(bytes(container.offset - done))
                write(_HEADER.pack(CONTAINER_MAGIC, 1, _HEADER.size, container.size - _HEADER.size))
                for image in container.images:
                    write(images(i, j, image))
                done = container.offset + container.size


def _placed(libraries: tuple[PackLibrary, ...], start: int) -> tuple[tuple[PackLibrary, ...], int]:
    """Give every container that has images its place, and its images theirs.

    Returns:
        The rows, and where the last container ends; 0 when there is none.
    """
    at, end = start, 0
    placed = []
    for library in libraries:
        containers = []
        for container in library.containers:
            if container.images:
                containers.append(_container_at(container, at))
                end = at + container.size
                at = -(-end // LINE) * LINE
            else:
                containers.append(replace(container, offset=0))
        placed.append(replace(library, containers=tuple(containers)))
    return tuple(placed), end


def _container_at(container: PackContainer, offset: int) -> PackContainer:
    images, at = [], offset + CONTAINER_HEADER
    for image in container.images:
        images.append(replace(image, offset=at))
        at += image.size
    return replace(container, offset=offset, images=tuple(images))


def _front(descriptor: Descriptor, libraries: tuple[PackLibrary, ...], *, is_table: bool) -> bytes:
    return _padded(descriptor.encode()) + _index(libraries, is_table=is_table)


def _head(
    descriptor: Descriptor, libraries: tuple[PackLibrary, ...], front: bytes, size: int
) -> bytes:
    content = descriptor.encode()
    containers = [container for library in libraries for container in library.containers]
    return HEAD.pack(
        MAGIC,
        HEAD.size,
        len(content),
        size,
        len(front) - len(_padded(content)),
        len(libraries),
        len(containers),
        sum(len(container.images) for container in containers),
        LIBRARY.size,
        CONTAINER.size,
        IMAGE.size,
        0,
        hashlib.sha256(front).digest(),
    )


def _index(libraries: tuple[PackLibrary, ...], *, is_table: bool) -> bytes:
    containers = [container for library in libraries for container in library.containers]
    images = [image for container in containers for image in container.images]
    tables = LIBRARY.size * len(libraries)
    tables += CONTAINER.size * len(containers) + IMAGE.size * len(images)
    rows, texts = _library_rows(libraries, tables)
    rows += _container_rows(containers, is_table=is_table)
    rows += (_image_row(image, is_table=is_table) for image in images)
    return _padded(b"".join(rows) + texts)


def _library_rows(libraries: tuple[PackLibrary, ...], at: int) -> tuple[list[bytes], bytes]:
    rows, texts, first = [], b"", 0
    for library in libraries:
        name, stub = library.name.encode(), library.stub.encode()
        name_at = at + len(texts)
        texts += name + stub
        count = len(library.containers)
        rows.append(LIBRARY.pack(name_at, len(name), name_at + len(name), len(stub), first, count))
        first += count
    return rows, texts


def _container_rows(containers: list[PackContainer], *, is_table: bool) -> Iterator[bytes]:
    first = 0
    for container in containers:
        count = len(container.images)
        here = count > 0 and not is_table
        offset, size = (container.offset, container.size) if here else (0, 0)
        flags = SPARE if container.is_spare else 0
        places = (offset, size, container.wrapper, container.address)
        yield CONTAINER.pack(*places, first, count, flags, 0)
        first += count


def _image_row(image: PackImage, *, is_table: bool) -> bytes:
    target = image.target
    return IMAGE.pack(
        image.number,
        0,
        _KINDS[target.kind],
        target.capability.major,
        target.capability.minor,
        ord(target.suffix) if target.suffix else 0,
        0 if is_table else image.offset,
        image.size,
        image.digest,
    )


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % EIGHT)
