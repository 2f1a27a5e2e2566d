"""One child process: read what it says, wait for it, measure it, kill all of its group.

Let the handlers of signals wait for a moment in which what they raise does no harm.

Run programs: the one door to ``subprocess`` in this project.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from archsplit.errors import InterruptedByUserError, ToolFailedError, ToolNotFoundError
from archsplit.system.resources import resident_memory
from archsplit.system.signals import deferred_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_BLOCK = 1 << 16
_LOOK_SECONDS = 0.02
"""How often to look whether a child has ended while something else keeps its pipes open."""


class ExitStatus(NamedTuple):
    """What a child left: exit status (negative: a signal), output, and what it used.

    Attributes:
        cpu_seconds: of itself and of the descendants that were waited for.
        peak_memory: bytes of the biggest process among them; never less than what this process
            itself has used at most, because Linux counts the moment before ``exec``.
    """

    returncode: int
    stdout: bytes
    stderr: bytes
    cpu_seconds: float
    peak_memory: int


class ChildProcess:
    """A process that leads its own group; waited for by one thread, killed by any.

    Args:
        pid: the process, which nobody else waits for.
        stdout: the reading end of its standard output; closed by `wait`.
        stderr: the same for its standard error.
    """

    def __init__(self, pid: int, stdout: int, stderr: int) -> None:
        self.pid = pid
        self._streams: dict[int, list[bytes]] = {stdout: [], stderr: []}
        # The lock keeps the number of a process that is gone from being signalled.
        self._lock = threading.Lock()
        self._reaped = False
        self._killed = False

    def wait(self) -> ExitStatus:
        """Read to the end, and reap; the child is gone afterwards, whatever happens."""
        try:
            self._read()
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        except BaseException:
            self.kill(grace=0)
            raise
        finally:
            for stream in self._streams:
                os.close(stream)
            status, usage = self._reap()
        stdout, stderr = (b"".join(blocks) for blocks in self._streams.values())
        return ExitStatus(
            returncode=os.waitstatus_to_exitcode(status),
            stdout=stdout,
            stderr=stderr,
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            peak_memory=usage.ru_maxrss * 1024,
        )

    def kill(self, *, grace: float) -> None:
        """End the whole group: SIGTERM, and SIGKILL after ``grace`` seconds; at once if that is 0.

        With SIGTERM compilers remove their temporary files.
        """
        with self._lock:
            self._killed = True
            self._signal(signal.SIGTERM if grace else signal.SIGKILL)
        if grace:
            timer = threading.Timer(grace, self.kill, kwargs={"grace": 0})
            timer.daemon = True
            timer.start()

    def has_ended(self) -> bool:
        """Whether it is only waiting to be reaped; it must not have been."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _read(self) -> None:
        poll = select.poll()
        for stream in self._streams:
            os.set_blocking(stream, False)
            poll.register(stream, select.POLLIN)
        still_open, look = len(self._streams), time.monotonic() + _LOOK_SECONDS
        while still_open:
            # Asked before reading: what a dead child has said is in the pipes by now.
            ended = time.monotonic() >= look and self.has_ended()
            for stream, _ in poll.poll(0 if ended else _LOOK_SECONDS * 1000):
                if not self._take(stream):
                    poll.unregister(stream)
                    still_open -= 1
            if ended:
                # Something that it has started in the background keeps the pipes open.
                return

    def _take(self, stream: int) -> bool:
        """Read what is there, a pipe's whole content at most; False at the end."""
        for _ in range(1 << 4):
            try:
                block = os.read(stream, _BLOCK)
            except BlockingIOError:
                return True
            if not block:
                return False
            self._streams[stream].append(block)
        return True

    def _reap(self) -> tuple[int, os.struct_rusage]:  # type: ignore[name-defined]
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            if self._killed:
                # Those of its group that didn't heed SIGTERM must not outlive it.
                self._signal(signal.SIGKILL)
            self._reaped = True
            _, status, usage = os.wait4(self.pid, 0)
        return status, usage

    def _signal(self, signum: int) -> None:
        if not self._reaped:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signum)


TAIL_LINES = 60
GRACE_SECONDS = 1.0
"""For a compiler to remove its temporary files, when it is told to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program to start: no shell, explicit folder and environment.

    Attributes:
        argv: the program (absolute, or found on the PATH in ``env``) and its arguments.
        cwd: the folder that it runs in.
        env: its whole environment.
        timeout: seconds after which its process group is killed, or None for no limit.
        undecodable: what becomes of output that isn't UTF-8, as Python names it;
            "surrogateescape" keeps every byte.
    """

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str] = field(repr=False)
    timeout: float | None = None
    undecodable: str = "replace"

    def __post_init__(self) -> None:
        if not self.argv:
            raise ValueError("a command needs a program")

    def text(self) -> str:
        """The command as one may paste it into a POSIX shell."""
        return shlex.join(self.argv)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedProcess:
    """What a finished program left: exit status (negative: a signal), its output, wall seconds.

    Attributes:
        cpu_seconds: of itself and of the descendants that it waited for.
        peak_memory: bytes; see `archsplit.system.process.ExitStatus`. 0 when nobody measured.
    """

    returncode: int
    stdout: str
    stderr: str
    seconds: float
    cpu_seconds: float = 0.0
    peak_memory: int = 0

    def tail(self) -> str:
        """The last lines of what the program said, both streams, for an error message."""
        return output_tail(self.stdout, self.stderr)


