"""An sccache server of our own: a cache that begins empty, a private socket, stopped at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_PATIENCE = 10.0
"""Seconds for the server to open its socket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server: its process, and the environment that leads clients to it."""

    process: int
    env: Mapping[str, str]


@contextlib.contextmanager
def serving(sccache: str, folder: Path) -> Iterator[Server]:
    """Run a server in the foreground, with a new cache in ``folder``; wait for its end."""
    folder.mkdir()
    socket = folder / "socket"
    env = {
        "SCCACHE_DIR": str(folder / "cache"),
        "SCCACHE_SERVER_UDS": str(socket),
        "SCCACHE_CONF": str(folder / "no-settings"),
        "SCCACHE_IDLE_TIMEOUT": "0",
    }
    start = {**os.environ, **env, "SCCACHE_START_SERVER": "1", "SCCACHE_NO_DAEMON": "1"}
    quiet = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
    process = os.posix_spawnp(sccache, (sccache,), start, file_actions=quiet, setsid=True)
    try:
        deadline = time.monotonic() + _PATIENCE
        while not socket.exists():
            if time.monotonic() > deadline:
                raise SystemExit("sccache opened no socket")
            time.sleep(0.05)
        yield Server(process=process, env=env)
    finally:
        os.kill(process, signal.SIGTERM)
        os.waitpid(process, 0)
