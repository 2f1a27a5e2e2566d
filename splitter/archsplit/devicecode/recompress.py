"""Images as zstd frames: smaller than what nvcc wrote, and made into nvcc's bytes again.

In: entries of containers, and a level. Out: for each entry, an `ImageResult`: the entry with a zstd
frame as nvcc 13 would write it and an `ImageForm` for the way back; or the reason why the vendor's
bytes stay. An image is stored anew only if that is smaller and its vendor's bytes can be made
again: both directions are tried here, for every image, before anything is written.

`remake_image` is the way back. `estimate_shares` tries some images, to say what a file would save.
`smaller_entry` is for files whose original is kept, which need no way back.

Only ``.nv_fatbin`` of linked files may be given: nvlink before CUDA 12.8 can't read relocatable
code (``.o``, ``.a``, ``__nv_relfatbin``) with zstd frames.
"""

from __future__ import annotations

import enum
import hashlib
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from itertools import accumulate
from struct import Struct
from typing import TYPE_CHECKING

from archsplit.devicecode.decompression import decompress, image_content
from archsplit.devicecode.edits import NewBytes, copy_entry
from archsplit.devicecode.encoders import (
    Encoder,
    compress_zstd,
    encode_payload,
    find_encoder,
    has_lz4_encoders,
)
from archsplit.devicecode.model import code_form
from archsplit.errors import BinaryFormatError
from archsplit.formats.device_pack import ZSTD_DRIVER, ImageForm
from archsplit.formats.fatbin import Compression, EntryFlag, EntryKind, read_entry
from archsplit.formats.reader import Window
from archsplit.formats.zstd import zstd
from archsplit.system.parallel import map_on_cores
from archsplit.system.resources import available_cores

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from archsplit.devicecode.edits import EditPiece, ImageEncoder
    from archsplit.devicecode.model import CodeForm
    from archsplit.formats.device_pack import PackImage
    from archsplit.formats.fatbin import Container, FatbinEntry

    PlacedImage = tuple[Container, FatbinEntry]
    """An image, and the container that it lies in."""

DEFAULT_LEVEL, SLOW_LEVEL = 9, 19
"""Levels that make sense: 60 to 85 MB/s, and the smallest at 2 to 3 MB/s."""

_SPEED = {DEFAULT_LEVEL: 70_000_000, SLOW_LEVEL: 2_700_000}
"""Raw bytes that one thread compresses in a second."""

# The fields of an entry's header that differ between two forms: header size, padded size,
# compressed size, flags, uncompressed size.
_HEADER_SIZE, _HEADER_SIZE_AT = Struct("<I"), 4
_SIZES, _SIZES_AT = Struct("<QI"), 8
_FLAGS, _FLAGS_AT, _UNCOMPRESSED_AT = Struct("<Q"), 40, 56
_ALIGNMENT = 8
# A number: from Python 3.11, `~` of an IntFlag has no bits above the members that it knows.
_COMPRESSED = int(EntryFlag.LZ4 | EntryFlag.ZSTD)
_KINDS = {EntryKind.CUBIN, EntryKind.PTX}
_MOST_PICKS, _FEWEST_PICKS, _SAMPLE_BYTES, _LARGEST_IMAGE = 96, 12, 80 << 20, 256 << 20
"""Most and fewest images of a sample, their decompressed bytes, and the largest image.

It takes 0.2 to 0.7 CPU seconds; twice the bytes were no closer. A library that was made to fill
memory claims larger images.
"""
_SMALL_IMAGE, _PARAMETER = 128 << 10, zstd.CompressionParameter
_SHARE_OF_LEVEL_3: dict[EntryKind | None, float] = {EntryKind.CUBIN: 0.87, EntryKind.PTX: 0.73}
"""Share of a frame of level 3 that one of level 9 has: 0.82 to 0.93, and 0.70 to 0.78.

Level 3 is six times as fast. A part of an image at level 9 would be up to 1.5 times too large:
machine code repeats itself over megabytes.
"""

