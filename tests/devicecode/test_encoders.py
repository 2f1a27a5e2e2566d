from __future__ import annotations

import ctypes
import hashlib
import platform
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import lz4.block  # type: ignore[import-untyped] # it ships no types
import pytest
import zstandard
from build_encoders import run_encoders_build, stale_encoders
from lz4_blocks import random_blocks

from archsplit.devicecode import encoders
from archsplit.devicecode.encoders import Encoder, compress_zstd, encode_payload, find_encoder
from archsplit.errors import ToolFailedError
from archsplit.formats.fatbin import Compression
from archsplit.formats.zstd import zstd

if TYPE_CHECKING:
    from collections.abc import Iterator

OLD, NEW, HIGH = Encoder.LZ4HC1_1_9_4, Encoder.LZ4HC1_1_10, Encoder.LZ4HC3


def by_lz4(block: bytes, level: int) -> bytes:
    # PyPI's lz4 has liblz4 1.9.4 inside, if the wheel is used.
    made: bytes = lz4.block.compress(
        block, mode="high_compression", compression=level, store_size=False
    )
    return made


def by_imagecodecs(block: bytes) -> bytes:
    imagecodecs = pytest.importorskip("imagecodecs")
    assert imagecodecs.lz4_version() == "lz4 1.10.0"
    return bytes(imagecodecs.lz4_encode(block, level=1, hc=True, header=False))


