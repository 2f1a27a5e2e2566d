from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scheduler_samples import MB, FakeRunner, graphs, made_up_memory, plenty, shell, step, succeeds

from archsplit.errors import InterruptedByUserError, ToolFailedError, ToolNotFoundError
from archsplit.scheduler.executor import MemoryWatchdog
from archsplit.scheduler.graph import Graph, Step
from archsplit.scheduler.history import History
from archsplit.scheduler.pool import LocalPool, MemoryBudget
from archsplit.scheduler.runner import RunOptions, run_graph
from archsplit.scheduler.schedule import StepEstimate
from archsplit.system.process import Command, CompletedProcess, SubprocessRunner
from archsplit.system.terminal import SilentProgress

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from archsplit.scheduler.executor import RunningTask
    from archsplit.scheduler.outcome import Outcome
    from archsplit.system.process import Starter


def run(
    *steps: Step,
    jobs: int = 2,
    runner: Starter | None = None,
    budget: MemoryBudget | None = None,
    spread: bool = True,
) -> Outcome:
    return run_graph(
        Graph(steps=steps),
        RunOptions(
            pool=LocalPool(jobs, budget),
            runner=runner or SubprocessRunner(),
            progress=SilentProgress(),
            parallel=spread,
        ),
    )


class Accounts:
    """Checks at every start and end that nothing is used that isn't there."""

    def __init__(self, graph: Graph, runner: FakeRunner) -> None:
        self.by_name = {one.name: one for one in graph.steps}
        self.writer = {path: one.name for one in graph.steps for path in one.writes}
        self.runner = runner

    def check(self, *, slots: int, memory: int) -> None:
        running: set[str] = set()
        done: set[str] = set()
        for what, name in self.runner.log:
            if what == "start":
                needed = {self.writer[path] for path in self.by_name[name].reads}
                assert needed <= done
                running.add(name)
            else:
                running.remove(name)
                done.add(name)
            assert len(running) <= slots
            held = sum(self.by_name[each].memory for each in running)
            assert len(running) <= 1 or held <= memory
        assert done == set(self.by_name)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.integers(1, 4), st.integers(100, 1500))
def test_never_more_slots_or_memory_than_there_are(
    tmp_path: Path, data: st.DataObject, slots: int, memory: int
) -> None:
    graph = data.draw(graphs(folder=tmp_path))
    system = made_up_memory(tmp_path, (memory + 5000) * MB)
    pool = LocalPool(slots, MemoryBudget(system, limit=memory * MB))
    # A fake takes no memory, so nothing is learned from it, and nothing is ever reclaimed.
    runner = FakeRunner(succeeds)
    outcome = run_graph(
        graph, RunOptions(pool=pool, runner=runner, progress=SilentProgress(), parallel=False)
    )
    assert [done.position for done in outcome.finished] == list(range(len(graph.steps)))
    assert outcome.failure is None
    Accounts(graph, runner).check(slots=slots, memory=memory * MB)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.integers(1, 8))
def test_wide_steps_take_no_more_slots_than_there_are(
    tmp_path: Path, data: st.DataObject, slots: int
) -> None:
    graph = data.draw(graphs(folder=tmp_path))
    runner = FakeRunner(succeeds)
    pool = LocalPool(slots, plenty(tmp_path))
    outcome = run_graph(graph, RunOptions(pool=pool, runner=runner, progress=SilentProgress()))
    assert len(outcome.finished) == len(graph.steps)
    for one in outcome.finished:
        used = [done.slot for done in outcome.finished if done.started <= one.started < done.ended]
        assert len(used) == len(set(used)) <= slots
        assert 1 <= one.cores <= slots


def test_resources_of_a_step_are_measured(tmp_path: Path) -> None:
    text = "block = bytearray(200 << 20); sum(range(3000000))"
    script = f"'{sys.executable}' -c '{text}'; echo out; echo err >&2"
    (done,) = run(shell(tmp_path, "hungry", script)).finished
    assert done.peak_memory > 200 * MB
    assert done.cpu_seconds > 0.05
    assert (done.stdout, done.stderr, done.output) == ("out\n", "err\n", "out\nerr\n")
    assert (done.attempts, done.cores, done.slot, done.fault) == (1, 1, 0, "")
    assert 0 < done.seconds == done.ended - done.started


def test_failure_raises_nothing_and_stops_later_steps(tmp_path: Path) -> None:
    outcome = run(
        shell(tmp_path, "before", "sleep 0.3; echo before >> log"),
        shell(tmp_path, "bad", "echo no >&2; exit 3", writes="x"),
        shell(tmp_path, "after", "echo after >> log", "x"),
        shell(tmp_path, "slow", "sleep 30; echo slow >> log"),
        jobs=3,
    )
    assert [done.name for done in outcome.finished] == ["before", "bad"]
    assert outcome.failure is outcome.finished[1]
    assert outcome.failure.fault == "failed with exit status 3"
    assert outcome.failure.stderr == "no\n"
    assert (tmp_path / "log").read_text() == "before\n"
    assert outcome.seconds < 20


