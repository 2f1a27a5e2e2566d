"""A small HTTP cache server for tests, which can be made to misbehave in each way that matters."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class CacheServer(ThreadingHTTPServer):
    """Keeps bytes by path.

    Attributes:
        mood: "well", "garbage", "hangs", "drips", "fails", "cuts" (what it sends), "endless", or
            "full" (nothing more can be stored).
        delay: seconds before each answer.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.kept: dict[str, bytes] = {}
        self.authorizations: list[str | None] = []
        self.mood = "well"
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
        self.server.kept[self.path] = content
        self.send_response(204)
        self.end_headers()

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


@contextlib.contextmanager
def serving() -> Iterator[CacheServer]:
    server = CacheServer()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
