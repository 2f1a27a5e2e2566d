"""Steps on the workers of a dask scheduler: the same bytes, also after the loss of a worker."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import pytest
from dask_cluster import Cluster, Networks, open_cluster
from shell_steps import Work
from wrapped_calls import WrappedCalls

from archsplit.cache.cache import Cache
from archsplit.cache.config import resolve_settings
from archsplit.cache.file_digests import FileDigests
from archsplit.errors import EngineRefusedError, EngineUnavailableError
from archsplit.remote.action import OTHER_TOOLS_STATUS, PathMap, ToolFile
from archsplit.remote.action_results import ActionResults
from archsplit.remote.connection import CheckRow, run_checks
from archsplit.remote.dask_worker import DaskAction, DaskResult, run_action, select_files
from archsplit.scheduler.graph import Graph
from archsplit.scheduler.pool import LocalPool
from archsplit.scheduler.runner import RunOptions, run_graph
from archsplit.system.process import CompletedProcess, SubprocessRunner
from archsplit.system.terminal import SilentProgress

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    from archsplit.nvcc.toolkit import Toolkit

SECONDS = 120


def action(script: str, **more: object) -> DaskAction:
    usual: dict[str, object] = {
        "argv": ["/bin/sh", "-c", script],
        "environment": dict(os.environ),
        "files": {},
        "inputs": [],
        "outputs": [],
        "tools": {},
        "toolkit": "",
    }
    return {**usual, **more}  # type: ignore[typeddict-item]


def test_an_action_has_its_inputs_and_nothing_else() -> None:
    first = run_action(action("echo text > d/a; echo b > d/b", outputs=["d/a", "d/b", "d/c"]), [])
    assert first["sizes"] == {"d/a": 5, "d/b": 2}
    second = run_action(
        action("cat d/a src/s > o; find . -type f | sort", files={"src/s": b"s"}, inputs=["d/a"])
        | {"outputs": ["o"]},
        [first],
    )
    assert second["stdout"] == "./d/a\n./o\n./src/s\n"
    assert select_files(second, ["o"])["files"] == {"o": b"text\ns"}
    failed = select_files(run_action(action("echo no >&2; exit 3", outputs=["o"]), []), ["o"])
    assert (failed["returncode"], failed["stderr"], failed["files"]) == (3, "no\n", {})


def test_an_action_reads_its_tools_again_only_after_a_change(tmp_path: Path) -> None:
    tool = tmp_path / "a tool"
    tool.write_text("one")
    # A file that has changed just now may change once more without a trace in its times.
    os.utime(tool, (1, 1))
    tools = {str(tool): hashlib.sha256(b"one").hexdigest()}
    digests = FileDigests(None)
    assert run_action(action("true", tools=tools), [], digests=digests)["returncode"] == 0
    tool.write_text("two")
    refused = run_action(action("echo ran", tools=tools), [], digests=digests)
    assert refused["returncode"] == OTHER_TOOLS_STATUS
    assert refused["stdout"] == f"{tool}: FAILED\n"


def test_a_result_comes_at_once_though_its_worker_is_busy(cluster: Cluster, tmp_path: Path) -> None:
    work = Work(tmp_path / "work")
    go = tmp_path / "go"
    cluster.add_worker("one")
    quick = work.step("quick", "echo text > .archsplit/work/a", writes="a")
    # In the worker's only slot as soon as the first step has ended.
    slow = work.step("slow", f"until test -e '{go}'; do sleep 0.05; done")
    executor = cluster.executor(work, quick, slow, wanted=quick.writes)
    ends: SimpleQueue[object] = SimpleQueue()
    executor.start(quick, cores=1, ended=ends.put)
    executor.start(slow, cores=1, ended=lambda _: None)
    end = ends.get(timeout=SECONDS)
    go.touch()
    assert isinstance(end, CompletedProcess), end
    assert (work.private / "a").read_text() == "text\n"
    executor.close()


def test_a_file_without_its_declared_size_is_refused(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(tmp_path / "work")
    cluster.add_worker("one")
    step = work.step("made", "echo text > .archsplit/work/a", writes="a")
    executor = cluster.executor(work, step, wanted=step.writes)
    read = executor._read

    def read_more(result: object, names: list[str]) -> DaskResult:
        done = read(result, names)
        return {**done, "files": {name: bytes(1 << 20) for name in done["files"]}}

    monkeypatch.setattr(executor, "_read", read_more)
    ends: SimpleQueue[object] = SimpleQueue()
    executor.start(step, cores=1, ended=ends.put)
    end = ends.get(timeout=SECONDS)
    assert isinstance(end, EngineRefusedError)
    assert re.fullmatch(r"tls://.* returned damaged bytes of a", end.message)
    assert not (work.private / "a").exists()
    executor.close()


def test_result_lost_with_its_worker_is_made_again(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(tmp_path / "work")
    worker = cluster.add_worker("one")
    step = work.step("made", "echo text > .archsplit/work/a", writes="a")
    executor = cluster.executor(work, step, wanted=step.writes)
    finished, is_lost = threading.Event(), threading.Event()
    take = executor._end

    def wait_and_take(*arguments: object) -> None:
        finished.set()
        assert is_lost.wait(SECONDS)
        take(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(executor, "_end", wait_and_take)
    ends: SimpleQueue[object] = SimpleQueue()
    running = executor.start(step, cores=1, ended=ends.put)
    assert finished.wait(SECONDS)
    worker.kill()
    wait_until(lambda: running.result.status != "finished")
    is_lost.set()
    cluster.add_worker("two")
    end = ends.get(timeout=SECONDS)
    assert isinstance(end, CompletedProcess), end
    assert (work.private / "a").read_text() == "text\n"
    executor.close()


def test_failed_test_leaves_no_program(tmp_path: Path) -> None:
    programs: list[subprocess.Popen[str]] = []

    def fail() -> None:
        with open_cluster(tmp_path / "cluster") as cluster:
            programs.append(cluster.add_worker("one"))
            raise AssertionError("the test fails")

    with pytest.raises(AssertionError, match="the test fails"):
        fail()
    assert [program.returncode for program in programs] == [-signal.SIGKILL]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with open_cluster(tmp_path / "cluster") as made:
        yield made


def wait_until(is_true: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS
    while not is_true():
        assert time.monotonic() < until
        time.sleep(0.02)


def has_ended(pid: str) -> bool:
    """Return True for a process that is gone, or is a zombie that no process here waits for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("kind", ["archsplit remote worker", "dask worker", "sbatch"])
