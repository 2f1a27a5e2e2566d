"""The cache as its users see it: look for a result, store one, and never be in the way."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from archsplit.cache.entry import DamagedError, decode_entry, encode_entry
from archsplit.cache.file_digests import FileDigests
from archsplit.cache.keys import compute_key
from archsplit.cache.leases import Leases
from archsplit.cache.local import LocalStore, StoreKind, evict, is_eviction_due
from archsplit.cache.manifest import decode_manifest, encode_manifest
from archsplit.cache.miss_log import MissLog
from archsplit.cache.stats import MISS_TIER, CacheStats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from archsplit.cache.config import Settings
    from archsplit.cache.entry import CacheEntry
    from archsplit.cache.keys import KeyComponent
    from archsplit.cache.manifest import ManifestEntry
    from archsplit.cache.remote import Remote, Remotes

LOCAL_TIER = "local"


class CacheHit(NamedTuple):
    """An entry, and where it was."""

    entry: CacheEntry
    tier: str


class Cache:
    """Results by what they depend on.

    Nothing here raises for a store that is damaged, full, slow or gone: that is a miss.

    Args:
        settings: see `Settings`; the mode isn't ``off``.
        warn: is told, once, what doesn't work.

    Attributes:
        digests: of files, remembered in the store.
        leases: who makes what.
        miss_log: what explains misses.
        stats: what this process found and missed.
    """

    def __init__(self, settings: Settings, *, warn: Callable[[str], None]) -> None:
        self.settings = settings
        self.writable = settings.mode == "on"
        self._warned: set[str] = set()
        self._say = warn
        self.local = LocalStore(settings.folder, warn=self._warn, writable=self.writable)
        self.digests = FileDigests(settings.folder / "digests" if self.writable else None)
        seconds = settings.lease if self.writable else 0
        self.leases = Leases(settings.folder / "lease", seconds=seconds)
        self.miss_log = MissLog(settings.folder)
        self.stats = CacheStats()
        self._remotes: Remotes | None = None
        self._lock = threading.Lock()

    def find(self, parts: Sequence[KeyComponent]) -> CacheHit | None:
        """The entry that depends on exactly this."""
        key = compute_key(parts)
        for tier, blob in self._blobs(key):
            entry = self._decoded(key, blob, tier)
            if entry is not None:
                if tier != LOCAL_TIER:
                    self.local.put(StoreKind.ACTION, key, blob)
                    self._far().add_saved_time(entry.cpu_seconds)
                return CacheHit(entry, tier)
        return None

    def store(self, entry: CacheEntry) -> bool:
        """Store an entry under the key that follows from its parts, if it's worth it."""
        size = sum(map(len, entry.files.values()))
        cheap = entry.cpu_seconds < self.settings.min_seconds
        if not self.writable or cheap or size < self.settings.min_size:
            return False
        self._put(compute_key(entry.components), encode_entry(entry))
        return True

    def manifest_entries(self, request: str) -> Iterator[ManifestEntry]:
        """The manifest of the request with this key; the local store's rows first."""
        seen: list[ManifestEntry] = []
        for tier, blob in self._blobs(request):
            try:
                new = [row for row in decode_manifest(blob, request=request) if row not in seen]
            except DamagedError as error:
                self._damaged(request, tier, str(error))
                continue
            if tier != LOCAL_TIER and new:
                rows = encode_manifest([*new, *seen], request=request)
                self.local.put(StoreKind.ACTION, request, rows)
            seen += new
            yield from new

    def add_manifest_entry(self, request: str, row: ManifestEntry) -> None:
        """Put a row before the others of the request's manifest."""
        if self.writable:
            rows = [row, *(other for other in self.manifest_entries(request) if other != row)]
            self._put(request, encode_manifest(rows, request=request))

    def read_content(self, digest: str) -> bytes | None:
        """A text that was stored by its digest, in the local store."""
        return self.local.get(StoreKind.CONTENT, digest)

    def store_content(self, digest: str, content: bytes) -> None:
        """Store a text by its digest, in the local store alone."""
        if self.writable and not self.local.path(StoreKind.CONTENT, digest).exists():
            self.local.put(StoreKind.CONTENT, digest, content)

    def count_lookup(self, step: str, target: str, tier: str | None, seconds: float) -> None:
        """Remember for the statistics what came of looking for something."""
        self.stats.add(step, target, tier or MISS_TIER, seconds)

    def close(self) -> None:
        """Finish what is under way, within its deadlines, and trim the store if that is due."""
        self.leases.release_all()
        if self._remotes is not None:
            self._remotes.finish()
        if self.writable:
            self.digests.save()
            self.stats.save(self.settings.folder)
            maximum = self.settings.max_size
            if is_eviction_due(self.settings.folder, written=self.local.written, maximum=maximum):
                evict(self.settings.folder, maximum=maximum)

    def _blobs(self, key: str) -> Iterator[tuple[str, bytes]]:
        blob = self.local.get(StoreKind.ACTION, key)
        if blob is not None:
            yield LOCAL_TIER, blob
        if self.settings.remote:
            found = self._far().get(StoreKind.ACTION, key)
            if found is not None:
                yield found

    def _put(self, key: str, blob: bytes) -> None:
        self.local.put(StoreKind.ACTION, key, blob)
        if self.settings.remote:
            self._far().put(StoreKind.ACTION, key, blob)

    def _decoded(self, key: str, blob: bytes, tier: str) -> CacheEntry | None:
        try:
            entry = decode_entry(blob)
        except DamagedError as error:
            self._damaged(key, tier, str(error))
            return None
        if compute_key(entry.components) != key:
            self._damaged(key, tier, "it is another key's entry")
            return None
        return entry

    def _damaged(self, key: str, tier: str, why: str) -> None:
        if tier == LOCAL_TIER:
            self.local.delete(StoreKind.ACTION, key)
            self._warn(f"dropped {key} from {self.settings.folder}: {why}")
        else:
            self._far().disable(tier, why)

    def _far(self) -> Remotes:
        with self._lock:
            if self._remotes is None:
                self._remotes = self._reached()
            return self._remotes

    def _reached(self) -> Remotes:
        # Most people have no remote store, and shouldn't wait for what speaks to them.
        from archsplit.cache.remote import CircuitBreaker, Remotes  # noqa: PLC0415

        return Remotes(
            [found for address in self.settings.remote for found in self._reach(address)],
            seconds=self.settings.remote_seconds,
            writable=self.writable and self.settings.remote_mode == "on",
            away=CircuitBreaker(self.settings.folder),
            warn=self._warn,
        )

    def _reach(self, address: str) -> Iterator[tuple[str, Remote]]:
        from archsplit.cache.backends import open_remote, public_name  # noqa: PLC0415 - as above
        from archsplit.cache.remote import RemoteError  # noqa: PLC0415

        try:
            yield open_remote(address)
        except RemoteError as error:
            self._warn(f"{public_name(address)} is left alone: {error}")

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._say(text)
