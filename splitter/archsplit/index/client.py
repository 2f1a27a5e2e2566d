"""A package index, as records and as a client of the simple repository API.

In comes the address of uploads or of pages; out come projects with their files. Pages are read as
JSON where the index has it (PEP 691), and as HTML elsewhere (PEP 503).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping  # noqa: TC003 - a record's fields
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import ValidationError

from archsplit.errors import IndexRefusedError, IndexUnreachableError, ToolNotFoundError, UsageError
from archsplit.index.retry import RetryableError, is_retryable, retry_after_seconds
from archsplit.system.fs import hash_blocks
from archsplit.system.schema import schema_faults

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    import requests
    from pypi_simple import DistributionPackage

    from archsplit.index.retry import RetryPolicy

_STRONGEST = ("sha512", "sha384", "sha256", "blake2b", "sha1", "md5")

_TIMEOUTS = (10.0, 30.0)
"""Seconds to connect, and between two packets."""

_BLOCK = 1 << 18
_MISSING = {404, 410}
_FAULT = 400

# What was uploaded a moment ago must not be hidden by what was asked before.
_FRESH = {"Cache-Control": "no-cache, max-age=0", "Pragma": "no-cache"}

_PUBLIC = {
    ("upload.pypi.org", "/legacy"): "https://pypi.org/simple/",
    ("test.pypi.org", "/legacy"): "https://test.pypi.org/simple/",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFile:
    """A file, as the page of its project describes it.

    Attributes:
        digests: by hashlib's names, 64 hexadecimal digits for ``sha256``; some indexes give none.
        size: in bytes, where the index says so (PEP 700).
        uploaded: the time, where the index says so.
        yanked: why, or None where it isn't; "" where nobody said why.
        requires_python: such as ``>=3.10``; "" for any.
        metadata: the digests of its PEP 658 file; None where there is none.
        is_attested: whether there is a PEP 740 provenance.
    """

    name: str
    url: str
    digests: Mapping[str, str]
    size: int | None = None
    uploaded: datetime | None = None
    yanked: str | None = None
    requires_python: str = ""
    metadata: Mapping[str, str] | None = None
    metadata_url: str = ""
    is_attested: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPage:
    """A project's page.

    Attributes:
        exists: whether the index knows the name.
        files: by their names.
        status: PEP 792's, where it is something else than active.
    """

    name: str
    exists: bool
    files: Mapping[str, IndexFile] = field(default_factory=dict, repr=False)
    status: str = ""

    @property
    def size(self) -> int:
        """Bytes of all files with a size on the page."""
        return sum(file.size or 0 for file in self.files.values())

    @property
    def unmeasured(self) -> int:
        """Number of files without a size on the page."""
        return sum(file.size is None for file in self.files.values())

    @property
    def created(self) -> datetime | None:
        """Time of the first upload, if the index lists it."""
        times = [file.uploaded for file in self.files.values() if file.uploaded is not None]
        return min(times, default=None)


def sha256_hex(blocks: Iterable[bytes], algorithm: str = "sha256") -> str:
    """The digest of a content, in hexadecimal digits."""
    return hash_blocks(blocks, algorithm=algorithm)[0].hex()


def comparable(digests: Mapping[str, str]) -> str | None:
    """Return the strongest digest algorithm that an index used, or None."""
    return next((name for name in _STRONGEST if name in digests), None)


class Index:
    """The simple repository API below an address.

    ``~/.netrc`` is looked at for credentials, as pip and uv do.

    Args:
        address: ends with a slash.
        patience: how long a page may be unavailable.
    """

    def __init__(self, address: str, patience: RetryPolicy) -> None:
        self.address = address
        self._patience = patience
        self._session = _session()

    def project(self, name: str) -> IndexPage:
        """Return the current page of a project.

        Raises:
            IndexUnreachableError: it went on failing, or is not of an index.
            IndexRefusedError: it may not be read.
        """
        url = f"{self.address}{name}/"
        answer = self._patience.keep_trying(f"reading {url}", lambda: self._page(url))
        if answer is None:
            return IndexPage(name=name, exists=False)
        return _project(answer, name)

    def projects(self, names: Iterable[str]) -> dict[str, IndexPage]:
        """Return the current pages of several projects."""
        return {name: self.project(name) for name in names}

    def is_there(self) -> bool:
        """Return True if there is an index at the address.

        Raises:
            IndexUnreachableError: nothing answers.
            IndexRefusedError: it may not be read.
        """
        what = f"reading {self.address}"
        return self._patience.keep_trying(what, lambda: self._page(self.address)) is not None

    def document(self, url: str) -> object:
        """Return a JSON document; None where there is none.

        Raises:
            IndexUnreachableError: nothing answers.
        """
        what, accept = f"reading {url}", "application/json"
        answer = self._patience.keep_trying(what, lambda: self._page(url, accept))
        if answer is None:
            return None
        try:
            document: object = answer.json()
        except ValueError:
            return None
        return document

    def digest(self, url: str) -> str:
        """Return the SHA-256 of the content at an address, without keeping it.

        Raises:
            IndexUnreachableError: it went on failing, or isn't there though a page names it.
            IndexRefusedError: it may not be read.
        """
        return self._patience.keep_trying(
            f"downloading {url}", lambda: sha256_hex(self._blocks(url))
        )

    def size(self, url: str) -> int | None:
        """Return the bytes of a file; None where the index doesn't list them.

        Raises:
            IndexUnreachableError: it went on failing.
            IndexRefusedError: it may not be read.
        """
        return self._patience.keep_trying(f"measuring {url}", lambda: self._length(url))

    def _length(self, url: str) -> int | None:
        import requests  # noqa: PLC0415 - see _session

        try:
            answer = requests.head(url, timeout=_TIMEOUTS, allow_redirects=True)
        except requests.RequestException as error:
            raise _failure(error, url) from None
        self._check(answer, url)
        length = answer.headers.get("Content-Length", "")
        return int(length) if length.isdecimal() else None

    def _page(self, url: str, accept: str = "") -> requests.Response | None:
        """Return a page; None where this host has none."""
        import requests  # noqa: PLC0415 - see _session

        headers = {"Accept": accept or _accepted(), **_FRESH}
        try:
            answer = self._session.get(url, timeout=_TIMEOUTS, headers=headers)
        except requests.TooManyRedirects:
            return None
        except requests.RequestException as error:
            raise _failure(error, url) from None
        # pypiserver sends who asks for a project that it hasn't got to the public index.
        if answer.status_code in _MISSING or answer.is_redirect:
            return None
        self._check(answer, url)
        return answer

    def _blocks(self, url: str) -> Iterator[bytes]:
        import requests  # noqa: PLC0415 - see _session

        try:
            with requests.get(url, timeout=_TIMEOUTS, headers=_FRESH, stream=True) as answer:
                if answer.status_code in _MISSING:
                    raise RetryableError(f"{answer.status_code} {answer.reason}")
                self._check(answer, url)
                yield from answer.iter_content(_BLOCK)
        except requests.RequestException as error:
            raise _failure(error, url) from None

    def _check(self, answer: requests.Response, url: str) -> None:
        status = answer.status_code
        if is_retryable(status):
            wait = retry_after_seconds(answer.headers, self._patience.clock.now())
            raise RetryableError(f"{status} {answer.reason}", wait=wait)
        if status >= _FAULT:
            raise IndexRefusedError(
                f"{url}: {status} {answer.reason}",
                hint="where reading needs a password, write it into ~/.netrc",
            )


def _session() -> requests.Session:
    try:
        import pypi_simple  # noqa: F401, PLC0415 - expensive, and wanted by one verb alone
        import requests  # noqa: PLC0415 - the same
    except ImportError as error:
        raise ToolNotFoundError(
            f"no {error.name} to read the index with", hint="pip install 'archsplit[publish]'"
        ) from None

    class OneHost(requests.Session):
        """Follows redirects on the same host alone: another one is another index."""

        def get_redirect_target(self, resp: requests.Response) -> str | None:
            target = super().get_redirect_target(resp)
            here, there = urlsplit(str(resp.url)), urlsplit(target or "")
            stays = not there.hostname or (there.hostname, there.port) == (here.hostname, here.port)
            return target if stays else None

    return OneHost()


def _accepted() -> str:
    from pypi_simple import ACCEPT_JSON_PREFERRED  # noqa: PLC0415 - see _session

    return ACCEPT_JSON_PREFERRED


def _project(answer: requests.Response, name: str) -> IndexPage:
    import pypi_simple as simple  # noqa: PLC0415 - see _session

    try:
        with warnings.catch_warnings():
            # A newer minor version of the format has more fields, and all that is used here.
            warnings.simplefilter("ignore", simple.UnexpectedRepoVersionWarning)
            page = simple.ProjectPage.from_response(answer, name)
    except (ValueError, simple.UnsupportedContentTypeError) as error:
        said = schema_faults(error) if isinstance(error, ValidationError) else str(error)
        raise IndexUnreachableError(f"{answer.url} is not an index's page: {said}") from None
    status = "" if page.status is None else str(page.status)
    files = {one.filename: _served(one) for one in page.packages}
    return IndexPage(
        name=name, exists=True, files=files, status="" if status == "active" else status
    )


def _served(one: DistributionPackage) -> IndexFile:
    return IndexFile(
        name=one.filename,
        url=one.url,
        digests=dict(one.digests),
        size=one.size,
        uploaded=one.upload_time,
        yanked=(one.yanked_reason or "") if one.is_yanked else None,
        requires_python=one.requires_python or "",
        metadata=(one.metadata_digests or {}) if one.has_metadata else None,
        metadata_url=one.metadata_url,
        is_attested=one.provenance_url is not None,
    )


def _failure(error: requests.RequestException, url: str) -> RetryableError | IndexUnreachableError:
    """Return a fault of the library as an exception, temporary or final."""
    transient = {
        "ConnectTimeout": "no connection in time",
        "ReadTimeout": "no answer in time",
        "ConnectionError": "the connection failed",
        "ProxyError": "the proxy doesn't answer, or refuses",
        "ChunkedEncodingError": "the connection broke",
    }
    name = type(error).__name__
    if name in transient:
        return RetryableError(transient[name])
    others = {
        "SSLError": "its certificate isn't trusted",
        "TooManyRedirects": "it leads in circles",
    }
    return IndexUnreachableError(f"can't read {url}: {others.get(name, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A package index, as it is written and as it is read.

    Attributes:
        upload: where files are sent; without credentials.
        index: the simple repository API of the same index; ends with a slash.
        is_public: whether it is PyPI or TestPyPI, whose rules are known.
    """

    upload: str
    index: str
    is_public: bool


