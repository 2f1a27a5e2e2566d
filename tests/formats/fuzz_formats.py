"""Damage real files, read them with every reader, and let nothing but one exception out.

As a program: ``python tests/formats/fuzz_formats.py SECONDS FILE...``
"""

from __future__ import annotations

import random
import resource
import struct
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.errors import BinaryFormatError
from archsplit.formats.cubin import Cubin
from archsplit.formats.descriptor import decode_note, read_descriptor
from archsplit.formats.elf import Elf, read_notes
from archsplit.formats.elf_dynamic import Dynamic, section_symbols
from archsplit.formats.fatbin import Container, host_containers, read_containers, read_wrappers
from archsplit.formats.reader import Window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

SLOW_SECONDS = 2.0
CRASH = Path(tempfile.gettempdir()) / "archsplit-fuzz-crash.bin"
_WIDTHS = ("<B", "<H", "<I", "<Q")
_HEADERS = 256


def _drain(items: Iterable[object]) -> None:
    deque(items, maxlen=0)


def _containers(containers: Iterable[Container]) -> None:
    for container in containers:
        for entry in container.entries():
            container.payload(entry)
            _ = (entry.kind_name, entry.payload_offset, entry.raw_size)


def _elf(window: Window) -> None:
    elf = Elf(window)
    for section in elf.sections():
        elf.content(section)


def _symbols(window: Window) -> None:
    elf = Elf(window)
    for section in elf.sections():
        if section.type in {2, 11}:
            _drain(section_symbols(elf, section))
            return


def _dynamic(window: Window) -> None:
    dynamic = Dynamic(Elf(window))
    _ = (dynamic.soname, dynamic.needed, dynamic.rpath, dynamic.runpath)
    _drain(dynamic.exported_symbols())


def _cubin(window: Window) -> None:
    cubin = Cubin(window)
    cubin.noted_target()
    _drain(cubin.kernels())


READERS: tuple[Callable[[Window], object], ...] = (
    _elf,
    _symbols,
    _dynamic,
    _cubin,
    lambda window: _drain(read_notes(Elf(window))),
    lambda window: read_descriptor(Elf(window)),
    lambda window: _containers(part for _, part in host_containers(Elf(window))),
    lambda window: _containers(read_containers(window)),
    lambda window: _drain(read_wrappers(Elf(window))),
    lambda window: decode_note(window.data),
)


def read_all(data: bytes) -> int:
    """Read ``data`` with every reader; return the number of refusals."""
    refused = 0
    for reader in READERS:
        started = time.perf_counter()
        try:
            reader(Window(data, source="damaged"))
        except BinaryFormatError:
            refused += 1
        assert time.perf_counter() - started < SLOW_SECONDS, "a reader hangs"
    return refused


def damaged(original: bytes, places: Sequence[int], chance: random.Random) -> bytes:
    """Damage a copy: cut it, flip bits, replace numbers, move or double a piece."""
    data = bytearray(original)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        at = chance.choice(places) if chance.random() < 0.8 else chance.randrange(len(data))
        at = min(at + chance.randrange(64), len(data) - 1)
        action = chance.randrange(5)
        if action == 0:
            data[at] ^= 1 << chance.randrange(8)
        elif action == 1:
            _put_number(data, at, chance)
        elif action == 2:
            start, size = chance.randrange(len(data)), chance.randrange(1, 128)
            piece = data[start : start + size]
            data[at : at + len(piece)] = piece
        elif action == 3 and chance.random() < 0.3:
            del data[at:]
        elif action == 4 and chance.random() < 0.3:
            data[at:at] = bytes(8 * chance.randrange(1, 9))
        if not data:
            return b""
    return bytes(data)


def _put_number(data: bytearray, at: int, chance: random.Random) -> None:
    layout = chance.choice(_WIDTHS)
    size = struct.calcsize(layout)
    at = min(at - at % size, len(data) - size)
    if at < 0:
        return
    top = 1 << (8 * size)
    value = chance.choice(
        (0, 1, 7, 8, top - 1, top - 8, top >> 1, len(data), len(data) - 1, 0xFFFF, at, top // 24)
    )
    if chance.random() < 0.3:
        value = struct.unpack_from(layout, data, at)[0] + chance.choice((-8, -1, 1, 8, 64, 1 << 16))
    struct.pack_into(layout, data, at, value % top)


def header_places(data: bytes) -> list[int]:
    """Return the offsets worth damaging: ELF tables, fatbin and note headers, file ends."""
    places = [0, 32, max(0, len(data) - 64)]
    for mark in (b"\x50\xed\x55\xba", b"\xb1\x43\x62\x46", b"archsplit\0", b"\x01\x01\x40\0\0\0"):
        at = data.find(mark)
        while at >= 0 and len(places) < _HEADERS:
            places.append(at)
            at = data.find(mark, at + 1)
    if data[:4] == b"\x7fELF":
        segments, sections = struct.unpack_from("<QQ", data, 32)
        _, segment_count, _, section_count = struct.unpack_from("<HHHH", data, 54)
        places += [segments + 56 * index for index in range(segment_count)]
        places += [sections + 64 * index for index in range(section_count)]
        elf = Elf(Window(data, source="seed"))
        places += [section.offset for section in elf.sections() if section.offset < len(data)]
    return [place for place in places if place < len(data)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """The number of damaged files, each read by all `READERS`, and of refusals."""

    files: int
    refused: int


def campaign(files: Sequence[bytes], *, seed: int, go_on: Callable[[int], bool]) -> Readings:
    """Read damaged copies of the files, in turn, for as long as ``go_on`` their count."""
    chance = random.Random(seed)
    seeds = [(data, header_places(data)) for data in files]
    count = refused = 0
    while go_on(count):
        data, places = seeds[count % len(seeds)]
        case = damaged(data, places, chance)
        try:
            refused += read_all(case)
        except Exception:
            CRASH.write_bytes(case)
            raise
        count += 1
    return Readings(files=count, refused=refused)


def main(seconds: str, *paths: str) -> None:
    """Run for some seconds over some files, and print the result."""
    end = time.monotonic() + float(seconds)
    files = [Path(path).read_bytes() for path in paths]
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)  # noqa: T201 - the program's output
    readings = campaign(files, seed=seed, go_on=lambda _: time.monotonic() < end)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{readings}, peak memory {peak} MB")  # noqa: T201 - the program's output


if __name__ == "__main__":
    main(*sys.argv[1:])
