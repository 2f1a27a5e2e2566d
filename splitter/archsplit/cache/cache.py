"""Cache of results by the components of their keys: a local store, then remote ones.

Input are key components; output is the entry that was stored under their key, or a miss. The cache
knows nothing of compilers. The one rule: a cache never stops a build. A store that is damaged,
full, slow or gone is a miss and one warning.

No two processes, on one machine or many, make the same result: a lease is a file with host and pid
of the process that makes it. Another process waits until the file is gone or too old, or its time
is up. Then it makes the result itself: never wrong, only slower.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from archsplit.cache.entry import (
    compute_key,
    decode_entry,
    decode_manifest,
    encode_entry,
    encode_manifest,
)
from archsplit.cache.file_digests import FileDigests
from archsplit.cache.local import LocalStore, evict, is_eviction_due
from archsplit.cache.sealed_blob import DamagedError
from archsplit.cache.stats import LOCAL_TIER, MISS_TIER, CacheStats, MissLog
from archsplit.system.outputs import read_stored_file, store_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from archsplit.cache.config import Settings
    from archsplit.cache.entry import CacheEntry, KeyComponent, ManifestRow
    from archsplit.cache.remote import Remote, Remotes

_POLL_SECONDS = 0.1
_DEAD_STATES = {"Z", "X"}


class Leases:
    """The leases of one store.

    Args:
        folder: folder of the lease files.
        seconds: lifetime of a lease, and longest wait for one; 0 for no leases.
    """

    def __init__(self, folder: Path, *, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds
        self._held: set[str] = set()

    def acquire(self, key: str) -> bool:
        """Acquire a lease; return False if another process holds it."""
        if not self._seconds:
            return True
        path = self._folder / key
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return not self._is_held(path) and self._take_over(key)
        except OSError:
            # In a folder that can't be written no process can have a lease.
            return True
        self._held.add(key)
        # On a full disk the file stays empty: a lease without a known holder.
        with contextlib.suppress(OSError):
            try:
                os.write(descriptor, f"{os.uname().nodename} {os.getpid()}".encode())
            finally:
                os.close(descriptor)
        return True

    def wait(self, key: str) -> bool:
        """Wait for the end of a lease; return False if the time was up first."""
        path, end = self._folder / key, time.monotonic() + self._seconds
        while self._is_held(path):
            if time.monotonic() >= end:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def release(self, key: str) -> None:
        """Release a lease."""
        if key in self._held:
            self._held.discard(key)
            with contextlib.suppress(OSError):
                (self._folder / key).unlink()

    def release_all(self) -> None:
        """Release all leases of this process."""
        for key in tuple(self._held):
            self.release(key)

    def _take_over(self, key: str) -> bool:
        # Two processes may do this at the same time and both make the result: harmless.
        self._held.add(key)
        with contextlib.suppress(OSError):
            store_file(self._folder / key, f"{os.uname().nodename} {os.getpid()}".encode())
        return True

    def _is_held(self, path: Path) -> bool:
        try:
            # Another machine's clock may be wrong: a lease from the future is void.
            age = time.time() - path.stat().st_mtime
            host, _, process = read_stored_file(path)[0].decode("ascii", "replace").partition(" ")
        except OSError:
            return False
        if not -self._seconds < age < self._seconds:
            return False
        return host != os.uname().nodename or not process.isdigit() or _is_running(int(process))


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
        # A killed process stays a zombie until its parent has reaped it.
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except (OSError, IndexError):
        return True
    return state not in _DEAD_STATES


class CacheHit(NamedTuple):
    """An entry and the tier that had it."""

    entry: CacheEntry
    tier: str


class Cache:
    """Results by their key components; no method raises because a store fails.

    Args:
        settings: any mode but ``off``.
        warn: called once with each warning.

    Attributes:
        settings: the settings.
        writable: False if nothing may be stored.
        local: the store of this machine.
        digests: digests of files, cached in the store.
        leases: leases on results in the making.
        miss_log: earlier key components, which explain misses.
        stats: hits and misses of this process.
    """

    def __init__(self, settings: Settings, *, warn: Callable[[str], None]) -> None:
        self.settings = settings
        self.writable = settings.mode == "on"
        self._warned: set[str] = set()
        self._print_warning = warn
        self.local = LocalStore(
            settings.folder,
            warn=self._warn,
            writable=self.writable,
            is_chosen=settings.is_folder_chosen,
        )
        self.digests = FileDigests(settings.folder / "digests" if self.writable else None)
        seconds = settings.lease if self.writable else 0
        self.leases = Leases(settings.folder / "lease", seconds=seconds)
        self.miss_log = MissLog(settings.folder)
        self.stats = CacheStats()
        self._remotes: Remotes | None = None
        self._lock = threading.Lock()

    def find(self, components: Sequence[KeyComponent]) -> CacheHit | None:
        """Return the entry with exactly these key components, or None."""
        key = compute_key(components)
        for tier, blob in self._blobs(key):
            entry = self._decoded(key, blob, tier)
            if entry is not None:
                # The next lookup needs no network.
                if tier != LOCAL_TIER:
                    self.local.put(key, blob)
                    self._remote_stores().add_saved_time(entry.cpu_seconds)
                return CacheHit(entry, tier)
        return None

    def store(self, entry: CacheEntry) -> bool:
        """Store an entry under its key; return False for one that is too cheap or too small."""
        size = sum(map(len, entry.files.values()))
        is_cheap = entry.cpu_seconds < self.settings.min_seconds
        # A cheap result is made again sooner than it is read over a network.
        if not self.writable or is_cheap or size < self.settings.min_size:
            return False
        self._put(compute_key(entry.components), encode_entry(entry))
        return True

    def manifest_rows(self, request: str) -> Iterator[ManifestRow]:
        """Return the manifest rows of a request; the local store's first."""
        seen: list[ManifestRow] = []
        for tier, blob in self._blobs(request):
            try:
                new = [row for row in decode_manifest(blob, request=request) if row not in seen]
            except DamagedError as error:
                self._handle_damage(request, tier, str(error))
                continue
            if tier != LOCAL_TIER and new:
                rows = encode_manifest([*new, *seen], request=request)
                self.local.put(request, rows)
            seen += new
            yield from new

    def add_manifest_row(self, request: str, row: ManifestRow) -> None:
        """Put a row before the others in the manifest of a request."""
        if self.writable:
            rows = [row, *(other for other in self.manifest_rows(request) if other != row)]
            self._put(request, encode_manifest(rows, request=request))

    def count_lookup(self, step: str, target: str, tier: str | None, seconds: float) -> None:
        """Count a lookup for the statistics; None for a miss."""
        self.stats.add(step, target, tier or MISS_TIER, seconds)

    def close(self) -> None:
        """Finish uploads within their deadline, save the counts, and evict if that is due."""
        # First: others may be waiting, and uploads take long.
        self.leases.release_all()
        if self._remotes is not None:
            self._remotes.finish()
        if self.writable:
            self.digests.save()
            self.stats.save(self.settings.folder)
            maximum = self.settings.max_size
            if is_eviction_due(self.settings.folder, written=self.local.written, maximum=maximum):
                evict(self.settings.folder, maximum=maximum, warn=self.local.warn)

    def _blobs(self, key: str) -> Iterator[tuple[str, bytes]]:
        blob = self.local.get(key)
        if blob is not None:
            yield LOCAL_TIER, blob
        if self.settings.remote:
            found = self._remote_stores().get(key)
            if found is not None:
                yield found

    def _put(self, key: str, blob: bytes) -> None:
        self.local.put(key, blob)
        if self.settings.remote:
            self._remote_stores().put(key, blob)

    def _decoded(self, key: str, blob: bytes, tier: str) -> CacheEntry | None:
        try:
            entry = decode_entry(blob)
        except DamagedError as error:
            self._handle_damage(key, tier, str(error))
            return None
        # A file that was copied to a wrong name still has a right digest.
        if compute_key(entry.components) != key:
            self._handle_damage(key, tier, "the entry of another key")
            return None
        return entry

    def _handle_damage(self, key: str, tier: str, why: str) -> None:
        # A damaged file here is deleted; only the owner of a remote store may do that there.
        if tier == LOCAL_TIER:
            self.local.drop_damaged(key, why)
        else:
            self._remote_stores().disable(tier, why)

    def _remote_stores(self) -> Remotes:
        with self._lock:
            if self._remotes is None:
                self._remotes = self._open_remotes()
            return self._remotes

    def _open_remotes(self) -> Remotes:
        # Imported late: most users have no remote store, and the imports cost time.
        from archsplit.cache.remote import CircuitBreaker, Remotes  # noqa: PLC0415

        return Remotes(
            [found for address in self.settings.remote for found in self._open_remote(address)],
            seconds=self.settings.remote_seconds,
            writable=self.writable and self.settings.remote_mode == "on",
            breaker=CircuitBreaker(self.settings.folder),
            warn=self._warn,
        )

    def _open_remote(self, address: str) -> Iterator[tuple[str, Remote]]:
        from archsplit.cache.backends import open_remote, public_name  # noqa: PLC0415 - as above
        from archsplit.cache.remote import RemoteError  # noqa: PLC0415

        try:
            yield open_remote(address)
        except RemoteError as error:
            self._warn(f"{public_name(address)} is not used: {error}")

    def _warn(self, text: str) -> None:
        # A build of a thousand steps must not print a thousand lines.
        if text not in self._warned:
            self._warned.add(text)
            self._print_warning(text)
