"""Core as it was when it was imported.

Importing this is part of importing the core, so it imports nothing but ``os``: even typing takes
longer than all the rest.
"""

from __future__ import annotations

import os

_CORE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "core.json")  # noqa: PTH100, PTH118, PTH120 (pathlib is slow)


def _identity() -> tuple[int, ...] | None:
    try:
        found = os.stat(_CORE)  # noqa: PTH116 (pathlib is slow)
    except OSError:
        return None
    # Installers write a new file, so the inode differs even where size and time are equal.
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


_AT_IMPORT = _identity()


def is_replaced() -> bool:
    """Return whether another core was installed over this one after it was imported."""
    # A file that is gone is a fault of its own, with a message of its own.
    return _identity() not in {None, _AT_IMPORT}
