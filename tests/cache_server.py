"""A small HTTP cache server for tests, which can be made to misbehave in each way that matters.

It accepts what bazel-remote accepts: below ``ac/`` only results of actions whose digests are valid,
which it stores with a field of its own, and returns while their blobs exist; below ``cas/`` only
blobs under their digest. Source: https://github.com/buchgr/bazel-remote, ``utils/validate`` and
``GetValidatedActionResult``, read in November 2026.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from archsplit.formats.reapi_messages import decode_message, encode_message

if TYPE_CHECKING:
    from collections.abc import Iterator


class CacheServer(ThreadingHTTPServer):
    """Keeps bytes by path.

    Attributes:
        mood: "well", "garbage", "hangs", "drips", "fails", "cuts" (what it sends), "endless", or
            "full" (nothing more can be stored).
        checks_blobs: False to return results whose blobs are gone.
        delay: seconds before each answer.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.kept: dict[str, bytes] = {}
        self.authorizations: list[str | None] = []
        self.mood = "well"
        self.checks_blobs = True
        self.delay = 0.0

    def handle_error(self, request: object, client_address: object) -> None:
        # A client that no longer waits is what many tests are about.
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/cache"


class _Handler(BaseHTTPRequestHandler):
    server: CacheServer

    def do_GET(self) -> None:
        self.server.authorizations.append(self.headers.get("Authorization"))
        if self._misbehaves():
            return
        time.sleep(self.server.delay)
        content = self.server.kept.get(self.path)
        if content and not self._has_blobs(content):
            content = None
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write(content or b"")

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self._misbehaves():
            return
        time.sleep(self.server.delay)
        if self.server.mood == "full":
            self.send_error(507)
            return
        stored = self._accepted(content)
        if stored is None:
            self.send_error(400)
            return
        self.server.kept[self.path] = stored
        self.send_response(204)
        self.end_headers()

    def _accepted(self, content: bytes) -> bytes | None:
        """Return the bytes to store; None for an invalid request."""
        folder, kind, name = self.path.rsplit("/", 2)
        if not folder or not re.fullmatch("[0-9a-f]{64}", name):
            return None
        if kind == "cas":
            return content if hashlib.sha256(content).hexdigest() == name else None
        files = _output_files(content)
        if not files or not all(map(_is_valid, files)):
            return None
        result = decode_message("ActionResult", content)
        result.execution_metadata.worker = self.client_address[0]
        return encode_message(result)

    def _has_blobs(self, content: bytes) -> bool:
        if not self.server.checks_blobs:
            return True
        base, kind, _ = self.path.rsplit("/", 2)
        apart = [file for file in _output_files(content) if kind == "ac" and not file.contents]
        return all(f"{base}/cas/{file.digest.hash}" in self.server.kept for file in apart)

    def _misbehaves(self) -> bool:
        mood = self.server.mood
        if mood == "hangs":
            time.sleep(30)
        elif mood == "drips":
            self._send(1000, b"x", times=300, pause=0.1)
        elif mood == "fails":
            self.send_error(500)
        elif mood == "garbage":
            self._send(7, b"garbage")
        elif mood == "cuts":
            content = self.server.kept[self.path]
            self._send(len(content), content[: len(content) // 2])
            self.close_connection = True
        elif mood == "endless":
            self._send(1 << 40, b"x" * (1 << 16), times=1000)
        return mood not in {"well", "full"}

    def _send(self, size: int, content: bytes, *, times: int = 1, pause: float = 0.0) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(times):
                self.wfile.write(content)
                self.wfile.flush()
                time.sleep(pause)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Tests are quiet."""


def _output_files(content: bytes) -> list[Any]:
    try:
        return list(decode_message("ActionResult", content).output_files)
    except Exception:  # noqa: BLE001 - whatever the library raises for bytes of another kind
        return []


def _is_valid(file: Any) -> bool:  # noqa: ANN401 - messages have no types
    path, digest = file.path, file.digest
    relative = bool(path) and not path.startswith("/")
    return relative and bool(re.fullmatch("[0-9a-f]{64}", digest.hash)) and digest.size_bytes >= 0


@contextlib.contextmanager
def serving() -> Iterator[CacheServer]:
    server = CacheServer()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
