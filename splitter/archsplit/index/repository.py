"""Where uploads go, and where the same index is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from archsplit.errors import IndexRefusedError, UsageError
from archsplit.index.client import Index

if TYPE_CHECKING:
    from archsplit.index.retry import RetryPolicy

_PUBLIC = {
    ("upload.pypi.org", "/legacy"): "https://pypi.org/simple/",
    ("test.pypi.org", "/legacy"): "https://test.pypi.org/simple/",
}


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
    """Find out where what is uploaded can be read.

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
    """An index's address as somebody gave it, ending with a slash.

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
    """Where most indexes have their pages: below the address for uploads, at ``simple/``.

    So do pypiserver, Artifactory, Nexus, GitLab, Gitea, CodeArtifact and Artifact Registry. devpi
    says by itself where it has them.
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
