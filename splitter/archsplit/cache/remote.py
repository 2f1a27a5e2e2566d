"""Remote stores of one process: lookups after the local store, uploads during other work.

Input are keys and blobs; output is a blob with the name of its store. All remote stores share one
`TimeBudget`: misses may delay a build by so many seconds and no more, hits refund their savings. A
store that fails, is slow or returns wrong bytes is disabled, and a `CircuitBreaker` file disables
it for the machine's other processes: a build is many processes, and each would lose the same time.

``tenacity``, urllib3's ``Retry`` and ``pybreaker`` aren't used: they cost 29, 83 and 21 ms of CPU
to import, and a lookup is never retried, because compiling is the fallback; their state ends with
the process, and none has one deadline for several threads.
"""

from __future__ import annotations

import contextlib
import hashlib
import queue
import threading
import time
from concurrent import futures
from functools import partial
from typing import TYPE_CHECKING, Protocol

from archsplit.cache.local import RESULTS_FOLDER
from archsplit.cache.sealed_blob import encode_result, sealed_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from archsplit.cache.sealed_blob import Buffer

_UPLOAD_THREADS = 4
_MOST_BYTES = 256 << 20
"""Most bytes in the queue: a build faster than its remote store must not fill memory."""
_SLOW_SECONDS = 0.5
"""Seconds of an average miss from which a store counts as slow."""
_LEAST_UPLOAD_SECONDS = 0.1
"""Least seconds for an upload; the process may end earlier."""
BREAKER_SECONDS = 300.0
"""Seconds for which a store that failed is not used."""
BREAKER_FOLDER = "circuit-breaker"


class TimeBudget:
    """Seconds that a process may still wait.

    Threads that wait at the same time count once: the time counts in which any of them waits.

    Args:
        seconds: the whole budget.
    """

    def __init__(self, seconds: float) -> None:
        self._most = seconds
        self._remaining = seconds
        self._waiting = 0
        self._since = 0.0
        self._lock = threading.Lock()

    @property
    def remaining(self) -> float:
        """Remaining seconds, at least 0."""
        with self._lock:
            return max(0.0, self._remaining - self._running())

    def start_waiting(self) -> None:
        """Count from now on for one more waiting thread."""
        with self._lock:
            # Waits in several threads overlap, so the clock runs once for all of them.
            if not self._waiting:
                self._since = time.monotonic()
            self._waiting += 1

    def stop_waiting(self) -> None:
        """Stop counting for one waiting thread."""
        with self._lock:
            if self._waiting == 1:
                self._remaining -= self._running()
            self._waiting -= 1

    def refund(self, seconds: float) -> None:
        """Add seconds that waiting has saved, up to the whole budget."""
        with self._lock:
            self._remaining = min(self._most, self._remaining + max(0.0, seconds))

    def _running(self) -> float:
        return time.monotonic() - self._since if self._waiting else 0.0


class Uploads:
    """Queue of uploads with its threads, which end with the process.

    Args:
        failed: called with the store's name and the exception of a failed upload.
    """

    def __init__(self, failed: Callable[[str, Exception], None]) -> None:
        self._failed = failed
        self._jobs: queue.SimpleQueue[tuple[str, int, Callable[[], None]]] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._threads = 0
        self._pending: dict[str, int] = {}
        self._bytes = 0
        self._abandoned: set[str] = set()

    def add(self, name: str, size: int, work: Callable[[], None]) -> bool:
        """Queue an upload; return False if the queue is full.

        Args:
            name: name of the store.
            size: bytes of the upload in memory.
        """
        with self._changed:
            if self._bytes + size > _MOST_BYTES:
                return False
            self._bytes += size
            self._pending[name] = self._pending.get(name, 0) + 1
            if self._threads < _UPLOAD_THREADS:
                self._threads += 1
                threading.Thread(target=self._work, daemon=True).start()
        self._jobs.put((name, size, work))
        return True

    def abandon(self, name: str) -> bool:
        """Start no more uploads to a store; return False if it was abandoned before."""
        with self._changed:
            new = name not in self._abandoned
            self._abandoned.add(name)
            self._changed.notify_all()
        return new

    def wait(self, seconds: float) -> tuple[str, ...]:
        """Wait for the queue's end, or so long; return the names of unfinished stores."""
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
            name for name, count in self._pending.items() if count and name not in self._abandoned
        )

    def _work(self) -> None:
        while True:
            name, size, work = self._jobs.get()
            try:
                if name not in self._abandoned:
                    work()
            except Exception as error:  # noqa: BLE001 - whatever a library raises
                self._failed(name, error)
            with self._changed:
                self._pending[name] -= 1
                self._bytes -= size
                self._changed.notify_all()


class RemoteError(Exception):
    """A remote store failed; the message contains no secret."""


def seal_reply(content: Buffer, digest: str) -> bytes:
    """Return the compressed content of an entry as a sealed blob.

    Args:
        content: the bytes that a server returned.
        digest: the SHA-256 in the server's result, as hexadecimal digits.

    Raises:
        RemoteError: the content has another digest.
    """
    blob = encode_result(content)
    # A proxy or a damaged disk may return other bytes with status 200.
    if sealed_digest(blob) != digest:
        raise RemoteError("it returned wrong bytes")
    return blob


class Remote(Protocol):
    """A store of bytes by path, ``ac/<key>``.

    Both methods may raise whatever their library raises.
    """

    def get(self, path: str, *, seconds: float, most: int = ...) -> bytes | None:
        """Return the stored bytes, or None; raise for wrong bytes, and for more than ``most``."""
        ...

    def put(self, path: str, blob: bytes, *, seconds: float) -> None:
        """Store bytes."""
        ...