def find_repository(upload: str, index: str | None, patience: RetryPolicy) -> Repository:
    """Return the repository of an upload address, with the address of its pages.

    Args:
        upload: where files are sent.
        index: where they are read, if somebody says so.

    Raises:
        UsageError: there is no index where one would be, or the address has a password in it.
        IndexUnreachableError: nothing answers.
    """
    parts = urlsplit(upload)
    known = _PUBLIC.get((parts.hostname or "", parts.path.rstrip("/")))
    return Repository(
        upload=upload,
        index=index_address(index) if index else known or _derived(upload, patience),
        is_public=known is not None,
    )


def index_address(address: str) -> str:
    """Return an index's address, ending with a slash.

    Raises:
        UsageError: it isn't one, or has a password in it.
    """
    parts = urlsplit(address)
    if parts.username or parts.password:
        raise UsageError(
            "the address of an index has a password in it, which every process here can see",
            hint="write them into ~/.netrc, which pip and uv read too",
        )
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"{address!r} is not the address of an index, as https://host/simple/")
    return address.rstrip("/") + "/"


def _derived(upload: str, patience: RetryPolicy) -> str:
    """Return the address of the pages of most indexes: ``simple/`` below the address of uploads.

    That is so for pypiserver, Artifactory, Nexus, GitLab, Gitea, CodeArtifact and Artifact
    Registry. devpi names the address itself.
    """
    base = upload.rstrip("/") + "/"
    named = _named_by_devpi(base, patience)
    address = named or f"{base}simple/"
    if not Index(address, patience).is_there():
        raise UsageError(
            f"{upload} takes uploads, but there is no index at {address}",
            hint="say with --index-url where pip installs from",
        )
    return address


def _named_by_devpi(base: str, patience: RetryPolicy) -> str | None:
    """Source: https://devpi.net/docs/devpi/devpi/stable/+d/curl.html, ``+api``."""
    try:
        document = Index(base, patience).document(f"{base}+api")
    except IndexRefusedError:
        return None
    result = document.get("result") if isinstance(document, dict) else None
    address = result.get("simpleindex") if isinstance(result, dict) else None
    return address.rstrip("/") + "/" if isinstance(address, str) else None
