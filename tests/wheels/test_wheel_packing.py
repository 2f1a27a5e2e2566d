"""Packed members, and members that lie about what they are."""

from __future__ import annotations

import hashlib
import io
import struct
import zipfile
import zlib
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from archsplit.errors import InputError, WheelError
from archsplit.wheels.reader import extract_member
from archsplit.wheels.record import RecordRow
from archsplit.wheels.zip_reader import open_archive, read_packed_blocks
from archsplit.wheels.zip_writer import (
    ArchiveWriter,
    BlockStream,
    Dense,
    ParallelDeflater,
    pack,
    pack_blocks,
)

CONTENT = bytes(range(256)) * 9000


@given(st.binary(max_size=5000))
def test_packed_content_unpacks_to_itself(content: bytes) -> None:
    made = pack(content)
    assert zlib.decompress(b"".join(made.pieces), -15) == content
    assert made.size == len(content)
    assert made.crc == zlib.crc32(content)
    assert made.digest == hashlib.sha256(content).digest()


@pytest.mark.parametrize("content", [b"", b"text" * 1000])
def test_a_file_is_packed_as_its_bytes_are(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    offsets: list[int] = []
    assert pack(path, on_read=offsets.append) == pack(content)
    assert offsets == [len(content)]


@given(st.lists(st.binary(max_size=50)), st.integers(1, 60))
def test_blocks_of_any_size_are_read_in_blocks_of_another(blocks: list[bytes], size: int) -> None:
    content = b"".join(blocks)
    stream = BlockStream(map(memoryview, blocks), size=len(content))
    assert b"".join(iter(lambda: stream.read(size), b"")) == content


@pytest.mark.parametrize("missing", [-1, 1])
def test_blocks_of_another_size_are_noticed(missing: int) -> None:
    with closing(ParallelDeflater(1)) as deflater:
        assert pack_blocks([b"ab", CONTENT], 2 + len(CONTENT), deflater) == pack(b"ab" + CONTENT)
        with pytest.raises(InputError, match="the content changed while it was packed"):
            pack_blocks([CONTENT], len(CONTENT) + missing, deflater)


def test_dense_blocks_are_read_apart() -> None:
    stream = BlockStream([b"a", b"b", Dense(b"cd"), b"e"], size=5)
    read = [(stream.read(9), stream.is_dense) for _ in range(4)]
    assert read == [(b"ab", False), (b"cd", True), (b"e", False), (b"", False)]


@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=50))))
@example([(True, b"a" * 70_000)])
@example([(False, b"text" * 99), (True, b"b" * 131_070), (True, b"c"), (False, b"text" * 99)])
def test_dense_blocks_are_stored_in_the_same_stream(blocks: list[tuple[bool, bytes]]) -> None:
    content = b"".join(block for _, block in blocks)
    made = (Dense(block) if is_dense else block for is_dense, block in blocks)
    with closing(ParallelDeflater(1)) as deflater:
        packed = pack_blocks(made, len(content), deflater)
    stream = b"".join(packed.pieces)
    assert zlib.decompress(stream, -zlib.MAX_WBITS) == content
    assert replace(packed, pieces=()) == replace(pack(content), pieces=())
    assert all(block in stream for is_dense, block in blocks if is_dense and len(block) < 99)


def archive_of(path: Path, method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("first", CONTENT)
        archive.writestr("empty", b"")
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
def test_members_are_copied_and_unpacked(method: int, tmp_path: Path) -> None:
    old = archive_of(tmp_path / "old.zip", method)
    with open_archive(old) as archive, (tmp_path / "new.zip").open("wb") as file:
        writer = ArchiveWriter(file)
        writer.copy(archive, "first", "other/name")
        writer.replace(archive, "empty", "empty", pack(b"not any more"))
        writer.add("added", pack(b"new"))
        writer.close()
        digest = hashlib.sha256(CONTENT).digest()
        extract_member(archive, RecordRow(path="first", digest=digest), tmp_path / "first")
        extract_member(archive, RecordRow(path="empty"), tmp_path / "empty")
    assert (tmp_path / "first").read_bytes() == CONTENT
    assert (tmp_path / "empty").read_bytes() == b""
    with zipfile.ZipFile(tmp_path / "new.zip") as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["other/name", "empty", "added"]
        assert archive.read("other/name") == CONTENT
        assert archive.read("empty") == b"not any more"


def test_full_disk_is_not_blamed_on_the_old_archive(tmp_path: Path) -> None:
    path = tmp_path / "old.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("large", CONTENT)
    with (
        open_archive(path) as old,
        Path("/dev/full").open("wb", buffering=0) as full,
        pytest.raises(OSError, match="No space left"),
    ):
        ArchiveWriter(full).copy(old, "large", "large")


def refused(path: Path, entry: RecordRow, match: str, tmp_path: Path) -> None:
    with open_archive(path) as archive, pytest.raises(WheelError, match=match):
        extract_member(archive, entry, tmp_path / "out")


def test_another_hash_is_refused(tmp_path: Path) -> None:
    entry = RecordRow(path="first", digest=bytes(32))
    refused(archive_of(tmp_path / "a.zip"), entry, "match its hash in RECORD", tmp_path)


def test_damaged_data_is_refused(tmp_path: Path) -> None:
    path = archive_of(tmp_path / "a.zip")
    content = bytearray(path.read_bytes())
    content[40:60] = b"\xff" * 20
    path.write_bytes(content)
    fault = "first is damaged: its compressed data can't be unpacked\nhint: download it again"
    refused(path, RecordRow(path="first"), fault, tmp_path)


@pytest.mark.parametrize("size", [len(CONTENT) - 1, len(CONTENT) + 1, 1])
def test_wrong_size_is_refused(size: int, tmp_path: Path) -> None:
    path = archive_of(tmp_path / "a.zip")
    content = path.read_bytes()
    lie = content.replace(struct.pack("<I", len(CONTENT)), struct.pack("<I", size))
    path.write_bytes(lie)
    refused(path, RecordRow(path="first"), "match the size in the archive", tmp_path)


def test_truncated_archive_is_refused() -> None:
    info = zipfile.ZipInfo("name")
    info.CRC, info.compress_size, info.file_size, info.header_offset = 0, 10, 10, 0
    file = io.BytesIO(info.FileHeader() + b"short")
    with pytest.raises(WheelError, match="ends too early"):
        list(read_packed_blocks(file, info))
