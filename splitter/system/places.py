"""Folders of the user's that outlive a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where what may get lost is kept; not made here.

    ``ARCHSPLIT_CACHE_DIR`` names it, or it is where the XDG Base Directory Specification puts it,
    which has relative paths ignored.
    """
    named = Path(environment.get("ARCHSPLIT_CACHE_DIR", ""))
    if named.is_absolute():
        return named
    common = Path(environment.get("XDG_CACHE_HOME", ""))
    home = common if common.is_absolute() else Path(environment.get("HOME", "/")) / ".cache"
    return home / "archsplit"


def state_folder(environment: Mapping[str, str]) -> Path:
    """Where what should not get lost, and nobody else needs, is kept; not made here.

    ``ARCHSPLIT_STATE_DIR`` names it, or it is where the XDG Base Directory Specification puts it.
    """
    named = Path(environment.get("ARCHSPLIT_STATE_DIR", ""))
    if named.is_absolute():
        return named
    common = Path(environment.get("XDG_STATE_HOME", ""))
    home = common if common.is_absolute() else Path(environment.get("HOME", "/")) / ".local/state"
    return home / "archsplit"
