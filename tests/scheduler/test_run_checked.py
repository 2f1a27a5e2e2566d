from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

from archsplit.errors import DiskFullError, InterruptedByUserError, StepError
from archsplit.scheduler.graph import Graph, Step
from archsplit.scheduler.pool import LocalPool
from archsplit.scheduler.runner import RunOptions, check_outcome, run_graph
from archsplit.system.process import Command, SubprocessRunner
from archsplit.system.terminal import SilentProgress

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.nvcc.toolkit import Toolkit


def shell(
    folder: Path, name: str, script: str, reads: str = "", writes: str = "", weight: float = 1.0
) -> Step:
    return Step(
        name=name,
        command=Command(argv=("sh", "-c", script), cwd=folder, env=dict(os.environ)),
        reads=tuple(folder / one for one in reads.split()),
        writes=tuple(folder / one for one in writes.split()),
        weight=weight,
    )


def run(*steps: Step, jobs: int = 2) -> list[str]:
    graph = Graph(steps=steps)
    done = check_outcome(
        graph,
        run_graph(
            graph,
            RunOptions(
                pool=LocalPool(jobs),
                runner=SubprocessRunner(),
                progress=SilentProgress(),
                parallel=False,
            ),
        ),
    )
    return [one.name for one in done]


def test_step_runs_after_its_inputs(tmp_path: Path) -> None:
    steps = (
        shell(tmp_path, "join", "cat a b > c", "a b", "c"),
        shell(tmp_path, "b", "sleep 0.1; echo b > b", writes="b"),
        shell(tmp_path, "a", "echo a > a", writes="a"),
    )
    assert run(*steps) == ["join", "b", "a"]
    assert (tmp_path / "c").read_text() == "a\nb\n"


def test_never_more_at_a_time_than_there_are_jobs(tmp_path: Path) -> None:
    script = "mkdir running.$$; ls -d running.* | wc -l > {0}; sleep 0.05; rmdir running.$$"
    steps = [shell(tmp_path, f"s{n}", script.format(f"n{n}"), writes=f"n{n}") for n in range(8)]
    run(*steps, jobs=3)
    assert max(int((tmp_path / f"n{n}").read_text()) for n in range(8)) <= 3


def test_the_heaviest_chain_goes_first(tmp_path: Path) -> None:
    log = "echo {0} >> log"
    steps = (
        shell(tmp_path, "light", log.format("light"), weight=1),
        shell(tmp_path, "first", log.format("first") + "; echo > f", writes="f", weight=1),
        shell(tmp_path, "heavy", log.format("heavy"), "f", weight=9),
    )
    run(*steps, jobs=1)
    assert (tmp_path / "log").read_text().split() == ["first", "heavy", "light"]


def test_a_failure_has_the_command_and_its_output(tmp_path: Path) -> None:
    steps = (
        shell(tmp_path, "bad", "echo to stdout; echo to stderr >&2; exit 3"),
        shell(tmp_path, "after", "true", "never"),
    )
    with pytest.raises(StepError, match="bad failed with exit status 3") as caught:
        run(*steps)
    text = str(caught.value)
    assert "sh -c" in text
    assert "to stdout" in text
    assert "to stderr" in text


def test_failure_stops_dependents_and_kills_later_steps(tmp_path: Path) -> None:
    steps = (
        shell(tmp_path, "bad", "sleep 0.1; exit 1", writes="x"),
        shell(tmp_path, "after", "touch after-done", "x"),
        shell(tmp_path, "slow", "sleep 30; touch slow-done"),
    )
    started = time.monotonic()
    with pytest.raises(StepError, match="bad failed"):
        run(*steps)
    assert time.monotonic() - started < 20
    assert not (tmp_path / "slow-done").exists()
    assert not (tmp_path / "after-done").exists()


def test_of_two_failures_the_first_in_the_graph_is_reported(tmp_path: Path) -> None:
    steps = (
        shell(tmp_path, "one", "while ! [ -e failed ]; do sleep 0.01; done; sleep 0.1; exit 1"),
        shell(tmp_path, "two", "touch failed; exit 2"),
    )
    with pytest.raises(StepError, match="one failed with exit status 1"):
        run(*steps)


@pytest.mark.parametrize("script", ["true", ": > out"])
def test_success_needs_the_file_and_not_an_empty_one(tmp_path: Path, script: str) -> None:
    with pytest.raises(StepError, match="succeeded, but left no out"):
        run(shell(tmp_path, "liar", script, writes="out"))


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    message = "echo 'as: out.o: No space left on device' >&2; exit 1"
    with pytest.raises(DiskFullError, match="No space left"):
        run(shell(tmp_path, "full", message))


def test_a_newer_compiler_than_the_toolkit_is_named(tmp_path: Path, toolkit: Toolkit) -> None:
    newer = tmp_path / "g++-99"
    newer.write_text('#!/bin/sh\nexec g++ -U__GNUC__ -D__GNUC__=99 "$@"\n')
    newer.chmod(0o755)
    (tmp_path / "k.cu").write_text("__global__ void k() {}\n")
    script = f"'{toolkit.nvcc}' -ccbin {newer} -E k.cu"
    with pytest.raises(StepError, match=r"(?s)later than \d.*hint: install g\+\+-\d+, and"):
        run(shell(tmp_path, "read", script))


@pytest.mark.parametrize(
    ("header", "library"),
    [("curand_kernel.h", "curand"), ("cublasLt.h", "cublasLt"), ("cublas_v2.h", "cublas")],
)
def test_a_missing_header_of_cuda_is_named_with_its_library(
    tmp_path: Path, header: str, library: str
) -> None:
    (tmp_path / "k.cpp").write_text(f"#include <{header}>\n")
    with pytest.raises(StepError) as caught:
        run(shell(tmp_path, "read", "LC_ALL=C g++ -nostdinc -I. -E k.cpp"))
    assert f'cuda-libraries = ["{library}"] in [link]' in str(caught.value.hint)


def test_missing_folder_is_not_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(StepError, match="exit status 1"):
        run(shell(tmp_path, "lost", "exit 1", writes="no/such/file"))


def test_cancelling_the_runner_interrupts_the_run(tmp_path: Path) -> None:
    runner = SubprocessRunner()
    graph = Graph(steps=(shell(tmp_path, "slow", "sleep 30"),))
    threading.Timer(0.2, runner.cancel).start()
    with pytest.raises(InterruptedByUserError):
        check_outcome(
            graph,
            run_graph(
                graph,
                RunOptions(
                    pool=LocalPool(1), runner=runner, progress=SilentProgress(), parallel=False
                ),
            ),
        )


def test_zero_jobs_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        run(jobs=0)
