"""A planned rewrite of one file: plan, write beside the old file, read back."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from archsplit.devicecode.edits import CopiedBytes, NewBytes, ZeroBytes
from archsplit.devicecode.file_plan import plan_rewrite
from archsplit.devicecode.verify import verify_kept_images
from archsplit.errors import InputError
from archsplit.formats.reader import open_file
from archsplit.system.fs import input_errors, output_errors
from archsplit.system.units import BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

    from archsplit.devicecode.edits import EditPiece
    from archsplit.devicecode.file_plan import FileEdit, FilePlan
    from archsplit.devicecode.verify import KeptImage


def plan_file(path: Path, edit: FileEdit) -> FilePlan:
    """Plan a file without some of its images.

    Raises:
        InputError: it can't be read.
        BinaryFormatError: it is damaged, or was stripped of its section headers.
    """
    return plan_rewrite(open_file(path), edit)


def write_plan(source: Path, plan: FilePlan, target: Path) -> None:
    """Write the new file of a plan.

    Raises:
        InputError: the source can't be read, or became shorter since the plan was made.
        OutputError: the target can't be written.
    """
    with (
        input_errors(source),
        source.open("rb") as old,
        output_errors(target),
        target.open("wb") as new,
    ):
        for piece in plan.pieces:
            # A hole: where the file system has them, zeros take no space on the disk.
            if isinstance(piece, ZeroBytes):
                new.seek(piece.size, os.SEEK_CUR)
                continue
            for block in _blocks(old, piece, source):
                new.write(block)
        # A hole at the end is a part of the file only by its size.
        new.truncate(plan.size)


def check_plan(plan: FilePlan, target: Path) -> tuple[KeptImage, ...]:
    """Read a written file and compare it with its plan.

    Returns:
        The images in the file.

    Raises:
        VerifyError: it is not as planned; the file is left.
        BinaryFormatError: it can't be read.
    """
    return verify_kept_images(plan, open_file(target))


def _blocks(old: BinaryIO, piece: EditPiece, source: Path) -> Iterator[bytes]:
    if isinstance(piece, NewBytes):
        yield piece.content
        return
    if isinstance(piece, CopiedBytes):
        old.seek(piece.offset)
    # Libraries have gigabytes: no piece is held in memory as a whole.
    for start in range(0, piece.size, BLOCK):
        size = min(BLOCK, piece.size - start)
        block = old.read(size) if isinstance(piece, CopiedBytes) else bytes(size)
        # Another process may truncate the file between the plan and the copy.
        if len(block) < size:
            raise InputError(f"{source} became shorter while it was read")
        yield block
