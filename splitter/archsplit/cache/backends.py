"""Remote stores that speak HTTP as Bazel's remote caches do, and object stores."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from archsplit.cache.remote import MAX_ENTRY_BYTES, RemoteError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from urllib3 import BaseHTTPResponse

    from archsplit.cache.remote import Remote

_INSTALL = "pip install 'archsplit[remote]'"
_FOUND = 200
_MISSING = 404


class HttpRemote:
    """``GET`` and ``PUT`` below an address; what is behind it may be any server that keeps bytes.

    A user and a password in the address are sent as HTTP's basic authentication; without them
    ``~/.netrc`` is looked at.
    """

    def __init__(self, address: str) -> None:
        import urllib3  # noqa: PLC0415 - expensive, and rarely wanted

        parts = urlsplit(address)
        self._base = public_name(address).rstrip("/")
        user = _credentials(parts.hostname or "", parts.username, parts.password)
        self._headers = urllib3.make_headers(basic_auth=user) if user else {}
        self._pool = urllib3.PoolManager(maxsize=4, retries=False)

    def get(self, path: str, *, seconds: float) -> bytes | None:
        """See `Remote.get`."""
        with self._answer("GET", path, seconds) as answer:
            if answer.status == _MISSING:
                return None
            _check(answer.status, _FOUND)
            blob = bytes(answer.read(MAX_ENTRY_BYTES + 1))
            _check_size(len(blob))
            return blob

    def put(self, path: str, blob: bytes, *, seconds: float) -> None:
        """See `Remote.put`."""
        with self._answer("PUT", path, seconds, blob) as answer:
            _check(answer.status // 100, _FOUND // 100, shown=answer.status)

    @contextlib.contextmanager
    def _answer(
        self, method: str, path: str, seconds: float, body: bytes | None = None
    ) -> Iterator[BaseHTTPResponse]:
        answer = self._pool.request(
            method,
            f"{self._base}/{path}",
            body=body,
            headers=self._headers,
            timeout=seconds,
            # What a server sends without end must not fill memory.
            preload_content=False,
        )
        try:
            yield answer
        except BaseException:
            answer.close()
            raise
        # What has been read to its end leaves a connection that can be used again.
        answer.drain_conn()
        answer.release_conn()


def _check(found: int, expected: int, *, shown: int | None = None) -> None:
    if found != expected:
        raise RemoteError(f"it answers with status {shown or found}")


def _check_size(size: int) -> None:
    if size > MAX_ENTRY_BYTES:
        raise RemoteError("what it has is too long to be an entry")


class ObjectRemote:
    """A bucket (S3, GCS, Azure) through obstore, which finds credentials as the clouds' own do."""

    def __init__(self, address: str) -> None:
        from obstore.store import from_url  # noqa: PLC0415 - see `HttpRemote`

        self._store = from_url(address, config=None, retry_config={"max_retries": 0})

    def get(self, path: str, *, seconds: float) -> bytes | None:
        """See `Remote.get`; the deadline is the caller's."""
        del seconds
        import obstore  # noqa: PLC0415

        try:
            found = obstore.get(self._store, path)
        except FileNotFoundError:
            return None
        _check_size(found.meta["size"])
        return bytes(found.bytes())

    def put(self, path: str, blob: bytes, *, seconds: float) -> None:
        """See `Remote.put`; the deadline is the caller's."""
        del seconds
        import obstore  # noqa: PLC0415

        obstore.put(self._store, path, blob)


def open_remote(address: str) -> tuple[str, Remote]:
    """The remote store at an address, and a name for it that may be printed.

    Raises:
        RemoteError: there is no library for it, or that refuses how it's configured.
    """
    name = public_name(address)
    is_http = address.startswith(("http://", "https://"))
    try:
        return name, HttpRemote(address) if is_http else ObjectRemote(address)
    except ImportError:
        raise RemoteError(f"there is no library for it; {_INSTALL}") from None
    except Exception as error:  # noqa: BLE001 - whatever a library raises
        # What a library says of its configuration may have secrets in it.
        raise RemoteError(f"it is configured wrongly ({type(error).__name__})") from None


def public_name(address: str) -> str:
    """An address without what must not be printed."""
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