ZSTD_DRIVER_TEXT = "driver 550.54.14 (CUDA 12.4) or later"
"""First driver that reads zstd frames: nvcc's documentation of ``--compress-mode``."""


def recompress_level(word: str) -> int | None:
    """Return the level that a user chose: 9, 19 or off."""
    return None if word == "off" else int(word)


def level_for_driver(version: int) -> int | None:
    """Return the level of frames for a machine's own use; None if its driver can't read them."""
    return DEFAULT_LEVEL if version >= ZSTD_DRIVER else None


class KeptReason(enum.Enum):
    """Reasons for which an image keeps the vendor's bytes."""

    ZSTD = "it is a zstd frame already"
    NOT_SMALLER = "a zstd frame is not smaller"
    UNMATCHED = "no encoder makes the vendor's bytes again"
    NO_ENCODER = "the LZ4 encoders are not compiled for this machine"
    OTHER_KIND = "neither machine code nor PTX"
    RELOCATABLE = "it is relocatable code, which older linkers read"
    UNREADABLE = "it can't be decompressed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageResult:
    """An image in its new form.

    Attributes:
        content: the whole entry: header, frame and padding; b"" if the vendor's bytes stay.
        digest: SHA-256 of the content.
        form: the vendor's form; None if the vendor's bytes stay.
        kept: the reason why the vendor's bytes stay.
    """

    content: bytes = field(default=b"", repr=False)
    digest: bytes = field(default=b"", repr=False)
    form: ImageForm | None = None
    kept: KeptReason | None = None

    def row(self, vendor: PackImage) -> PackImage:
        """Return the stored image's row, from the row of the vendor's image."""
        if self.form is None:
            return vendor
        return replace(vendor, size=len(self.content), digest=self.digest, form=self.form)


def recompress_image(container: Container, entry: FatbinEntry, *, level: int) -> ImageResult:
    """Return an image as a zstd frame, or the reason why the vendor's bytes stay.

    Raises:
        ToolFailedError: libzstd is another release, or the encoders are damaged.
    """
    reason = _kept_reason(entry, level)
    if reason is not None:
        return ImageResult(kept=reason)
    payload = container.payload(entry)
    try:
        raw = decompress(entry, payload)
    except BinaryFormatError:
        return ImageResult(kept=KeptReason.UNREADABLE)
    # First what costs less: most of the time goes into the frame.
    block = payload.to_bytes()
    encoder = find_encoder(raw, block, entry.compression)
    if encoder is None:
        # Level 19 is as small as it gets, and isn't tried: making it again takes as long.
        is_zstd = entry.compression is Compression.ZSTD
        return ImageResult(kept=KeptReason.ZSTD if is_zstd else KeptReason.UNMATCHED)
    content = frame_entry(container, entry, compress_zstd(raw, level), len(raw))
    if len(content) >= entry.size:
        return ImageResult(kept=KeptReason.NOT_SMALLER)
    # Bytes: a memoryview compares them one by one.
    vendor = container.body.at(entry.offset, entry.size, "image").to_bytes()
    form = ImageForm(
        encoder=encoder,
        size=entry.size,
        compressed_size=entry.compressed_size,
        uncompressed_size=entry.uncompressed_size,
        flags=entry.flags,
        digest=hashlib.sha256(vendor).digest(),
        raw_digest=hashlib.sha256(raw).digest(),
    )
    # Both ways: the frame gives the raw bytes, and `find_encoder` has made the payload of these.
    # Padding that isn't zeros can't be made again, for example.
    header = content[: entry.header_size]
    if _unpacked(content) != raw or _vendor_entry(header, block, form) != vendor:
        return ImageResult(kept=KeptReason.UNMATCHED)
    return ImageResult(content=content, digest=hashlib.sha256(content).digest(), form=form)


def recompress_images(images: Sequence[PlacedImage], *, level: int) -> list[ImageResult]:
    """Return the results of `recompress_image` in their order, made on all cores."""
    return map_on_cores(
        lambda image: recompress_image(*image, level=level),
        images,
        lambda image: image[1].raw_size,
        # Each holds one image; libzstd and the encoders release the interpreter lock.
        most=available_cores(),
    )


