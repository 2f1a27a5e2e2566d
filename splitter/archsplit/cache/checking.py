"""Read every entry of a store, and say which ones aren't what they should be."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from archsplit.cache.entry import DamagedError, decode_entry
from archsplit.cache.keys import key_of
from archsplit.cache.local import StoreKind, is_intact
from archsplit.cache.manifest import decode_manifest

if TYPE_CHECKING:
    from archsplit.cache.local import LocalStore


class StoreCheck(NamedTuple):
    """How many files there are, and the keys of those that are damaged."""

    files: int
    damaged: tuple[str, ...]


def verify_store(store: LocalStore) -> StoreCheck:
    """Read everything; what is damaged is removed."""
    files, damaged = 0, []
    for kind in StoreKind:
        for key in store.keys(kind):
            files += 1
            if not _is_good(store, kind, key):
                damaged.append(key)
                store.drop(kind, key)
    return StoreCheck(files, tuple(damaged))


def _is_good(store: LocalStore, kind: StoreKind, key: str) -> bool:
    try:
        blob = store.path(kind, key).read_bytes()
    except OSError:
        return False
    if not is_intact(kind, key, blob):
        return False
    return kind is StoreKind.CONTENT or _is_entry(key, blob) or _is_manifest(key, blob)


def _is_entry(key: str, blob: bytes) -> bool:
    try:
        return key_of(decode_entry(blob).parts) == key
    except DamagedError:
        return False


def _is_manifest(key: str, blob: bytes) -> bool:
    try:
        decode_manifest(blob, request=key)
    except DamagedError:
        return False
    return True