def output_tail(stdout: str, stderr: str) -> str:
    """The last lines of what a program said, both streams, for an error message."""
    lines = [*stdout.splitlines(), *stderr.splitlines()]
    left_out = len(lines) - TAIL_LINES
    head = [f"… {left_out} lines before"] if left_out > 0 else []
    return "\n".join(head + lines[-TAIL_LINES:])


class Runner(Protocol):
    """Something that can run a command; may be called from several threads at once."""

    def run(self, command: Command) -> CompletedProcess:
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


class RunningProcess(Protocol):
    """A program that has been started."""

    def wait(self) -> CompletedProcess:
        """Wait for its end; to be called exactly once, from any thread.

        Raises:
            ToolFailedError: it ran past its timeout.
            InterruptedByUserError: the runner was cancelled.
        """
        ...

    def kill(self, *, grace: float = GRACE_SECONDS) -> None:
        """End it and all of its group: by SIGTERM, and after ``grace`` seconds by SIGKILL."""
        ...

    def resident_memory(self) -> int:
        """Bytes of memory that it and its descendants hold now; 0 when it has ended."""
        ...


class Starter(Runner, Protocol):
    """A runner that needn't wait for the end."""

    def start(self, command: Command) -> RunningProcess:
        """Start a program and return at once.

        Raises:
            ToolNotFoundError: it can't be started.
            InterruptedByUserError: the runner was cancelled.
        """
        ...

    def kill_unawaited(self) -> None:
        """Kill what was started and nobody waits for: a signal's exception came between."""
        ...


class SubprocessRunner:
    """The real runner: each program has its own process group, so that all of it can be killed."""

    def __init__(self) -> None:
        # A signal's handler may cancel in the middle of anything that its own thread does here.
        self._lock = threading.RLock()
        self._running: set[_Started] = set()
        self._cancelled = False

    def run(self, command: Command) -> CompletedProcess:
        """See `Runner.run`."""
        return self.start(command).wait()

    def start(self, command: Command) -> RunningProcess:
        """See `Starter.start`."""
        with deferred_signals(), self._lock:
            if self._cancelled:
                raise InterruptedByUserError(f"cancelled: {command.text()}")
            started = _Started(command, _child(command), self._ended)
            self._running.add(started)
        return started

    def kill_unawaited(self) -> None:
        """See `Starter.kill_unawaited`."""
        with self._lock:
            lost = [started for started in self._running if not started.is_awaited]
        for started in lost:
            started.kill()
        for started in lost:
            with contextlib.suppress(InterruptedByUserError, ToolFailedError):
                started.wait()

    def cancel(self) -> None:
        """See `Runner.cancel`."""
        with self._lock:
            self._cancelled = True
            for started in self._running:
                started.kill()

    def _ended(self, started: _Started) -> bool:
        with self._lock:
            self._running.discard(started)
            return self._cancelled


class _Started:
    """A child of `SubprocessRunner`, seen as `RunningProcess`."""

    def __init__(
        self, command: Command, child: ChildProcess, ended: Callable[[_Started], bool]
    ) -> None:
        self._command = command
        self._child = child
        self._ended = ended
        self._began = time.monotonic()
        self._expired = False
        self.is_awaited = False

    def wait(self) -> CompletedProcess:
        """See `RunningProcess.wait`."""
        self.is_awaited = True
        timer = self._timer()
        try:
            ended = self._child.wait()
        finally:
            timer.cancel()
            cancelled = self._ended(self)
        if cancelled:
            raise InterruptedByUserError(f"cancelled: {self._command.text()}")
        if self._expired:
            limit = f"{self._command.timeout:g} s"
            raise ToolFailedError(f"no answer after {limit}, killed: {self._command.text()}")
        return CompletedProcess(
            returncode=ended.returncode,
            stdout=ended.stdout.decode(errors=self._command.undecodable),
            stderr=ended.stderr.decode(errors=self._command.undecodable),
            seconds=time.monotonic() - self._began,
            cpu_seconds=ended.cpu_seconds,
            peak_memory=ended.peak_memory,
        )

    def kill(self, *, grace: float = GRACE_SECONDS) -> None:
        """See `RunningProcess.kill`."""
        self._child.kill(grace=grace)

    def resident_memory(self) -> int:
        """See `RunningProcess.resident_memory`."""
        return resident_memory(self._child.pid)

    def _timer(self) -> threading.Timer:
        timer = threading.Timer(self._command.timeout or 0.0, self._expire)
        timer.daemon = True
        if self._command.timeout is not None:
            timer.start()
        return timer

    def _expire(self) -> None:
        self._expired = True
        self.kill(grace=0)


def _child(command: Command) -> ChildProcess:
    """Start a program that leads its own session; `ChildProcess` reads and reaps it."""
    stdout, stderr = os.pipe(), os.pipe()
    try:
        process = subprocess.Popen(
            command.argv,
            cwd=command.cwd,
            env=dict(command.env),
            stdin=subprocess.DEVNULL,
            stdout=stdout[1],
            stderr=stderr[1],
            start_new_session=True,
        )
    except OSError as error:
        os.close(stdout[0])
        os.close(stderr[0])
        raise ToolNotFoundError(
            f"can't start {command.argv[0]} in {command.cwd}: {error.strerror}"
        ) from error
    finally:
        os.close(stdout[1])
        os.close(stderr[1])
    # Popen must not wait for what is Child's to reap.
    process.returncode = 0
    return ChildProcess(process.pid, stdout[0], stderr[0])


def run_checked(runner: Runner, command: Command, *, what: str) -> CompletedProcess:
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
