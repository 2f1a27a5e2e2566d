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
    return _folder(environment, "CACHE", ".cache")


def state_folder(environment: Mapping[str, str]) -> Path:
    """Where what should not get lost, and nobody else needs, is kept; not made here.

    ``ARCHSPLIT_STATE_DIR`` names it, or it is where the XDG Base Directory Specification puts it.
    """
    return _folder(environment, "STATE", ".local/state")


def _folder(environment: Mapping[str, str], kind: str, below_home: str) -> Path:
    named = Path(environment.get(f"ARCHSPLIT_{kind}_DIR", ""))
    if named.is_absolute():
        return named
    common = Path(environment.get(f"XDG_{kind}_HOME", ""))
    home = common if common.is_absolute() else Path(environment.get("HOME", "/")) / below_home
    return home / "archsplit"