def made(encoder: Encoder, block: bytes) -> bytes:
    """Encode with as much room as the worst block takes."""
    room = ctypes.create_string_buffer(len(block) + len(block) // 255 + 16)
    size = encoders._encode_lz4(encoder, block, room)
    return room.raw[:size]


def test_blocks_equal_liblz4_1_9_4_at_levels_1_and_3() -> None:
    assert lz4.library_version_string() == "1.9.4"
    for block in random_blocks(1, 500):
        assert made(OLD, block) == by_lz4(block, 1)
        assert made(HIGH, block) == by_lz4(block, 3)


def test_blocks_equal_liblz4_1_10_as_recorded() -> None:
    digest = hashlib.sha256()
    for block in random_blocks(1, 500):
        digest.update(made(NEW, block))
    # From imagecodecs 2026.3.6, which has liblz4 1.10.0 inside: `test_hundred_thousand_blocks`.
    assert digest.hexdigest() == RECORDED


RECORDED = "d82cf7974a7812e0038712e77f93094dd8d3c9c5941b1d48e388c0754e300c92"


def sources() -> Iterator[bytes]:
    yield from random_blocks(2, 100_000)
    # Real ones: this program's libraries and Python's.
    for module in (zstandard, lz4.block._block):
        for path in Path(str(module.__file__)).parent.glob("*.so"):
            content = path.read_bytes()
            yield from (content[at : at + 300_000] for at in range(0, len(content), 300_000))


@pytest.mark.stress
def test_hundred_thousand_blocks_equal_liblz4() -> None:
    for block in sources():
        assert made(OLD, block) == by_lz4(block, 1)
        assert made(HIGH, block) == by_lz4(block, 3)
        assert made(NEW, block) == by_imagecodecs(block)
    digest = hashlib.sha256()
    for block in random_blocks(1, 500):
        digest.update(by_imagecodecs(block))
    assert digest.hexdigest() == RECORDED


def test_each_encoder_is_found_by_its_block() -> None:
    block = max(random_blocks(3, 50), key=len)
    for encoder in (OLD, NEW, HIGH):
        payload = made(encoder, block)
        assert find_encoder(block, payload, Compression.LZ4) is encoder
        assert encode_payload(encoder, block, len(payload)) == payload


@pytest.mark.parametrize("at", [0, 0.5, 1])
def test_block_with_another_byte_has_no_encoder(at: float) -> None:
    block = max(random_blocks(3, 50), key=len)
    payload = bytearray(made(NEW, block))
    payload[int(at * (len(payload) - 1))] ^= 1
    assert find_encoder(block, bytes(payload), Compression.LZ4) is None


def test_block_of_another_length_has_no_encoder() -> None:
    block = max(random_blocks(3, 50), key=len)
    payload = made(OLD, block)
    assert find_encoder(block, payload[:-1], Compression.LZ4) is None
    assert find_encoder(block, payload + b"\0", Compression.LZ4) is None
    assert encode_payload(OLD, block, len(payload) - 1) == b""


def test_small_images_have_encoders() -> None:
    for size in range(20):
        assert find_encoder(bytes(size), by_lz4(bytes(size), 1), Compression.LZ4) is OLD


def test_uncompressed_and_level_5_payloads_have_encoders() -> None:
    block = max(random_blocks(4, 20), key=len)
    assert find_encoder(block, block, Compression.NONE) is Encoder.NONE
    assert encode_payload(Encoder.NONE, block, len(block)) == block
    assert encode_payload(Encoder.NONE, block, len(block) + 1) == b""
    frame = compress_zstd(block, 5)
    assert find_encoder(block, frame, Compression.ZSTD) is Encoder.ZSTD5_1_5_7
    assert encode_payload(Encoder.ZSTD5_1_5_7, block, len(frame)) == frame
    other = zstandard.ZstdCompressor(level=5, write_checksum=True).compress(block)
    assert find_encoder(block, other, Compression.ZSTD) is None
    assert find_encoder(block, block, Compression.UNKNOWN) is None


def test_frames_have_their_size_and_no_checksum() -> None:
    parameters = zstandard.get_frame_parameters(compress_zstd(b"image" * 100, 9))
    assert (parameters.content_size, parameters.has_checksum) == (500, False)


def test_encoder_numbers_are_stable() -> None:
    assert {one.name: one.value for one in Encoder} == {
        "LZ4HC1_1_9_4": 1,
        "LZ4HC1_1_10": 2,
        "LZ4HC3": 3,
        "NONE": 4,
        "ZSTD5_1_5_7": 5,
    }


@pytest.mark.parametrize("level", [5, 9, 19])
def test_frames_equal_the_ones_of_zstandard(level: int) -> None:
    assert zstandard.ZSTD_VERSION == (1, 5, 7)
    compressor = zstandard.ZstdCompressor(level=level)
    for block in (b"", *random_blocks(5, 100), Path(lz4.block._block.__file__).read_bytes()):
        assert compress_zstd(block, level) == compressor.compress(block)


@pytest.fixture
def other_libzstd(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Python 3.14 with the libzstd of Ubuntu 24.04."""
    monkeypatch.setattr(zstd, "zstd_version", "1.5.5")
    encoders._zstd_writer.cache_clear()
    yield
    encoders._zstd_writer.cache_clear()


@pytest.mark.usefixtures("other_libzstd")
def test_python_with_other_libzstd_writes_with_zstandard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(zstd, "compress")
    assert zstd.decompress(compress_zstd(b"image" * 100, 9)) == b"image" * 100


@pytest.mark.usefixtures("other_libzstd")
@pytest.mark.parametrize("module", [None, SimpleNamespace(ZSTD_VERSION=(1, 5, 6))])
def test_other_libzstd_is_refused(monkeypatch: pytest.MonkeyPatch, module: object) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", module)
    with pytest.raises(ToolFailedError, match=r"libzstd 1\.5\.5, expected 1\.5\.7"):
        compress_zstd(b"", 9)


def test_changed_or_missing_library_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(str(encoders.compiled_encoders()), tmp_path / "lz4")
    monkeypatch.setattr(encoders, "compiled_encoders", lambda: tmp_path / "lz4")
    load = encoders._library.__wrapped__
    library = next((tmp_path / "lz4").glob(f"{platform.machine()}/*.so"))
    library.write_bytes(library.read_bytes() + b"\0")
    with pytest.raises(ToolFailedError, match="is not the file that SHA256SUMS names"):
        load()
    library.unlink()
    with pytest.raises(ToolFailedError, match="can't be read"):
        load()
    assert not encoders.has_lz4_encoders()


def test_compiled_encoders_are_the_ones_of_their_source() -> None:
    assert not stale_encoders()


def test_encoders_compile_to_the_same_bytes() -> None:
    pytest.importorskip("ziglang")
    assert run_encoders_build(["--check"]) == 0
