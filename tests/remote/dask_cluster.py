"""A scheduler of dask and workers, each of which is a process of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from archsplit.remote.action import PathMap
from archsplit.remote.endpoint import DaskEndpoint
from archsplit.scheduler.graph import Graph

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shell_steps import Work

    from archsplit.remote.dask_executor import DaskExecutor
    from archsplit.scheduler.graph import Step

_START_SECONDS = 300
ARCHSPLIT = Path(sys.executable).with_name("archsplit")
TINYVEC = Path(__file__).parents[1] / "tinyvec"
BATCH_SCRIPT = Path(__file__).parents[2] / "docs/how-to/remote-builds/workers.sbatch"


class Networks:
    """A network of this test's own, and one for each worker; a cable leads from each to the first.

    Args:
        hub: a process in the first network.
    """

    ADDRESS = "10.77.0.1"
    _HUB = f"""\
ip link set lo up && ip link add hub type bridge && ip addr add {ADDRESS}/16 dev hub &&
ip link set hub up && ip link add probe type veth && ip link del probe && echo made && exec cat
"""
    _WORKER = """\
address=$0; until ip link set cable up 2>/dev/null; do sleep 0.05; done
ip link set lo up; ip addr add "$address/16" dev cable; ip route add default via 10.77.0.1
exec "$@"
"""
    _CABLE = (
        'ip link add "$0" type veth peer name cable netns "$1" && ip link set "$0" master hub up'
    )

    def __init__(self, hub: subprocess.Popen[str]) -> None:
        self._hub = hub
        self._count = 1

    @classmethod
    def make(cls) -> Networks | None:
        """Make the first network; None without the privileges or the programs for it."""
        words = ("unshare", "--net", "--map-root-user", "sh", "-c", cls._HUB)
        try:
            hub = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        except OSError:
            return None
        assert hub.stdout is not None
        return cls(hub) if hub.stdout.readline() == "made\n" else None

    @property
    def words(self) -> tuple[str, ...]:
        """The words before a program that runs beside the scheduler."""
        where = ("--user", "--net", "--preserve-credentials")
        return ("nsenter", "--target", str(self._hub.pid), *where)

    @property
    def worker_words(self) -> tuple[str, ...]:
        """The words before the next worker, which waits for its cable."""
        self._count += 1
        address = f"10.77.1.{self._count}"
        return (*self.words, "unshare", "--net", "sh", "-c", self._WORKER, address)

    def connect(self, worker: subprocess.Popen[str]) -> None:
        """Lay the cable of a worker."""
        here = Path("/proc/self/ns/net").readlink()
        hub = Path(f"/proc/{self._hub.pid}/ns/net").readlink()
        while Path(f"/proc/{worker.pid}/ns/net").readlink() in {here, hub}:
            time.sleep(0.02)
        words = (*self.words, "sh", "-c", self._CABLE, f"w{self._count}", str(worker.pid))
        subprocess.run(words, check=True)

    def close(self) -> None:
        """End the first network, and with it all cables."""
        self._hub.communicate()


class Cluster:
    """A scheduler, and workers that share nothing but its connections.

    Args:
        folder: for the files of all.
        networks: one for each worker; None for this machine's.
    """

    def __init__(self, folder: Path, networks: Networks | None = None) -> None:
        self.folder = folder
        self._networks = networks
        self._programs: list[subprocess.Popen[str]] = []
        script = str(Path(__file__).with_name("dask_scheduler.py"))
        where = () if networks is None else (networks.ADDRESS,)
        scheduler = self._start(*self._beside, sys.executable, script, folder, *where, cwd=folder)
        assert scheduler.stdout is not None
        self.address = scheduler.stdout.readline().strip()
        files = {name: folder / f"{name}.pem" for name in ("ca", "cert", "key")}
        self.files = [word for name, path in files.items() for word in (f"--remote-{name}", path)]

    def add_worker(
        self, name: str, jobs: int = 1, *, hidden: Path | None = None
    ) -> subprocess.Popen[str]:
        """Start a worker, which does not see a hidden folder where that can be had."""
        folder = self.folder / name
        folder.mkdir()
        words = ("remote", "worker", self.address, "--jobs", jobs)
        before = () if hidden is None else hide_folder(hidden)
        apart = () if self._networks is None else self._networks.worker_words
        own = ("env", f"TMPDIR={folder}", ARCHSPLIT)
        worker = self._start(*apart, *before, *own, *words, *self.files, cwd=folder)
        if self._networks is not None:
            self._networks.connect(worker)
        return worker

    def add_plain_worker(self) -> subprocess.Popen[str]:
        words = [f"--tls-{name}={self.folder / name}.pem" for name in ("cert", "key")]
        words += [f"--tls-ca-file={self.folder / 'ca.pem'}", "--no-dashboard", "--no-nanny"]
        program = ("-m", "distributed.cli.dask_worker", self.address, "--nthreads=2")
        return self._start(sys.executable, *program, *words, cwd=self.folder)

    def add_batch_job(self) -> subprocess.Popen[str]:
        """Start a worker as the batch system does: by the script, with its variables."""
        names = {"SCHEDULER": self.address, "CERTIFICATES": str(self.folder)}
        names |= {"SLURM_CPUS_ON_NODE": "2", "TMPDIR": str(self.folder)}
        names["PATH"] = f"{ARCHSPLIT.parent}:{os.environ['PATH']}"
        words = ["env", *(f"{name}={text}" for name, text in names.items()), "bash", BATCH_SCRIPT]
        return self._start(*words, cwd=self.folder)

    def build(self, out: Path, *more: object) -> subprocess.Popen[str]:
        words: tuple[object, ...]
        words = ("build", TINYVEC, "--targets", "sm_80", "--cache", "off", "--out", out, "--json")
        where = ("--remote", self.address, *self.files)
        return self._start(
            *self._beside, ARCHSPLIT, *words, *where, *more, cwd=self.folder, stderr=subprocess.PIPE
        )

    def build_here(self, out: Path, *more: object) -> str:
        """Return the report of a build on this machine."""
        words = ("build", TINYVEC, "--targets", "sm_80", "--cache", "off", "--out", out, "--json")
        done = subprocess.run(
            list(map(str, (ARCHSPLIT, *words, *more))),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    def wait_for_workers(self, count: int) -> None:
        """Wait until workers are there: a busy machine takes a minute to start one."""
        # Optional dependencies: the fixture has skipped the test without them.
        from distributed import Client  # noqa: PLC0415

        from archsplit.remote.dask_executor import dask_security  # noqa: PLC0415

        security = dask_security(self.endpoint())
        with Client(self.address, security=security, timeout=_START_SECONDS) as client:
            client.wait_for_workers(count, timeout=_START_SECONDS)

    def kill_scheduler(self) -> None:
        self._programs[0].kill()

    def endpoint(self) -> DaskEndpoint:
        ca, cert, key = (self.folder / f"{name}.pem" for name in ("ca", "cert", "key"))
        return DaskEndpoint(address=self.address, certificates=ca, certificate=cert, key=key)

    def executor(self, work: Work, *steps: Step, wanted: tuple[Path, ...] = ()) -> DaskExecutor:
        # An optional dependency: the fixture has skipped the test without it.
        from archsplit.remote.dask_executor import DaskExecutor  # noqa: PLC0415

        return DaskExecutor(
            self.endpoint(),
            graph=Graph(steps=steps),
            paths=PathMap(work.root, work.private),
            tools=lambda _: work.tools,
            wanted=wanted,
            priorities={},
        )

    @property
    def _beside(self) -> tuple[str, ...]:
        return () if self._networks is None else self._networks.words

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


def hide_folder(folder: Path) -> tuple[object, ...]:
    """Return the words before a program that hide a folder from it; none without privileges."""
    script = 'mount -t tmpfs none "$0" && exec "$@"'
    words = ("unshare", "--mount", "--map-root-user", "sh", "-c", script, str(folder))
    try:
        done = subprocess.run((*words, "true"), capture_output=True, check=False)
    except OSError:
        return ()
    return words if done.returncode == 0 else ()


@contextlib.contextmanager
def open_cluster(folder: Path, networks: Networks | None = None) -> Iterator[Cluster]:
    """Start a scheduler, or skip the test."""
    for name in ("cryptography", "distributed"):
        if importlib.util.find_spec(name) is None:
            pytest.skip("needs archsplit[dask]")
    folder.mkdir()
    with contextlib.closing(Cluster(folder, networks)) as cluster:
        yield cluster
