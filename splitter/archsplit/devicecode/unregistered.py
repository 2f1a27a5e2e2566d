"""Device code that no wrapper registers: cubins in zstd frames, and code to overwrite with zeros.

Some libraries find code by offsets of their own: in fatbin containers outside of the fatbin
sections, and in cubins inside zstd frames (cuBLASLt), of which nothing but the head is unpacked
here. Such code can't move. The payload of an image that no chosen GPU can run may become zeros;
headers, offsets and the first bytes of a frame stay.

`PROVEN_LIBRARIES`: on a GPU it was proven that this changes no result of theirs. Evidence:
``tests/gpu/evidence`` has for each row the GPU, the operations that gave the same bytes before and
after, and the digests. ``nox -s gpu_tests`` makes it, and a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from archsplit.arch.compat import can_run_on
from archsplit.arch.target import Capability, CodeKind
from archsplit.devicecode.decompression import decompress_head
from archsplit.devicecode.edits import Edit, ZeroBytes
from archsplit.devicecode.model import Place
from archsplit.errors import BinaryFormatError
from archsplit.formats.cubin import frame_size, read_capability
from archsplit.formats.fatbin import Compression, EntryKind, read_entry
from archsplit.formats.reader import Window

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from archsplit.arch.target import Target
    from archsplit.devicecode.model import Image, Unit
    from archsplit.devicecode.select import Selection

_FRAME_HEAD = 16
"""Bytes of a frame that stay: a library reads the unpacked size before it takes the code."""


class UnregisteredImage(NamedTuple):
    """An image that only the library finds, and that no chosen GPU can run.

    Attributes:
        start, end: the range of its payload in the file.
    """

    kind: str
    target: str
    start: int
    end: int

    @property
    def size(self) -> int:
        """Bytes of the payload."""
        return self.end - self.start


def unused_unregistered(
    window: Window, units: Iterable[Unit], selection: Selection
) -> tuple[UnregisteredImage, ...]:
    """Return the machine code outside of fatbin sections that the choice doesn't need.

    The library chooses by rules of its own. So everything that a chosen GPU can run stays, and not
    only the image that the driver would prefer. LTO IR and PTX stay: libraries link them later.
    """
    return tuple(
        UnregisteredImage(
            kind=image.kind_name,
            target=str(image.target),
            start=image.offset + head,
            end=image.offset + image.file_bytes,
        )
        for unit in units
        if unit.place is Place.OUTSIDE
        for image in unit.images
        if is_unused_code(image, selection) and (head := _head_size(window, image)) is not None
    )


def is_unused_code(image: Image, selection: Selection) -> bool:
    """Return True for machine code that no GPU or target of the choice can run."""
    target = image.target
    if image.kind is not EntryKind.CUBIN or target is None or target.kind is not CodeKind.SASS:
        return False
    if selection.drop:
        return target in selection.drop
    return not any(_serves(target, wanted) for wanted in selection.keep) and not any(
        can_run_on(target, device) for device in selection.devices
    )


def _serves(target: Target, wanted: Target) -> bool:
    # The suffix of a framed cubin is unknown, and a GPU of a kept target may take older code.
    return target == wanted or can_run_on(target, wanted.capability)


def _head_size(window: Window, image: Image) -> int | None:
    """Return the bytes of an image that must stay; None if it must stay as a whole."""
    if not image.is_bare:
        return read_entry(window.at(image.offset, image.file_bytes, "entry"), 0).header_size
    # An unpacked cubin has no header of its own that could stay.
    return _FRAME_HEAD if image.compression is Compression.ZSTD else None


def zero_unregistered(images: Iterable[UnregisteredImage]) -> Iterator[Edit]:
    """Yield the edits that overwrite payloads with zeros."""
    for image in images:
        yield Edit(start=image.start, end=image.end, pieces=(ZeroBytes(size=image.size),))


_ELF_HEADER = 64


def framed_cubin(window: Window) -> tuple[Capability, int] | None:
    """Return the capability and the size of the framed cubin that begins a window.

    Other data gives None: a frame of something else, or bytes that look like a frame.
    """
    try:
        size = frame_size(window)
        head = decompress_head(window.part(0, size, "zstd frame"), _ELF_HEADER)
        return read_capability(Window(head, source="the head of a cubin")), size
    except BinaryFormatError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenLibrary:
    """A library, by the digest of its file, and the GPUs of its evidence.

    Attributes:
        name: its SONAME, and the name of its file.
    """

    name: str
    distribution: str
    version: str
    sha256: str
    capabilities: tuple[Capability, ...]


def _read_rows() -> Iterator[ProvenLibrary]:
    lines = Path(__file__).with_name("proven.txt").read_text(encoding="utf-8").splitlines()
    rows = (line.split() for line in lines if line[0] != "#")
    for name, distribution, version, sha256, *gpus in rows:
        yield ProvenLibrary(
            name=name,
            distribution=distribution,
            version=version,
            sha256=sha256,
            capabilities=tuple(map(Capability.parse, gpus)),
        )


PROVEN_LIBRARIES = tuple(_read_rows())
"""All of them, by distribution."""


def proven_digests(name: str, selection: Selection) -> frozenset[str]:
    """Return the digests of files whose unused code may become zeros without being asked for.

    Only for a choice by GPUs that the evidence is about: another GPU takes other code.

    Args:
        name: the SONAME of a library; the digest of no other file has to be compared.
    """
    return frozenset(
        library.sha256
        for library in PROVEN_LIBRARIES
        if library.name == name
        and selection.devices
        and selection.devices <= frozenset(library.capabilities)
    )
