"""Steps on the workers of a dask scheduler: the same bytes, also after the loss of a worker."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from archsplit.remote.dask_worker import DaskAction, drop_files, run_action, take_file

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
    failed = drop_files(run_action(action("echo no >&2; exit 3"), []))
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

    def build(self, out: Path) -> subprocess.Popen[str]:
        words = ("build", TINYVEC, "--targets", "sm_80", "--out", out, "--json")
        where = ("--engine", "dask", "--remote", self.address, *self.files)
        return self._start(ARCHSPLIT, *words, *where, cwd=self.folder, stderr=subprocess.PIPE)

    def kill_scheduler(self) -> None:
        self._programs[0].kill()

    def close(self) -> None:
        for program in reversed(self._programs):
            program.kill()
            program.communicate()

    def _start(
        self, *words: object, cwd: Path, stderr: int = subprocess.DEVNULL
    ) -> subprocess.Popen[str]:
        program = subprocess.Popen(
            list(map(str, words)),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
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


def wait_for_steps(build: subprocess.Popen[str], count: int) -> None:
    assert build.stderr is not None
    for line in build.stderr:
        if line.startswith(f"compile and link [{count}/"):
            return


def digests(text: str) -> dict[str, str]:
    return {wheel["file"]: wheel["sha256"] for wheel in json.loads(text)["wheels"]}


@pytest.mark.nvcc
def test_wheels_have_the_same_bytes_though_a_worker_is_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    first, _ = cluster.add_worker("one"), cluster.add_worker("two")
    here = subprocess.run(
        [ARCHSPLIT, "build", TINYVEC, "--targets", "sm_80", "--json", "--out", tmp_path / "here"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    build = cluster.build(tmp_path / "there")
    wait_for_steps(build, 8)
    first.send_signal(signal.SIGKILL)
    stdout, stderr = build.communicate(timeout=SECONDS)
    assert build.returncode == 0, stderr
    assert digests(stdout) == digests(here.stdout)


@pytest.mark.nvcc
def test_a_scheduler_without_workers_is_an_error(cluster: Cluster, tmp_path: Path) -> None:
    build = cluster.build(tmp_path / "out")
    _, stderr = build.communicate(timeout=SECONDS)
    assert build.returncode == 24
    assert "has no worker\nhint: start some: archsplit worker tls://" in stderr
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.nvcc
def test_a_scheduler_that_ends_is_an_error(cluster: Cluster, tmp_path: Path) -> None:
    worker = cluster.add_worker("one")
    build = cluster.build(tmp_path / "out")
    wait_for_steps(build, 5)
    cluster.kill_scheduler()
    _, stderr = build.communicate(timeout=SECONDS)
    assert build.returncode == 24, stderr
    assert "has gone" in stderr
    assert "hint: start the scheduler and its workers again" in stderr
    assert not list((tmp_path / "out").glob("*"))
    # Workers end with their scheduler, so that no machine is kept by nobody.
    worker.wait(timeout=SECONDS)