def test_no_program_outlives_its_canceled_step_or_its_worker(
    cluster: Cluster, tmp_path: Path, kind: str
) -> None:
    work = Work(tmp_path / "work")
    start = {
        "archsplit remote worker": lambda: cluster.add_worker("one", jobs=2),
        "dask worker": cluster.add_plain_worker,
        "sbatch": cluster.add_batch_job,
    }
    worker = start[kind]()
    first, second = tmp_path / "first pid", tmp_path / "second pid"
    # It ignores SIGTERM, as a program that hangs does.
    stubborn = "trap '' TERM; echo $$ > '{}'; while :; do sleep 1; done"
    bad = work.step("bad", f"until test -s '{first}'; do sleep 0.05; done; echo no >&2; exit 3")
    slow = work.step("slow", stubborn.format(first))
    outcome = work.run(cluster.executor(work, bad, slow), bad, slow)
    assert outcome.failure is not None
    assert (outcome.failure.name, outcome.failure.stderr) == ("bad", "no\n")
    wait_until(lambda: has_ended(first.read_text().strip()))
    # The worker takes the next step in the same slot, and takes its program along at its end.
    late = work.step("late", stubborn.format(second))
    executor = cluster.executor(work, late)
    executor.start(late, cores=1, ended=lambda _: None)
    wait_until(lambda: second.exists() and second.read_text().endswith("\n"))
    worker.terminate()
    worker.wait(timeout=SECONDS)
    wait_until(lambda: has_ended(second.read_text().strip()))
    executor.close()


