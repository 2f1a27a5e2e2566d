"""Storage backends of remote stores: Bazel's remote caches by HTTP and gRPC, and object stores."""

from __future__ import annotations

import contextlib
import hashlib
import time
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from archsplit.cache.local import MAX_ENTRY_BYTES, RESULTS_FOLDER
from archsplit.cache.remote import RemoteError, seal_reply
from archsplit.cache.sealed_blob import DamagedError, decode_result, encode_result, entry_action

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from urllib3 import BaseHTTPResponse

    from archsplit.cache.remote import Remote

_INSTALL = "pip install 'archsplit[{extra}]'"
_FOUND = 200
_STORED = range(200, 300)
_MISSING = 404
_BLOBS_FOLDER = "cas"
_MOST_INLINE = 4_000_000
"""Bytes in a result; gRPC's clients refuse messages above 4 MiB, and larger ones are a blob."""
_MOST_RESULT = 16 << 20
"""Bytes of a result with what a server has added to it."""
_EXPIRED_SECONDS = 0.01
"""Timeout after the deadline, which the caller holds: urllib3 takes no timeout of 0."""


class HttpRemote:
    """A store behind ``GET`` and ``PUT`` below an address.

    A user and a password in the address become HTTP's basic authentication; ``~/.netrc``
    has them otherwise.
    """

    def __init__(self, address: str) -> None:
        import urllib3  # noqa: PLC0415 - expensive, and rarely wanted

        parts = urlsplit(address)
        self._base = public_name(address).rstrip("/")
        user = _credentials(parts.hostname or "", parts.username, parts.password)
        self._headers = urllib3.make_headers(basic_auth=user) if user else {}
        self._pool = urllib3.PoolManager(maxsize=4, retries=False)

    def get(self, path: str, *, seconds: float, most: int = MAX_ENTRY_BYTES) -> bytes | None:
        """Return the stored bytes, or None."""
        with self._request("GET", path, seconds) as response:
            if response.status == _MISSING:
                return None
            _check_status(response.status, {_FOUND})
            # Entries are compressed: an encoding of the transfer could only hide their size.
            blob = bytes(response.read(most + 1, decode_content=False))
            _check_size(len(blob), most)
            return blob

    def put(self, path: str, blob: bytes, *, seconds: float) -> None:
        """Store bytes."""
        with self._request("PUT", path, seconds, blob) as response:
            _check_status(response.status, _STORED)

    @contextlib.contextmanager
    def _request(
        self, method: str, path: str, seconds: float, body: bytes | None = None
    ) -> Iterator[BaseHTTPResponse]:
        response = self._pool.request(
            method,
            f"{self._base}/{path}",
            body=body,
            headers=self._headers,
            timeout=seconds,
            # Read in pieces: a reply without end must not fill memory.
            preload_content=False,
        )
        try:
            yield response
        except BaseException:
            response.close()
            raise
        # A reply that was read to its end leaves a connection for the next request.
        response.drain_conn()
        response.release_conn()


def _check_status(found: int, expected: Container[int]) -> None:
    if found not in expected:
        raise RemoteError(f"its reply has status {found}")


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise RemoteError("its reply is too long for an entry")


class ObjectRemote:
    """A bucket of S3, GCS or Azure, with the credentials of the clouds' own tools."""

    def __init__(self, address: str) -> None:
        from obstore.store import from_url  # noqa: PLC0415 - see `HttpRemote`

        self._store = from_url(address, config=None, retry_config={"max_retries": 0})

    def get(self, path: str, *, seconds: float, most: int = MAX_ENTRY_BYTES) -> bytes | None:
        """Return the stored bytes, or None; the caller holds the deadline."""
        del seconds
        import obstore  # noqa: PLC0415

        try:
            found = obstore.get(self._store, path)
        except FileNotFoundError:
            return None
        _check_size(found.meta["size"], most)
        return bytes(found.bytes())

    def put(self, path: str, blob: bytes, *, seconds: float) -> None:
        """Store bytes; the caller holds the deadline."""
        del seconds
        import obstore  # noqa: PLC0415

        obstore.put(self._store, path, blob)


