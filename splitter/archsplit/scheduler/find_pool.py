"""Find the pool that this process belongs to: make's, that of its user, or one of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from archsplit.scheduler.jobserver import TokenPool, connect_jobserver
from archsplit.scheduler.pool import LocalPool, MemoryBudget
from archsplit.scheduler.shared_pool import SharedPool
from archsplit.system.resources import available_cores

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archsplit.scheduler.pool import Pool

_MOST_ROWS = 4096
"""Steps that can be running on one machine when make counts the slots."""


class PoolChoice(NamedTuple):
    """A pool, and what of the better ones couldn't be used, and why: lines for a person."""

    pool: Pool
    notes: tuple[str, ...]


def runtime_folder(environment: Mapping[str, str]) -> Path:
    """Where the processes of one user on one machine meet."""
    if runtime := environment.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "archsplit"
    return Path("/tmp") / f"archsplit-{os.getuid()}"  # noqa: S108 - its owner is checked


def find_pool(
    environment: Mapping[str, str],
    *,
    jobs: int | None,
    memory: int | None,
    folder: Path | None = None,
) -> PoolChoice:
    """Connect to make's jobserver if it offers one, and else to the user's slots.

    Memory is shared among all processes of the user in both cases.

    Args:
        jobs: how many steps may run at a time; the cores there are when None. Of make's tokens
            this process takes so many at most.
        memory: bytes that all steps together may use, at most; None to leave it to the system.
        folder: where the slots are; `runtime_folder` when None.
    """
    cores = available_cores()
    budget = MemoryBudget(limit=memory)
    jobserver, reason = connect_jobserver(environment)
    notes = [reason] if reason else []
    slots = _MOST_ROWS if jobserver is not None else jobs or cores
    pool: Pool
    folder = folder or runtime_folder(environment)
    try:
        pool = SharedPool(folder, slots, budget)
    except OSError as error:
        where = error.filename or folder
        notes.append(f"not shared with other processes: {where}: {error.strerror}")
        pool = LocalPool(slots, budget)
    if jobserver is not None:
        pool = TokenPool(jobserver, pool, slots=jobs or jobserver.jobs or cores)
    return PoolChoice(pool, tuple(notes))