def smaller_entry(container: Container, entry: FatbinEntry, *, level: int) -> tuple[EditPiece, ...]:
    """Return machine code, or PTX with LZ4, as a zstd frame if that is smaller; else its bytes."""
    is_plain = entry.compression is Compression.NONE and entry.kind is EntryKind.CUBIN
    if not is_plain and (entry.compression is not Compression.LZ4 or entry.kind not in _KINDS):
        return copy_entry(container, entry)
    try:
        raw = decompress(entry, container.payload(entry))
    # A damaged image moves as it is: other programs report it.
    except BinaryFormatError:
        return copy_entry(container, entry)
    content = frame_entry(container, entry, compress_zstd(raw, level), len(raw))
    # Small cubins grow: a frame has a header, and entries end at multiples of 8.
    return (NewBytes(content),) if len(content) < entry.size else copy_entry(container, entry)


def frame_image(
    container: Container, entry: FatbinEntry, *, encode: ImageEncoder
) -> tuple[EditPiece, ...]:
    """Return an image of a frame as nvFatbin writes it outside of one; encode other images."""
    if not entry.frame:
        return encode(container, entry)
    raw = image_content(container, entry)
    return (NewBytes(frame_entry(container, entry, compress_zstd(raw, DEFAULT_LEVEL), len(raw))),)


def remake_image(content: bytes | memoryview, form: ImageForm) -> bytes:
    """Return the vendor's entry from the stored one.

    Raises:
        BinaryFormatError: the stored image is damaged, or its form is not the vendor's.
    """
    try:
        raw, encoder = _unpacked(content), Encoder(form.encoder)
    except (BinaryFormatError, ValueError) as error:
        raise BinaryFormatError(f"a stored image can't be turned back: {error}") from error
    if hashlib.sha256(raw).digest() != form.raw_digest:
        raise BinaryFormatError("a stored image has other content than the vendor's")
    header = bytes(content[: _HEADER_SIZE.unpack_from(content, _HEADER_SIZE_AT)[0]])
    size = form.compressed_size or form.size - len(header)
    # The format's own limit: a claimed size must not allocate more.
    is_possible = 0 <= size <= form.size - len(header) <= len(raw) + len(raw) // 255 + 64
    payload = encode_payload(encoder, raw, size) if is_possible else b""
    vendor = _vendor_entry(header, payload, form) if payload else b""
    if hashlib.sha256(vendor).digest() != form.digest:
        raise BinaryFormatError("a stored image doesn't give the vendor's bytes")
    return vendor


def _unpacked(content: bytes | memoryview) -> bytes:
    """Return the raw bytes of an entry."""
    window = Window(content, source="a stored image")
    entry = read_entry(window, 0)
    return decompress(entry, window.part(entry.header_size, entry.payload_size, "payload"))


def _vendor_entry(header: bytes, payload: bytes, form: ImageForm) -> bytes:
    """Return an entry with the vendor's fields in its header, and another payload."""
    padded_size = form.size - len(header)
    changed = bytearray(header)
    _SIZES.pack_into(changed, _SIZES_AT, padded_size, form.compressed_size)
    _FLAGS.pack_into(changed, _FLAGS_AT, form.flags)
    _FLAGS.pack_into(changed, _UNCOMPRESSED_AT, form.uncompressed_size)
    return bytes(changed) + payload + bytes(padded_size - len(payload))


def frame_entry(container: Container, entry: FatbinEntry, frame: bytes, raw_size: int) -> bytes:
    """Return an entry with a zstd frame as its payload, as nvcc writes it."""
    header = bytearray(container.body.at(entry.offset, entry.header_size, "header").to_bytes())
    padding = -len(frame) % _ALIGNMENT
    # The header of an image in a frame has another number in this field.
    _HEADER_SIZE.pack_into(header, _HEADER_SIZE_AT, entry.header_size)
    _SIZES.pack_into(header, _SIZES_AT, len(frame) + padding, len(frame))
    _FLAGS.pack_into(header, _FLAGS_AT, entry.flags & ~_COMPRESSED | EntryFlag.ZSTD)
    _FLAGS.pack_into(header, _UNCOMPRESSED_AT, raw_size)
    return bytes(header) + frame + bytes(padding)


