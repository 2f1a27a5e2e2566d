"""Workers that Slurm starts by the script of the manual: Debian's own slurmctld and slurmd."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from dask_cluster import ARCHSPLIT, BATCH_SCRIPT, Cluster, open_cluster
from shell_steps import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SECONDS = 120


def find_program(name: str) -> str:
    """Return a program of Slurm, which Debian gives a name of its own, or skip the test."""
    found = shutil.which(name) or shutil.which(f"{name}-wlm")
    if found is None:
        pytest.skip("needs slurmctld, slurmd and sbatch (apt install slurm-wlm)")
    return found


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


class Slurm:
    """A controller and one node, this machine, with folders of their own."""

    def __init__(self, folder: Path) -> None:
        programs = {name: find_program(name) for name in ("slurmctld", "slurmd", "slurmstepd")}
        find_program("sbatch")
        self.folder = folder
        for name in ("state", "spool"):
            (folder / name).mkdir(parents=True)
        host = socket.gethostname().partition(".")[0]
        # Of packages that are unpacked and not installed; others know their own folder.
        plugins = Path(programs["slurmd"]).parents[1] / "lib/x86_64-linux-gnu/slurm-wlm"
        lines = [
            "ClusterName=tests",
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={free_port()}",
            f"SlurmdPort={free_port()}",
            # The usual programs for both need daemons of the system.
            *("AuthType=auth/none", "CredType=cred/none", "ProctrackType=proctrack/pgid"),
            *("TaskPlugin=task/none", "MpiDefault=none", "SelectType=select/linear"),
            *("SlurmUser=root", "SlurmdUser=root"),
            f"StateSaveLocation={folder}/state",
            f"SlurmdSpoolDir={folder}/spool",
            f"SlurmctldPidFile={folder}/slurmctld.pid",
            f"SlurmdPidFile={folder}/slurmd.pid",
            *([f"PluginDir={plugins}"] if plugins.is_dir() else []),
            f"NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN",
            "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
        ]
        (folder / "slurm.conf").write_text("".join(f"{line}\n" for line in lines))
        self._daemons = [
            self._start(programs["slurmctld"], "-D", "-i"),
            self._start(programs["slurmd"], "-D", "-d", programs["slurmstepd"]),
        ]

    def call(self, *words: object, **variables: str) -> str:
        """Return the output of a command, "" after a failure."""
        done = subprocess.run(
            list(map(str, words)),
            cwd=self.folder,
            env={**self._environment(), **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return "" if done.returncode else done.stdout.strip()

    def close(self) -> None:
        self.call("scancel", "--user=root")
        # What a daemon leaves behind when it is killed would run on.
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: not self.call("squeue", "--noheader"))
        for daemon in reversed(self._daemons):
            daemon.terminate()
            daemon.wait()

    def _environment(self) -> dict[str, str]:
        path = f"{ARCHSPLIT.parent}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            words,
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def wait_until(is_true: Callable[[], object]) -> None:
    until = time.monotonic() + SECONDS
    while not is_true():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.1)


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    if os.getuid() != 0:
        pytest.skip("slurmd starts jobs as root")
    made = Slurm(tmp_path / "slurm")
    yield made
    made.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with open_cluster(tmp_path / "cluster") as made:
        yield made


def test_a_job_array_starts_workers(cluster: Cluster, slurm: Slurm, tmp_path: Path) -> None:
    wait_until(lambda: "idle" in slurm.call("sinfo", "--noheader"))
    variables = {"SCHEDULER": cluster.address, "CERTIFICATES": str(cluster.folder)}
    job = slurm.call("sbatch", "--parsable", "--export=ALL", BATCH_SCRIPT, **variables)
    assert job.isdigit()
    work = Work(tmp_path / "work")
    step = work.step("step", "echo done > .archsplit/work/a", writes="a")
    executor = cluster.executor(work, step)
    outcome = work.run(executor, step)
    assert outcome.failure is None
    assert outcome.finished[0].worker_seconds is not None
    # One node, which each job of the array takes as a whole.
    states = slurm.call("squeue", "--noheader", "--array", "--format=%t").split()
    assert states.count("R") == 1
    assert states.count("PD") == 15
