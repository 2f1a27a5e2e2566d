"""Child processes: the only module of archsplit that starts programs.

In: a `Command` with explicit argv, folder, environment and timeout. Out: a `CompletedProcess` with
the exit status, the output, and the CPU time and memory that the kernel counted. Every program
leads a session of its own, so that a timeout, Ctrl-C or a failed build kills all of its
descendants: SIGTERM first, so that compilers remove their temporary files, then SIGKILL. A program
is waited for by one thread and may be killed by any.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

from archsplit.errors import InterruptedByUserError, ToolFailedError, ToolNotFoundError
from archsplit.system.patterns import lazy_pattern
from archsplit.system.resources import resident_memory
from archsplit.system.signals import deferred_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

GRACE_SECONDS = 1.0
"""Time for a compiler to remove its temporary files after SIGTERM."""
TAIL_LINES = 60
"""Lines of output in an error message."""
_EARLIER_ERRORS = 8
"""Lines with an error that are shown of the output before."""
_ERROR_LINE = lazy_pattern(
    r"(?:^|[\s:(])(?:error|fatal)\b\s*(?::|at\b|#)|cannot find -l|undefined reference",
    re.IGNORECASE,
)

_BLOCK = 1 << 16
_POLL_SECONDS = 0.02
"""Interval between checks for a child's end if the kernel has no descriptors of processes."""


class Command(NamedTuple):
    """A program to start: no shell, explicit folder and environment.

    Attributes:
        argv: the program (absolute, or on the PATH in ``env``) and its arguments.
        cwd: the working folder.
        env: the whole environment.
        timeout: seconds after which the process group is killed, or None for no limit.
        undecodable: Python's error handler for output that isn't UTF-8; "surrogateescape" keeps
            every byte.
    """

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    timeout: float | None = None
    undecodable: str = "replace"

    def __repr__(self) -> str:
        """Return the command without its environment, which may have secrets."""
        return f"Command(argv={self.argv!r}, cwd={str(self.cwd)!r})"

    def text(self) -> str:
        """Return the command quoted for a POSIX shell."""
        return shlex.join(self.argv)


class CompletedProcess(NamedTuple):
    """The exit status (negative for a signal) and output of a program.

    Attributes:
        seconds: of wall time.
        cpu_seconds: of the program and of the descendants that were waited for.
        peak_memory: bytes, as in `ExitStatus`; 0 if not measured.
        failed_part: position of the command that failed, if several ran one after the other.
    """

    returncode: int
    stdout: str
    stderr: str
    seconds: float
    cpu_seconds: float = 0.0
    peak_memory: int = 0
    failed_part: int = 0

    def tail(self) -> str:
        """Return the last lines of both streams, for an error message."""
        return output_tail(self.stdout, self.stderr)


def output_tail(stdout: str, stderr: str) -> str:
    """Return the last `TAIL_LINES` lines of both streams, for an error message.

    The first errors of the lines before come first.
    """
    lines = [*stdout.splitlines(), *stderr.splitlines()]
    # The end of a compiler's output has the error that stopped it.
    left_out = len(lines) - TAIL_LINES
    if left_out <= 0:
        return "\n".join(lines)
    # After an error of the compiler, a build's own stack trace may fill the end.
    errors = [line for line in lines[:left_out] if _ERROR_LINE.search(line)][:_EARLIER_ERRORS]
    head = [f"… lines before: {left_out}" + ("; their errors:" if errors else "")]
    return "\n".join(head + [f"    {line.strip()}" for line in errors] + lines[-TAIL_LINES:])


class Runner(Protocol):
    """A runner of commands; several threads may call it at once."""

    def run(self, command: Command) -> CompletedProcess:
        """Run a command to its end and return the result, whatever the exit status.

        Raises:
            ToolNotFoundError: the program can't be started.
            ToolFailedError: the program ran past its timeout.
            InterruptedByUserError: the run was canceled.
        """
        ...

    def cancel(self) -> None:
        """Kill all running programs and refuse later ones."""
        ...


class RunningProcess(Protocol):
    """A program that has been started."""

    def wait(self) -> CompletedProcess:
        """Wait for the program's end; to be called exactly once, from any thread.

        Raises:
            ToolFailedError: the program ran past its timeout.
            InterruptedByUserError: the runner was canceled.
        """
        ...

    def kill(self, *, grace: float = GRACE_SECONDS) -> None:
        """End the process group: SIGTERM, then SIGKILL after ``grace`` seconds."""
        ...

    def resident_memory(self) -> int:
        """Return the bytes that the program and its descendants hold; 0 after its end."""
        ...


