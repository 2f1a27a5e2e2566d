"""Run programs: the one door to ``subprocess`` in this project."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from splitter.errors import InterruptedByUserError, ToolFailedError, ToolNotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TAIL_LINES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program to start: no shell, explicit folder and environment.

    Attributes:
        argv: the program (absolute, or found on the PATH in ``env``) and its arguments.
        cwd: the folder that it runs in.
        env: its whole environment.
        timeout: seconds after which its process group is killed, or None for no limit.
    """

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str] = field(repr=False)
    timeout: float | None = None

    def __post_init__(self) -> None:
        if not self.argv:
            raise ValueError("a command needs a program")

    def text(self) -> str:
        """The command as one may paste it into a POSIX shell."""
        return shlex.join(self.argv)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """What a finished program left: exit status (negative: a signal), its output, wall seconds."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float

    def tail(self) -> str:
        """The last lines of what the program said, both streams, for an error message."""
        lines = [*self.stdout.splitlines(), *self.stderr.splitlines()]
        left_out = len(lines) - TAIL_LINES
        head = [f"… {left_out} lines before"] if left_out > 0 else []
        return "\n".join(head + lines[-TAIL_LINES:])


class Runner(Protocol):
    """Something that can run a command; may be called from several threads at once."""

    def run(self, command: Command) -> Completed:
        """Run to the end and return what came of it, whatever the exit status.

        Raises:
            ToolNotFoundError: the program can't be started.
            ToolFailedError: it ran past its timeout.
            InterruptedByUserError: the run was cancelled.
        """
        ...

    def cancel(self) -> None:
        """Kill what runs, and refuse what comes after."""
        ...


class SubprocessRunner:
    """The real runner: each program has its own process group, so that all of it can be killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._cancelled = False

    def run(self, command: Command) -> Completed:
        """See `Runner.run`."""
        started = time.monotonic()
        process = self._start(command)
        try:
            stdout, stderr = process.communicate(timeout=command.timeout)
        except subprocess.TimeoutExpired:
            _kill_group(process)
            process.communicate()
            raise ToolFailedError(
                f"no answer after {command.timeout:g} s, killed: {command.text()}"
            ) from None
        except BaseException:
            _kill_group(process)
            process.communicate()
            raise
        finally:
            with self._lock:
                self._running.discard(process)
        if self._cancelled:
            raise InterruptedByUserError(f"cancelled: {command.text()}")
        return Completed(
            returncode=process.returncode,
            stdout=stdout,
            stderr=stderr,
            seconds=time.monotonic() - started,
        )

    def cancel(self) -> None:
        """See `Runner.cancel`."""
        with self._lock:
            self._cancelled = True
            for process in self._running:
                _kill_group(process)

    def _start(self, command: Command) -> subprocess.Popen[str]:
        with self._lock:
            if self._cancelled:
                raise InterruptedByUserError(f"cancelled: {command.text()}")
            try:
                process = subprocess.Popen(
                    command.argv,
                    cwd=command.cwd,
                    env=dict(command.env),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                    start_new_session=True,
                )
            except OSError as error:
                raise ToolNotFoundError(
                    f"can't start {command.argv[0]} in {command.cwd}: {error.strerror}"
                ) from error
            self._running.add(process)
            return process


def _kill_group(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def check(runner: Runner, command: Command, *, what: str) -> Completed:
    """Run a helper program whose failure is an error of ours to report.

    Raises:
        ToolFailedError: a non-zero exit status; the message has the command and its output.
    """
    done = runner.run(command)
    if done.returncode != 0:
        raise ToolFailedError(
            f"{what} failed with exit status {done.returncode}: {command.text()}\n{done.tail()}"
        )
    return done
