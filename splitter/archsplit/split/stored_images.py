"""Images of a release as its packs store them: zstd frames if a pack gets smaller.

In: the containers of all cores, and a level. Out: `StoredImages`, with the new form of each image
that gets one, and the reasons why the others keep the vendor's bytes.

Each image is compressed once, however many libraries and Pythons have it. A frame that is smaller
than the vendor's image can still make a wheel larger: neighbors in a pack have headers, names and
code in common, which deflate finds in plain images and not in frames. So small images are deflated
both ways, together with their neighbors in the pack. The result depends only on the images of the
release and their order, because packs of the same build id must have the same bytes.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

import deflate

from archsplit.devicecode.partition import REST_PACK
from archsplit.devicecode.recompress import (
    SLOW_LEVEL,
    ZSTD_DRIVER_TEXT,
    ImageResult,
    KeptReason,
    estimate_seconds,
    recompress_images,
)
from archsplit.formats.fatbin import RELOCATABLE
from archsplit.formats.mapped import release_pages
from archsplit.split.model import StoredImages
from archsplit.system.parallel import map_on_cores
from archsplit.system.resources import available_cores
from archsplit.system.units import count_text, short_size
from archsplit.wheels.zip_writer import PACK_LEVEL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from archsplit.formats.device_pack import PackContainer
    from archsplit.formats.fatbin import Container, FatbinEntry
    from archsplit.split.model import ReleaseContents
    from archsplit.system.terminal import ProgressSink

_SMALL_IMAGE = 64 << 10
"""Decompressed bytes of a small image: deflate looks back 32 KiB."""
_FORM_BYTES = 100
"""Deflated bytes that the form of an image takes in the index of its pack."""
_RUN_BYTES = 256 << 10
"""Bytes of small neighbors that are tried together."""
_FIRST_DRIVERS = {11: "driver 450.80.02 or later", 12: "driver 525.60.13 or later"}
"""First driver of a CUDA major version, for its machine code.
Source: CUDA compatibility, "Minor version compatibility"."""
_ANNOUNCED_SECONDS = 10
"""CPU seconds that are announced at the default level; the slow level always is."""


def store_images(
    contents: ReleaseContents, level: int | None, progress: ProgressSink
) -> StoredImages:
    """Compress the images of a release on all cores.

    Args:
        level: None to keep the vendor's bytes of all images.
    """
    if level is None:
        return StoredImages()
    images: dict[bytes, tuple[Container, FatbinEntry]] = {}
    relocatable: set[bytes] = set()
    packs = [file.pack for file in contents.files]
    # Only `join` reads the last pack: no linker gets its relocatable code.
    last = [pack for pack in packs if pack.name.endswith(REST_PACK)]
    for number, one in enumerate(contents.containers):
        # With chosen targets, most images are in no pack.
        packed, rest = (
            {*chain(*(pack.offsets[number] for pack in each))} for each in (packs, last)
        )
        for image in one.row.images:
            entry = one.place.entries[image.number]
            if one.place.section.name == RELOCATABLE and entry.offset not in rest:
                relocatable.add(image.digest)
            elif entry.offset in packed:
                images.setdefault(image.digest, (one.place.container, entry))
    entries = [entry for _, entry in images.values()]
    seconds = estimate_seconds(entries, level=level)
    if entries and (level == SLOW_LEVEL or seconds > _ANNOUNCED_SECONDS):
        raw = short_size(sum(entry.raw_size for entry in entries))
        cores = available_cores()
        progress.note(
            f"{raw} of device code as zstd frames of level {level}: about {seconds:.0f} s of"
            f" CPU time, {seconds / cores:.0f} s on {count_text(cores, 'core')}"
        )
    progress.begin_stage("compressing device code", 0, "Compressed device code")
    results = dict(zip(images, recompress_images(list(images.values()), level=level), strict=True))
    results |= dict.fromkeys(relocatable, ImageResult(kept=KeptReason.RELOCATABLE))
    for digest in _better_deflated(contents, results):
        results[digest] = ImageResult(kept=KeptReason.NOT_SMALLER)
    for one in contents.containers:
        release_pages(one.place.container.body)
    return StoredImages(results=results)


def _better_deflated(
    contents: ReleaseContents, results: Mapping[bytes, ImageResult]
) -> Iterator[bytes]:
    """Yield the digests of small images that make a wheel smaller in the vendor's form."""
    runs = list(_small_neighbors(contents, results))
    deflated = map_on_cores(
        lambda run: (
            _deflated(b"".join(run.values())),
            _deflated(b"".join(results[digest].content for digest in run)),
        ),
        runs,
        most=available_cores(),
    )
    for run, (vendor, frames) in zip(runs, deflated, strict=True):
        if vendor <= frames + _FORM_BYTES * len(run):
            yield from run


def _small_neighbors(
    contents: ReleaseContents, results: Mapping[bytes, ImageResult]
) -> Iterator[dict[bytes, memoryview]]:
    """Yield small images that follow each other in a pack, each once: digests and bytes."""
    seen: set[bytes] = set()
    for file in contents.files:
        run: dict[bytes, memoryview] = {}
        for one, offsets in zip(contents.containers, file.pack.offsets, strict=True):
            for image in one.row.images:
                entry = one.place.entries[image.number]
                if entry.offset not in offsets:
                    continue
                is_small = entry.raw_size < _SMALL_IMAGE
                if is_small and results[image.digest].form and image.digest not in seen:
                    body = one.place.container.body
                    run[image.digest] = body.at(entry.offset, entry.size, "image").data
                    seen.add(image.digest)
                if run and (not is_small or sum(map(len, run.values())) > _RUN_BYTES):
                    yield run
                    run = {}
        if run:
            yield run


def _deflated(content: bytes) -> int:
    return len(deflate.deflate_compress(content, PACK_LEVEL))


def stored_notes(stored: StoredImages, rows: Iterable[PackContainer], cuda: int) -> Iterator[str]:
    """Yield the lines of a report on some containers.

    Args:
        cuda: the CUDA version of their code, as in a descriptor.
    """
    digests = {image.digest for row in rows for image in row.images}
    kept = Counter(stored.results[one].kept for one in digests & stored.results.keys())
    if count := kept.pop(None, 0):
        yield f"stored as zstd frames: {count_text(count, 'image')}"
        # With zstd images of the vendor, older drivers never ran the wheel.
        if (promise := _FIRST_DRIVERS.get(cuda // 1000)) and not kept[KeptReason.ZSTD]:
            yield f"the packs need {ZSTD_DRIVER_TEXT}, or libzstd.so.1"
            yield f"wheels of CUDA {cuda // 1000} promise {promise}; --recompress off keeps that"
    for reason, count in kept.most_common():
        if reason is not None:
            images = count_text(count, "image keeps", "images keep")
            yield f"{images} the vendor's bytes: {reason.value}"