class Starter(Runner, Protocol):
    """A runner that can return before a program's end."""

    def start(self, command: Command) -> RunningProcess:
        """Start a program and return at once.

        Raises:
            ToolNotFoundError: the program can't be started.
            InterruptedByUserError: the runner was canceled.
        """
        ...

    def kill_unawaited(self) -> None:
        """Kill the programs whose `RunningProcess.wait` was not called yet.

        An exception out of a signal's handler may have come between start and wait.
        """
        ...


def run_checked(runner: Runner, command: Command, *, what: str) -> CompletedProcess:
    """Run a helper program that has to succeed.

    Args:
        runner: runs the program.
        command: the program.
        what: the program's task, for the message.

    Raises:
        ToolFailedError: a non-zero exit status; the message has the command and its output.
    """
    result = runner.run(command)
    if result.returncode != 0:
        raise ToolFailedError(
            f"{what} failed with exit status {result.returncode}: {command.text()}\n{result.tail()}"
        )
    return result


class SubprocessRunner:
    """The real runner, which starts each program in a process group of its own."""

    def __init__(self) -> None:
        # Reentrant: a signal's handler may call `cancel` while its own thread holds the lock.
        self._lock = threading.RLock()
        self._running: set[_StartedProcess] = set()
        self._canceled = False

    def run(self, command: Command) -> CompletedProcess:
        """Run a command to its end; an exception out of a signal's handler kills the program."""
        started = None
        try:
            # Handlers run at the end of this block: by then `except` knows of the program. With
            # only `start`, the exception would lose it, and the program would run on.
            with deferred_signals():
                started = self._start(command)
            return started.wait()
        except BaseException:
            if started is not None:
                started.kill(grace=0)
                if not started.is_awaited:
                    with contextlib.suppress(InterruptedByUserError):
                        started.wait()
            raise

    def start(self, command: Command) -> RunningProcess:
        """Start a program and return at once."""
        return self._start(command)

    def _start(self, command: Command) -> _StartedProcess:
        if not command.argv:
            raise ValueError("a command needs a program")
        # `cancel` must see the program, or refuse its start: nothing between the two.
        with deferred_signals(), self._lock:
            if self._canceled:
                raise InterruptedByUserError(f"canceled: {command.text()}")
            # Under the lock: a fork takes long, but a program that no list has can't be killed.
            started = _StartedProcess(command, _start_child(command), self._remove)
            self._running.add(started)
        return started

    def kill_unawaited(self) -> None:
        """Kill the programs that no thread waits for."""
        with self._lock:
            unawaited = [started for started in self._running if not started.is_awaited]
        for started in unawaited:
            started.kill()
        for started in unawaited:
            with contextlib.suppress(InterruptedByUserError, ToolFailedError):
                started.wait()

    def cancel(self) -> None:
        """Kill all running programs and refuse later ones."""
        with self._lock:
            self._canceled = True
            for started in self._running:
                started.kill()

    def _remove(self, started: _StartedProcess) -> bool:
        """Forget a program that has ended; return True if the runner was cancelled."""
        with self._lock:
            self._running.discard(started)
            return self._canceled


class _StartedProcess:
    """A program of `SubprocessRunner`."""

    def __init__(
        self, command: Command, child: ChildProcess, remove: Callable[[_StartedProcess], bool]
    ) -> None:
        self._command = command
        self._child = child
        self._remove = remove
        self._began = time.monotonic()
        self._expired = False
        self.is_awaited = False

    def wait(self) -> CompletedProcess:
        """Wait for the program's end."""
        self.is_awaited = True
        timer = self._timer()
        try:
            ended = self._child.wait()
        finally:
            timer.cancel()
            # Until its thread ends, this process counts as one with threads, which must not fork.
            if timer.is_alive():
                timer.join()
            canceled = self._remove(self)
        if canceled:
            raise InterruptedByUserError(f"canceled: {self._command.text()}")
        if self._expired:
            limit = f"{self._command.timeout:g} s"
            raise ToolFailedError(f"timed out after {limit}, killed: {self._command.text()}")
        return CompletedProcess(
            returncode=ended.returncode,
            stdout=ended.stdout.decode(errors=self._command.undecodable),
            stderr=ended.stderr.decode(errors=self._command.undecodable),
            seconds=time.monotonic() - self._began,
            cpu_seconds=ended.cpu_seconds,
            peak_memory=ended.peak_memory,
        )

    def kill(self, *, grace: float = GRACE_SECONDS) -> None:
        """End the process group."""
        self._child.kill(grace=grace)

    def resident_memory(self) -> int:
        """Return the bytes that the program and its descendants hold now."""
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


