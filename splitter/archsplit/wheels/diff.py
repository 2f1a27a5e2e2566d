"""Compare two wheels that should have the same bytes.

In: two files. Out: one line for each member that differs, with the ranges of bytes. Equal
archives cost one comparison of their bytes; only different ones are opened as archives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.system.fs import input_errors
from archsplit.system.units import BLOCK
from archsplit.wheels.record import RecordRow
from archsplit.wheels.zip_reader import Archive, open_archive

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO
    from zipfile import ZipInfo

__pure__ = True

JOINED_BELOW = 16
"""Equal bytes between two ranges, below which both are reported as one."""

MAX_RANGES = 1000
"""Most ranges that are collected: beyond that, the whole content differs."""

_STEPS = (1 << 14, 1 << 7)
_SHOWN_BYTES, _SHOWN_RANGES = 8, 4


def compare_wheels(left: Path, right: Path) -> tuple[str, ...]:
    """Compare two wheels that should have the same bytes, whatever their file names are.

    Returns:
        One line for each difference: members of only one wheel, and the bytes that differ in
        members of both. Empty for equal files.

    Raises:
        InputError: a file can't be read.
        WheelError: the bytes differ, and one of the two is not a sound archive.
    """
    with input_errors(left), left.open("rb") as a, input_errors(right), right.open("rb") as b:
        difference = compare_streams(a, b)
    # The usual case costs no decompression.
    if difference is None:
        return ()
    with open_archive(left) as left_archive, open_archive(right) as right_archive:
        lines = _member_lines(left_archive, right_archive)
    return tuple(lines or [f"bytes of the archives outside of their members: {difference}"])


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRanges:
    """The ranges of bytes in which two streams differ, counted from their starts.

    Attributes:
        ranges: ascending; the end is the first equal byte.
        sizes: bytes read of both streams.
        left, right: the first bytes that differ, b"" at the end of a stream.
        is_complete: False if there are more ranges.
    """

    ranges: tuple[tuple[int, int], ...]
    sizes: tuple[int, int]
    left: bytes
    right: bytes
    is_complete: bool = True

    def __str__(self) -> str:
        at = self.ranges[0][0]
        words = [f"from byte {at} on: {_hex(self.left)} against {_hex(self.right)}"]
        first = ", ".join(_range_text(ends) for ends in self.ranges[:_SHOWN_RANGES])
        more = len(self.ranges) - _SHOWN_RANGES
        if not self.is_complete:
            words.append(f"more than {MAX_RANGES} ranges of bytes, the first {first}")
        elif more > 0:
            words.append(f"bytes {first} and {more} more ranges")
        else:
            words.append(f"bytes {first}")
        if self.is_complete and self.sizes[0] != self.sizes[1]:
            words.append(f"{self.sizes[0]} against {self.sizes[1]} bytes long")
        return "; ".join(words)


def compare_streams(a: BinaryIO, b: BinaryIO) -> ByteRanges | None:
    """Compare two streams to their ends; return None if they are equal."""
    ranges: list[tuple[int, int]] = []
    first_bytes = (b"", b"")
    start, sizes = 0, [0, 0]
    while True:
        left, right = a.read(BLOCK), b.read(BLOCK)
        # One stream may be longer: its rest differs from the end of the other.
        if not (left or right):
            break
        sizes[0], sizes[1] = sizes[0] + len(left), sizes[1] + len(right)
        for begin, end in _unequal_ranges(left, right, 0, max(len(left), len(right)), 0):
            if not ranges:
                first_bytes = (left[begin:][:_SHOWN_BYTES], right[begin:][:_SHOWN_BYTES])
            # A changed number of eight bytes has equal bytes in it, and is one difference to a
            # reader.
            if ranges and start + begin - ranges[-1][1] < JOINED_BELOW:
                ranges[-1] = (ranges[-1][0], start + end)
            # Two other builds differ everywhere; a list of millions of ranges is useless.
            elif len(ranges) == MAX_RANGES:
                return _byte_ranges(ranges, sizes, first_bytes, is_complete=False)
            else:
                ranges.append((start + begin, start + end))
        start += BLOCK
    return _byte_ranges(ranges, sizes, first_bytes, is_complete=True) if ranges else None


def _byte_ranges(
    ranges: list[tuple[int, int]],
    sizes: list[int],
    first_bytes: tuple[bytes, bytes],
    *,
    is_complete: bool,
) -> ByteRanges:
    return ByteRanges(
        ranges=tuple(ranges),
        sizes=(sizes[0], sizes[1]),
        left=first_bytes[0],
        right=first_bytes[1],
        is_complete=is_complete,
    )


def _unequal_ranges(
    left: bytes, right: bytes, at: int, end: int, depth: int
) -> Iterator[tuple[int, int]]:
    """Yield the differing ranges from ``at`` up to ``end``, by smaller and smaller pieces."""
    if left[at:end] == right[at:end]:
        return
    # Comparing slices is quick, comparing single bytes is not: only small unequal pieces get that.
    if depth == len(_STEPS):
        yield from _unequal_bytes(left, right, at, end)
        return
    for piece in range(at, end, _STEPS[depth]):
        yield from _unequal_ranges(left, right, piece, min(piece + _STEPS[depth], end), depth + 1)


def _unequal_bytes(left: bytes, right: bytes, at: int, end: int) -> Iterator[tuple[int, int]]:
    begin = None
    for index in range(at, end):
        # Slices, because they are empty after the end, where an index would raise.
        if left[index : index + 1] != right[index : index + 1]:
            begin = index if begin is None else begin
        elif begin is not None:
            yield begin, index
            begin = None
    if begin is not None:
        yield begin, end


def _hex(content: bytes) -> str:
    return content.hex(" ") or "the end"


def _range_text(ends: tuple[int, int]) -> str:
    first, after = ends
    return str(first) if after == first + 1 else f"{first}-{after - 1}"


def _member_lines(left: Archive, right: Archive) -> list[str]:
    both = [name for name in left.members if name in right.members]
    lines = [
        *(f"{name}: only in {left.path}" for name in left.members if name not in both),
        *(f"{name}: only in {right.path}" for name in right.members if name not in both),
        *(f"{name}: {line}" for name in both for line in _content_lines(name, left, right)),
    ]
    # The same members in another order are a difference of the archives' bytes only.
    if not lines and list(left.members) != list(right.members):
        lines.append("the order of the members")
    return lines


def _content_lines(name: str, left: Archive, right: Archive) -> list[str]:
    with left.open(RecordRow(path=name)) as a, right.open(RecordRow(path=name)) as b:
        difference = compare_streams(a, b)
    if difference is not None:
        return [str(difference)]
    left_header, right_header = _header(left.members[name]), _header(right.members[name])
    return [
        f"same content, but {field} {left_header[field]} against {right_header[field]}"
        for field in left_header
        if left_header[field] != right_header[field]
    ]


def _header(info: ZipInfo) -> dict[str, str]:
    return {
        "time": "-".join(f"{number:02}" for number in info.date_time),
        "mode": f"{info.external_attr >> 16:o}",
        "host system": f"{info.create_system}",
        "compression method": f"{info.compress_type}",
        # Equal contents with other packed bytes: libdeflate or its level changed.
        "packed size (another packer, or another level?)": f"{info.compress_size}",
    }
