"""The environment that foreign programs run in: what they need, and nothing that moves results."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_KEPT = ("PATH", "LD_LIBRARY_PATH", "HOME")


def clean_environment(
    environment: Mapping[str, str], *, temporary: Path, epoch: int
) -> dict[str, str]:
    """An environment for a child process that gives the same result under every user.

    Left out are the variables that change what a compiler does behind the recipe's back: ``CPATH``
    and its kin, ``GCC_EXEC_PREFIX``, ``NVCC_PREPEND_FLAGS``, ``NVCC_APPEND_FLAGS``, ``LC_ALL``.

    Args:
        environment: the caller's own.
        temporary: where the child may put files of its own; becomes ``TMPDIR``.
        epoch: seconds since 1970 that stand for "now"; gcc's ``__DATE__`` honours it.
    """
    kept = {name: environment[name] for name in _KEPT if name in environment}
    fixed = {
        "LC_ALL": "C",
        "TZ": "UTC",
        "TMPDIR": str(temporary),
        "SOURCE_DATE_EPOCH": str(epoch),
        "PYTHONHASHSEED": "0",
    }
    return kept | fixed