def _start_child(command: Command) -> ChildProcess:
    """Start a program that leads its own session."""
    # Own pipes, because Popen's would be read by threads of its own.
    stdout, stderr = os.pipe(), os.pipe()
    try:
        process = subprocess.Popen(
            command.argv,
            cwd=command.cwd,
            env=dict(command.env),
            # A tool that asks a question gets the end of the input, and fails.
            stdin=subprocess.DEVNULL,
            stdout=stdout[1],
            stderr=stderr[1],
            # A process group of its own: killing it reaches the compiler's own children.
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
    # Popen must not reap the process: `ChildProcess` does.
    process.returncode = 0
    return ChildProcess(process.pid, stdout[0], stderr[0])


class ExitStatus(NamedTuple):
    """The exit status (negative for a signal), output and resource use of a child.

    Attributes:
        cpu_seconds: of the child and of the descendants that were waited for.
        peak_memory: bytes of the biggest process among them; never less than the peak of this
            process, because Linux counts the moment before ``exec``.
    """

    returncode: int
    stdout: bytes
    stderr: bytes
    cpu_seconds: float
    peak_memory: int


class ChildProcess:
    """A process that leads its own group: waited for by one thread, killed by any.

    Args:
        pid: the process, which no other code waits for.
        stdout: the reading end of its standard output; closed by `wait`.
        stderr: the same for its standard error.
    """

    def __init__(self, pid: int, stdout: int, stderr: int) -> None:
        self.pid = pid
        self._streams: dict[int, list[bytes]] = {stdout: [], stderr: []}
        # The lock protects another process that gets the same pid after this one was reaped.
        self._lock = threading.Lock()
        self._reaped = False
        self._killed = False

    def wait(self) -> ExitStatus:
        """Read the output to its end and reap the child, also on an exception."""
        try:
            self._read()
            # Not reaped yet: until the lock is held, the pid must stay taken.
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
        """End the whole group: SIGTERM, then SIGKILL after ``grace`` seconds.

        With 0 seconds SIGKILL comes at once, and compilers leave their temporary files.
        """
        with self._lock:
            self._killed = True
            self._signal(signal.SIGTERM if grace else signal.SIGKILL)
        if grace:
            timer = threading.Timer(grace, self.kill, kwargs={"grace": 0})
            timer.daemon = True
            timer.start()

    def has_ended(self) -> bool:
        """Return True if the child, which was not reaped yet, has ended."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _read(self) -> None:
        # Both pipes at once: a program that fills one would block while the other is read.
        poll = select.poll()
        for stream in self._streams:
            os.set_blocking(stream, False)
            poll.register(stream, select.POLLIN)
        child = self._open_process()
        if child is not None:
            poll.register(child, select.POLLIN)
        still_open, ended = {*self._streams}, False
        timeout = _POLL_SECONDS * 1000 if child is None else None
        try:
            while still_open and not ended:
                ready = {stream for stream, _ in poll.poll(timeout)}
                # Checked before reading: the output of a dead child is in the pipes by now. A
                # program in the background, started by the child, may keep the pipes open.
                ended = child in ready or (child is None and self.has_ended())
                for stream in still_open & ready if not ended else {*still_open}:
                    if not self._read_available(stream):
                        poll.unregister(stream)
                        still_open.discard(stream)
        finally:
            if child is not None:
                os.close(child)

    def _open_process(self) -> int | None:
        """Return a descriptor that is readable once the child has ended; None without one."""
        # Linux 5.3: without it, each running step wakes this process 50 times a second.
        try:
            return os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            return None

    def _read_available(self, stream: int) -> bool:
        """Read the content of a pipe; return False at the stream's end."""
        # A limit, so that a program that writes without end can't keep the loop from checking its
        # end.
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
                # Processes of the group that ignored SIGTERM must not outlive their leader.
                self._signal(signal.SIGKILL)
            self._reaped = True
            _, status, usage = os.wait4(self.pid, 0)
        return status, usage

    def _signal(self, signum: int) -> None:
        if not self._reaped:
            # The group may be gone; and a member may have changed its user (sudo).
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signum)
