"""Open a file for the readers: mapped into memory, read-only."""

from __future__ import annotations

import mmap
import stat
from typing import TYPE_CHECKING

from archsplit.errors import InputError
from archsplit.formats.reader import Window
from archsplit.system.fs import input_errors

if TYPE_CHECKING:
    from pathlib import Path

__pure__ = True


def open_file(path: Path) -> Window:
    """Give a whole file as a window; only the pages that are looked at are read from the disk.

    There is nothing to close: the mapping lasts as long as this window or any part of it. A file
    that another program shortens meanwhile ends this process with SIGBUS, as with every mapping.

    Raises:
        InputError: the file is missing, may not be read, or is not a regular file.
    """
    with input_errors(path):
        # Looked at before it is opened, because opening a pipe waits for a writer.
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"can't read {path}: not a regular file")
        with path.open("rb") as file:
            if file.seek(0, 2) == 0:
                return Window(b"", source=str(path))
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return Window(memoryview(mapping), source=str(path))
