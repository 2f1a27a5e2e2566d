"""Remember for all processes of a machine that a remote store is in trouble.

A build is many processes, and each of them would lose the same time to the same store.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 300.0
"""How long one that was in trouble isn't asked."""
BREAKER_FOLDER = "away"


class CircuitBreaker:
    """Files that say which remote stores were in trouble; what can't be written isn't known.

    Args:
        folder: the local store's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / BREAKER_FOLDER

    def since(self, name: str) -> float | None:
        """For how many seconds one has been in trouble, or None where it shall be asked.

        Who asks first after a while does so alone: to the others it is in trouble still.
        """
        path = self._path(name)
        try:
            age = time.time() - path.stat().st_mtime
            if 0 <= age < SECONDS:
                return age
            path.touch()
        except OSError:
            return None
        return None

    def add(self, name: str) -> None:
        """It is in trouble."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._path(name).touch()

    def remove(self, name: str) -> None:
        """It is well."""
        with contextlib.suppress(OSError):
            self._path(name).unlink()

    def _path(self, name: str) -> Path:
        return self._folder / hashlib.sha256(name.encode()).hexdigest()[:32]
