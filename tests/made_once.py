"""What the workers of a test run share: made by the first that needs it."""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    import pytest

    Made = TypeVar("Made")


def made_once(
    factory: pytest.TempPathFactory,
    name: str,
    make: Callable[[Path], Made],
    *,
    is_product: bool = True,
) -> Made:
    """Return what a function makes in an empty folder, which no test may change afterwards.

    Files made without archsplit (``is_product=False``) may serve several runs: of tools/mutants.py.
    """
    base = factory.getbasetemp()
    # A worker's folder is one of several in the run's folder.
    root = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    if not is_product:
        root = Path(os.environ.get("ARCHSPLIT_TEST_SAMPLES", root))
    folder, result = root / f"{name}-once", root / f"{name}-once.pickle"
    with (root / f"{name}-once.lock").open("w") as lock:
        # Without the lock, a second worker would compile the same, or take half of it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result.exists():
            # A worker that failed here has left what it made; the next one says why, too.
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            result.write_bytes(pickle.dumps(make(folder)))
        made: Made = pickle.loads(result.read_bytes())
    return made
