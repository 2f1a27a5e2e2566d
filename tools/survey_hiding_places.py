"""Survey the places where libraries keep device code that no table of the file names.

    python tools/survey_hiding_places.py torch.whl site-packages/ libcublasLt.so.13 --json

In: wheels, folders and libraries. Out: a row for each file, section and kind of place, with the
number and the bytes of pieces whose content begins as a cubin or a fatbin container. Kinds:
containers and cubins outside of the fatbin sections; zstd, LZ4 and gzip frames; raw LZ4 blocks (a
token before the magic of a cubin); static libraries in data; files of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import zipfile
import zlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import lz4.frame  # type: ignore[import-untyped] # it ships no types

from archsplit.devicecode.container_search import CONTAINER_MAGIC, CUBIN_MAGIC
from archsplit.devicecode.decompression import decompress_head
from archsplit.devicecode.file_forms import (
    CUDA_MACHINE,
    HEAD_SIZE,
    MACHINE_AT,
    Form,
    detect_form,
    window_form,
)
from archsplit.devicecode.model import Place
from archsplit.devicecode.scan import read_contents
from archsplit.errors import BinaryFormatError
from archsplit.formats.cubin import ZSTD_MAGIC, frame_size
from archsplit.formats.elf import Elf
from archsplit.formats.fatbin import EXECUTABLE, RELOCATABLE
from archsplit.formats.libraries import AR_MAGIC
from archsplit.formats.mapped import magic_offsets
from archsplit.formats.reader import open_file
from archsplit.system.units import size_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.formats.reader import Window

_LZ4_MAGIC, _GZIP_MAGIC = b"\x04\x22\x4d\x18", b"\x1f\x8b\x08"
_HEAD = 64
_LIMIT = 1 << 26
_ALLOCATED, _EXECUTABLE_CODE = 2, 4
_LONG_LITERALS = 0x70
"""Least token of an LZ4 block that begins with seven literals: the magic of a cubin."""


def is_device_code(head: bytes) -> bool:
    """Return True for the beginning of a cubin or a fatbin container."""
    return head.startswith(CONTAINER_MAGIC) or detect_form(head) is Form.CUBIN


def survey_file(path: Path) -> Counter[tuple[str, str, str]]:
    """Return the bytes (and under ``pieces`` the number) by section and kind of place."""
    found: Counter[tuple[str, str, str]] = Counter()

    def count(section: str, kind: str, size: int) -> None:
        found[section, kind, "bytes"] += size
        found[section, kind, "pieces"] += 1

    window = open_file(path)
    form = window_form(window)
    if form in {Form.CUBIN, Form.FATBIN}:
        count("", "file of its own", len(window))
    if form is not Form.ELF:
        return found
    for unit in read_contents(window).units:
        if unit.place is Place.OUTSIDE:
            for image in unit.images:
                packing = image.compression.value
                kind = f"cubin, {packing}" if image.is_bare else f"image of a container, {packing}"
                count(unit.section or "", kind, image.file_bytes)
    elf = Elf(window)
    for section in elf.sections():
        # What the reader knows is counted above.
        is_data = section.flags & _ALLOCATED and not section.flags & _EXECUTABLE_CODE
        if is_data and section.name not in {EXECUTABLE, RELOCATABLE}:
            for kind, size in _other_places(elf.content(section)):
                count(section.name, kind, size)
    return found


def _other_places(window: Window) -> Iterator[tuple[str, int]]:
    for offset in magic_offsets(ZSTD_MAGIC, window):
        with contextlib.suppress(BinaryFormatError):
            rest = _rest(window, offset)
            size = frame_size(rest)
            head = decompress_head(rest.part(0, size, "frame"), _HEAD)
            if head.startswith(CONTAINER_MAGIC):
                yield "container in a zstd frame", size
    for offset in magic_offsets(_LZ4_MAGIC, window):
        rest = _rest(window, offset)
        with contextlib.suppress(RuntimeError, EOFError, MemoryError):
            reader = lz4.frame.LZ4FrameDecompressor()
            if is_device_code(reader.decompress(rest.data[:_LIMIT], max_length=_HEAD)):
                yield "LZ4 frame", 0
    for offset in magic_offsets(_GZIP_MAGIC, window):
        rest = _rest(window, offset)
        with contextlib.suppress(zlib.error):
            if is_device_code(zlib.decompressobj(31).decompress(rest.data[:_LIMIT], _HEAD)):
                yield "gzip member", 0
    for offset in magic_offsets(CUBIN_MAGIC[:7], window):
        before = window.data[max(0, offset - window.start - 2) : offset - window.start].tobytes()
        rest = window.at(offset, min(_HEAD, window.start + len(window) - offset), "head")
        # A token stands right before the literals, or one byte earlier if they are many.
        tokens = any(byte >= _LONG_LITERALS for byte in before)
        if (
            tokens
            and rest.data[MACHINE_AT:HEAD_SIZE] != CUDA_MACHINE
            and rest.data[16:18] not in {b"\2\0", b"\3\0"}
        ):
            yield "perhaps a raw LZ4 block", 0
    for _ in magic_offsets(AR_MAGIC, window):
        yield "static library", 0


def _rest(window: Window, offset: int) -> Window:
    """Return the rest of a window from an offset of the file on."""
    return window.at(offset, window.start + len(window) - offset, "frame")


def _files(subject: Path, scratch: Path) -> Iterator[tuple[str, Path]]:
    if subject.is_dir():
        for path in sorted(each for each in subject.rglob("*") if each.is_file()):
            yield str(path), path
    elif subject.suffix == ".whl":
        with zipfile.ZipFile(subject) as archive:
            for info in archive.infolist():
                if info.file_size >= HEAD_SIZE:
                    path = Path(archive.extract(info, scratch))
                    yield f"{subject.name}/{info.filename}", path
                    path.unlink()
    else:
        yield str(subject), subject


def main() -> int:
    """Survey the files of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("subject", nargs="+", type=Path, help="a wheel, a folder or a library")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    arguments = parser.parse_args()
    for subject in arguments.subject:
        with tempfile.TemporaryDirectory() as scratch:
            for name, path in _files(subject, Path(scratch)):
                try:
                    found = survey_file(path)
                except (BinaryFormatError, ValueError) as error:
                    print(f"{name}: {error}", file=sys.stderr)
                    continue
                for section, kind in sorted({key[:2] for key in found}):
                    pieces = found[section, kind, "pieces"]
                    size = found[section, kind, "bytes"]
                    row = {"file": name, "section": section, "kind": kind}
                    counted = {**row, "pieces": pieces, "bytes": size}
                    text = f"{name}  {section}  {kind}: {pieces}, {size_text(size)}"
                    print(json.dumps(counted) if arguments.json else text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