def estimate_seconds(entries: Iterable[FatbinEntry], *, level: int) -> float:
    """Return the CPU seconds that recompressing images takes, from their sizes only."""
    raw = sum(entry.raw_size for entry in entries if _kept_reason(entry, level) is None)
    return raw / _SPEED[level]


def estimate_shares(images: Iterable[PlacedImage]) -> dict[CodeForm, float]:
    """Estimate the share of their bytes that images keep as zstd frames.

    Args:
        images: images that only a driver reads.
    """
    groups: dict[tuple[EntryKind | None, Compression], list[PlacedImage]] = {}
    for image in images:
        entry = image[1]
        if entry.uncompressed_size <= _LARGEST_IMAGE and not _kept_reason(entry, DEFAULT_LEVEL):
            groups.setdefault((entry.kind, entry.compression), []).append(image)
    for group in groups.values():
        # By their ratio, which goes with the share, whichever target they are for.
        group.sort(key=lambda one: one[1].size / (one[1].uncompressed_size or 1))
    picked = [_pick_sample(group) for group in groups.values()]
    # Once, though a large image is picked several times.
    images = list({id(image): image for each in picked for image in each}.values())
    found = map_on_cores(lambda image: _estimate_share(*image), images, most=available_cores())
    shares = {id(image): share for image, share in zip(images, found, strict=True)}
    sums: dict[CodeForm, tuple[float, int]] = {}
    for group, picks in zip(groups.values(), picked, strict=True):
        passed, whole = 0, sum(entry.size for _, entry in group)
        for image in group:
            entry, form = image[1], code_form(image[1])
            # The picks before, at and after it.
            first = max(0, passed * len(picks) // whole - 1)
            near = [shares[id(one)] for one in picks[first : first + 3]]
            share = shares.get(id(image), sum(near) / len(near))
            kept, size = sums.get(form, (0.0, 0))
            sums[form] = (kept + entry.size * share, size + entry.size)
            passed += entry.size
    return {form: kept / size for form, (kept, size) in sums.items()}


def _pick_sample(images: Sequence[PlacedImage], count: int = _MOST_PICKS) -> list[PlacedImage]:
    """Return images evenly by their bytes: a large one stands for more, and may come again."""
    ends = list(accumulate(entry.size for _, entry in images))
    steps = (ends[-1] * (2 * number + 1) // (2 * count) for number in range(count))
    picks = [images[bisect_right(ends, step)] for step in steps]
    raw = {id(one): one[1].raw_size for one in picks}
    is_enough = count <= _FEWEST_PICKS or sum(raw.values()) <= _SAMPLE_BYTES
    return picks if is_enough else _pick_sample(images, count // 2)


def _estimate_share(container: Container, entry: FatbinEntry) -> float:
    try:
        raw = image_content(container, entry)
    except BinaryFormatError:
        return 1.0
    if len(raw) <= _SMALL_IMAGE:
        return min(1.0, len(compress_zstd(raw, DEFAULT_LEVEL)) / entry.size)
    options = {int(_PARAMETER.compression_level): 3, int(_PARAMETER.window_log): 23}
    frame = zstd.compress(raw, options=options)
    return min(1.0, _SHARE_OF_LEVEL_3[entry.kind] * len(frame) / entry.size)


def _kept_reason(entry: FatbinEntry, level: int) -> KeptReason | None:
    """Return the reason that an entry's header already gives for its vendor's bytes."""
    if entry.kind not in _KINDS:
        return KeptReason.OTHER_KIND
    if entry.compression is Compression.UNKNOWN:
        return KeptReason.UNREADABLE
    # Level 5 gains 20 % at level 19; at level 9 next to nothing.
    if entry.compression is Compression.ZSTD and level < SLOW_LEVEL:
        return KeptReason.ZSTD
    if entry.compression is Compression.LZ4 and not has_lz4_encoders():
        return KeptReason.NO_ENCODER
    return None
