"""Stores on other machines: asked after the local one, never waited for longer than allowed."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Protocol

from archsplit.cache.budget import TimeBudget
from archsplit.cache.local import is_intact
from archsplit.cache.uploads import Uploads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from archsplit.cache.away import CircuitBreaker
    from archsplit.cache.local import StoreKind

MOST_BYTES = 1 << 30
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
        """What is kept there, or None; of what is longer than `MOST_BYTES`, an error."""
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
            age = away.since(name)
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
            self.distrust(name, "it gave wrong bytes")
        return None

    def has_saved(self, seconds: float) -> None:
        """What was found has saved so much time: waiting for it was worth that much."""
        self._budget.give_back(seconds)

    def put(self, kind: StoreKind, key: str, blob: bytes) -> None:
        """Begin to store it in all of them."""
        for name, remote in tuple(self._remotes) if self._writable else ():
            work = partial(self._upload, remote, f"{kind.value}/{key}", blob)
            if not self._uploads.add(name, len(blob), work):
                self._warn("not all is stored remotely: that is slower than what is compiled")

    def distrust(self, name: str, why: str) -> None:
        """Ask this one no more, nor let other processes do so for a while."""
        if self._leave(name, why):
            self._away.add(name)

    def finish(self) -> None:
        """Wait for what is being stored, but not longer than is allowed."""
        for name in self._uploads.wait(self._budget.left):
            self._away.add(name)
            self._answers.pop(name, None)
            self._uploads.give_up(name)
            self._warn(f"not all was stored in {name} in time")
        for name, _ in self._remotes:
            if seconds := self._answers.get(name):
                slow = sum(seconds) / len(seconds) > _SLOW
                (self._away.add if slow else self._away.remove)(name)

    def _leave(self, name: str, why: str) -> bool:
        with self._lock:
            known = [each for each in self._remotes if each[0] == name]
            self._remotes = [each for each in self._remotes if each[0] != name]
        if known:
            self._uploads.give_up(name)
            self._warn(f"{name} is left alone: {why}")
        return bool(known)

    def _not_stored(self, name: str, error: Exception) -> None:
        # One that is full, or that may only be read, still knows what it knows.
        if self._uploads.give_up(name):
            self._warn(f"nothing more is stored in {name}: {_reason(error)}")

    def _ask(self, name: str, remote: Remote, path: str) -> bytes | None:
        if self._budget.left <= 0:
            self.distrust(name, "all the time that it may take is used up")
            return None
        # A library's own timeout may begin anew with each packet: ours doesn't.
        question = _Question(partial(remote.get, path, seconds=self._budget.left))
        self._budget.begin()
        began = time.monotonic()
        try:
            answer = question.answer(seconds=self._budget.left)
        except _NotInTimeError:
            self.distrust(name, "it didn't answer in time")
        except Exception as error:  # noqa: BLE001 - whatever a library raises
            self.distrust(name, _reason(error))
        else:
            # What is found has saved more than it took, most likely.
            lost = time.monotonic() - began if answer is None else 0.0
            self._answers.setdefault(name, []).append(lost)
            return answer
        finally:
            self._budget.end()
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
