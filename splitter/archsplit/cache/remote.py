"""How long a process may be held up by others, however many of its threads wait at once.

Store things elsewhere beside other work, as long as there is room and time for it.

Stores on other machines: asked after the local one, never waited for longer than allowed.

Remember for all processes of a machine that a remote store is in trouble.

A build is many processes, and each of them would lose the same time to the same store.
"""

from __future__ import annotations

import contextlib
import hashlib
import queue
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Protocol

from archsplit.cache.local import is_intact

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from archsplit.cache.local import StoreKind


class TimeBudget:
    """Seconds that are left to be waited.

    What counts is the time in which anything is waited for, not how many wait: threads that wait
    together lose no more than one that waits alone.

    Args:
        seconds: how many there are at first.
    """

    def __init__(self, seconds: float) -> None:
        self._most = seconds
        self._left = seconds
        self._waiting = 0
        self._since = 0.0
        self._lock = threading.Lock()

    @property
    def left(self) -> float:
        """How long may still be waited; 0 at least."""
        with self._lock:
            return max(0.0, self._left - self._running())

    def start_waiting(self) -> None:
        """Somebody begins to wait."""
        with self._lock:
            if not self._waiting:
                self._since = time.monotonic()
            self._waiting += 1

    def stop_waiting(self) -> None:
        """Somebody waits no more."""
        with self._lock:
            if self._waiting == 1:
                self._left -= self._running()
            self._waiting -= 1

    def refund(self, seconds: float) -> None:
        """Waiting has saved so much time: that much may be waited again."""
        with self._lock:
            self._left = min(self._most, self._left + max(0.0, seconds))

    def _running(self) -> float:
        return time.monotonic() - self._since if self._waiting else 0.0


_AT_ONCE = 4
_MOST_BYTES = 256 << 20
"""Of what waits to be stored: a build that is faster than its remote store must not fill memory."""


class Uploads:
    """What is to be stored elsewhere, and the threads that do it.

    The threads don't keep the process from ending.

    Args:
        failed: is told whose upload failed, and how.
    """

    def __init__(self, failed: Callable[[str, Exception], None]) -> None:
        self._failed = failed
        self._jobs: queue.SimpleQueue[tuple[str, int, Callable[[], None]]] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._threads = 0
        self._left: dict[str, int] = {}
        self._bytes = 0
        self._given_up: set[str] = set()

    def add(self, name: str, size: int, work: Callable[[], None]) -> bool:
        """Begin to store something; False where too much is waiting already.

        Args:
            name: whose it is.
            size: bytes that it keeps in memory.
        """
        with self._changed:
            if self._bytes + size > _MOST_BYTES:
                return False
            self._bytes += size
            self._left[name] = self._left.get(name, 0) + 1
            if self._threads < _AT_ONCE:
                self._threads += 1
                threading.Thread(target=self._work, daemon=True).start()
        self._jobs.put((name, size, work))
        return True

    def abandon(self, name: str) -> bool:
        """Begin no more of this one's, and wait for none; False where that was so already."""
        with self._changed:
            new = name not in self._given_up
            self._given_up.add(name)
            self._changed.notify_all()
        return new

    def wait(self, seconds: float) -> tuple[str, ...]:
        """Wait until all is stored, but not longer; whose isn't."""
        end = time.monotonic() + seconds
        with self._changed:
            while unfinished := self._unfinished():
                rest = end - time.monotonic()
                if rest <= 0:
                    break
                self._changed.wait(rest)
        return unfinished

    def _unfinished(self) -> tuple[str, ...]:
        return tuple(
            name for name, left in self._left.items() if left and name not in self._given_up
        )

    def _work(self) -> None:
        while True:
            name, size, work = self._jobs.get()
            try:
                if name not in self._given_up:
                    work()
            except Exception as error:  # noqa: BLE001 - whatever a library raises
                self._failed(name, error)
            with self._changed:
                self._left[name] -= 1
                self._bytes -= size
                self._changed.notify_all()


MAX_ENTRY_BYTES = 1 << 30
"""What is longer can't be an entry."""
_SLOW = 0.5
"""Seconds: who takes longer, on average, to say that nothing is there holds up a build."""
_SHORTEST = 0.1
"""Seconds that an upload has at least; whether it is waited for is another matter."""


class RemoteError(Exception):
    """A remote store doesn't do what is asked; the message has nothing secret in it."""


class Remote(Protocol):
    """A place that keeps bytes by path, ``ac/<key>`` and ``cas/<key>``.

    Both methods may raise whatever their library raises.
    """

    def get(self, path: str, *, seconds: float) -> bytes | None:
        """What is kept there, or None; of what is longer than `MAX_ENTRY_BYTES`, an error."""
        ...

    def put(self, path: str, blob: bytes, *, seconds: float) -> None:
        """Keep it there."""
        ...


