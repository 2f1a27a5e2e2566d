"""Steps on a build farm: the same bytes, and what becomes of lost servers and workers."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import shell_steps
from farm import Farm
from shell_steps import SHELL
from wrapped_calls import WrappedCalls

from archsplit.arch.target import Target
from archsplit.backend import build_wheel
from archsplit.build.pipeline import build_recipe
from archsplit.build.plan import BuildRequest
from archsplit.cache.config import resolve_settings
from archsplit.cli.main import main
from archsplit.errors import (
    EngineRefusedError,
    EngineUnavailableError,
    InputError,
    WorkerLostError,
)
from archsplit.recipe.load import load_recipe
from archsplit.release.context import Effects
from archsplit.remote.action import PathMap, ToolFile
from archsplit.remote.connection import CheckRow, run_checks
from archsplit.remote.endpoint import EngineChoice, parse_endpoint
from archsplit.system.terminal import SilentProgress

pytest.importorskip("grpc", reason="needs archsplit[reapi]")
pytest.importorskip("google.protobuf", reason="needs archsplit[reapi]")

from archsplit.remote import reapi_client, reapi_executor
from archsplit.remote.reapi_check import ReapiChecks
from archsplit.remote.reapi_executor import ReapiExecutor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.nvcc.toolkit import Toolkit
    from archsplit.remote.endpoint import Endpoint


TINYVEC = Path(__file__).parents[1] / "tinyvec"
TINYRDC = Path(__file__).parents[1] / "tinyrdc"


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    server = Farm(tmp_path / "farm", tmp_path / "seen")
    (tmp_path / "seen").mkdir()
    server.start()
    yield server
    server.kill()


class Work(shell_steps.Work):
    """Shell steps for the farm."""

    def executor(self, address: str, *wanted: str) -> ReapiExecutor:
        return ReapiExecutor(
            parse_endpoint(address),
            paths=PathMap(self.root, self.private),
            tools=lambda _: self.tools,
            wanted=[self.private / each for each in wanted],
            priorities={},
        )


def with_property(farm: Farm) -> Endpoint:
    """Return an endpoint whose actions are other ones."""
    return parse_endpoint(farm.address, properties=["a=property"])


class Notes(SilentProgress):
    """A receiver of progress that keeps the lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path / "work")


def count_script(work: Work, name: str) -> str:
    """A line that counts its runs in a file that the sandbox shares with this test."""
    return f"echo >> {work.root.parents[1] / 'seen' / name}; "


def test_files_between_steps_stay_on_the_farm(farm: Farm, work: Work) -> None:
    (work.root / "source").write_text("text\n")
    first = work.step("first", "echo out; cat source > .archsplit/work/a", "source", "a")
    second = work.step(
        "second", "cat .archsplit/work/a - > .archsplit/work/b", writes="b"
    )._replace(
        reads=(work.private / "a",),
    )
    executor = work.executor(farm.address, "b")
    outcome = work.run(executor, first, second)
    assert outcome.failure is None
    assert [done.output for done in outcome.finished] == ["out\n", ""]
    assert sorted(path.name for path in work.private.iterdir()) == ["b"]
    assert (work.private / "b").read_text() == "text\n"
    assert (executor.hits, executor.runs, executor.traffic.received) == (0, 2, len("out\ntext\n"))
    again = work.executor(farm.address, "b")
    assert work.run(again, first, second).failure is None
    # A build whose results are there sends nothing.
    assert (again.hits, again.runs, again.traffic.sent) == (2, 0, 0)


