"""A simple index (PEP 503) over some wheels, as a web server lists folders."""

from __future__ import annotations

import contextlib
import functools
import http.server
import shutil
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from archsplit.wheels.filename import WheelName
from archsplit.wheels.metadata import WheelInfo
from archsplit.wheels.rewrite import write_members
from archsplit.wheels.zip_writer import pack
from free_ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 (its name there)
        del format, arguments


@contextlib.contextmanager
def serve(root: Path, *wheels: Path) -> Iterator[str]:
    """Serve wheels, and an empty one for what the samples require."""
    for wheel in wheels:
        project = root / "simple" / wheel.name.partition("-")[0].replace("_", "-")
        project.mkdir(parents=True, exist_ok=True)
        shutil.copy(wheel, project)
    write_required(root / "simple" / "packaging")
    handler = functools.partial(Quiet, directory=str(root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/simple/"
        finally:
            server.shutdown()
            thread.join()


def write_required(folder: Path) -> None:
    """Write an empty wheel for what the fat one requires."""
    folder.mkdir(parents=True)
    name = WheelName.parse("packaging-25.0-py3-none-any.whl")
    own = {
        "METADATA": b"Metadata-Version: 2.1\nName: packaging\nVersion: 25.0\n",
        "WHEEL": WheelInfo(generator="a test", tags=name.tags).encode(),
    }
    with (folder / str(name)).open("wb") as file:
        members = {f"{name.dist_info}/{each}": pack(text) for each, text in own.items()}
        write_members(file, name, members)


@contextlib.contextmanager
def pypiserver(folder: Path) -> Iterator[int]:
    """A real index of the files in a folder; gives its port."""
    port = free_port()
    words = ("-p", str(port), "-i", "127.0.0.1", "-a", ".", "-P", ".", "--hash-algo", "sha256")
    options = ("--backend", "simple-dir", "--fallback-url", "http://127.0.0.1:1/simple/")
    command = [sys.executable, "-m", "pypiserver", "run", *words, *options, str(folder)]
    with (folder.parent / "pypiserver.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _await_port(port)
            yield port
        finally:
            server.terminate()
            server.wait()


def _await_port(port: int) -> None:
    end = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        assert time.monotonic() < end
        time.sleep(0.05)
