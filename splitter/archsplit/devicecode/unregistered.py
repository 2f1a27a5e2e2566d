"""Device code that no wrapper registers: cubins in zstd frames, and code to overwrite with zeros.

Some libraries find code by offsets of their own: in fatbin containers outside of the fatbin
sections, and in cubins inside zstd frames. Such code can't move. The payload of an image that no
chosen GPU can run may become zeros; headers, offsets and the first bytes of a frame stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.arch.compat import can_run_on
from archsplit.arch.target import CodeKind
from archsplit.devicecode.edits import Edit, ZeroBytes
from archsplit.devicecode.model import Place
from archsplit.formats.fatbin import Compression, EntryKind, read_entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from archsplit.arch.target import Target
    from archsplit.devicecode.model import Image, Unit
    from archsplit.devicecode.select import Selection
    from archsplit.formats.reader import Window

_FRAME_HEAD = 16
"""Bytes of a frame that stay: a library reads the unpacked size before it takes the code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisteredImage:
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
        """The bytes of the payload."""
        return self.end - self.start


def unused_unregistered(
    window: Window, units: Iterable[Unit], selection: Selection
) -> tuple[UnregisteredImage, ...]:
    """Return the machine code outside of the fatbin sections that the choice does not need.

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


def planned_bytes(old: Window, start: int, size: int, images: Iterable[UnregisteredImage]) -> bytes:
    """Return a range of an old file with zeros in place of some images."""
    content = bytearray(old.at(start, size, "section").data)
    for image in images:
        first, last = max(image.start, start), min(image.end, start + size)
        if first < last:
            content[first - start : last - start] = bytes(last - first)
    return bytes(content)
