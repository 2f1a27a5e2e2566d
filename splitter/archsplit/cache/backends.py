"""Storage backends of remote stores: Bazel's remote caches by HTTP and gRPC, and object stores."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from archsplit.cache.remote import MAX_ENTRY_BYTES, RemoteError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from urllib3 import BaseHTTPResponse

    from archsplit.cache.remote import Remote

_INSTALL = "pip install 'archsplit[{extra}]'"
_FOUND = 200
_MISSING = 404


class HttpRemote:
    """A store behind ``GET`` and ``PUT`` below an address.

    A user and a password in the address become HTTP's basic authentication; without them those of
    ``~/.netrc`` do.
    """

    def __init__(self, address: str) -> None:
        import urllib3  # noqa: PLC0415 - expensive, and rarely wanted

        parts = urlsplit(address)
        self._base = public_name(address).rstrip("/")
        user = _credentials(parts.hostname or "", parts.username, parts.password)
        self._headers = urllib3.make_headers(basic_auth=user) if user else {}
        self._pool = urllib3.PoolManager(maxsize=4, retries=False)

    def get(self, path: str, *, seconds: float) -> bytes | None:
        """Return the stored bytes, or None."""
        with self._request("GET", path, seconds) as response:
            if response.status == _MISSING:
                return None
            _check(response.status, _FOUND)
            blob = bytes(response.read(MAX_ENTRY_BYTES + 1))
            _check_size(len(blob))
            return blob

    def put(self, path: str, blob: bytes, *, seconds: float) -> None:
        """Store bytes."""
        with self._request("PUT", path, seconds, blob) as response:
            _check(response.status // 100, _FOUND // 100, shown=response.status)

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


def _check(found: int, expected: int, *, shown: int | None = None) -> None:
    if found != expected:
        raise RemoteError(f"its reply has status {shown or found}")


def _check_size(size: int) -> None:
    if size > MAX_ENTRY_BYTES:
        raise RemoteError("its reply is too long for an entry")


class ObjectRemote:
    """A bucket of S3, GCS or Azure, with the credentials of the clouds' own tools."""

    def __init__(self, address: str) -> None:
        from obstore.store import from_url  # noqa: PLC0415 - see `HttpRemote`

        self._store = from_url(address, config=None, retry_config={"max_retries": 0})

    def get(self, path: str, *, seconds: float) -> bytes | None:
        """Return the stored bytes, or None; the caller holds the deadline."""
        del seconds
        import obstore  # noqa: PLC0415

        try:
            found = obstore.get(self._store, path)
        except FileNotFoundError:
            return None
        _check_size(found.meta["size"])
        return bytes(found.bytes())

    def put(self, path: str, blob: bytes, *, seconds: float) -> None:
        """Store bytes; the caller holds the deadline."""
        del seconds
        import obstore  # noqa: PLC0415

        obstore.put(self._store, path, blob)


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
        return name, HttpRemote(address) if scheme in {"http", "https"} else ObjectRemote(address)
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
    token = user.partition(":")[2] if user else ""
    return GrpcRemote(public_name(address), token=token)


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
