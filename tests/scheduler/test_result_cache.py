"""Steps whose results are known needn't run, and hold nothing while they are looked for."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from scheduler_samples import plenty, shell

from archsplit.scheduler.graph import Graph
from archsplit.scheduler.history import History
from archsplit.scheduler.pool import LocalPool
from archsplit.scheduler.runner import RunOptions, run_graph
from archsplit.system.process import CompletedProcess, SubprocessRunner
from archsplit.system.terminal import SilentProgress

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.scheduler.graph import Step
    from archsplit.scheduler.outcome import Outcome


@dataclass
class FakeMemo:
    """Knows the steps that are named ``known…``, after some seconds."""

    seconds: float = 0.0
    remembered: list[str] = field(default_factory=list)

    def restore(self, step: Step) -> CompletedProcess | None:
        time.sleep(self.seconds)
        if step.name == "breaks":
            raise OSError("a memo must not raise, but an error mustn't get lost")
        if not step.name.startswith("known"):
            return None
        for path in step.writes:
            path.write_text("known")
        return CompletedProcess(returncode=0, stdout="out", stderr="warning", seconds=0.0)

    def store(self, step: Step, done: CompletedProcess) -> None:
        assert done.returncode == 0
        self.remembered.append(step.name)


def run(folder: Path, memo: FakeMemo, *steps: Step, slots: int = 1) -> Outcome:
    return run_graph(
        Graph(steps=steps),
        RunOptions(
            pool=LocalPool(slots, plenty(folder / "machine")),
            runner=SubprocessRunner(),
            progress=SilentProgress(),
            history=History(folder / "history", "g"),
            result_cache=memo,
        ),
    )


def test_cached_step_is_not_run_and_its_reader_is(tmp_path: Path) -> None:
    memo = FakeMemo()
    outcome = run(
        tmp_path,
        memo,
        shell(tmp_path, "known first", "exit 3", writes="a", key="first"),
        shell(tmp_path, "second", "cat a > b", reads="a", writes="b", key="second"),
    )
    assert outcome.failure is None
    assert (tmp_path / "b").read_text() == "known"
    first, second = outcome.finished
    assert (first.attempts, first.stdout, first.stderr) == (0, "out", "warning")
    assert second.attempts == 1
    assert memo.remembered == ["second"]
    assert set(History(tmp_path / "history", "g").estimates) == {"second"}


def test_looking_holds_no_slot(tmp_path: Path) -> None:
    steps = [shell(tmp_path, f"known {each}", "exit 3", writes=f"{each}") for each in "abcdef"]
    outcome = run(tmp_path, FakeMemo(seconds=1.0), *steps)
    assert outcome.failure is None
    assert outcome.seconds < 5


def test_failure_cancels_lookups(tmp_path: Path) -> None:
    memo = FakeMemo(seconds=0.3)
    outcome = run(
        tmp_path,
        memo,
        shell(tmp_path, "known ok", "true", writes="ok"),
        shell(tmp_path, "fails", "exit 3", reads="ok", writes="x"),
        shell(tmp_path, "slow to come", "sleep 0.2; touch late", reads="ok", writes="late"),
        shell(tmp_path, "known later", "true", reads="late", writes="y"),
        slots=2,
    )
    assert outcome.failure is not None
    assert outcome.failure.name == "fails"
    assert "known later" not in {done.name for done in outcome.finished}
    assert memo.remembered == []


def test_an_error_of_the_memo_comes_out(tmp_path: Path) -> None:
    slow = shell(tmp_path, "slow", "sleep 5; echo > slow", writes="slow")
    with pytest.raises(OSError, match="must not raise"):
        run(tmp_path, FakeMemo(), slow, shell(tmp_path, "breaks", "true"), slots=2)
