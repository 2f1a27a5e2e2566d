"""Say in which members, and in which bytes of them, two wheels differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.system.fs import input_errors
from archsplit.wheels.diff import ranges_between
from archsplit.wheels.record import RecordRow
from archsplit.wheels.zip_checks import Archive, open_archive

if TYPE_CHECKING:
    from pathlib import Path
    from zipfile import ZipInfo

__pure__ = True


def difference(left: Path, right: Path) -> tuple[str, ...]:
    """Compare two wheels that should have the same bytes.

    Returns:
        Nothing when they have; else one line a difference, for a person: the members that only one
        has or that differ, and which bytes do. The file names are not compared.

    Raises:
        InputError: a file can't be read.
        WheelError: the bytes differ, and one of the two is no sound archive.
    """
    with input_errors(left), left.open("rb") as a, input_errors(right), right.open("rb") as b:
        place = ranges_between(a, b)
    if place is None:
        return ()
    with open_archive(left) as one, open_archive(right) as other:
        lines = _member_lines(one, other)
    return tuple(lines or [f"the archives' own bytes: {place}"])


def _member_lines(one: Archive, other: Archive) -> list[str]:
    both = [name for name in one.members if name in other.members]
    lines = [
        *(f"{name}: only in {one.path}" for name in one.members if name not in both),
        *(f"{name}: only in {other.path}" for name in other.members if name not in both),
        *(f"{name}: {line}" for name in both for line in _lines(name, one, other)),
    ]
    if not lines and list(one.members) != list(other.members):
        lines.append("the members' order")
    return lines


def _lines(name: str, one: Archive, other: Archive) -> list[str]:
    with one.open(RecordRow(path=name)) as a, other.open(RecordRow(path=name)) as b:
        place = ranges_between(a, b)
    if place is not None:
        return [str(place)]
    left, right = _packing(one.members[name]), _packing(other.members[name])
    return [
        f"same content, but {what} {left[what]} against {right[what]}"
        for what in left
        if left[what] != right[what]
    ]


def _packing(info: ZipInfo) -> dict[str, str]:
    return {
        "time": "-".join(f"{number:02}" for number in info.date_time),
        "mode": f"{info.external_attr >> 16:o}",
        "host system": f"{info.create_system}",
        "compression method": f"{info.compress_type}",
        "packed size (another packer, or another level?)": f"{info.compress_size}",
    }
