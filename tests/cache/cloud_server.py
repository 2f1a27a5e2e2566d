"""A fake of two clouds' object stores: what obstore asks of GCS and of Azure, and nothing else.

The emulators on the registries don't do for tests: GCS's speak only its JSON interface, and
Azure's is a program for node, with which this was tried by hand.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_DATE = "Sat, 21 Nov 2026 09:00:00 GMT"


class CloudServer(ThreadingHTTPServer):
    """Keeps bytes by path."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.kept: dict[str, bytes] = {}
        self.headers: list[dict[str, str]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: CloudServer

    def do_GET(self) -> None:
        content = self.server.kept.get(self.path)
        if content is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            self._answer(200, content)

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.kept[self.path] = content
        self._answer(201, b"")

    def _answer(self, status: int, content: bytes) -> None:
        self.server.headers.append(dict(self.headers))
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Last-Modified", _DATE)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Tests are quiet."""


@contextlib.contextmanager
def cloud() -> Iterator[CloudServer]:
    server = CloudServer()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