class ResultRemote:
    """Entries as Bazel keeps them: results by the digest of their action, and blobs.

    A server that speaks HTTP and gRPC serves an entry by both.

    Args:
        files: a store of bytes by path.
    """

    def __init__(self, files: Remote) -> None:
        self._files = files

    def get(self, path: str, *, seconds: float, most: int = MAX_ENTRY_BYTES) -> bytes | None:
        """Return the stored bytes, or None."""
        until = time.monotonic() + seconds
        message = self._files.get(_result_path(path), seconds=seconds, most=_MOST_RESULT)
        if message is None:
            return None
        try:
            digest, size, content = decode_result(message)
        except DamagedError:
            raise RemoteError("it returned wrong bytes") from None
        if content is not None:
            return seal_reply(content, digest)
        blob = self._files.get(_blob_path(digest), seconds=_left(until), most=min(size, most))
        # An entry whose blob was evicted is a miss.
        return None if blob is None else seal_reply(blob, digest)

    def put(self, path: str, blob: bytes, *, seconds: float) -> None:
        """Store bytes."""
        until, stored = time.monotonic() + seconds, blob
        digest, size, content = decode_result(blob)
        if size > _MOST_INLINE and content is not None:
            # The result last: a reader of the result finds its blob.
            self._files.put(_blob_path(digest), bytes(content), seconds=seconds)
            stored = encode_result(content, inline=False)
        self._files.put(_result_path(path), stored, seconds=_left(until))


def _left(until: float) -> float:
    return max(until - time.monotonic(), _EXPIRED_SECONDS)


def _result_path(path: str) -> str:
    return f"{RESULTS_FOLDER}/{hashlib.sha256(entry_action(path)[-1]).hexdigest()}"


def _blob_path(digest: str) -> str:
    # The digest comes from a server, and becomes a path.
    if not digest.isalnum():
        raise RemoteError("it returned wrong bytes")
    return f"{_BLOBS_FOLDER}/{digest}"


def open_remote(address: str) -> tuple[str, Remote]:
    """Return a name without secrets and the remote store at an address.

    Raises:
        RemoteError: the library is missing, or refuses the configuration.
    """
    name = public_name(address)
    scheme = urlsplit(address).scheme
    is_grpc = scheme in {"grpc", "grpcs"}
    try:
        if is_grpc:
            return name, _open_grpc(address)
        is_http = scheme in {"http", "https"}
        return name, ResultRemote(HttpRemote(address) if is_http else ObjectRemote(address))
    except ImportError:
        hint = _INSTALL.format(extra="reapi" if is_grpc else "remote")
        raise RemoteError(f"its library is not installed; hint: {hint}") from None
    except RemoteError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a library raises
        # A library's message about its configuration may contain secrets.
        raise RemoteError(f"its configuration is wrong ({type(error).__name__})") from None


def _open_grpc(address: str) -> Remote:
    from archsplit.cache.grpc_remote import GrpcRemote  # noqa: PLC0415 - see `HttpRemote`

    parts = urlsplit(address)
    user = _credentials(parts.hostname or "", parts.username or parts.password, parts.password)
    name, _, password = (user or "").partition(":")
    # A token may be written as the user, as in grpcs://TOKEN@host.
    return GrpcRemote(public_name(address), token=password or name)


def public_name(address: str) -> str:
    """Return an address without user, password and query."""
    parts = urlsplit(address)
    place = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{place}{parts.path}"


def _credentials(host: str, user: str | None, password: str | None) -> str | None:
    if user:
        return f"{unquote(user)}:{unquote(password or '')}"
    import netrc  # noqa: PLC0415

    try:
        found = netrc.netrc().authenticators(host)
    except (OSError, netrc.NetrcParseError):
        return None
    return f"{found[0]}:{found[2]}" if found else None
