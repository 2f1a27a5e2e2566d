from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from splitter.errors import InterruptedByUserError, ToolFailedError, ToolNotFoundError
from splitter.system.run import Command, SubprocessRunner, check


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
    with pytest.raises(ToolFailedError, match=r"no answer after 0\.2 s"):
        SubprocessRunner().run(shell(f"(sleep 1; touch {mark}) & wait", timeout=0.2))
    time.sleep(1.2)
    assert not mark.exists()


def test_cancel_kills_what_runs_and_refuses_the_rest() -> None:
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
        check(SubprocessRunner(), shell("echo hello; exit 2"), what="greeting")
    assert check(SubprocessRunner(), shell("echo hello"), what="greeting").stdout == "hello\n"


def test_the_tail_says_what_it_left_out() -> None:
    done = SubprocessRunner().run(shell("seq 1 100"))
    assert done.tail().splitlines()[0] == "… 40 lines before"
    assert done.tail().splitlines()[-1] == "100"


def test_a_command_needs_a_program() -> None:
    with pytest.raises(ValueError, match="needs a program"):
        Command(argv=(), cwd=Path("/"), env={})


def test_undecodable_output_does_no_harm() -> None:
    assert "\ufffd" in SubprocessRunner().run(shell("printf '\\377'")).stdout
