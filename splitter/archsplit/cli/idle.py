"""``--copy``, for ``split`` and ``slim``: pass through what neither changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.system.fs import copy_into

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from rich.console import Console

    from archsplit.errors import NothingToDoError


def add_copy(parser: argparse.ArgumentParser) -> None:
    """Add ``--copy``."""
    parser.add_argument(
        "--copy",
        action="store_true",
        help="where there is nothing to do, write the file as it is, and end with 0",
    )


def copy_unchanged(source: Path, out: Path, nothing: NothingToDoError, console: Console) -> Path:
    """Copy a file without device code to remove, and print the reason.

    Raises:
        OutputError: the copy can't be written.
    """
    target = copy_into(source, out)
    # The hint of the error names --copy, which was given.
    reason = str(nothing).partition("\nhint: ")[0]
    console.print(f"copied as it is: {reason}", markup=False, soft_wrap=True)
    return target