def test_build_without_workers_ends(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(tmp_path / "work")
    worker = cluster.add_worker("one")
    started = tmp_path / "started"
    step = work.step("waits", f"echo > '{started}'; sleep 600")
    executor = cluster.executor(work, step)
    monkeypatch.setattr("archsplit.remote.dask_executor._NOBODY_SECONDS", 1)
    ends: SimpleQueue[object] = SimpleQueue()
    executor.start(step, cores=1, ended=ends.put)
    wait_until(started.exists)
    # As a job whose time is over.
    worker.terminate()
    end = ends.get(timeout=SECONDS)
    assert isinstance(end, EngineUnavailableError), end
    assert "has no worker" in str(end)
    executor.close()
    assert ends.empty()


def wait_for_steps(build: subprocess.Popen[str], count: int) -> None:
    assert build.stderr is not None
    for line in build.stderr:
        if line.startswith("Ran ") and f" ({count} of " in line:
            return


def digests(text: str) -> dict[str, str]:
    return {wheel["file"]: wheel["sha256"] for wheel in json.loads(text)["wheels"]}


def test_a_check_of_the_cluster_asks_each_worker(cluster: Cluster, tmp_path: Path) -> None:
    # An optional dependency: the fixture has skipped the test without it.
    from archsplit.remote.dask_executor import DaskChecks  # noqa: PLC0415

    work = Work(tmp_path / "work")
    worker = cluster.add_worker("one")
    good, bad = tmp_path / "good", tmp_path / "bad"
    for folder in (good, bad):
        folder.mkdir()
    rows: list[CheckRow] = []
    checks = DaskChecks(cluster.endpoint(), tools=work.tools, folder=good)
    run_checks(checks.checks(), rows.append)
    checks.close()
    assert [row.text for row in rows] == [
        "workers: 1; steps at a time: 1",
        "the tools are the same on each worker; files: 1",
    ]
    psutil = pytest.importorskip("psutil", reason="a dependency of dask's own")
    ports = psutil.Process(worker.pid).net_connections("tcp")
    listening = {one.laddr for one in ports if one.status == psutil.CONN_LISTEN}
    # The one with TLS; dask's pages are only on this machine.
    assert len({one.port for one in listening if one.ip not in {"127.0.0.1", "::1"}}) == 1
    assert len({one.port for one in listening}) == 2
    others = (ToolFile(path="/bin/sh", sha256="0" * 64),)
    checks = DaskChecks(cluster.endpoint(), tools=others, folder=bad)
    with pytest.raises(EngineRefusedError, match=r"a worker of tls://.* has other tools .*/bin/sh"):
        run_checks(checks.checks(), rows.append)
    checks.close()
    assert not rows[-1].works


def test_check_without_a_file_of_its_action_fails(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from archsplit.remote import dask_executor  # noqa: PLC0415 - as above

    def leave_nothing(*_: object) -> dict[str, object]:
        return {"returncode": 0, "stdout": "", "stderr": "", "sizes": {}, "files": {}}

    monkeypatch.setattr(dask_executor, "run_on_worker", leave_nothing)
    cluster.add_worker("one")
    checks = dask_executor.DaskChecks(cluster.endpoint(), tools=(), folder=tmp_path)
    with pytest.raises(EngineRefusedError, match=r"left no file; exit status 0"):
        run_checks(checks.checks(), list[CheckRow]().append)
    checks.close()


@pytest.mark.nvcc
def test_wheels_have_the_same_bytes_though_a_worker_is_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    first, _ = cluster.add_worker("one"), cluster.add_worker("two")
    here = cluster.build_here(tmp_path / "here")
    cluster.wait_for_workers(2)
    build = cluster.build(tmp_path / "there", "--trace", tmp_path / "trace.json")
    wait_for_steps(build, 2)
    first.send_signal(signal.SIGKILL)
    stdout, stderr = build.communicate(timeout=SECONDS)
    assert build.returncode == 0, stderr
    assert digests(stdout) == digests(here)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert any(event["ph"] == "X" and "cicc" in event["name"] for event in events)
    assert re.search(r" running, 0 remaining, [\d.]+ MB moved \(", stderr), stderr
    assert re.search(r"steps run: \d+; [\d.]+ MB sent, [\d.]+ MB received", stderr), stderr


@pytest.mark.stress
@pytest.mark.timeout(1800)
@pytest.mark.nvcc
def test_eight_isolated_workers_make_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCHSPLIT_CACHE_MIN_SECONDS", "0")
    monkeypatch.setenv("ARCHSPLIT_CACHE_DIR", str(tmp_path / "cache"))
    with contextlib.ExitStack() as closing:
        networks = Networks.make()
        if networks is not None:
            closing.callback(networks.close)
        cluster = closing.enter_context(open_cluster(tmp_path / "cluster", networks))
        for number in range(8):
            cluster.add_worker(f"worker {number}")
        words = ("--targets", "sm_80,sm_90")
        cache = ("--cache", "on")
        here = cluster.build_here(tmp_path / "here", *words)
        for name, pattern in (("cold", r"steps run: [1-9]"), ("warm", "steps run: 0")):
            build = cluster.build(tmp_path / name, *words, *cache)
            stdout, stderr = build.communicate(timeout=5 * SECONDS)
            assert build.returncode == 0, stderr
            assert re.search(pattern, stderr), stderr
            assert digests(stdout) == digests(here)


@pytest.mark.nvcc
def test_a_scheduler_without_workers_is_an_error(cluster: Cluster, tmp_path: Path) -> None:
    build = cluster.build(tmp_path / "out")
    _, stderr = build.communicate(timeout=SECONDS)
    assert build.returncode == 24
    assert "has no worker\nhint: start some: archsplit remote worker tls://" in stderr
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.nvcc
def test_ended_scheduler_is_an_error(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCHSPLIT_CACHE_MIN_SECONDS", "0")
    monkeypatch.setenv("ARCHSPLIT_CACHE_DIR", str(tmp_path / "cache"))
    worker = cluster.add_worker("one")
    cache = ("--cache", "on")
    build = cluster.build(tmp_path / "out", *cache)
    wait_for_steps(build, 3)
    cluster.kill_scheduler()
    _, stderr = build.communicate(timeout=SECONDS)
    assert build.returncode == 24, stderr
    assert "is gone, and all running steps" in stderr
    assert "hint: start the scheduler and its workers again" in stderr
    assert not list((tmp_path / "out").glob("*"))
    # Workers end with their scheduler, so that no machine is kept without use.
    worker.wait(timeout=SECONDS)
    # What was done is not done again, though the workers that had it are gone.
    with open_cluster(tmp_path / "another") as another:
        another.add_worker("one")
        rest = another.build(tmp_path / "out", *cache)
        stdout, stderr = rest.communicate(timeout=SECONDS)
        assert rest.returncode == 0, stderr
    found = re.search(r"(\d+) of (\d+) steps from the compile cache", stderr)
    made = re.search(r"steps run: (\d+)", stderr)
    assert found is not None
    assert made is not None
    assert int(found[1]) >= 2
    assert int(found[1]) + int(made[1]) == int(found[2])
    assert digests(stdout) == digests(cluster.build_here(tmp_path / "here"))


@pytest.mark.stress
def test_lost_workers_and_a_lost_scheduler_cost_a_tenth_of_the_work(tmp_path: Path) -> None:
    work, count = Work(tmp_path / "work"), tmp_path / "runs"
    sources = [f"source-{number}" for number in range(190)]
    steps = []
    for name in sources:
        (work.root / name).write_text(name)
        script = f"echo {name} >> {count}; sleep 0.3; cat {name} > .archsplit/work/{name}"
        steps.append(work.step(name, script, name, name))
    for number in range(10):
        parts = sources[number::10]
        script = f"echo link >> {count}; cd .archsplit/work; cat {' '.join(parts)} > link-{number}"
        link = work.step(f"link-{number}", script, writes=f"link-{number}")
        steps.append(link._replace(reads=tuple(work.private / each for each in parts)))
    variables = {"ARCHSPLIT_CACHE": "on", "ARCHSPLIT_CACHE_DIR": str(tmp_path / "cache")}
    variables |= {"ARCHSPLIT_CACHE_MIN_SECONDS": "0", "ARCHSPLIT_CACHE_MIN_SIZE": "0"}
    paths = PathMap(work.root, work.private)

    def done() -> int:
        return len(count.read_text().splitlines()) if count.exists() else 0

    def run(cluster: Cluster, victim: subprocess.Popen[str] | None) -> None:
        stop = threading.Event()

        def kill() -> None:
            while victim is not None and not stop.wait(0.05):
                if done() > 60:
                    victim.kill()
                if done() > 120:
                    cluster.kill_scheduler()
                    return

        threading.Thread(target=kill, daemon=True).start()
        cache = Cache(resolve_settings(variables), warn=print)
        executor = cluster.executor(work, *steps, wanted=tuple(work.private / s for s in sources))
        try:
            outcome = run_graph(
                Graph(steps=tuple(steps)),
                RunOptions(
                    pool=LocalPool(10),
                    runner=SubprocessRunner(),
                    progress=SilentProgress(),
                    executor=executor,
                    result_cache=ActionResults(cache, paths, lambda _: work.tools),
                ),
            )
            assert outcome.failure is None
        finally:
            stop.set()
            cache.close()

    with open_cluster(tmp_path / "one") as cluster:
        workers = [cluster.add_worker(f"worker {number}") for number in range(10)]
        cluster.wait_for_workers(10)
        with pytest.raises(EngineUnavailableError):
            run(cluster, workers[0])
    with open_cluster(tmp_path / "two") as cluster:
        for number in range(9):
            cluster.add_worker(f"worker {number}")
        cluster.wait_for_workers(9)
        run(cluster, None)
    assert done() <= 1.1 * len(steps), f"{done()} runs of {len(steps)} actions"


@pytest.mark.nvcc
def test_the_wrapper_makes_the_same_objects_with_a_cluster(
    cluster: Cluster, tmp_path: Path, toolkit: Toolkit
) -> None:
    cluster.add_worker("one")
    cluster.add_worker("two")
    calls = WrappedCalls(tmp_path / "calls", toolkit.nvcc)
    engine = (*cluster.files, "--remote")
    report = calls.check(*engine, cluster.address, dead=(*engine, "tls://127.0.0.1:1"))
    assert f"{cluster.address}: steps run: 6" in report
    assert "dask's dashboard: http://127.0.0.1:" in report
