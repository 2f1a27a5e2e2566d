"""Downloads of the wheels of a resolution into a folder.

In: a wheel that a resolver chose. Out: its file, whose digest is the expected one. A download is
written to ``NAME.part``, and renamed when it is complete. So a killed run loses nothing, and a file
without ``.part`` is complete.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit, urlunsplit

from archsplit.errors import InputError, VerifyError
from archsplit.index.client import check_status, request_failure
from archsplit.index.retry import RetryableError
from archsplit.system.fs import input_errors, output_errors, sha256
from archsplit.system.units import BLOCK

if TYPE_CHECKING:
    import requests

    from archsplit.index.retry import RetryPolicy
    from archsplit.mirror.model import ResolvedWheel

_TIMEOUTS = (10.0, 60.0)
"""Seconds to connect, and between two packets."""
_CHUNK = 1 << 16
"""Bytes of a transfer that are lost when the connection breaks, at most."""
_PARTIAL = 206
_NO_SUCH_RANGE = 416


def public_url(url: str) -> str:
    """Return an address without credentials and query, for files that others read."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Downloader:
    """Fetches wheels into a folder; several threads may call it for different wheels.

    Attributes:
        retry: for connections that fail or break.
    """

    folder: Path
    retry: RetryPolicy = field(repr=False)

    def fetch(self, wheel: ResolvedWheel) -> Path:
        """Return the path of a wheel, downloaded unless it is there.

        Raises:
            VerifyError: the file has another digest than the resolution.
            InputError: a local file can't be read.
            IndexUnreachableError: the index can't be reached, or failed until the time limit.
            IndexRefusedError: the index refuses the file.
            OutputError: the file can't be written.
        """
        target = self.folder / wheel.file
        # Without a digest, an old file may differ from the one on the index.
        if target.exists() and wheel.sha256 and sha256(target) == wheel.sha256:
            return target
        part = self.folder / f"{wheel.file}.part"
        parts = urlsplit(wheel.url)
        if parts.scheme == "file":
            _copy_local(Path(unquote(parts.path)), part)
        elif parts.scheme in {"http", "https"}:
            self._download(wheel, part)
        else:
            raise InputError(
                f"{wheel.file}: {public_url(wheel.url)} is not the address of a wheel",
                hint="an address begins with https://, http:// or file://",
            )
        self._check(wheel, part)
        with output_errors(target):
            part.replace(target)
        return target

    def _check(self, wheel: ResolvedWheel, part: Path) -> None:
        found = sha256(part)
        if wheel.sha256 in {"", found}:
            return
        # Removed: it would be resumed, and could never become the right file.
        _remove(part)
        raise VerifyError(
            f"{wheel.file} from {public_url(wheel.url)} has the SHA-256 {found}, expected"
            f" {wheel.sha256}",
            hint="the index or the lock was changed: lock again, if you trust the new file",
        )

    def _download(self, wheel: ResolvedWheel, part: Path) -> None:
        # Without a digest, the part may be of another file of that name.
        if not wheel.sha256:
            _remove(part)
        resumed = part.exists()
        what = f"downloading {public_url(wheel.url)}"
        self.retry.keep_trying(what, lambda: self._receive(wheel.url, part))
        # The part was of another file of that name: download the whole file.
        if resumed and sha256(part) != wheel.sha256:
            _remove(part)
            self.retry.keep_trying(what, lambda: self._receive(wheel.url, part))

    def _receive(self, url: str, part: Path) -> None:
        """Download the rest of a file.

        Raises:
            RetryableError: the connection failed or broke; the received bytes are kept.
            IndexRefusedError: the server refuses the file.
        """
        import requests  # noqa: PLC0415 - an extra

        have = part.stat().st_size if part.exists() else 0
        # A range counts bytes of the file, not of a compressed transfer.
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
        try:
            with requests.get(url, headers=headers, timeout=_TIMEOUTS, stream=True) as reply:
                # The part was complete: no bytes are left to send.
                if have and reply.status_code == _NO_SUCH_RANGE:
                    return
                check_status(reply, public_url(url), self.retry)
                # A server that doesn't support ranges sends the whole file.
                _write_body(reply, part, append=reply.status_code == _PARTIAL)
        except requests.RequestException as error:
            raise request_failure(error, public_url(url)) from None


def _remove(part: Path) -> None:
    with output_errors(part):
        part.unlink(missing_ok=True)


def _copy_local(source: Path, part: Path) -> None:
    with input_errors(source):
        old = source.open("rb")
    with old, output_errors(part), part.open("wb") as new:
        shutil.copyfileobj(old, new, BLOCK)


def _write_body(reply: requests.Response, part: Path, *, append: bool) -> None:
    expected, size = reply.headers.get("Content-Length", ""), 0
    with output_errors(part):
        # Without a buffer, which closing would try to write to a full disk once more.
        file = part.open("ab" if append else "wb", buffering=0)
    with file:
        for block in reply.iter_content(_CHUNK):
            rest = memoryview(block)
            # Around the write only: an error of the connection is an OSError too.
            with output_errors(part):
                while rest:
                    rest = rest[file.write(rest) :]
            size += len(block)
    if expected.isdecimal() and size != int(expected):
        raise RetryableError(f"received {size} of {expected} bytes")
