"""Read every entry of a store, and say which ones aren't what they should be."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from splitter.cache.entry import DamagedError, decode
from splitter.cache.manifest import decode_rows
from splitter.cache.parts import key_of
from splitter.cache.store import Kind, intact

if TYPE_CHECKING:
    from splitter.cache.store import LocalStore


class Checked(NamedTuple):
    """How many files there are, and the keys of those that are damaged."""

    files: int
    damaged: tuple[str, ...]


def check_store(store: LocalStore) -> Checked:
    """Read everything; what is damaged is removed."""
    files, damaged = 0, []
    for kind in Kind:
        for key in store.keys(kind):
            files += 1
            if not _is_good(store, kind, key):
                damaged.append(key)
                store.drop(kind, key)
    return Checked(files, tuple(damaged))


def _is_good(store: LocalStore, kind: Kind, key: str) -> bool:
    try:
        blob = store.path(kind, key).read_bytes()
    except OSError:
        return False
    if not intact(kind, key, blob):
        return False
    return kind is Kind.CONTENT or _is_entry(key, blob) or _is_manifest(key, blob)


def _is_entry(key: str, blob: bytes) -> bool:
    try:
        return key_of(decode(blob).parts) == key
    except DamagedError:
        return False


def _is_manifest(key: str, blob: bytes) -> bool:
    try:
        decode_rows(blob, request=key)
    except DamagedError:
        return False
    return True