def test_a_new_build_leaves_the_lookup_to_the_server(
    farm: Farm, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = count_script(work, "runs") + "echo text > .archsplit/work/a"
    step = work.step("made", script, writes="a")
    assert work.run(work.executor(farm.address, "a"), step).failure is None
    monkeypatch.setattr(reapi_executor, "_MISSES", 0)
    again = work.executor(farm.address, "a")
    assert work.run(again, step).failure is None
    assert (work.private / "a").read_text() == "text\n"
    assert (work.root.parents[1] / "seen" / "runs").read_text() == "\n"
    assert (again.hits, again.runs) == (1, 0)


def test_failing_step_is_reported_by_name_and_fault(farm: Farm, work: Work) -> None:
    outcome = work.run(
        work.executor(farm.address),
        work.step("bad", "echo no >&2; exit 3", writes="x"),
        work.step("slow", "sleep 60", writes="y"),
    )
    assert outcome.failure is not None
    assert (outcome.failure.name, outcome.failure.fault) == ("bad", "failed with exit status 3")
    assert outcome.failure.stderr == "no\n"
    assert outcome.seconds < 50
    liar = work.run(work.executor(farm.address), work.step("liar", "true", writes="x"))
    assert liar.failure is not None
    assert liar.failure.fault == "succeeded, but left no x"


def test_step_sees_only_declared_files(farm: Farm, work: Work) -> None:
    (work.root / "secret").write_text("")
    (work.root / "source").write_text("")
    script = "test ! -e secret && test -e source && echo > .archsplit/work/a"
    outcome = work.run(work.executor(farm.address), work.step("looks", script, "source", "a"))
    assert outcome.failure is None


def test_other_tools_are_refused_by_name(farm: Farm, work: Work) -> None:
    work.tools = (ToolFile(path=str(SHELL), sha256="0" * 64),)
    with pytest.raises(EngineRefusedError, match=r"other tools .* for compile: /bin/sh") as caught:
        work.run(work.executor(farm.address), work.step("compile", "true"))
    assert "at the same paths" in str(caught.value.hint)


def test_a_lost_worker_is_another_attempt(
    farm: Farm, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = count_script(work, "once") + (
        f"test $(wc -l < {work.root.parents[1] / 'seen/once'}) -gt 1 || kill -9 $$;"
        " echo done > .archsplit/work/a"
    )
    outcome = work.run(work.executor(farm.address, "a"), work.step("killed once", script, "", "a"))
    assert outcome.failure is None
    assert (work.private / "a").read_text() == "done\n"
    with pytest.raises(WorkerLostError, match="killed always was lost 3 times") as caught:
        work.run(work.executor(farm.address), work.step("killed always", "kill -9 $$"))
    assert caught.value.hint == "most often the workers have too little memory for it"


def test_restarted_server_loses_no_result(farm: Farm, work: Work) -> None:
    steps = [
        work.step(f"s{at}", f"sleep 0.2; echo {at} > .archsplit/work/f{at}", writes=f"f{at}")
        for at in range(10)
    ]
    executor = work.executor(farm.address, *(f"f{at}" for at in range(10)))

    def restart() -> None:
        while executor.runs < 3:
            time.sleep(0.01)
        farm.kill()
        farm.start()

    killer = threading.Thread(target=restart)
    killer.start()
    outcome = work.run(executor, *steps)
    killer.join()
    assert outcome.failure is None
    assert [(work.private / f"f{at}").read_text() for at in range(10)] == [
        f"{at}\n" for at in range(10)
    ]


class Proxy:
    """A way to a server that loses all connections when it is told to."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        self.address = f"grpc://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                server = socket.create_connection(self._target)
                self._ends += [client, server]
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._copy, args=ends, daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while block := source.recv(1 << 16):
                target.sendall(block)

    def lose(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._server.close()
        self.lose()


def test_a_lost_connection_costs_no_result(farm: Farm, work: Work) -> None:
    proxy = Proxy(farm.port)
    seen = work.root.parents[1] / "seen/slow"
    script = count_script(work, "slow") + "sleep 3; echo done > .archsplit/work/a"

    def lose() -> None:
        while not seen.exists():
            time.sleep(0.02)
        proxy.lose()

    loser = threading.Thread(target=lose)
    loser.start()
    outcome = work.run(work.executor(proxy.address, "a"), work.step("slow", script, "", "a"))
    loser.join()
    proxy.close()
    assert outcome.failure is None
    assert (work.private / "a").read_text() == "done\n"


def test_farm_without_workers_is_an_error(
    farm: Farm, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reapi_executor, "_NO_WORKER_SECONDS", 0.5)
    monkeypatch.setattr(reapi_executor, "_BUSY_SECONDS", 0.5)
    executor = work.executor(farm.address)
    executor._on_stage("before", 3)
    executor._add_progress("before")
    # The server has taken the action back from a lost worker, and no worker takes it again.
    executor._on_stage("now", 3)
    executor._on_stage("now", 2)
    call = executor._in_time(asyncio.sleep(60))
    with pytest.raises(EngineUnavailableError, match=r"no worker of .* has taken a step in 0 s"):
        executor._wait_for(call)
    executor.close()


def test_stopped_server_is_an_error(
    farm: Farm, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reapi_client, "_OUTAGE_SECONDS", 0.5)
    executor = work.executor(farm.address)
    farm.kill()
    with pytest.raises(EngineUnavailableError, match="has not replied"):
        work.run(executor, work.step("late", "true"))
    with pytest.raises(EngineUnavailableError, match="has not replied") as caught:
        work.executor(farm.address)
    assert "check the address" in str(caught.value.hint)
    farm.start()


def test_source_changed_during_the_build_is_an_error(farm: Farm, work: Work) -> None:
    (work.root / "source").write_text("one")
    executor = work.executor(farm.address)
    executor._hash(work.root / "source")
    (work.root / "source").write_text("two")
    with pytest.raises(InputError, match="has changed during the build"):
        work.run(executor, work.step("reads", "true", "source"))


def check(farm: Farm, work: Work) -> dict[str, str]:
    folder = work.root.parent / "check"
    folder.mkdir()
    checks = ReapiChecks(parse_endpoint(farm.address), tools=work.tools, folder=folder)
    rows: list[CheckRow] = []
    try:
        run_checks(checks.checks(), rows.append)
    finally:
        checks.close()
        shutil.rmtree(folder)
    assert all(row.works for row in rows)
    return {row.name: row.text for row in rows}


def test_farm_check_equals_a_build(farm: Farm, work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(farm, work) == {
        "capabilities": "runs actions, with SHA-256",
        "storage": "64 KB written and read",
        "action cache": "replies",
        "execution": "the tools are the same on the worker; files: 1",
        "kept results": "a second build has hits",
    }
    work.tools = (ToolFile(path=str(SHELL), sha256="0" * 64),)
    with pytest.raises(EngineRefusedError, match=r"other tools than this machine .*: /bin/sh"):
        check(farm, work)
    monkeypatch.setattr(reapi_client, "_OUTAGE_SECONDS", 0.5)
    farm.kill()
    with pytest.raises(EngineUnavailableError, match="has not replied"):
        check(farm, work)
    farm.start()


@pytest.mark.nvcc
def test_the_command_checks_the_tools_of_builds(
    farm: Farm, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["remote", "check", farm.address]) == 0
    lines = capsys.readouterr().out.splitlines()
    words = [line.split() for line in lines]
    assert [" ".join(row).split(" ok ")[0] for row in words] == [
        "capabilities",
        "storage",
        "action cache",
        "execution",
        "kept results",
    ]
    # cicc, ptxas, fatbinary, cudafe++, a device library, and the parts of the host compiler.
    assert int(words[3][4]) >= 8


@pytest.mark.nvcc
def test_wheels_have_the_same_bytes_as_on_this_machine(
    farm: Farm,
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    notes = Notes()

    def build(recipe: Path, name: str, engine: EngineChoice | None) -> dict[str, str]:
        effects = Effects(
            progress=notes,
            environment=environment,
            jobs=2,
            engine=engine,
            trace=tmp_path / f"{name}.json",
        )
        order = BuildRequest(recipe=load_recipe(recipe), targets=(Target.parse("sm_80"),))
        release = build_recipe(order, effects, out=tmp_path / name)
        return {wheel.file: wheel.sha256 for wheel in release.wheels}

    choice = EngineChoice(endpoint=parse_endpoint(farm.address), jobs=8)
    here = build(TINYVEC, "here", None)
    stop, killed = threading.Event(), threading.Event()

    def kill_one() -> None:
        # A compile is long enough to be met.
        while not stop.is_set() and not killed.is_set():
            if farm.kill_worker("/cicc"):
                killed.set()
            time.sleep(0.01)

    killer = threading.Thread(target=kill_one)
    killer.start()
    assert build(TINYVEC, "cold", choice) == here
    stop.set()
    killer.join()
    assert killed.is_set()
    events = json.loads((tmp_path / "cold.json").read_text())["traceEvents"]
    assert any(event["ph"] == "X" and "cicc" in event["name"] for event in events)
    # Another checkout, as on another machine.
    shutil.copytree(TINYVEC, tmp_path / "a copy")
    assert build(tmp_path / "a copy", "warm", choice) == here
    assert f"{farm.address}: steps from the cache: 6 of 6; 0.0 MB sent" in "\n".join(notes.lines)
    # The build backend takes the same results.
    monkeypatch.chdir(tmp_path / "a copy")
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    settings = {"target": "sm_80", "cache": "off", "remote": farm.address}
    name = build_wheel(str(tmp_path), settings)
    assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == here[name]
    assert "steps from the cache: 6 of 6" in capsys.readouterr().err


@pytest.mark.nvcc
@pytest.mark.parametrize("jobs", [1, 8])
def test_any_number_of_jobs_makes_the_same_bytes(
    environment: dict[str, str], tmp_path: Path, jobs: int
) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    farm = Farm(tmp_path / "farm", seen, jobs=jobs)
    notes = Notes()

    def build(name: str, engine: EngineChoice | None) -> dict[str, str]:
        effects = Effects(progress=notes, environment=environment, jobs=2, engine=engine)
        order = BuildRequest(
            recipe=load_recipe(TINYVEC), targets=(Target.parse("sm_80"), Target.parse("sm_90"))
        )
        release = build_recipe(order, effects, out=tmp_path / name)
        return {wheel.file: wheel.sha256 for wheel in release.wheels}

    farm.start()
    try:
        # Each ends when all have begun, so that they run at the same time.
        work = Work(tmp_path / "work")
        script = (
            f"echo > {seen}/NAME; until test $(ls {seen} | wc -l) -ge {jobs}; do sleep 0.1; done"
        )
        names = [f"step-{number}" for number in range(jobs)]
        steps = [work.step(name, script.replace("NAME", name)) for name in names]
        assert work.run(work.executor(farm.address), *steps, slots=jobs).failure is None
        choice = EngineChoice(endpoint=parse_endpoint(farm.address), jobs=16)
        here = build("here", None)
        assert build("cold", choice) == here
        assert f"{farm.address}: steps from the cache: 0 of 9" in "\n".join(notes.lines)
        assert build("warm", choice) == here
        assert f"{farm.address}: steps from the cache: 9 of 9; 0.0 MB sent" in "\n".join(
            notes.lines
        )
    finally:
        farm.kill()


@pytest.mark.nvcc
def test_the_wrapper_makes_the_same_objects_with_a_farm(
    farm: Farm, tmp_path: Path, toolkit: Toolkit
) -> None:
    calls = WrappedCalls(tmp_path / "calls", toolkit.nvcc)
    farm_options = ("--remote",)
    dead = (*farm_options, "grpc://127.0.0.1:1")
    report = calls.check(*farm_options, farm.address, dead=dead)
    # cicc and ptxas for two targets, cudafe++ and the host's compiler.
    assert f"{farm.address}: steps from the cache: 0 of 6" in report


@pytest.mark.stress
def test_lost_workers_and_a_lost_server_cost_a_tenth_of_the_work(
    farm: Farm, work: Work, tmp_path: Path
) -> None:
    steps = []
    for number in range(60):
        (work.root / f"source-{number}").write_text(str(number))
        script = (
            f"{count_script(work, 'runs')}sleep 0.2; cat source-{number} > .archsplit/work/{number}"
        )
        steps.append(work.step(f"step-{number}", script, f"source-{number}", str(number)))
    runs = tmp_path / "seen/runs"

    def done() -> int:
        return len(runs.read_text()) if runs.exists() else 0

    def lose() -> None:
        while done() < 20:
            time.sleep(0.02)
        while not farm.kill_worker("sleep"):
            time.sleep(0.01)
        while done() < 40:
            time.sleep(0.02)
        farm.kill()
        farm.start()

    thread = threading.Thread(target=lose)
    thread.start()
    outcome = work.run(work.executor(farm.address), *steps)
    thread.join()
    assert outcome.failure is None
    assert done() <= 1.1 * len(steps), f"{done()} runs of {len(steps)} actions"


@pytest.mark.nvcc
def test_objects_of_the_compile_cache_are_linked_on_the_farm(
    farm: Farm, environment: dict[str, str], tmp_path: Path
) -> None:
    notes = Notes()
    variables = {
        **environment,
        "ARCHSPLIT_CACHE": "on",
        "ARCHSPLIT_CACHE_DIR": str(tmp_path / "cache"),
        "ARCHSPLIT_CACHE_MIN_SECONDS": "0",
    }

    def build(name: str, engine: EngineChoice | None) -> dict[str, str]:
        effects = Effects(
            progress=notes,
            environment=environment,
            jobs=2,
            engine=engine,
            cache=resolve_settings(variables),
        )
        order = BuildRequest(recipe=load_recipe(TINYVEC), targets=(Target.parse("sm_80"),))
        release = build_recipe(order, effects, out=tmp_path / name)
        return {wheel.file: wheel.sha256 for wheel in release.wheels}

    here = build("here", None)
    assert build("there", EngineChoice(endpoint=parse_endpoint(farm.address), jobs=8)) == here
    # Only the link, of the six actions of a cold build.
    assert f"{farm.address}: steps from the cache: 0 of 1" in "\n".join(notes.lines)


@pytest.mark.stress
@pytest.mark.timeout(3600)
@pytest.mark.nvcc
def test_a_hundred_kills_of_the_driver_leave_nothing_half_made(
    farm: Farm, environment: dict[str, str], tmp_path: Path
) -> None:
    """Each at a random time between its start and a little more than a whole build takes."""
    program = str(Path(sys.executable).with_name("archsplit"))
    command = [program, "build", str(TINYVEC), "--targets", "sm_80", "--cache", "off"]
    command += ["--remote", farm.address, "--out"]
    variables = {**environment, "SOURCE_DATE_EPOCH": "1700000000"}

    def start(out: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*command, str(out)],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def digests(folder: Path) -> dict[str, str]:
        files = (path for path in folder.glob("*") if path.is_file())
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    assert start(tmp_path / "whole").wait() == 0
    began = time.monotonic()
    assert start(tmp_path / "warm").wait() == 0
    most = 1.2 * (time.monotonic() - began)
    whole = {name: text for name, text in digests(tmp_path / "whole").items() if "whl" in name}
    chance = random.Random(17)
    ended = 0
    for number in range(100):
        out = tmp_path / f"out-{number}"
        driver = start(out)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                driver.wait(chance.uniform(0, most))
                ended += 1
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        found = digests(out)
        wheels = {name: text for name, text in found.items() if name.endswith(".whl")}
        assert wheels.items() <= whole.items()
        # The report comes last: a folder that has one is complete.
        assert "archsplit-report.json" not in found or wheels == whole
    assert ended < 100
    assert start(tmp_path / "last").wait() == 0
    assert {name: text for name, text in digests(tmp_path / "last").items() if "whl" in name} == (
        whole
    )
