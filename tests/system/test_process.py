from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from archsplit.errors import InterruptedByUserError, ToolFailedError, ToolNotFoundError
from archsplit.system.process import Command, SubprocessRunner, run_checked


def shell(
    script: str, *, timeout: float | None = None, env: dict[str, str] | None = None
) -> Command:
    environment = dict(os.environ) if env is None else env
    return Command(argv=("/bin/sh", "-c", script), cwd=Path("/"), env=environment, timeout=timeout)


def test_output_and_exit_status_come_back() -> None:
    done = SubprocessRunner().run(shell("echo out; echo err >&2; exit 7"))
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")
    assert done.tail() == "out\nerr"


def test_only_the_given_environment_is_there() -> None:
    done = SubprocessRunner().run(shell("echo $HOME$GIVEN", env={"GIVEN": "yes"}))
    assert done.stdout == "yes\n"


def test_a_missing_program_is_named() -> None:
    command = Command(argv=("/no/such/program",), cwd=Path("/"), env={})
    with pytest.raises(ToolNotFoundError, match="/no/such/program"):
        SubprocessRunner().run(command)


def test_a_timeout_kills_the_whole_process_group(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with pytest.raises(ToolFailedError, match=r"timed out after 0\.2 s"):
        SubprocessRunner().run(shell(f"(sleep 2; touch {mark}) & wait", timeout=0.2))
    time.sleep(2.2)
    assert not mark.exists()


def test_cancel_kills_running_programs_and_refuses_later_ones() -> None:
    runner = SubprocessRunner()
    threading.Timer(0.2, runner.cancel).start()
    started = time.monotonic()
    with pytest.raises(InterruptedByUserError):
        runner.run(shell("sleep 30"))
    with pytest.raises(InterruptedByUserError):
        runner.run(shell("true"))
    assert time.monotonic() - started < 20


def test_check_reports_a_failure_with_command_and_output() -> None:
    with pytest.raises(ToolFailedError, match=r"(?s)greeting failed with exit status 2.*hello"):
        run_checked(SubprocessRunner(), shell("echo hello; exit 2"), what="greeting")
    assert run_checked(SubprocessRunner(), shell("echo hello"), what="greeting").stdout == "hello\n"


def test_tail_counts_omitted_lines() -> None:
    done = SubprocessRunner().run(shell("seq 1 100"))
    assert done.tail().splitlines()[0] == "… lines before: 40"
    assert done.tail().splitlines()[-1] == "100"


def test_errors_before_the_tail_are_shown() -> None:
    words = "a.cu(3): error: x; ld: cannot find -lc10; -Werror; nvcc fatal   : y; no error here"
    lines = words.split("; ")
    done = SubprocessRunner().run(shell(f"printf '%s\\n' {shlex.join(lines)}; seq 1 60"))
    assert done.tail().splitlines()[:5] == [
        "… lines before: 5; their errors:",
        "    a.cu(3): error: x",
        "    ld: cannot find -lc10",
        "    nvcc fatal   : y",
        "1",
    ]


def test_a_command_needs_a_program() -> None:
    with pytest.raises(ValueError, match="needs a program"):
        SubprocessRunner().run(Command(argv=(), cwd=Path("/"), env={}))


def test_undecodable_output_is_replaced() -> None:
    assert "\ufffd" in SubprocessRunner().run(shell("printf '\\377'")).stdout


def test_cpu_time_and_memory_are_measured() -> None:
    text = "block = b'x' * (300 << 20); sum(range(5000000))"
    # The driver is small; what counts is the biggest below it.
    done = SubprocessRunner().run(shell(f'"{sys.executable}" -c "{text}"; true'))
    assert done.peak_memory > 300 << 20
    assert done.cpu_seconds > 0.05
    assert done.seconds > 0.05


def test_grandchild_with_open_pipes_delays_nothing() -> None:
    started = time.monotonic()
    done = SubprocessRunner().run(shell("sleep 30 & echo out; echo err >&2; exit 4"))
    assert time.monotonic() - started < 20
    assert (done.returncode, done.stdout, done.stderr) == (4, "out\n", "err\n")


def test_endlessly_writing_grandchild_delays_nothing() -> None:
    started = time.monotonic()
    done = SubprocessRunner().run(shell("echo y; echo y; timeout 30 yes & sleep 0.1; echo err >&2"))
    assert time.monotonic() - started < 20
    assert done.stderr == "err\n"
    assert done.stdout.startswith("y\ny\n")


def test_both_streams_may_be_long() -> None:
    block = "i=0; while [ $i -lt 20 ]; do printf '%070000d\\n' 7 {0}; i=$((i+1)); done; "
    done = SubprocessRunner().run(shell(block.format("") + block.format(">&2")))
    assert len(done.stdout) == len(done.stderr) == 20 * 70001


def test_output_through_dev_stdout_is_read_as_well() -> None:
    done = SubprocessRunner().run(shell("echo one >&2; echo two > /dev/stderr; echo three >&2"))
    assert done.stderr == "one\ntwo\nthree\n"


def test_standard_input_is_empty() -> None:
    assert SubprocessRunner().run(shell("cat; echo end")).stdout == "end\n"


def test_undecodable_output_can_be_kept() -> None:
    command = Command(
        argv=("printf", "\\377"), cwd=Path("/"), env=dict(os.environ), undecodable="surrogateescape"
    )
    assert SubprocessRunner().run(command).stdout.encode(errors="surrogateescape") == b"\xff"


def test_a_started_program_has_memory_until_it_is_killed() -> None:
    running = SubprocessRunner().start(shell("sleep 30 & sleep 30; true"))
    while running.resident_memory() < 1 << 20:
        time.sleep(0.01)
    running.kill(grace=0)
    done = running.wait()
    assert done.returncode == -signal.SIGKILL
    assert running.resident_memory() == 0
    # No process is left to kill.
    running.kill(grace=0)


def test_a_program_may_clean_up_before_it_is_killed(tmp_path: Path) -> None:
    text = "trap 'echo > cleaned; exit 1' TERM; echo > ready; while :; do sleep 0.02; done"
    command = Command(argv=("/bin/sh", "-c", text), cwd=tmp_path, env=dict(os.environ))
    running = SubprocessRunner().start(command)
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    running.kill(grace=20)
    assert running.wait().returncode == 1
    assert (tmp_path / "cleaned").exists()


def test_program_ignoring_the_signal_is_killed(tmp_path: Path) -> None:
    text = "trap '' TERM; (trap '' TERM; sleep 2; echo > late) & echo > ready; wait; sleep 30"
    command = Command(argv=("/bin/sh", "-c", text), cwd=tmp_path, env=dict(os.environ))
    running = SubprocessRunner().start(command)
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    running.kill(grace=0.1)
    assert running.wait().returncode == -signal.SIGKILL
    time.sleep(2.2)
    assert not (tmp_path / "late").exists()


def test_an_interrupted_wait_leaves_no_child() -> None:
    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    started = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            SubprocessRunner().run(shell("sleep 30"))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - started < 20


def test_an_interrupt_during_the_start_kills_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, popen = tmp_path / "pid", subprocess.Popen

    def interrupted(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401 - Popen's
        process = popen(*arguments, **options)
        while not mark.exists() or not mark.read_text().strip():
            time.sleep(0.01)
        signal.raise_signal(signal.SIGINT)
        return process

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(KeyboardInterrupt):
        SubprocessRunner().run(shell(f"sleep 300 & echo $! > {mark}; wait"))
    assert sorted(os.listdir("/proc/self/fd")) == before
    # SIGKILL is sent; a grandchild, which no process waits for, takes its time to die.
    end = time.monotonic() + 10
    while is_running(int(mark.read_text())):
        assert time.monotonic() < end
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}


def test_no_descriptor_is_left_open() -> None:
    runner = SubprocessRunner()
    before = sorted(os.listdir("/proc/self/fd"))
    runner.run(shell("echo"))
    with pytest.raises(ToolNotFoundError):
        runner.run(Command(argv=("/no/such/program",), cwd=Path("/"), env={}))
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_unawaited_program_is_ended(tmp_path: Path) -> None:
    runner = SubprocessRunner()
    mark = tmp_path / "mark"
    awaited = runner.start(shell("sleep 0.3; echo done"))
    found: list[str] = []
    waiting = threading.Thread(target=lambda: found.append(awaited.wait().stdout))
    waiting.start()
    time.sleep(0.05)
    runner.start(shell(f"trap 'echo > {mark}; exit' TERM; while :; do sleep 0.05; done"))
    time.sleep(0.2)
    runner.kill_unawaited()
    assert mark.exists()
    waiting.join()
    assert found == ["done\n"]