def test_step_must_write_its_declared_outputs(tmp_path: Path) -> None:
    outcome = run(shell(tmp_path, "check", "true"), shell(tmp_path, "liar", "true", writes="x"))
    assert outcome.failure is not None
    assert (outcome.failure.name, outcome.failure.returncode) == ("liar", 0)
    assert outcome.failure.fault == "succeeded, but left no x"


def test_missing_program_ends_all_steps(tmp_path: Path) -> None:
    missing = Command(argv=("/no/such/program",), cwd=tmp_path, env={})
    slow = shell(tmp_path, "slow", "sleep 30", weight=9)
    absent = Step(name="absent", command=missing, reads=(), writes=())
    started = time.monotonic()
    with pytest.raises(ToolNotFoundError, match="/no/such/program"):
        run(slow, absent)
    assert time.monotonic() - started < 20


def test_a_timeout_ends_all(tmp_path: Path) -> None:
    hasty = Command(argv=("/bin/sh", "-c", "sleep 30"), cwd=tmp_path, env={}, timeout=0.2)
    with pytest.raises(ToolFailedError, match="timed out"):
        run(Step(name="hasty", command=hasty, reads=(), writes=()), shell(tmp_path, "s", "sleep 9"))


def test_cancelling_the_runner_ends_all(tmp_path: Path) -> None:
    runner = SubprocessRunner()
    timer = threading.Timer(0.2, runner.cancel)
    timer.start()
    with pytest.raises(InterruptedByUserError):
        run(*(shell(tmp_path, f"slow {n}", "sleep 30") for n in range(4)), runner=runner)
    timer.join()


