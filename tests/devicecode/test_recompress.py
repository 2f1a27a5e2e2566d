from __future__ import annotations

import hashlib
import random
import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import lz4.block  # type: ignore[import-untyped] # it ships no types
import pytest
from lz4_blocks import random_blocks

from archsplit.devicecode import recompress
from archsplit.devicecode.decompression import decompress
from archsplit.devicecode.encoders import Encoder, compress_zstd
from archsplit.devicecode.recompress import (
    KeptReason,
    estimate_seconds,
    estimate_shares,
    recompress_image,
    recompress_images,
    remake_image,
)
from archsplit.errors import BinaryFormatError
from archsplit.formats.device_pack import IMAGE_WITH_FORM, PackImage, container_key
from archsplit.formats.fatbin import Compression, read_container
from archsplit.formats.reader import Window

if TYPE_CHECKING:
    from archsplit.devicecode.recompress import ImageResult
    from archsplit.formats.fatbin import Container, FatbinEntry

LZ4, ZSTD = 0x2000, 0x8000
RAW = b"".join(block for block in random_blocks(5, 60) if len(block) < 4000) * 3
RAW += bytes(-len(RAW) % 8)


def lz4_block(raw: bytes, level: int = 1) -> bytes:
    block: bytes = lz4.block.compress(
        raw, mode="high_compression", compression=level, store_size=False
    )
    return block


def entry_bytes(
    payload: bytes, *, raw: int = 0, flags: int = 0, kind: int = 2, name: bytes = b"", pad: int = 0
) -> bytes:
    """Return an entry as nvcc writes it; `raw` is the size of the decompressed image."""
    padded = payload + bytes([pad]) * (-len(payload) % 8)
    strings = name + bytes(-len(name) % 8)
    header = struct.pack(
        "<HHIQIIHHIIIQQQ",
        *(kind, 0x0101, 64 + len(strings), len(padded), len(payload) if raw else 0, 0, 7, 1, 90),
        *(64 if name else 0, len(name), 0x11 | flags, 0, raw),
    )
    return header + strings + padded


def one_image(entry: bytes) -> tuple[Container, FatbinEntry]:
    content = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry)) + entry
    container = read_container(Window(content, source="x"), 0)
    return container, next(container.entries())


def recompressed(entry: bytes, level: int = 9) -> ImageResult:
    return recompress_image(*one_image(entry), level=level)


