"""Steps on the workers of a dask scheduler: the same bytes, also after the loss of a worker."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from archsplit.remote.dask_worker import DaskAction, run_action, summarize, take_file

if TYPE_CHECKING:
    from collections.abc import Iterator

ARCHSPLIT = Path(sys.executable).with_name("archsplit")
TINYVEC = Path(__file__).parents[1] / "tinyvec"
SECONDS = 120


def action(script: str, **more: object) -> DaskAction:
    usual: dict[str, object] = {
        "argv": ["/bin/sh", "-c", script],
        "environment": dict(os.environ),
        "files": {},
        "inputs": [],
        "outputs": [],
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
    assert take_file(second, "o") == b"text\ns"
    failed = summarize(run_action(action("echo no >&2; exit 3"), []))
    assert (failed["returncode"], failed["stderr"], failed["sizes"]) == (3, "no\n", {})


class Cluster:
    """A scheduler, and workers that share nothing but its connections."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._programs: list[subprocess.Popen[str]] = []
        script = str(Path(__file__).with_name("dask_scheduler.py"))
        scheduler = self._start(sys.executable, script, str(folder), cwd=folder)
        assert scheduler.stdout is not None
        self.address = scheduler.stdout.readline().strip()
        files = {name: folder / f"{name}.pem" for name in ("ca", "cert", "key")}
        self.files = [word for name, path in files.items() for word in (f"--remote-{name}", path)]

    def add_worker(self, name: str) -> subprocess.Popen[str]:
        folder = self.folder / name
        folder.mkdir()
        words = ("worker", self.address, "--jobs", "1", "--folder", folder)
        return self._start(ARCHSPLIT, *words, *self.files, cwd=folder)

    def build(self, out: Path, *more: object) -> subprocess.CompletedProcess[str]:
        words = ("build", TINYVEC, "--targets", "sm_80", "--out", out, "--json", *more)
        where = ("--engine", "dask", "--remote", self.address, *self.files)
        return run(*words, *where)

    def close(self) -> None:
        for program in reversed(self._programs):
            program.kill()
            program.communicate()

    def _start(self, *words: object, cwd: Path) -> subprocess.Popen[str]:
        program = subprocess.Popen(
            list(map(str, words)),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._programs.append(program)
        return program


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    for name in ("cryptography", "distributed"):
        if importlib.util.find_spec(name) is None:
            pytest.skip("needs archsplit[dask]")
    (tmp_path / "cluster").mkdir()
    made = Cluster(tmp_path / "cluster")
    yield made
    made.close()


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ARCHSPLIT), *map(str, words)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def digests(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    assert done.returncode == 0, done.stderr
    return {wheel["file"]: wheel["sha256"] for wheel in json.loads(done.stdout)["wheels"]}


@pytest.mark.nvcc
def test_wheels_have_the_same_bytes_though_a_worker_is_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    first, _ = cluster.add_worker("one"), cluster.add_worker("two")
    command = (TINYVEC, "--targets", "sm_80", "--json", "--out")
    here = digests(run("build", *command, tmp_path / "here"))
    with subprocess.Popen(
        [ARCHSPLIT, "build", *command, tmp_path / "there", "--engine", "dask", "--remote"]
        + [cluster.address, *cluster.files],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as build:
        assert build.stderr is not None
        for line in build.stderr:
            if line.startswith("compile and link [8/"):
                break
        first.send_signal(signal.SIGKILL)
        stdout, stderr = build.communicate()
    assert build.returncode == 0, stderr
    assert {each["file"]: each["sha256"] for each in json.loads(stdout)["wheels"]} == here


@pytest.mark.nvcc
def test_a_scheduler_without_workers_or_that_ends_is_an_error(
    cluster: Cluster, tmp_path: Path
) -> None:
    began = time.monotonic()
    done = cluster.build(tmp_path / "out")
    assert done.returncode == 24
    assert "has no worker\nhint: start some: archsplit worker tls://" in done.stderr
    assert time.monotonic() - began < SECONDS
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())
