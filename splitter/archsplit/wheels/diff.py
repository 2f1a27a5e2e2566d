"""Compare two wheels that should have the same bytes.

In: two files. Out: one line for each member that differs, with its first other byte. Equal archives
cost one comparison of their bytes; only different ones are opened as archives.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from archsplit.system.fs import input_errors
from archsplit.system.units import BLOCK
from archsplit.wheels.record import RecordRow
from archsplit.wheels.zip_reader import Archive, open_archive

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO
    from zipfile import ZipInfo

__pure__ = True

_SHOWN_BYTES = 8


def compare_wheels(left: Path, right: Path) -> tuple[str, ...]:
    """Compare two wheels that should have the same bytes, whatever their file names are.

    Returns:
        One line for each difference: members of only one wheel, and the first bytes that
        differ in members of both. Empty for equal files.

    Raises:
        InputError: a file can't be read.
        WheelError: the bytes differ, and one of the two is not a sound archive.
    """
    with input_errors(left), left.open("rb") as a, input_errors(right), right.open("rb") as b:
        difference = compare_streams(a, b)
    # The usual case costs no decompression.
    if not difference:
        return ()
    with open_archive(left) as left_archive, open_archive(right) as right_archive:
        lines = _member_lines(left_archive, right_archive)
    return tuple(lines or [f"bytes of the archives outside of their members: {difference}"])


def compare_streams(left: BinaryIO, right: BinaryIO) -> str:
    """Return the first difference of two streams in words; "" if they are equal."""
    start = 0
    while (one := left.read(BLOCK)) == (other := right.read(BLOCK)):
        if not one:
            return ""
        start += len(one)
    # A block at the end of a stream may be the beginning of the other one.
    at = len(os.path.commonprefix((one, other)))
    words = (block[at : at + _SHOWN_BYTES].hex(" ") or "the end" for block in (one, other))
    return f"from byte {start + at} on: {' against '.join(words)}"


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
    left_info, right_info = left.members[name], right.members[name]
    if difference:
        sizes = (left_info.file_size, right_info.file_size)
        lengths = f"; {sizes[0]} against {sizes[1]} bytes long" if len({*sizes}) > 1 else ""
        return [f"{difference}{lengths}"]
    left_header, right_header = _header(left_info), _header(right_info)
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
