"""Choice of the pool for this process: make's jobserver, the user's shared pool, or a local one."""

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
"""Slot files for one machine where make counts the slots."""


class PoolChoice(NamedTuple):
    """A pool, and lines about better pools that can't be used, with the reasons."""

    pool: Pool
    notes: tuple[str, ...]


def runtime_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder that all processes of one user on one machine share."""
    if runtime := environment.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "archsplit"
    return Path("/tmp") / f"archsplit-{os.getuid()}"  # noqa: S108 - the pool checks its owner


def find_pool(
    environment: Mapping[str, str],
    *,
    jobs: int | None,
    memory: int | None,
    folder: Path | None = None,
) -> PoolChoice:
    """Connect to make's jobserver if there is one, else to the user's shared pool.

    Memory is shared among all processes of the user in both cases.

    Args:
        jobs: most steps at a time; None for the number of cores. Also the most tokens that this
            process takes of make's.
        memory: most bytes for all steps together; None for no limit but the system's.
        folder: the folder of the slots; None for `runtime_folder`.
    """
    cores = available_cores()
    budget = MemoryBudget(limit=memory)
    jobserver, reason = connect_jobserver(environment)
    notes = [reason] if reason else []
    # make counts the jobs; the folder of slots then only shares memory among processes.
    slots = _MOST_ROWS if jobserver is not None else jobs or cores
    pool: Pool
    folder = folder or runtime_folder(environment)
    try:
        pool = SharedPool(folder, slots, budget)
    # A read-only or foreign folder costs sharing, not the build.
    except OSError as error:
        where = error.filename or folder
        notes.append(f"not shared with other processes: {where}: {error.strerror}")
        pool = LocalPool(slots, budget)
    if jobserver is not None:
        pool = TokenPool(jobserver, pool, slots=jobs or jobserver.jobs or cores)
    return PoolChoice(pool, tuple(notes))
