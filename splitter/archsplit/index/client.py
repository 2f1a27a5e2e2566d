"""A package index, as records and as a client of the simple repository API.

In comes the address of uploads or of pages; out come projects with their files. Pages are read as
JSON where the index has it (PEP 691), and as HTML elsewhere (PEP 503).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping  # noqa: TC003 - a record's fields
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from pydantic import ValidationError

from archsplit.errors import IndexRefusedError, IndexUnreachableError, UsageError
from archsplit.index.retry import RetryableError, is_retryable, retry_after_seconds
from archsplit.system.fs import hex_digest
from archsplit.system.installers import check_extra
from archsplit.system.schema import schema_faults

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import requests
    from packaging.tags import Tag
    from packaging.utils import BuildTag, NormalizedName
    from packaging.version import Version
    from pypi_simple import DistributionPackage

    from archsplit.index.retry import RetryPolicy

_TIMEOUTS = (10.0, 30.0)
"""Seconds to connect, and between two packets."""

_BLOCK = 1 << 18
_MISSING = {404, 410}
_FAULT = 400

# A cached page from before the upload would hide the new file.
_FRESH = {"Cache-Control": "no-cache, max-age=0", "Pragma": "no-cache"}

_PUBLIC = {
    ("upload.pypi.org", "/legacy"): "https://pypi.org/simple/",
    ("test.pypi.org", "/legacy"): "https://test.pypi.org/simple/",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFile:
    """A file, as the page of its project describes it.

    Attributes:
        digests: hexadecimal, by hashlib's names; empty for some indexes.
        size: in bytes, if the index lists it (PEP 700).
        yanked: the reason, "" without a reason, None for a file that is not yanked.
        requires_python: such as ``>=3.10``; "" for any.
        metadata: the digests of its PEP 658 file, or None.
        is_attested: True if the file has a PEP 740 provenance.
    """

    name: str
    url: str
    digests: Mapping[str, str]
    size: int | None = None
    yanked: str | None = None
    requires_python: str = ""
    metadata: Mapping[str, str] | None = None
    metadata_url: str = ""
    is_attested: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPage:
    """A project's page.

    Attributes:
        exists: False if the index has no project of that name.
        files: by file name.
        status: of PEP 792; "" for an active project.
    """

    name: str
    exists: bool
    files: Mapping[str, IndexFile] = field(default_factory=dict, repr=False)
    status: str = ""

    def find(self, file: str) -> IndexFile | None:
        """Return the file that has a name, compared as an index does: by version and tags.

        The order of tags in a name means nothing to an index, so both spellings are one file.
        """
        if (exact := self.files.get(file)) is not None:
            return exact
        wanted = wheel_key(file)
        same = (one for one in self.files.values() if wheel_key(one.name) == wanted)
        return None if wanted is None else next(same, None)

    @property
    def size(self) -> int:
        """Bytes of all files with a size on the page."""
        return sum(file.size or 0 for file in self.files.values())

    @property
    def unmeasured(self) -> int:
        """Number of files without a size on the page."""
        return sum(file.size is None for file in self.files.values())


@lru_cache(maxsize=1 << 14)
def wheel_key(file: str) -> tuple[NormalizedName, Version, BuildTag, frozenset[Tag]] | None:
    """Return the parts of a wheel's file name that an index compares; None for another file."""
    try:
        return parse_wheel_filename(file)
    except InvalidWheelFilename:
        return None


