"""Frames of several images (kind 256), made by hand."""

from __future__ import annotations

import struct

from archsplit.arch.target import CodeKind, Target
from archsplit.formats.zstd import zstd
from handmade_samples import CUBIN, ENTRY, PTX, SUFFIX_FLAGS

ZSTD = 0x8000


def record(
    name_of_target: str,
    start: int,
    size: int,
    *,
    name: bytes = b"",
    options: bytes = b"",
    name_size: int | None = None,
    options_at: int | None = None,
) -> tuple[bytes, int]:
    """Return the record of an image in a frame, and the image's bytes."""
    target = Target.parse(name_of_target)
    kind = PTX if target.kind is CodeKind.PTX else CUBIN
    named = name + bytes(8 - len(name) % 8) if name else b""
    at = 64 + len(named) if options else 0
    if options:
        named += struct.pack("<II", at + 8, len(options)) + options + bytes(8 - len(options) % 8)
    length = len(name) if name_size is None else name_size
    flags = 0x11 | SUFFIX_FLAGS[target.suffix]
    arch = target.capability.sm_number
    at = at if options_at is None else options_at
    numbers = (kind, 0x0101, start, size, 0, at, 7, 1, arch, 64 if name else 0, length, flags, 0, 0)
    return ENTRY.pack(*numbers) + named, size


def frame(
    *records: tuple[bytes, int],
    kind: int = 256,
    count: int | None = None,
    size: int | None = None,
    raw: int | None = None,
    table_at: int = 64,
    content: bytes = b"",
) -> bytes:
    """Return an entry with a frame of images; numbers that are given are written as they are."""
    table = b"".join(content for content, _ in records)
    real = sum(one for _, one in records) if raw is None else raw
    payload = zstd.compress(content or bytes(real))
    numbers = (len(records) if count is None else count, len(table) + 8 if size is None else size)
    header = struct.pack("<II", *numbers) + table
    padded = len(payload) + -len(payload) % 8
    start = 64 + len(header)
    # The header ends with its table, wherever its field points.
    table_at = min(table_at, start)
    fields = (kind, 0x0101, start, padded, len(payload), table_at, 0, 1, 0, 0, 0, 0x11 | ZSTD, 0)
    return ENTRY.pack(*fields, real) + header + payload + bytes(padded - len(payload))
