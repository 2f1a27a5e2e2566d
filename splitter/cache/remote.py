"""Stores on other machines: asked after the local one, never waited for longer than allowed."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from splitter.cache.store import intact

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from splitter.cache.store import Kind

_AT_ONCE = 4
"""Uploads."""
_SHORTEST = 0.1
"""Seconds that an upload has at least; whether it is waited for is another matter."""

_Answer = TypeVar("_Answer")


class Remote(Protocol):
    """A place that keeps bytes by path, ``ac/<key>`` and ``cas/<key>``.

    Both methods may raise whatever their library raises.
    """

    def get(self, path: str, *, seconds: float) -> bytes | None:
        """What is kept there, or None."""
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
        warn: is told what went wrong.
    """

    def __init__(
        self,
        remotes: Sequence[tuple[str, Remote]],
        *,
        seconds: float,
        writable: bool,
        warn: Callable[[str], None],
    ) -> None:
        self._remotes = list(remotes)
        self._left = seconds
        self._writable = writable
        self._warn = warn
        self._turns = threading.Semaphore(_AT_ONCE)
        self._uploads: list[tuple[str, _Task[None]]] = []

    def get(self, kind: Kind, key: str) -> tuple[str, bytes] | None:
        """What one of them has, with that one's name."""
        for name, remote in tuple(self._remotes):
            blob = self._ask(name, remote, f"{kind.value}/{key}")
            if blob is None:
                continue
            if intact(kind, key, blob):
                return name, blob
            self.distrust(name, "it gave wrong bytes")
        return None

    def put(self, kind: Kind, key: str, blob: bytes) -> None:
        """Begin to store it in all of them."""
        if not self._writable:
            return
        for name, remote in self._remotes:
            upload = partial(self._upload, remote, f"{kind.value}/{key}", blob)
            self._uploads.append((name, _Task(upload)))

    def distrust(self, name: str, why: str) -> None:
        """Ask this one no more."""
        if any(each == name for each, _ in self._remotes):
            self._remotes = [(each, remote) for each, remote in self._remotes if each != name]
            self._warn(f"{name} is left alone: {why}")

    def finish(self) -> None:
        """Wait for what is being stored, but not longer than is allowed."""
        end = time.monotonic() + self._left
        for name, task in self._uploads:
            self._await(name, task, seconds=max(0.0, end - time.monotonic()))
        self._uploads.clear()

    def _ask(self, name: str, remote: Remote, path: str) -> bytes | None:
        if self._left <= 0:
            self.distrust(name, "all the time that it may take is used up")
            return None
        began = time.monotonic()
        # A library's own timeout may begin anew with each packet: ours doesn't.
        task = _Task(partial(remote.get, path, seconds=self._left))
        answer = self._await(name, task, seconds=self._left)
        if answer is None:
            # What is found has saved more time than it took.
            self._left -= time.monotonic() - began
        return answer

    def _upload(self, remote: Remote, path: str, blob: bytes) -> None:
        with self._turns:
            remote.put(path, blob, seconds=max(self._left, _SHORTEST))

    def _await(self, name: str, task: _Task[_Answer], *, seconds: float) -> _Answer | None:
        try:
            return task.result(seconds=seconds)
        except _NotInTimeError:
            self.distrust(name, "it didn't answer in time")
        except Exception as error:  # noqa: BLE001 - whatever a library raises
            self.distrust(name, _reason(error))
        return None


class _NotInTimeError(Exception):
    """A task hasn't ended yet."""


class _Task(Generic[_Answer]):
    """Work in a thread that the process doesn't wait for when it ends."""

    def __init__(self, work: Callable[[], _Answer]) -> None:
        self._work = work
        self._ended = threading.Event()
        self._answer: list[_Answer] = []
        self._error: Exception | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def result(self, *, seconds: float) -> _Answer:
        """What came of it.

        Raises:
            _NotInTimeError: nothing came within so many seconds.
            Exception: what the work raised.
        """
        if not self._ended.wait(seconds):
            raise _NotInTimeError
        if self._error is not None:
            raise self._error
        return self._answer[0]

    def _run(self) -> None:
        try:
            self._answer.append(self._work())
        except Exception as error:  # noqa: BLE001 - raised again by who asks for the result
            self._error = error
        self._ended.set()


def _reason(error: Exception) -> str:
    # Messages of libraries may have whole addresses in them, with what must stay secret.
    return type(error).__name__
