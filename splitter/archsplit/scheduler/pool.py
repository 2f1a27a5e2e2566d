"""Where permission to run a step comes from: cores and memory, for one process or for many."""

from __future__ import annotations

import enum
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

from archsplit.system.resources import SystemMemory

if TYPE_CHECKING:
    from collections.abc import Iterable

ALL_MEMORY = 1 << 60
"""Bytes that one reserves to be alone: nothing else fits beside it."""
_LEAST_MARGIN, _MOST_MARGIN = 48 << 20, 1 << 30
_MEMORY_RETRY = 0.1
"""Seconds after which programs that aren't ours may have left some memory."""


class PoolRequest(NamedTuple):
    """What is asked for.

    Attributes:
        memory: bytes that it is expected to need at most; `ALL_MEMORY` to be alone.
        urgency: seconds from its start to the end of the build, as far as one knows.
    """

    memory: int
    urgency: float = 0.0


class PoolEntry(NamedTuple):
    """What one running step holds; ``started`` is of the clock that all processes share."""

    reserved: int
    resident: int
    started: int


class WaitReason(enum.Enum):
    """Why something can't start now; the values are the words for explanations."""

    SLOT = "slot"
    MEMORY = "memory"
    TURN = "turn"


class Denied(NamedTuple):
    """Not now.

    Attributes:
        retry: seconds after which to ask again, though no step of this process has ended; None
            where nothing else can change the answer.
        short: bytes that are missing, when it is for want of memory.
    """

    reason: WaitReason
    retry: float | None
    short: int = 0


class Grant(Protocol):
    """Permission to run one step; to be released exactly once."""

    @property
    def entry(self) -> PoolEntry:
        """What the others see of it."""
        ...

    def update_resident(self, resident: int) -> None:
        """Tell the others how much memory the step has now."""
        ...

    def release(self) -> None:
        """Let others have what it held."""
        ...


class Pool(Protocol):
    """Cores and memory, shared among steps.

    Attributes:
        slots: how many steps can run at a time, at most.
    """

    slots: int

    def acquire(self, request: PoolRequest) -> Grant | Denied:
        """Ask, and be answered at once; used by one thread."""
        ...

    def idle_slots(self) -> int:
        """How many slots nothing runs on, and nobody waits for."""
        ...

    def free_memory(self) -> int:
        """Bytes until memory is nearly used up; 0 or less when it is."""
        ...

    def entries(self) -> list[PoolEntry]:
        """What all steps hold, also those of other processes."""
        ...

    def close(self) -> None:
        """Give back everything."""
        ...


class MemoryBudget:
    """The memory that steps may use together: what the system has, and what the user allows.

    Args:
        limit: bytes that the user allows, or None.
    """

    def __init__(self, system: SystemMemory | None = None, *, limit: int | None = None) -> None:
        self._system = system or SystemMemory()
        self._limit = ALL_MEMORY if limit is None else limit
        self.total = min(self._limit, self._system.total)
        # The kernel's own needs, and what steps take between two looks at them.
        self._margin = min(max(self.total // 16, _LEAST_MARGIN), _MOST_MARGIN)

    def shortage(self, memory: int, rows: Iterable[PoolEntry]) -> int:
        """Bytes that are missing to start a step beside those of ``rows``; 0 when it fits.

        A step that is alone always fits: it could never run otherwise.
        """
        held = list(rows)
        if not held:
            return 0
        # What they have got is no longer available, so only their growth is still to come.
        growth = sum(max(0, row.reserved - row.resident) for row in held)
        promised = sum(max(row.reserved, row.resident) for row in held)
        free = self._system.available() - self._margin
        return max(0, memory + growth - free, memory + promised - self._limit)

    def free_memory(self, rows: Iterable[PoolEntry]) -> int:
        """Bytes by which the steps of ``rows`` can still grow; 0 or less: nearly used up."""
        resident = sum(row.resident for row in rows)
        return min(self._system.available() - self._margin, self._limit - resident)


class LocalPool:
    """The pool of a process that knows of no other; see `Pool`."""

    def __init__(self, slots: int, budget: MemoryBudget | None = None) -> None:
        if slots < 1:
            raise ValueError("at least one slot is needed")
        self.slots = slots
        self._budget = budget or MemoryBudget()
        self._grants: set[_LocalGrant] = set()

    def acquire(self, request: PoolRequest) -> Grant | Denied:
        """See `Pool.take`."""
        if self.idle_slots() < 1:
            return Denied(WaitReason.SLOT, None)
        if short := self._budget.shortage(request.memory, self.entries()):
            return Denied(WaitReason.MEMORY, _MEMORY_RETRY, short)
        grant = _LocalGrant(self._grants, request.memory)
        self._grants.add(grant)
        return grant

    def idle_slots(self) -> int:
        """See `Pool.idle`."""
        return self.slots - len(self._grants)

    def free_memory(self) -> int:
        """See `Pool.room`."""
        return self._budget.free_memory(self.entries())

    def entries(self) -> list[PoolEntry]:
        """See `Pool.rows`."""
        return [grant.entry for grant in self._grants]

    def close(self) -> None:
        """See `Pool.close`."""
        self._grants.clear()


class _LocalGrant:
    def __init__(self, grants: set[_LocalGrant], memory: int) -> None:
        self._grants = grants
        self.entry = PoolEntry(memory, 0, time.monotonic_ns())

    def update_resident(self, resident: int) -> None:
        self.entry = self.entry._replace(resident=resident)

    def release(self) -> None:
        self._grants.discard(self)
