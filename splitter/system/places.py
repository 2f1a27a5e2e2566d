"""Folders of the user's that outlive a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where what may get lost is kept; not made here.

    Source: the XDG Base Directory Specification, which has relative paths ignored.
    """
    named = Path(environment.get("XDG_CACHE_HOME", ""))
    home = named if named.is_absolute() else Path(environment.get("HOME", "/")) / ".cache"
    return home / "archsplit"
