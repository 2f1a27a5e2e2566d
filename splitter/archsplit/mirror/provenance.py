"""Provenance objects (PEP 740) of originals, from the index that published them.

In: a downloaded wheel. Out: its provenance object in a file of the same folder; while the wheel is
added to a static index, the object lies where that index looks for it. Each statement in an object
has the SHA-256 of the original, so an object is worth nothing for an edited wheel, and such a wheel
gets none. Form and digests are compared; signatures are not, because that takes the trusted root of
the signer, which installers have.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from archsplit.errors import ToolNotFoundError, VerifyError
from archsplit.index.static_model import PROVENANCE_SUFFIX
from archsplit.index.static_update import read_provenance
from archsplit.system.fs import output_errors, read_file, sha256, write_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from archsplit.mirror.model import ResolvedWheel

_PYPI_FILES, _PYPI_PAGES = "files.pythonhosted.org", "https://pypi.org/simple/"
_PREFIX = "upstream-"
"""Not the name that the static index takes: it may have no address to serve it from."""
_JSON = "application/vnd.pypi.simple.v1+json"
_TIMEOUTS = (5, 20)
"""Seconds for a connection, and between two parts of a reply: no installation waits for it."""
_MAX_BYTES = 64 << 20
"""The largest reply; the page of a project may have megabytes, an object has about 10 kB."""


def provenance_index(url: str, environment: Mapping[str, str]) -> str:
    """Return the index to ask about a wheel, or "" if none is known.

    Only the index that a wheel comes from is asked: the name of a private project is not another's
    business.

    Args:
        url: the address of the wheel.
        environment: the settings of pip and uv.
    """
    host = urlsplit(url).hostname
    named = environment.get("PIP_INDEX_URL") or environment.get("UV_DEFAULT_INDEX") or ""
    if host == _PYPI_FILES:
        return _PYPI_PAGES
    own = urlsplit(named)
    is_web = own.scheme in {"http", "https"}
    return f"{named.rstrip('/')}/" if is_web and host and own.hostname == host else ""


def provenance_path(wheel: Path) -> Path:
    """Return the place of a wheel's provenance object among the downloads."""
    return wheel.with_name(f"{_PREFIX}{wheel.name}{PROVENANCE_SUFFIX}")


@contextmanager
def offered_provenance(wheel: Path, url: str) -> Iterator[None]:
    """Put the object beside its wheel for a while, where the static index takes it.

    Args:
        url: the address of the index; without one nothing is done, because PEP 740 wants absolute
            links to objects.

    Raises:
        OutputError: the object can't be written.
    """
    source, beside = provenance_path(wheel), wheel.with_name(f"{wheel.name}{PROVENANCE_SUFFIX}")
    if not url or not source.exists():
        yield
        return
    write_file(beside, read_file(source))
    try:
        yield
    finally:
        beside.unlink(missing_ok=True)


def fetch_provenance(
    path: Path,
    wheel: ResolvedWheel,
    index: str,
    note: Callable[[str], None],
    unreachable: set[str],
) -> None:
    """Write the provenance object of a wheel beside it, if the index has one.

    A wheel without an object is as good as before, so a fault is a note and no error.

    Args:
        path: the downloaded wheel.
        index: the address of the index's pages, ending with a slash.
        note: takes the line about a fault.
        unreachable: indexes that were not reached; they are not asked again, and more are added.

    Raises:
        ToolNotFoundError: ``requests`` is missing.
        OutputError: the object can't be written.
    """
    place = provenance_path(path)
    if not index or index in unreachable or place.exists():
        return
    try:
        import requests  # noqa: PLC0415 - an extra
    except ImportError:
        raise ToolNotFoundError(
            "the package requests is not installed", hint="pip install 'archsplit[mirror]'"
        ) from None
    digest = sha256(path)
    try:
        with requests.Session() as session:
            url = _provenance_url(session, f"{index}{wheel.name}/", wheel.file, digest)
            content = _get(session, url).content if url else b""
        if not content:
            return
        write_file(place, content)
        read_provenance(_named(path), digest)
    except (requests.ConnectionError, requests.Timeout) as error:
        # The files may come from another host, and each wheel would wait for this one.
        unreachable.add(index)
        note(f"{index} is not asked for provenance objects: {type(error).__name__}")
    except (requests.RequestException, VerifyError, ValueError) as error:
        with output_errors(place):
            place.unlink(missing_ok=True)
        note(f"{wheel.file}: its provenance object is left out: {str(error).splitlines()[0]}")


def _provenance_url(session: Any, page: str, file: str, digest: str) -> str:  # noqa: ANN401
    """Return the address of a file's object by the index's page (PEP 691), or ""."""
    reply = _get(session, page)
    # An index without JSON has no field for it that is worth a parser of HTML.
    if _JSON not in reply.headers.get("Content-Type", ""):
        return ""
    for one in json.loads(reply.content).get("files", ()):
        if one.get("filename") == file and one.get("hashes", {}).get("sha256") == digest:
            # Null, or left out, where the file has none.
            address = one.get("provenance")
            return urljoin(reply.url, address) if address else ""
    return ""


def _get(session: Any, url: str) -> Any:  # noqa: ANN401 (of an optional package)
    reply = session.get(url, headers={"Accept": f"{_JSON}, text/html;q=0.1"}, timeout=_TIMEOUTS)
    reply.raise_for_status()
    if len(reply.content) > _MAX_BYTES:
        raise VerifyError(f"{url} has {len(reply.content)} bytes")
    return reply


def _named(wheel: Path) -> Path:
    """Return the path beside which `read_provenance` finds the object."""
    return wheel.with_name(f"{_PREFIX}{wheel.name}")


def publishers(path: Path, digest: str) -> tuple[Mapping[str, object], ...]:
    """Return the publishers that the object beside a wheel names; () without one.

    Raises:
        VerifyError: it is not a provenance object, or about another file.
    """
    content = read_provenance(_named(path), digest)
    bundles = json.loads(content)["attestation_bundles"] if content else ()
    return tuple(one["publisher"] for one in bundles)
