"""Remote stores that speak HTTP as Bazel's remote caches do, and object stores."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from splitter.errors import ToolNotFoundError, UsageError

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from splitter.cache.remote import Remote

_INSTALL_HINT = "pip install 'archsplit[remote]'"
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
        self._base = _public(parts).rstrip("/")
        user = _credentials(parts.hostname or "", parts.username, parts.password)
        self._headers = urllib3.make_headers(basic_auth=user) if user else {}
        self._pool = urllib3.PoolManager(maxsize=4, retries=False)

    def get(self, path: str, *, seconds: float) -> bytes | None:
        """See `Remote.get`."""
        answer = self._request("GET", path, seconds)
        if answer.status == _MISSING:
            return None
        self._check(answer.status, _FOUND)
        return bytes(answer.data)

    def put(self, path: str, blob: bytes, *, seconds: float) -> None:
        """See `Remote.put`."""
        answer = self._request("PUT", path, seconds, blob)
        self._check(answer.status // 100, _FOUND // 100)

    def _request(self, method: str, path: str, seconds: float, body: bytes | None = None):  # type: ignore[no-untyped-def]  # noqa: ANN202 - a class of the library's
        address = f"{self._base}/{path}"
        return self._pool.request(
            method, address, body=body, headers=self._headers, timeout=seconds
        )

    def _check(self, found: int, expected: int) -> None:
        if found != expected:
            raise OSError(f"status {found}")


class ObjectRemote:
    """A bucket (S3, GCS, Azure) through obstore, which finds credentials as the clouds' own do."""

    def __init__(self, address: str) -> None:
        try:
            from obstore.store import from_url  # noqa: PLC0415 - see `HttpRemote`
        except ImportError:
            raise ToolNotFoundError(f"no library for {address}", hint=_INSTALL_HINT) from None
        self._store = from_url(address, config=None, retry_config={"max_retries": 0})

    def get(self, path: str, *, seconds: float) -> bytes | None:
        """See `Remote.get`; the deadline is the caller's."""
        del seconds
        import obstore  # noqa: PLC0415

        try:
            return bytes(obstore.get(self._store, path).bytes())
        except FileNotFoundError:
            return None

    def put(self, path: str, blob: bytes, *, seconds: float) -> None:
        """See `Remote.put`; the deadline is the caller's."""
        del seconds
        import obstore  # noqa: PLC0415

        obstore.put(self._store, path, blob)


def remote_at(address: str) -> tuple[str, Remote]:
    """The remote store at an address, and a name for it that may be printed.

    Raises:
        UsageError: it isn't an address.
        ToolNotFoundError: the library for it isn't installed.
    """
    parts = urlsplit(address)
    if not parts.scheme or not parts.netloc:
        raise UsageError(f"{address!r} is no address of a remote store, as https://host/cache")
    name = _public(parts)
    if parts.scheme in {"http", "https"}:
        try:
            return name, HttpRemote(address)
        except ImportError:
            raise ToolNotFoundError(f"no library for {name}", hint=_INSTALL_HINT) from None
    return name, ObjectRemote(address)


def _public(parts: SplitResult) -> str:
    """An address without what must not be printed."""
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"


def _credentials(host: str, user: str | None, password: str | None) -> str | None:
    if user:
        return f"{user}:{password or ''}"
    import netrc  # noqa: PLC0415

    try:
        found = netrc.netrc().authenticators(host)
    except (OSError, netrc.NetrcParseError):
        return None
    return f"{found[0]}:{found[2]}" if found else None