class Index:
    """Simple repository API below an address.

    Credentials are read from ``~/.netrc``, as pip and uv do.

    Args:
        address: ends with a slash.
        retry: for each request.
    """

    def __init__(self, address: str, retry: RetryPolicy) -> None:
        self.address = address
        self._retry = retry
        self._session = _session()

    def project(self, name: str) -> IndexPage:
        """Return the current page of a project.

        Raises:
            IndexUnreachableError: each attempt failed, or the page is not an index's.
            IndexRefusedError: the index denies access.
        """
        url = f"{self.address}{name}/"
        response = self._retry.keep_trying(f"reading {url}", lambda: self._page(url))
        # A missing project is an empty page, not an error: its first upload creates it.
        if response is None:
            return IndexPage(name=name, exists=False)
        return _parse_page(response, name)

    def projects(self, names: Iterable[str]) -> dict[str, IndexPage]:
        """Return the current pages of several projects."""
        return {name: self.project(name) for name in names}

    def is_there(self) -> bool:
        """Return True if there is an index at the address.

        Raises:
            IndexUnreachableError: no server replies.
            IndexRefusedError: the index denies access.
        """
        what = f"reading {self.address}"
        return self._retry.keep_trying(what, lambda: self._page(self.address)) is not None

    def document(self, url: str) -> object:
        """Return the JSON document at an address, or None.

        Raises:
            IndexUnreachableError: no server replies.
        """
        what, accept = f"reading {url}", "application/json"
        response = self._retry.keep_trying(what, lambda: self._page(url, accept))
        # devpi's API is only tried: most servers have nothing at that address.
        if response is None:
            return None
        try:
            document: object = response.json()
        # Another server may reply with an HTML page to any address.
        except ValueError:
            return None
        return document

    def digest(self, url: str) -> str:
        """Return the SHA-256 of the content at an address, without keeping it.

        Raises:
            IndexUnreachableError: each attempt failed, or a listed file is missing.
            IndexRefusedError: the index denies access.
        """
        return self._retry.keep_trying(f"downloading {url}", lambda: hex_digest(self._blocks(url)))

    def read(self, url: str) -> bytes:
        """Return the content at an address.

        Raises:
            IndexUnreachableError: each attempt failed, or a listed file is missing.
            IndexRefusedError: the index denies access.
        """
        return self._retry.keep_trying(f"reading {url}", lambda: b"".join(self._blocks(url)))

    def _page(self, url: str, accept: str = "") -> requests.Response | None:
        """Return a page, or None if this host has none."""
        import requests  # noqa: PLC0415 - see _session
        from pypi_simple import ACCEPT_JSON_PREFERRED  # noqa: PLC0415 - see _session

        headers = {"Accept": accept or ACCEPT_JSON_PREFERRED, **_FRESH}
        try:
            response = self._session.get(url, timeout=_TIMEOUTS, headers=headers)
        # A circle of redirects has no page at its end.
        except requests.TooManyRedirects:
            return None
        except requests.RequestException as error:
            raise request_failure(error, url) from None
        # For a missing project pypiserver redirects to the public index, which is another index.
        if response.status_code in _MISSING or response.is_redirect:
            return None
        check_status(response, url, self._retry)
        return response

    def _blocks(self, url: str) -> Iterator[bytes]:
        import requests  # noqa: PLC0415 - see _session

        try:
            with requests.get(url, timeout=_TIMEOUTS, headers=_FRESH, stream=True) as response:
                # Retryable: a CDN may serve a page before the new file that the page lists.
                if response.status_code in _MISSING:
                    raise RetryableError(f"{response.status_code} {response.reason}")
                check_status(response, url, self._retry)
                yield from response.iter_content(_BLOCK)
        except requests.RequestException as error:
            raise request_failure(error, url) from None


def check_status(response: requests.Response, url: str, retry: RetryPolicy) -> None:
    """Refuse a response without the content.

    Raises:
        RetryableError: a later attempt may have it.
        IndexRefusedError: the server refuses it.
    """
    status = response.status_code
    # Checked before the general case: 429 and 5xx are temporary, other codes from 400 are not.
    if is_retryable(status):
        wait = retry_after_seconds(response.headers, retry.clock.now())
        raise RetryableError(f"{status} {response.reason}", wait=wait)
    if status >= _FAULT:
        raise IndexRefusedError(
            f"{url}: {status} {response.reason}",
            hint="where reading needs a password, write it into ~/.netrc",
        )


def _session() -> requests.Session:
    check_extra("publish", "pypi_simple")
    import requests  # noqa: PLC0415 - expensive, and needed by few verbs

    class OneHost(requests.Session):
        """A session that follows redirects on the same host only: another host is another index."""

        def get_redirect_target(self, resp: requests.Response) -> str | None:
            target = super().get_redirect_target(resp)
            old, new = urlsplit(str(resp.url)), urlsplit(target or "")
            is_same_host = not new.hostname or (new.hostname, new.port) == (old.hostname, old.port)
            return target if is_same_host else None

    return OneHost()


def _parse_page(response: requests.Response, name: str) -> IndexPage:
    import pypi_simple as simple  # noqa: PLC0415 - see _session

    try:
        with warnings.catch_warnings():
            # A newer minor version of the format has more fields, and all that is used here.
            warnings.simplefilter("ignore", simple.UnexpectedRepoVersionWarning)
            page = simple.ProjectPage.from_response(response, name)
    except (ValueError, simple.UnsupportedContentTypeError) as error:
        fault = schema_faults(error) if isinstance(error, ValidationError) else str(error)
        raise IndexUnreachableError(f"{response.url} is not an index's page: {fault}") from None
    status = "" if page.status is None else str(page.status)
    files = {one.filename: _parse_file(one) for one in page.packages}
    return IndexPage(
        name=name, exists=True, files=files, status="" if status == "active" else status
    )


