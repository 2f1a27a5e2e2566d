"""Look into each wheel of a folder."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TypeVar

from archsplit.errors import ArchsplitError
from archsplit.release.split_read import wheels_in
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from archsplit.wheels.reader import Wheel

_T = TypeVar("_T")


def read_wheels(folder: Path, read: Callable[[Wheel], _T]) -> dict[str, _T]:
    """What each wheel that can be read gives, by its file name.

    Of those that can't nothing is said here: whoever verifies them says what is wrong.
    """
    found = {}
    for path in wheels_in(folder):
        with contextlib.suppress(ArchsplitError), open_wheel(path, same_tags=False) as wheel:
            found[path.name] = read(wheel)
    return found
