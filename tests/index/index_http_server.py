"""Real web servers over an index: Python's own, and one that also serves the JSON pages."""

from __future__ import annotations

import contextlib
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from archsplit.index.static_pages import JSON_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


JSON_TYPE = "application/vnd.pypi.simple.v1+json"


class Handler(SimpleHTTPRequestHandler):
    """Python's own, which writes down what it is asked for."""

    asked: list[str]
    root: str
    knows_json = False

    def __init__(self, *args: object) -> None:
        super().__init__(*args, directory=self.root)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        if self.knows_json and self.path.endswith("/") and JSON_TYPE in self.headers["Accept"]:
            self.path += JSON_FILE
        super().do_GET()

    def guess_type(self, path: object) -> str:
        if str(path).endswith(JSON_FILE):
            return JSON_TYPE
        return super().guess_type(path)  # type: ignore[arg-type]

    def log_message(self, *_: object) -> None:
        self.asked.append(self.path)


@contextlib.contextmanager
def serving(root: Path, *, knows_json: bool = False) -> Iterator[tuple[str, list[str]]]:
    """Serve a folder; give its address, and the paths that were asked for."""
    asked: list[str] = []
    fields = {"asked": asked, "root": str(root), "knows_json": knows_json}
    with ThreadingHTTPServer(("127.0.0.1", 0), type("_Handler", (Handler,), fields)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", asked
        finally:
            server.shutdown()
            thread.join()
