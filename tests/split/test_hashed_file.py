"""Wheels that are hashed while they are written."""

from __future__ import annotations

import gc
import hashlib
import io
import random
import zipfile
from typing import TYPE_CHECKING

import pytest

from archsplit.split.wheel_jobs import HashedFile
from archsplit.wheels.zip_writer import ArchiveWriter, pack

if TYPE_CHECKING:
    from pathlib import Path

CONTENT = random.Random(5).randbytes(3 << 20)


def test_the_hash_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.whl"
    with HashedFile(io.FileIO(path, "w")) as file:
        writer = ArchiveWriter(file)
        for name, content in (("a", CONTENT), ("b", b"few"), ("c", CONTENT[:-1])):
            writer.add(name, pack(content))
        writer.close()
    assert file.sha256() == hashlib.sha256(path.read_bytes()).hexdigest()
    with zipfile.ZipFile(path) as archive:
        assert archive.read("a") == CONTENT


def test_hashed_file_refuses_to_write_twice(tmp_path: Path) -> None:
    with HashedFile(io.FileIO(tmp_path / "a", "w")) as file:
        file.write(b"first")
        assert file.seek(5) == 5
        for place in ((0,), (0, io.SEEK_END)):
            with pytest.raises(io.UnsupportedOperation):
                file.seek(*place)


def test_small_contents_stay_in_their_place(tmp_path: Path) -> None:
    path, written = tmp_path / "a", b""
    with HashedFile(io.FileIO(path, "w")) as file:
        for content in (b"few", CONTENT, b"more", b"again", CONTENT[5:], *[CONTENT[:1000]] * 2500):
            assert file.write(content) == len(content)
            written += content
            assert file.tell() == len(written)
        file.flush()
        assert path.read_bytes() == written
    assert file.sha256() == hashlib.sha256(written).hexdigest()


@pytest.mark.parametrize("content", [b"few", CONTENT])
def test_a_full_disk_is_an_error(content: bytes) -> None:
    with (
        pytest.raises(OSError, match="No space left"),
        HashedFile(io.FileIO("/dev/full", "w")) as file,
    ):
        file.write(content)
    assert file.closed


def test_an_interrupt_leaves_a_file_that_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("archsplit.split.wheel_jobs.BlockSinks", interrupt)
    # Python reports a file that is never closed, which pytest makes an error of the test.
    with pytest.raises(KeyboardInterrupt), io.FileIO(tmp_path / "a", "w") as file:
        HashedFile(file)
    gc.collect()