FORMS = {
    "lz4hc1-1.9.4": (entry_bytes(lz4_block(RAW), raw=len(RAW), flags=LZ4), Encoder.LZ4HC1_1_9_4),
    "lz4hc3": (entry_bytes(lz4_block(RAW, 3), raw=len(RAW), flags=LZ4), Encoder.LZ4HC3),
    "none": (entry_bytes(RAW), Encoder.NONE),
    "named": (entry_bytes(RAW, name=b"kernel.cu"), Encoder.NONE),
    "ptx": (entry_bytes(RAW, kind=1), Encoder.NONE),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("level", [9, 19])
def test_image_is_smaller_and_gives_the_vendor_bytes_again(form: str, level: int) -> None:
    vendor, encoder = FORMS[form]
    result = recompressed(vendor, level)
    assert result.form is not None
    assert result.form.encoder == encoder
    assert len(result.content) < len(vendor)
    container, entry = one_image(result.content)
    assert entry.compression is Compression.ZSTD
    assert decompress(entry, container.payload(entry)) == RAW
    assert container.payload(entry).to_bytes() == compress_zstd(RAW, level)
    assert remake_image(result.content, result.form) == vendor
    assert result.form.digest == hashlib.sha256(vendor).digest()


@pytest.mark.parametrize("flag", [0, 0x100_0000, 1 << 63], ids=hex)
def test_zstd_image_has_the_other_flags_of_the_vendor(flag: int) -> None:
    # 0x1000000 is on all images for 10.0 and later.
    result = recompressed(entry_bytes(lz4_block(RAW), raw=len(RAW), flags=LZ4 | flag))
    assert one_image(result.content)[1].flags == 0x11 | ZSTD | flag


def test_level_5_becomes_19_and_19_stays() -> None:
    five = entry_bytes(compress_zstd(RAW, 5), raw=len(RAW), flags=ZSTD)
    assert recompressed(five, 9).kept is KeptReason.ZSTD
    result = recompressed(five, 19)
    assert result.form is not None
    assert remake_image(result.content, result.form) == five
    most = entry_bytes(compress_zstd(RAW, 19), raw=len(RAW), flags=ZSTD)
    assert recompressed(most, 19).kept is KeptReason.ZSTD


def test_image_without_encoder_keeps_the_vendor_bytes() -> None:
    block = entry_bytes(lz4_block(RAW, 9), raw=len(RAW), flags=LZ4)
    assert recompressed(block).kept is KeptReason.UNMATCHED
    # Equal payload, but padding that isn't zeros.
    raw = next(RAW[:size] for size in range(2000, 2100) if len(lz4_block(RAW[:size])) % 8)
    padded = entry_bytes(lz4_block(raw), raw=len(raw), flags=LZ4, pad=7)
    assert recompressed(padded).kept in {KeptReason.UNMATCHED, KeptReason.NOT_SMALLER}


def test_other_images_keep_the_vendor_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert recompressed(entry_bytes(RAW, kind=8)).kept is KeptReason.OTHER_KIND
    assert recompressed(entry_bytes(bytes(8))).kept is KeptReason.NOT_SMALLER
    assert recompressed(entry_bytes(RAW, flags=LZ4)).kept is KeptReason.UNREADABLE
    damaged = entry_bytes(b"\xff" * 64, raw=len(RAW), flags=LZ4)
    assert recompressed(damaged).kept is KeptReason.UNREADABLE
    monkeypatch.setattr(recompress, "has_lz4_encoders", lambda: False)
    assert recompressed(FORMS["lz4hc3"][0]).kept is KeptReason.NO_ENCODER


def test_damaged_form_or_content_is_refused() -> None:
    result = recompressed(FORMS["lz4hc3"][0])
    assert result.form is not None
    for form, message in (
        (replace(result.form, encoder=77), "can't be turned back"),
        (replace(result.form, raw_digest=bytes(32)), "other content"),
        (replace(result.form, encoder=int(Encoder.LZ4HC1_1_10)), "doesn't give the vendor's bytes"),
        (replace(result.form, flags=0), "doesn't give the vendor's bytes"),
        (replace(result.form, size=8), "doesn't give the vendor's bytes"),
        (replace(result.form, size=1 << 60), "doesn't give the vendor's bytes"),
        (replace(result.form, compressed_size=(1 << 32) - 1), "doesn't give the vendor's bytes"),
    ):
        with pytest.raises(BinaryFormatError, match=message):
            remake_image(result.content, form)
    broken = result.content[:64] + b"\0" * 8 + result.content[72:]
    with pytest.raises(BinaryFormatError):
        remake_image(broken, result.form)


def test_row_has_the_stored_size_and_the_key_stays() -> None:
    vendor = FORMS["lz4hc3"][0]
    result = recompressed(vendor)
    _, entry = one_image(vendor)
    assert entry.target is not None
    row = PackImage(
        number=3,
        target=entry.target,
        size=len(vendor),
        digest=hashlib.sha256(vendor).digest(),
    )
    stored = result.row(row)
    assert (stored.size, stored.form) == (len(result.content), result.form)
    assert stored.digest == hashlib.sha256(result.content).digest()
    assert stored.original == row
    assert container_key([stored]) == container_key([row])
    assert recompressed(entry_bytes(bytes(8))).row(row) == row
    assert IMAGE_WITH_FORM.size == 160


def test_many_images_keep_their_order_and_estimates_are_near() -> None:
    images = [one_image(FORMS[form][0]) for form in FORMS]
    results = recompress_images(images, level=9)
    assert [one.form and one.form.encoder for one in results] == [one[1] for one in FORMS.values()]
    shares = estimate_shares(images)
    for (_, entry), result in zip(images, results, strict=True):
        share = shares[entry.kind, entry.compression, entry.target]
        assert share * entry.size == pytest.approx(len(result.content), rel=0.1)
    assert estimate_shares([]) == {}
    assert estimate_seconds((entry for _, entry in images), level=19) > 0


def test_an_estimate_compresses_each_image_once(monkeypatch: pytest.MonkeyPatch) -> None:
    images = [one_image(FORMS[form][0]) for form in FORMS]
    sizes: list[int] = []

    def counted(content: bytes, level: int) -> bytes:
        sizes.append(len(content))
        return compress_zstd(content, level)

    monkeypatch.setattr(recompress, "compress_zstd", counted)
    estimate_shares(images)
    assert len(sizes) <= len(images)


def test_a_sample_is_of_all_sizes_and_within_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    container, entry = one_image(FORMS["lz4hc3"][0])
    images = [(container, entry._replace(uncompressed_size=number)) for number in range(1, 400)]
    assert len(recompress._pick_sample(images)) == 96
    # Fewer, of which a large image may be several.
    monkeypatch.setattr(recompress, "_SAMPLE_BYTES", 3000)
    assert len(recompress._pick_sample(images)) == 12
    assert len({id(one) for one in recompress._pick_sample(images[:2])}) == 2


def test_a_large_image_is_estimated_as_a_whole() -> None:
    # The second half repeats the first, which no part of it shows.
    half = random.Random(1).randbytes(1 << 20)
    image = one_image(entry_bytes(half * 2))
    share = estimate_shares([image])[image[1].kind, image[1].compression, image[1].target]
    assert share == pytest.approx(0.5 * 0.87, rel=0.01)


def test_image_too_large_for_memory_is_left_out_of_the_estimate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    container, entry = one_image(FORMS["lz4hc3"][0])
    monkeypatch.setattr(recompress, "image_content", None)
    assert estimate_shares([(container, entry._replace(uncompressed_size=1 << 30))]) == {}