class Remotes:
    """All remote stores of one process, with one time budget.

    Args:
        remotes: stores with names without credentials, in the order of lookups.
        seconds: most seconds that all stores together may delay this process.
        writable: False to upload nothing.
        breaker: the stores that failed a moment ago.
        warn: called with each warning.
    """

    def __init__(
        self,
        remotes: Sequence[tuple[str, Remote]],
        *,
        seconds: float,
        writable: bool,
        breaker: CircuitBreaker,
        warn: Callable[[str], None],
    ) -> None:
        self._remotes = list(remotes)
        self._budget = TimeBudget(seconds)
        self._writable = writable
        self._breaker = breaker
        self._warn = warn
        self._miss_seconds: dict[str, list[float]] = {}
        self._lock = threading.Lock()
        self._uploads = Uploads(self._stop_uploads)
        for name, _ in remotes:
            age = breaker.open_seconds(name)
            if age is not None:
                self._remove(name, f"it failed {age:.0f} s ago")

    def get(self, key: str) -> tuple[str, bytes] | None:
        """Return the first hit with the name of its store, or None."""
        for name, remote in tuple(self._remotes):
            blob = self._fetch(name, remote, f"{RESULTS_FOLDER}/{key}")
            if blob is not None:
                return name, blob
        return None

    def add_saved_time(self, seconds: float) -> None:
        """Refund the seconds that a hit has saved."""
        self._budget.refund(seconds)

    def put(self, key: str, blob: bytes) -> None:
        """Queue an upload to every store."""
        for name, remote in tuple(self._remotes) if self._writable else ():
            work = partial(self._upload, remote, f"{RESULTS_FOLDER}/{key}", blob)
            if not self._uploads.add(name, len(blob), work):
                self._warn("not all results are stored remotely: uploads are slower than the build")

    def disable(self, name: str, why: str) -> None:
        """Stop using a store, in other processes too for a while."""
        if self._remove(name, why):
            self._breaker.trip(name)

    def finish(self) -> None:
        """Wait for the uploads within the time left."""
        for name in self._uploads.wait(self._budget.remaining):
            self._breaker.trip(name)
            self._miss_seconds.pop(name, None)
            self._uploads.abandon(name)
            self._warn(f"not all results were stored in {name} in time")
        for name, _ in self._remotes:
            if seconds := self._miss_seconds.get(name):
                slow = sum(seconds) / len(seconds) > _SLOW_SECONDS
                (self._breaker.trip if slow else self._breaker.reset)(name)

    def _remove(self, name: str, why: str) -> bool:
        with self._lock:
            removed = [each for each in self._remotes if each[0] == name]
            self._remotes = [each for each in self._remotes if each[0] != name]
        # Two threads may see the same failure at once; only the first one reports it.
        if removed:
            self._uploads.abandon(name)
            self._warn(f"{name} is not used: {why}")
        return bool(removed)

    def _stop_uploads(self, name: str, error: Exception) -> None:
        # A store that is full or read-only can still have hits.
        if self._uploads.abandon(name):
            self._warn(f"nothing more is stored in {name}: {_reason(error)}")

    def _fetch(self, name: str, remote: Remote, path: str) -> bytes | None:
        if self._budget.remaining <= 0:
            self.disable(name, "the time budget for remote stores is used up")
            return None
        # Libraries restart their timeouts with each packet: the whole lookup needs one of its own.
        lookup = _start_lookup(partial(remote.get, path, seconds=self._budget.remaining))
        self._budget.start_waiting()
        began = time.monotonic()
        try:
            answer = lookup.result(self._budget.remaining)
        except futures.TimeoutError:
            self.disable(name, "no reply in time")
        except Exception as error:  # noqa: BLE001 - whatever a library raises
            self.disable(name, _reason(error))
        else:
            # A hit has most likely saved more time than it took: only misses count as slow.
            waited = time.monotonic() - began if answer is None else 0.0
            self._miss_seconds.setdefault(name, []).append(waited)
            return answer
        finally:
            self._budget.stop_waiting()
        return None

    def _upload(self, remote: Remote, path: str, blob: bytes) -> None:
        remote.put(path, blob, seconds=max(self._budget.remaining, _LEAST_UPLOAD_SECONDS))


def _start_lookup(work: Callable[[], bytes | None]) -> futures.Future[bytes | None]:
    """Start a lookup in a thread that ends with the process."""
    future: futures.Future[bytes | None] = futures.Future()

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as error:  # noqa: BLE001 - raised again by `result`
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _reason(error: Exception) -> str:
    if isinstance(error, RemoteError):
        return str(error)
    # Messages of libraries may contain whole addresses, with secrets.
    return type(error).__name__


class CircuitBreaker:
    """Circuit breaker for all processes of a machine: a file for each store that failed.

    Args:
        folder: the folder of the local store.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / BREAKER_FOLDER

    def open_seconds(self, name: str) -> float | None:
        """Return the seconds since the breaker opened, or None if it is closed.

        After a while only one process tries the store (half-open): for the others it stays open.
        """
        path = self._path(name)
        try:
            age = time.time() - path.stat().st_mtime
            if 0 <= age < BREAKER_SECONDS:
                return age
            # The touch keeps the breaker open for the other processes while this one tries.
            path.touch()
        except OSError:
            return None
        return None

    def trip(self, name: str) -> None:
        """Open the breaker of a store."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._path(name).touch()

    def reset(self, name: str) -> None:
        """Close the breaker of a store."""
        with contextlib.suppress(OSError):
            self._path(name).unlink()

    def _path(self, name: str) -> Path:
        return self._folder / hashlib.sha256(name.encode()).hexdigest()[:32]