def test_a_signal_reaches_the_children_and_lets_them_clean_up(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(
        textwrap.dedent("""
        import os, signal, sys
        from pathlib import Path
        from archsplit.scheduler.runner import RunOptions, run_graph
        from archsplit.scheduler.graph import Graph, Step
        from archsplit.scheduler.pool import LocalPool
        from archsplit.system.terminal import SilentProgress
        from archsplit.system.process import Command, SubprocessRunner

        def stop(number, frame):
            raise KeyboardInterrupt

        signal.signal(signal.SIGTERM, stop)
        text = "trap 'echo > cleaned; exit 1' TERM; echo > ready; while :; do sleep 0.05; done"
        command = Command(argv=("/bin/sh", "-c", text), cwd=Path.cwd(), env=dict(os.environ))
        graph = Graph(steps=(Step(name="slow", command=command, reads=(), writes=()),))
        try:
            progress = SilentProgress()
            options = RunOptions(
                pool=LocalPool(1), runner=SubprocessRunner(), progress=progress
            )
            run_graph(graph, options)
        except KeyboardInterrupt:
            print("interrupted")
        """)
    )
    main = subprocess.Popen(
        [sys.executable, "main.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    main.send_signal(signal.SIGTERM)
    assert main.communicate(timeout=30)[0] == "interrupted\n"
    assert (tmp_path / "cleaned").exists()


def test_idle_cores_go_to_a_long_parallel_step(tmp_path: Path) -> None:
    long = Step(
        name="long",
        command=Command(argv=("/bin/echo", "file"), cwd=tmp_path, env=dict(os.environ)),
        reads=(),
        writes=(),
        weight=10,
        parallel_flags=("-split-compile", "{cores}"),
    )
    (done,) = run(long, jobs=8).finished
    assert (done.stdout, done.cores) == ("-split-compile 8 file\n", 8)
    (done,) = run(long, jobs=8, spread=False).finished
    assert (done.stdout, done.cores) == ("file\n", 1)
    others = [shell(tmp_path, f"s{number}", "sleep 0.1") for number in range(3)]
    crowded = run(long, *others, jobs=4)
    assert [one.cores for one in crowded.finished] == [1, 1, 1, 1]


class Killed:
    """Behaves like a program that the OOM killer ends, unless no other one runs."""

    def __init__(self) -> None:
        self.running = 0
        self.lock = threading.Lock()

    def __call__(self, command: Command) -> CompletedProcess:
        with self.lock:
            self.running += 1
        time.sleep(0.05)
        with self.lock:
            crowded = self.running > 1
            if command.argv[0] == "big" and crowded:
                self.running -= 1
                return CompletedProcess(returncode=-9, stdout="", stderr="", seconds=0.0)
        time.sleep(0.05)
        with self.lock:
            self.running -= 1
        return CompletedProcess(returncode=0, stdout="", stderr="", seconds=0.0)


def test_step_killed_for_memory_runs_again_by_itself(tmp_path: Path) -> None:
    runner = FakeRunner(Killed())
    names = ("s1", "big", "s2", "s3", "s4")
    outcome = run(*map(step, names), jobs=3, runner=runner, budget=plenty(tmp_path))
    assert outcome.failure is None
    assert [done.attempts for done in outcome.finished] == [1, 2, 1, 1, 1]
    big = outcome.finished[1]
    others = (done for done in outcome.finished if done is not big)
    assert all(done.ended <= big.started or done.started >= big.ended for done in others)


SAID = [
    "fatal error: Killed signal terminated program cc1plus",
    "LLVM ERROR: out of memory",
    "terminate called after throwing an instance of 'std::bad_alloc'",
    "cc1plus: out of memory allocating 65536 bytes after a total of 1 bytes",
    "virtual memory exhausted: Cannot allocate memory",
]


@pytest.mark.parametrize("said", SAID)
def test_step_without_memory_by_itself_fails(tmp_path: Path, said: str) -> None:
    outcome = run(shell(tmp_path, "big", f'echo "{said}" >&2; exit 1'))
    assert outcome.failure is not None
    assert outcome.failure.attempts == 2
    assert said in outcome.failure.stderr


def test_a_failure_of_another_kind_is_not_tried_again(tmp_path: Path) -> None:
    outcome = run(shell(tmp_path, "bad", "echo 'error: x' >&2; exit 1"))
    assert outcome.failure is not None
    assert outcome.failure.attempts == 1


def test_step_beyond_the_memory_is_killed_and_run_again(tmp_path: Path) -> None:
    text = "import time; block = b'x' * (250 << 20); time.sleep(0.4)"
    steps = [
        shell(tmp_path, f"s{number}", f'exec "{sys.executable}" -c "{text}"', memory=10 * MB)
        for number in range(3)
    ]
    budget = MemoryBudget(made_up_memory(tmp_path, 90_000 * MB), limit=600 * MB)
    outcome = run(*steps, jobs=3, budget=budget)
    assert outcome.failure is None
    assert max(done.attempts for done in outcome.finished) > 1


def test_step_killed_repeatedly_runs_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryWatchdog, "check", reclaim_second)
    steps = [shell(tmp_path, f"s{number}", "sleep 0.3") for number in range(2)]
    outcome = run(*steps, budget=plenty(tmp_path))
    assert [done.attempts for done in outcome.finished] == [1, 4]


def reclaim_second(watch: MemoryWatchdog, now: float, active: Iterable[RunningTask]) -> None:
    watch.next_check = now + 0.02
    for one in active:
        if one.position == 1 and not one.is_alone:
            one.kill_for_memory()


def test_bigger_step_is_not_overtaken_forever(tmp_path: Path) -> None:
    """Without a claim on memory, the many small ones would all run before the big one."""

    def behaviour(command: Command) -> CompletedProcess:
        time.sleep(0.1 if command.argv[0].startswith("small 0") else 0.02)
        return CompletedProcess(returncode=0, stdout="", stderr="", seconds=0.0)

    small = [step(f"small {n}", memory=400 * MB, weight=0.02) for n in range(20)]
    first = step("small 0 first", "", "x", folder=tmp_path, memory=400 * MB, weight=9)
    big = step("big", "x", folder=tmp_path, memory=900 * MB, weight=8)
    runner = FakeRunner(behaviour)
    budget = MemoryBudget(made_up_memory(tmp_path, 9000 * MB), limit=1000 * MB)
    run(first, *small, big, jobs=2, runner=runner, budget=budget)
    order = [name for what, name in runner.log if what == "start"]
    assert order.index("big") < 12


def test_history_decides_the_order(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    steps = (
        shell(tmp_path, "guessed long", "echo guess >> log", weight=5, key="g"),
        shell(tmp_path, "really long", "sleep 0.3; echo real >> log", weight=1, key="r"),
    )
    graph = Graph(steps=steps)
    for _ in range(2):
        history = History(folder, "x")
        run_graph(
            graph,
            RunOptions(
                pool=LocalPool(1, plenty(tmp_path)),
                runner=SubprocessRunner(),
                progress=SilentProgress(),
                history=history,
            ),
        )
    assert (tmp_path / "log").read_text().split() == ["guess", "real", "real", "guess"]
    known = History(folder, "x").estimates
    assert set(known) == {"g", "r"}
    assert known["r"] > StepEstimate(0.25, 0)
    assert known["r"].memory > 0