def _parse_file(one: DistributionPackage) -> IndexFile:
    return IndexFile(
        name=one.filename,
        url=one.url,
        digests=dict(one.digests),
        # Some servers send null.
        size=one.size,
        # PEP 592 allows a yank without a reason, so "" and None differ.
        yanked=(one.yanked_reason or "") if one.is_yanked else None,
        requires_python=one.requires_python or "",
        metadata=(one.metadata_digests or {}) if one.has_metadata else None,
        metadata_url=one.metadata_url,
        is_attested=one.provenance_url is not None,
    )


def request_failure(
    error: requests.RequestException, url: str
) -> RetryableError | IndexUnreachableError:
    """Return an error of requests as a retryable or a final exception."""
    transient = {
        "ConnectTimeout": "no connection in time",
        "ReadTimeout": "no reply in time",
        "ConnectionError": "no connection: the server is down, or this machine is offline",
        "ProxyError": "the proxy doesn't reply, or refuses",
        "ChunkedEncodingError": "the connection broke",
    }
    name = type(error).__name__
    if name in transient:
        return RetryableError(transient[name])
    others = {
        "SSLError": "its certificate isn't trusted",
        "TooManyRedirects": "it redirects in a loop",
    }
    # A company's proxy may have a certificate of its own, which pip finds in its settings.
    bundle = "export REQUESTS_CA_BUNDLE=FILE, with the certificates to trust"
    hint = bundle if name == "SSLError" else None
    # No retry: a certificate or an address doesn't become valid in minutes.
    return IndexUnreachableError(f"can't read {url}: {others.get(name, name)}", hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A package index: the address for uploads, and the address of its pages.

    Attributes:
        upload: the address for uploads, without credentials.
        index: the simple repository API of the same index; ends with a slash.
        is_public: True for PyPI and TestPyPI.
    """

    upload: str
    index: str
    is_public: bool


def find_repository(upload: str, index: str | None, retry: RetryPolicy) -> Repository:
    """Return the repository of an upload address, with the address of its pages.

    Args:
        upload: the address for uploads.
        index: the address of the pages, if the user named one.

    Raises:
        UsageError: no index is at the derived address, or the address has a password in it.
        IndexUnreachableError: no server replies.
    """
    parts = urlsplit(upload)
    public = _PUBLIC.get((parts.hostname or "", parts.path.rstrip("/")))
    return Repository(
        upload=upload,
        index=index_address(index) if index else public or _derive_index_address(upload, retry),
        is_public=public is not None,
    )


def index_address(address: str) -> str:
    """Return an index's address, ending with a slash.

    Raises:
        UsageError: the address is not one of an index, or has a password in it.
    """
    parts = urlsplit(address)
    # Arguments of a process are visible to all users of the machine.
    if parts.username or parts.password:
        raise UsageError(
            "the address of an index has a password in it, which every process here can see",
            hint="write them into ~/.netrc, which pip and uv read too",
        )
    # A name from .pypirc is not enough here: pip takes addresses only.
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"{address!r} is not the address of an index, as https://host/simple/")
    return address.rstrip("/") + "/"


def _derive_index_address(upload: str, retry: RetryPolicy) -> str:
    """Return the address of the pages of most indexes: ``simple/`` below the address of uploads.

    This fits pypiserver, Artifactory, Nexus, GitLab, Gitea, CodeArtifact and Artifact
    Registry. devpi lists the address in its API.
    """
    base = upload.rstrip("/") + "/"
    from_devpi = _read_devpi_address(base, retry)
    address = from_devpi or f"{base}simple/"
    if not Index(address, retry).is_there():
        raise UsageError(
            f"{upload} takes uploads, but {address} is not an index",
            hint="name the index that pip installs from with --index-url",
        )
    return address


def _read_devpi_address(base: str, retry: RetryPolicy) -> str | None:
    """Return the address of the pages that a devpi server lists, or None.

    Source: https://devpi.net/docs/devpi/devpi/stable/+d/curl.html, ``+api``.
    """
    try:
        document = Index(base, retry).document(f"{base}+api")
    # A server with a password for unknown addresses is not a devpi.
    except IndexRefusedError:
        return None
    result = document.get("result") if isinstance(document, dict) else None
    address = result.get("simpleindex") if isinstance(result, dict) else None
    # Names are appended to the address, and some servers redirect an address without the slash.
    return address.rstrip("/") + "/" if isinstance(address, str) else None
