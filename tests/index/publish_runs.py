"""The command as a child process, killed at moments that the server before the index sees."""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from publish_samples import SECRET, USER, Asked, Fault, Scene

from child_processes import running
from in_process import run_archsplit
from warm_programs import run_pip

if TYPE_CHECKING:
    from collections.abc import Callable

BASIC = base64.b64encode(f"{USER}:{SECRET}".encode()).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The result of a run of the command."""

    code: int
    stdout: str
    stderr: str


@dataclass(slots=True, kw_only=True)
class Command:
    """``archsplit publish`` with a home of its own."""

    scene: Scene
    home: Path
    variables: dict[str, str] = field(
        default_factory=lambda: {"TWINE_USERNAME": USER, "TWINE_PASSWORD": SECRET}
    )
    running: list[int] = field(default_factory=list)

    def call(self, *words: str | Path, repository: tuple[str, ...] | None = None) -> Done:
        """Run the command in this process, for what it prints and sends."""
        place = self._place(repository)
        environment = self.environment()
        done = run_archsplit("publish", *words, *place, environment=environment, inherits=False)
        return Done(code=done.returncode, stdout=done.stdout, stderr=done.stderr)

    def _place(self, repository: tuple[str, ...] | None) -> tuple[str, ...]:
        self.home.mkdir(exist_ok=True)
        return ("--repository-url", self.scene.server.url) if repository is None else repository

    def run(self, *words: str | Path) -> Done:
        """Run the command in a process, which may be killed."""
        place = self._place(None)
        code = "import sys; from archsplit.cli.main import main; sys.exit(main(sys.argv[1:]))"
        argv = (sys.executable, "-c", code, "publish", *map(str, words), *place)
        with running(
            argv,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            self.running.append(process.pid)
            stdout, stderr = process.communicate(timeout=200)
        return Done(code=process.returncode, stdout=stdout, stderr=stderr)

    def environment(self) -> dict[str, str]:
        kept = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith(("TWINE_", "PIP_", "UV_"))
        }
        temporary = self.home / "tmp"
        temporary.mkdir(exist_ok=True)
        own = {
            "HOME": str(self.home),
            "TMPDIR": str(temporary),
        }
        return {**kept, **own, **self.variables}

    def kill(self) -> None:
        os.kill(self.running[-1], signal.SIGKILL)

    def kill_at(self, moment: Callable[[Asked], bool], *, answered: bool) -> None:
        """Kill the next run at a request: before the index got it, or when it has answered."""
        armed = [True]

        def strike(asked: Asked) -> bool:
            if armed and moment(asked):
                # Once, though two requests may come at a time.
                with contextlib.suppress(IndexError):
                    armed.pop()
                    self.kill()
                    return True
            return False

        def before(asked: Asked) -> Fault | None:
            self.look_for_secrets()
            return Fault(drop="before") if not answered and strike(asked) else None

        def after(asked: Asked) -> None:
            self.scene.check_invariant()
            if answered:
                strike(asked)

        self.scene.server.before, self.scene.server.after = before, after

    def look_for_secrets(self) -> None:
        """No process has a credential in its arguments."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes()
            except OSError:
                continue
            assert SECRET.encode() not in words
            assert BASIC.encode() not in words


def pip(url: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = ("--isolated", "install", f"--index-url={url}simple/")
    options = ("--retries=0", "--no-cache-dir", "--disable-pip-version-check", "--quiet", *words)
    return run_pip((*command, *options))


def uv(url: str, *words: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("uv")
    command = (
        str(program),
        "pip",
        "install",
        "--no-cache",
        "--quiet",
        "--index-url",
        f"{url}simple/",
    )
    return subprocess.run([*command, *words], capture_output=True, text=True, check=False)
