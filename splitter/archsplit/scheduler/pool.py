"""Pools: slots and memory for steps, within one process or shared by many.

A step needs a `Grant` before it starts: input is a `PoolRequest`, output a `Grant`, or a `Denied`
with the reason. A step reserves the memory that it is expected to need. The memory that it holds is
measured while it runs; the greater of both counts.
"""

from __future__ import annotations

import enum
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

from archsplit.system.resources import SystemMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ALL_MEMORY = 1 << 60
"""Bytes of a request to run without other steps: no memory is left for them."""
_LEAST_MARGIN, _MOST_MARGIN = 48 << 20, 1 << 30
_MEMORY_RETRY = 0.1
"""Seconds after which programs outside the pool may have released memory."""


class PoolRequest(NamedTuple):
    """A request to run one step.

    Attributes:
        memory: expected peak bytes; `ALL_MEMORY` to run without other steps.
        urgency: expected seconds from the step's start to the end of the build.
        is_remote: True for a slot of a farm; see `MixedPool`.
    """

    memory: int
    urgency: float = 0.0
    is_remote: bool = False


class PoolEntry(NamedTuple):
    """Memory and start of one running step.

    Attributes:
        reserved: bytes that were requested.
        resident: bytes that were measured.
        started: nanoseconds of the monotonic clock, which all processes share.
    """

    reserved: int
    resident: int
    started: int


class WaitReason(enum.Enum):
    """Reasons of a denial."""

    SLOT = "slot"
    MEMORY = "memory"
    TURN = "turn"


class Denied(NamedTuple):
    """A refused request.

    Attributes:
        retry: seconds after which to try again even if no step of this process has ended; None
            if only such an end can free a slot.
        short: missing bytes if the reason is memory.
    """

    reason: WaitReason
    retry: float | None
    short: int = 0


class Grant:
    """Permission to run one step; must be released exactly once.

    Args:
        entry: the entry that other processes read.
        release: releases the slot and its memory.
        publish: called with each new entry.

    Attributes:
        entry: the entry with the memory that the step holds now.
        release: releases the slot and its memory.
    """

    def __init__(
        self,
        entry: PoolEntry,
        release: Callable[[], None],
        publish: Callable[[PoolEntry], None] | None = None,
    ) -> None:
        self.entry = entry
        self.release = release
        self._publish = publish

    def update_resident(self, resident: int) -> None:
        """Publish the memory that the step holds now."""
        self.entry = self.entry._replace(resident=resident)
        if self._publish is not None:
            self._publish(self.entry)


class Pool(Protocol):
    """Slots and memory for steps; used by one thread.

    Attributes:
        slots: most steps at a time.
    """

    slots: int

    def acquire(self, request: PoolRequest) -> Grant | Denied:
        """Request a slot with memory; never blocks."""
        ...

    def idle_slots(self) -> int:
        """Return the number of free slots that no other process waits for."""
        ...

    def free_memory(self) -> int:
        """Return the bytes until memory is nearly used up; 0 or less when it is."""
        ...

    def entries(self) -> list[PoolEntry]:
        """Return the entries of all running steps, of other processes too."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...


class MemoryBudget:
    """The memory for all steps together: the system's, limited by the user.

    Args:
        limit: bytes that the user allows, or None for no limit.
    """

    def __init__(self, system: SystemMemory | None = None, *, limit: int | None = None) -> None:
        self._system = system or SystemMemory()
        self._limit = ALL_MEMORY if limit is None else limit
        self.total = min(self._limit, self._system.total)
        # For the kernel's own needs, and for the growth of steps between two measurements.
        self._margin = min(max(self.total // 16, _LEAST_MARGIN), _MOST_MARGIN)

    def shortage(self, memory: int, entries: Iterable[PoolEntry]) -> int:
        """Return the bytes that a step lacks in addition to running steps; 0 if it fits.

        A step without others always fits: it could never run otherwise.
        """
        running = list(entries)
        if not running:
            return 0
        # Resident memory is no longer available, so only the growth of the steps counts.
        growth = sum(max(0, entry.reserved - entry.resident) for entry in running)
        promised = sum(max(entry.reserved, entry.resident) for entry in running)
        free = self._system.available() - self._margin
        return max(0, memory + growth - free, memory + promised - self._limit)

    def free_memory(self, entries: Iterable[PoolEntry]) -> int:
        """Return the bytes by which running steps can grow; 0 or less if memory is used up."""
        resident = sum(entry.resident for entry in entries)
        return min(self._system.available() - self._margin, self._limit - resident)


class LocalPool:
    """A `Pool` within one process.

    Args:
        budget: None for steps on other machines, which watch their memory themselves.
    """

    def __init__(self, slots: int, budget: MemoryBudget | None = None) -> None:
        if slots < 1:
            raise ValueError("at least one slot is needed")
        self.slots = slots
        self._budget = budget
        self._grants: set[Grant] = set()

    def acquire(self, request: PoolRequest) -> Grant | Denied:
        """See `Pool.acquire`."""
        # No retry time: only the end of a step of this process frees a slot.
        if self.idle_slots() < 1:
            return Denied(WaitReason.SLOT, None)
        if self._budget and (short := self._budget.shortage(request.memory, self.entries())):
            return Denied(WaitReason.MEMORY, _MEMORY_RETRY, short)
        entry = PoolEntry(request.memory, 0, time.monotonic_ns())
        grant = Grant(entry, release=lambda: self._grants.discard(grant))
        self._grants.add(grant)
        return grant

    def idle_slots(self) -> int:
        """See `Pool.idle_slots`."""
        return self.slots - len(self._grants)

    def free_memory(self) -> int:
        """See `Pool.free_memory`."""
        return self._budget.free_memory(self.entries()) if self._budget else ALL_MEMORY

    def entries(self) -> list[PoolEntry]:
        """See `Pool.entries`."""
        return [grant.entry for grant in self._grants]

    def close(self) -> None:
        """See `Pool.close`."""
        self._grants.clear()


class MixedPool:
    """A `Pool` of this machine's slots, and of slots on other machines for remote steps.

    Args:
        local: the pool of this machine; stays open.
        slots: most remote steps at a time.
    """

    def __init__(self, local: Pool, slots: int) -> None:
        self.slots = local.slots
        self._local = local
        self._remote = LocalPool(slots)

    def acquire(self, request: PoolRequest) -> Grant | Denied:
        """See `Pool.acquire`."""
        return (self._remote if request.is_remote else self._local).acquire(request)

    def idle_slots(self) -> int:
        """See `Pool.idle_slots`."""
        return self._local.idle_slots()

    def free_memory(self) -> int:
        """See `Pool.free_memory`."""
        return self._local.free_memory()

    def entries(self) -> list[PoolEntry]:
        """See `Pool.entries`."""
        return self._local.entries()

    def close(self) -> None:
        """See `Pool.close`."""
