"""A whole store as one tar file, and back; the same entries give the same bytes."""

from __future__ import annotations

import io
import tarfile
from typing import IO, TYPE_CHECKING

from archsplit.cache.local import StoreKind, is_intact
from archsplit.errors import InputError, OutputError

if TYPE_CHECKING:
    from archsplit.cache.local import LocalStore


def export_to(store: LocalStore, file: IO[bytes]) -> int:
    """Write all that is intact; how many files there were."""
    count = 0
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for kind in StoreKind:
            for key in store.keys(kind):
                blob = store.get(kind, key)
                if blob is not None:
                    member = tarfile.TarInfo(f"{kind.value}/{key}")
                    member.size = len(blob)
                    tar.addfile(member, io.BytesIO(blob))
                    count += 1
    return count


def import_from(store: LocalStore, file: IO[bytes], *, where: str) -> int:
    """Store all that is intact, whatever else the file has; how many files there were.

    Args:
        where: the file's name, for the message.

    Raises:
        InputError: it is no such file, or not all of it.
        OutputError: the store can't be written.
    """
    count = 0
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                kind, _, key = member.name.partition("/")
                content = tar.extractfile(member)
                if kind in {each.value for each in StoreKind} and content is not None:
                    count += _keep(store, StoreKind(kind), key, content.read())
    except (tarfile.TarError, OSError) as error:
        raise InputError(f"{where} is no exported cache: {error}") from None
    return count


def _keep(store: LocalStore, kind: StoreKind, key: str, blob: bytes) -> bool:
    # A name is a path on this machine: only what is a digest may be one.
    is_digest = len(key) == 64 and set(key) <= set("0123456789abcdef")  # noqa: PLR2004 - of SHA-256
    if not is_digest or not is_intact(kind, key, blob):
        return False
    if not store.put(kind, key, blob):
        raise OutputError(f"can't write into {store.folder}")
    return True
