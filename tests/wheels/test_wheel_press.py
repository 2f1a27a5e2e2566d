"""Packing in pieces: one stream, whatever is in it and however many threads made it."""

from __future__ import annotations

import contextlib
import hashlib
import io
import random
import subprocess
import sys
import threading
import zipfile
import zlib
from concurrent.futures import CancelledError
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import deflate
import pydantic_core
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wheel_samples import EPOCH, plugin_plan

from archsplit.errors import ToolNotFoundError
from archsplit.wheels import final_block
from archsplit.wheels import zip_writer as pressing
from archsplit.wheels.final_block import without_final_block
from archsplit.wheels.reader import open_wheel
from archsplit.wheels.writer import write_wheel, write_wheels
from archsplit.wheels.zip_writer import (
    PIECE_BYTES,
    DeflatePiece,
    ParallelDeflater,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent


def random_bytes(size: int) -> bytes:
    return random.Random(7).randbytes(size)


@cache
def _libraries() -> bytes:
    folder = Path(pydantic_core.__file__).parent
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.so")))


def code(size: int) -> bytes:
    """Machine code, as in the libraries of plugins."""
    library = _libraries()
    return (library * (size // len(library) + 1))[:size]


@cache
def contents() -> list[bytes]:
    return [
        make(size)
        for size in (1, 2, 3, 100, 5_000, 10_000, 70_000, 400_000, 1_000_000)
        for make in (
            bytes,
            random_bytes,
            code,
            lambda size: b"abc"[: size % 3] + b"abc" * (size // 3),
            lambda size: bytes(size // 2) + random_bytes(size - size // 2),
            lambda size: random_bytes(size // 2) + bytes(size - size // 2),
            lambda size: bytes(random.Random(3).choices(b"abcdefgh", k=size)),
            lambda size: bytes(number * number >> 7 & 255 for number in range(size)),
        )
    ]


def assert_can_be_followed(content: bytes, level: int) -> None:
    whole = deflate.deflate_compress(content, level)
    first = bytes(without_final_block(bytearray(whole), content))
    inflate = zlib.decompressobj(-15)
    assert inflate.decompress(first + whole) == content * 2
    assert inflate.eof
    assert not inflate.unused_data
    assert len(first) - len(whole) in {4, 5}


@pytest.mark.parametrize("level", [1, 6, 9])
def test_the_end_of_a_stream_is_taken_off(level: int) -> None:
    for content in contents():
        assert_can_be_followed(content, level)


@given(st.binary(min_size=1, max_size=20_000), st.integers(1, 12), st.integers(1, 40))
def test_the_end_of_any_stream_is_taken_off(content: bytes, level: int, times: int) -> None:
    assert_can_be_followed(content * times, level)


def test_stream_of_other_content_is_noticed() -> None:
    stream = bytearray(deflate.deflate_compress(code(2_000), 6))
    for other in (code(2_001)[1:], code(2_001)):
        with pytest.raises(AssertionError, match="has a last block"):
            without_final_block(stream, other)


def test_missing_zlib_is_an_error_with_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(final_block, "_ZLIB", "libarchsplit-none.so.1")
    final_block._zlib.cache_clear()
    with pytest.raises(ToolNotFoundError, match="can't load zlib: libarchsplit-none"):
        without_final_block(bytearray(b"\3\0"), b"")


def pieces(content: bytes, size: int) -> Iterator[DeflatePiece]:
    for start in range(0, len(content), size):
        part = content[start : start + size]
        yield DeflatePiece(content=part, is_last=start + size >= len(content))


def test_pieces_come_out_in_their_order_as_one_stream() -> None:
    content = code(3 << 20)
    streams = set()
    for threads in (1, 3, 100):
        with contextlib.closing(ParallelDeflater(threads)) as press:
            stream = b"".join(press.pack(pieces(content, 300_000)))
        assert zlib.decompress(stream, -15) == content
        streams.add(stream)
    assert len(streams) == 1


def test_a_higher_level_makes_a_smaller_stream() -> None:
    content, streams = code(1 << 20), []
    for level in (6, 10):
        with contextlib.closing(ParallelDeflater(level=level)) as press:
            streams.append(b"".join(press.pack(pieces(content, 300_000))))
    assert {zlib.decompress(stream, -15) for stream in streams} == {content}
    assert len(streams[1]) < len(streams[0])


def test_archives_share_a_press(monkeypatch: pytest.MonkeyPatch) -> None:
    """More archives than there is room for pieces: each gets on."""
    monkeypatch.setattr(pressing, "_MAX_PIECES", 2)
    content, made = code(1 << 20), []
    with contextlib.closing(ParallelDeflater(2)) as press:

        def work() -> None:
            made.append(b"".join(press.pack(pieces(content, 20_000))))

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(made) == 6
    assert set(made) == {made[0]}
    assert zlib.decompress(made[0], -15) == content


def test_a_closed_press_makes_nothing() -> None:
    press = ParallelDeflater(1)
    packing = press.pack(pieces(code(1 << 20), 10_000))
    next(packing)
    press.close()
    with pytest.raises((CancelledError, RuntimeError)):
        list(packing)
    # Each of several wheels of a split notices it, and waits for no slot.
    for _ in range(10):
        with pytest.raises(RuntimeError):
            next(press.pack(pieces(bytes(100), 10)))


def test_press_forgets_unawaited_results() -> None:
    with contextlib.closing(ParallelDeflater(1)) as press:
        for _ in range(100):
            packing = press.pack(pieces(bytes(100), 10))
            next(packing)
            del packing
        assert len(list(press.pack(pieces(bytes(100), 10)))) == 10


@pytest.mark.parametrize(
    "size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES]
)
def test_members_of_every_size_are_packed_intact(tmp_path: Path, size: int) -> None:
    content = code(size)
    (path,) = write_wheels(tmp_path, [plugin_plan(content)], epoch=EPOCH)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.read("vecsort_plugins/cuda/sm_90/libvecsort.so") == content
    with open_wheel(path) as wheel:
        wheel.check_contents()


def test_threads_and_company_leave_no_trace(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    library.write_bytes(code(2 * PIECE_BYTES + 12345))
    plan = plugin_plan(library)
    digests = set()
    for threads in (1, 2, 7):
        (tmp_path / str(threads)).mkdir()
        lines: list[str] = []
        (path,) = write_wheels(
            tmp_path / str(threads),
            [plan],
            epoch=EPOCH,
            threads=threads,
            on_written=lambda path, seconds: lines.append(f"{path.name} {seconds > 0}"),  # noqa: B023
        )
        assert lines == [f"{path.name} True"]
        digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
    file = io.BytesIO()
    with contextlib.closing(ParallelDeflater(2)) as press:
        plan.write(file, epoch=EPOCH, deflater=press)
    digests.add(hashlib.sha256(file.getvalue()).hexdigest())
    assert len(digests) == 1


def test_no_larger_than_zlib_makes_it(tmp_path: Path) -> None:
    content = code(2 * PIECE_BYTES)
    path = write_wheel(tmp_path, plugin_plan(content), epoch=EPOCH)
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    theirs = len(packer.compress(content) + packer.flush())
    with zipfile.ZipFile(path) as archive:
        ours = archive.getinfo("vecsort_plugins/cuda/sm_90/libvecsort.so").compress_size
    assert ours <= theirs


MEMORY = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from wheel_samples import EPOCH, plugin_plan
from archsplit.wheels.writer import write_wheels
folder, library = map(Path, sys.argv[2:])
write_wheels(folder, [plugin_plan(library)], epoch=EPOCH, threads=28)
# What wait4 and getrusage say has the parent's peak in it, which stays over an exec.
status = Path("/proc/self/status").read_text().splitlines()
print(next(line.split()[1] for line in status if line.startswith("VmHWM")))
"""


def test_memory_has_a_library_only_in_its_packed_form(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    with library.open("wb") as file:
        for _ in range(40):
            file.write(random_bytes(PIECE_BYTES // 2) + bytes(PIECE_BYTES // 2 + 1000))
    command = [sys.executable, "-c", MEMORY, str(HERE), str(tmp_path), str(library)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert int(said) < 300_000
