"""One file: plan it, write it beside the old one, read it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from splitter.binfmt.mapped import open_file
from splitter.devicecode.edits import Copy, Text
from splitter.devicecode.fileplan import planned
from splitter.devicecode.proof import proven
from splitter.errors import InputError
from splitter.system.files import reading, writing
from splitter.system.units import BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

    from splitter.devicecode.edits import Piece
    from splitter.devicecode.fileplan import FilePlan, Order
    from splitter.devicecode.proof import KeptImage


def plan_file(path: Path, order: Order) -> FilePlan:
    """Plan a file without some of its images.

    Raises:
        InputError: it can't be read.
        BinaryFormatError: it is damaged, or was stripped of its section headers.
    """
    return planned(open_file(path), order)


def write_plan(source: Path, plan: FilePlan, target: Path) -> None:
    """Write what was planned for ``source``.

    Raises:
        InputError: the source can't be read, or got shorter meanwhile.
        OutputError: the target can't be written.
    """
    with reading(source), source.open("rb") as old, writing(target), target.open("wb") as new:
        for piece in plan.pieces:
            for block in _blocks(old, piece, source):
                new.write(block)


def check_plan(plan: FilePlan, target: Path) -> tuple[KeptImage, ...]:
    """Read what was written by a plan again.

    Returns:
        The images that are in it.

    Raises:
        VerifyError: it is not what was planned; the file is left.
        BinaryFormatError: it can't even be read.
    """
    return proven(plan, open_file(target))


def _blocks(old: BinaryIO, piece: Piece, source: Path) -> Iterator[bytes]:
    if isinstance(piece, Text):
        yield piece.content
        return
    if isinstance(piece, Copy):
        old.seek(piece.offset)
    for start in range(0, piece.size, BLOCK):
        size = min(BLOCK, piece.size - start)
        block = old.read(size) if isinstance(piece, Copy) else bytes(size)
        if len(block) < size:
            raise InputError(f"{source} got shorter while it was read")
        yield block