class Remotes:
    """All remote stores of one process, with one budget of time.

    A store that fails, is too slow or gives wrong bytes isn't asked again by this process.

    Args:
        remotes: by names without credentials, in the order in which they are asked.
        seconds: how long all of them together may hold up this process.
        writable: whether results are stored there.
        away: which of them were in trouble a moment ago.
        warn: is told what went wrong.
    """

    def __init__(
        self,
        remotes: Sequence[tuple[str, Remote]],
        *,
        seconds: float,
        writable: bool,
        away: CircuitBreaker,
        warn: Callable[[str], None],
    ) -> None:
        self._remotes = list(remotes)
        self._budget = TimeBudget(seconds)
        self._writable = writable
        self._away = away
        self._warn = warn
        self._answers: dict[str, list[float]] = {}
        self._lock = threading.Lock()
        self._uploads = Uploads(self._not_stored)
        for name, _ in remotes:
            age = away.open_seconds(name)
            if age is not None:
                self._leave(name, f"it was in trouble {age:.0f} s ago")

    def get(self, kind: StoreKind, key: str) -> tuple[str, bytes] | None:
        """What one of them has, with that one's name."""
        for name, remote in tuple(self._remotes):
            blob = self._ask(name, remote, f"{kind.value}/{key}")
            if blob is None:
                continue
            if is_intact(kind, key, blob):
                return name, blob
            self.disable(name, "it gave wrong bytes")
        return None

    def add_saved_time(self, seconds: float) -> None:
        """What was found has saved so much time: waiting for it was worth that much."""
        self._budget.refund(seconds)

    def put(self, kind: StoreKind, key: str, blob: bytes) -> None:
        """Begin to store it in all of them."""
        for name, remote in tuple(self._remotes) if self._writable else ():
            work = partial(self._upload, remote, f"{kind.value}/{key}", blob)
            if not self._uploads.add(name, len(blob), work):
                self._warn("not all is stored remotely: that is slower than what is compiled")

    def disable(self, name: str, why: str) -> None:
        """Ask this one no more, nor let other processes do so for a while."""
        if self._leave(name, why):
            self._away.trip(name)

    def finish(self) -> None:
        """Wait for what is being stored, but not longer than is allowed."""
        for name in self._uploads.wait(self._budget.left):
            self._away.trip(name)
            self._answers.pop(name, None)
            self._uploads.abandon(name)
            self._warn(f"not all was stored in {name} in time")
        for name, _ in self._remotes:
            if seconds := self._answers.get(name):
                slow = sum(seconds) / len(seconds) > _SLOW
                (self._away.trip if slow else self._away.reset)(name)

    def _leave(self, name: str, why: str) -> bool:
        with self._lock:
            known = [each for each in self._remotes if each[0] == name]
            self._remotes = [each for each in self._remotes if each[0] != name]
        if known:
            self._uploads.abandon(name)
            self._warn(f"{name} is left alone: {why}")
        return bool(known)

    def _not_stored(self, name: str, error: Exception) -> None:
        # One that is full, or that may only be read, still knows what it knows.
        if self._uploads.abandon(name):
            self._warn(f"nothing more is stored in {name}: {_reason(error)}")

    def _ask(self, name: str, remote: Remote, path: str) -> bytes | None:
        if self._budget.left <= 0:
            self.disable(name, "all the time that it may take is used up")
            return None
        # A library's own timeout may begin anew with each packet: ours doesn't.
        question = _Question(partial(remote.get, path, seconds=self._budget.left))
        self._budget.start_waiting()
        began = time.monotonic()
        try:
            answer = question.answer(seconds=self._budget.left)
        except _NotInTimeError:
            self.disable(name, "it didn't answer in time")
        except Exception as error:  # noqa: BLE001 - whatever a library raises
            self.disable(name, _reason(error))
        else:
            # What is found has saved more than it took, most likely.
            lost = time.monotonic() - began if answer is None else 0.0
            self._answers.setdefault(name, []).append(lost)
            return answer
        finally:
            self._budget.stop_waiting()
        return None

    def _upload(self, remote: Remote, path: str, blob: bytes) -> None:
        remote.put(path, blob, seconds=max(self._budget.left, _SHORTEST))


class _NotInTimeError(Exception):
    """There is no answer yet."""


class _Question:
    """Asked in a thread that the process doesn't wait for when it ends."""

    def __init__(self, work: Callable[[], bytes | None]) -> None:
        self._work = work
        self._ended = threading.Event()
        self._answer: bytes | None = None
        self._error: Exception | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def answer(self, *, seconds: float) -> bytes | None:
        """What came of it.

        Raises:
            _NotInTimeError: nothing came within so many seconds.
            Exception: what the work raised.
        """
        if not self._ended.wait(seconds):
            raise _NotInTimeError
        if self._error is not None:
            raise self._error
        return self._answer

    def _run(self) -> None:
        try:
            self._answer = self._work()
        except Exception as error:  # noqa: BLE001 - raised again by who asks for the answer
            self._error = error
        self._ended.set()


def _reason(error: Exception) -> str:
    if isinstance(error, RemoteError):
        return str(error)
    # Messages of libraries may have whole addresses in them, with what must stay secret.
    return type(error).__name__


BREAKER_SECONDS = 300.0
"""How long one that was in trouble isn't asked."""
BREAKER_FOLDER = "away"


class CircuitBreaker:
    """Files that say which remote stores were in trouble; what can't be written isn't known.

    Args:
        folder: the local store's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / BREAKER_FOLDER

    def open_seconds(self, name: str) -> float | None:
        """For how many seconds one has been in trouble, or None where it shall be asked.

        Who asks first after a while does so alone: to the others it is in trouble still.
        """
        path = self._path(name)
        try:
            age = time.time() - path.stat().st_mtime
            if 0 <= age < BREAKER_SECONDS:
                return age
            path.touch()
        except OSError:
            return None
        return None

    def trip(self, name: str) -> None:
        """It is in trouble."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._path(name).touch()

    def reset(self, name: str) -> None:
        """It is well."""
        with contextlib.suppress(OSError):
            self._path(name).unlink()

    def _path(self, name: str) -> Path:
        return self._folder / hashlib.sha256(name.encode()).hexdigest()[:32]
