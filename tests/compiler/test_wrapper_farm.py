"""The compiler wrapper with other machines: empty folders, in which actions run without a farm."""

from __future__ import annotations

import contextlib
import io
import os
from typing import TYPE_CHECKING

import pytest

from archsplit.compiler import wrapper_farm
from archsplit.compiler.invocation import Invocation, ReportFiles
from archsplit.compiler.wrapper import run_wrapper
from archsplit.compiler.wrapper_context import WrapperContext, WrapperRunner
from archsplit.remote.action import action_spec
from archsplit.remote.dask_worker import DaskAction, run_action
from archsplit.remote.endpoint import EngineChoice, parse_endpoint
from archsplit.scheduler.executor import DaemonThreads
from archsplit.scheduler.pool import LocalPool
from archsplit.system.process import CompletedProcess, SubprocessRunner
from archsplit.system.terminal import SilentProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from archsplit.nvcc.toolkit import Toolkit
    from archsplit.remote.connect import ExecutorSettings
    from archsplit.remote.endpoint import DaskEndpoint, Endpoint
    from archsplit.scheduler.executor import Ended
    from archsplit.scheduler.graph import Graph, Step

pytestmark = pytest.mark.nvcc

SOURCE = """\
#include "h.h"
static __global__ void kernel(int *p) { int unused; p[threadIdx.x] = VALUE; }
void run(int *p) { kernel<<<1, 32>>>(p); }
"""


class Worker:
    """An executor that runs each action in an empty folder, as all workers do."""

    is_local = False

    def __init__(self, settings: ExecutorSettings) -> None:
        self._settings = settings
        self._threads = DaemonThreads()
        self.actions: list[DaskAction] = []
        self.is_closed = False

    def start(self, step: Step, *, cores: int, ended: Ended) -> Worker:
        assert cores == 1
        spec = action_spec(step, self._settings["paths"], self._settings["tools"](step))
        files = {str(name): text for name, text in spec.texts.items()}
        files |= {str(name): path.read_bytes() for name, path in spec.inputs.items()}
        action = DaskAction(
            argv=list(spec.argv),
            environment=dict(spec.environment),
            files=files,
            inputs=[],
            outputs=[str(name) for name in spec.outputs],
            tools={},
            toolkit="",
        )
        self.actions.append(action)

        def work() -> None:
            done = run_action(action, [])
            for name, path in spec.outputs.items():
                assert path in self._settings["wanted"]
                if str(name) in done["files"]:
                    path.write_bytes(done["files"][str(name)])
            ended(
                CompletedProcess(
                    returncode=done["returncode"],
                    stdout=done["stdout"],
                    stderr=done["stderr"],
                    seconds=0.0,
                )
            )

        self._threads.call(work)
        return self

    def kill(self, *, grace: float = 0.0) -> None:
        del grace

    def resident_memory(self) -> int:
        return 0

    def find_fault(self, step: Step, done: CompletedProcess) -> str:
        return f"{step.name} failed" if done.returncode else ""

    def find_placement(self, step: Step) -> None:
        del step

    def kill_unawaited(self) -> None:
        raise AssertionError("`close` ends all")

    def close(self) -> None:
        self._threads.close()
        self.is_closed = True


class Calls:
    """Compilations of one source, here and with workers."""

    def __init__(self, folder: Path, nvcc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.workers: list[Worker] = []
        self._nvcc = nvcc
        (folder / "k.cu").write_text(SOURCE)
        (folder / "h.h").write_text("#define VALUE 3\n")
        monkeypatch.setattr(wrapper_farm, "open_executor", self._open)

    @contextlib.contextmanager
    def _open(
        self,
        endpoint: Endpoint | DaskEndpoint,
        graph: Graph,
        settings: ExecutorSettings,
        *,
        note: Callable[[str], None],
    ) -> Iterator[Worker]:
        del endpoint, graph, note
        self.workers.append(Worker(settings))
        yield self.workers[-1]

    def compile(self, output: str, *words: str, engine: bool = True) -> tuple[int, str]:
        """Return the exit code and the warnings."""
        stderr = io.BytesIO()
        runner = SubprocessRunner()
        choice = EngineChoice(endpoint=parse_endpoint("grpc://127.0.0.1:1"), jobs=3)
        context = WrapperContext(
            runner=runner,
            engine=WrapperRunner(
                pool=LocalPool(2),
                runner=runner,
                progress=SilentProgress(),
                history=self.folder / "history",
            ),
            stdout=io.BytesIO(),
            stderr=stderr,
            warn=lambda _: None,
            farm=choice if engine else None,
        )
        invocation = Invocation(
            nvcc=self._nvcc,
            argv=("-c", "k.cu", "-o", output, "-arch=sm_80", *words),
            cwd=self.folder,
            environment={**os.environ, "SECRET": "of the user", "CICC_MADE_UP": "known to cicc"},
            reproducible=True,
            files=ReportFiles(),
        )
        code = run_wrapper(invocation, context)
        return code, stderr.getvalue().decode()

    def remote_programs(self) -> list[str]:
        """Return the names of the programs of all actions, and forget the workers."""
        found = [action for worker in self.workers for action in worker.actions]
        self.workers.clear()
        # After the check of the tools: /bin/sh -c TEXT archsplit PROGRAM.
        return sorted(action["argv"][4].rpartition("/")[2] for action in found)


@pytest.fixture
def calls(tmp_path: Path, toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(tmp_path, toolkit.nvcc, monkeypatch)


def test_the_compilers_run_on_workers_and_make_the_same_bytes(calls: Calls) -> None:
    here = calls.compile("here.o", engine=False)
    assert calls.compile("there.o") == here
    assert "unused" in here[1]
    objects = [(calls.folder / name).read_bytes() for name in ("here.o", "there.o")]
    assert objects[0] == objects[1]
    (worker,) = calls.workers
    assert worker.is_closed
    for action in worker.actions:
        assert "SECRET" not in action["environment"]
        assert action["environment"]["CICC_MADE_UP"] == "known to cicc"
        # Neither the project's name nor its headers leave this machine.
        assert not [name for name in action["files"] if "h.h" in name]
    programs = calls.remote_programs()
    # And the host's compiler, whatever its name is.
    assert set(programs) > {"cicc", "cudafe++", "ptxas"}
    assert len(programs) == 4


def test_an_error_of_a_worker_is_that_of_nvcc(calls: Calls) -> None:
    (calls.folder / "k.cu").write_text('__global__ void k() { asm("no such thing;"); }\n')
    code, said = calls.compile("x.o", engine=False)
    # With the same name of the private folder.
    assert calls.compile("x.o") == (code, said)
    assert code != 0
    assert "syntax error" in said
    assert not (calls.folder / "x.o").exists()


def test_what_depends_on_this_machine_runs_here(calls: Calls) -> None:
    # Debug information has the name of the working directory.
    assert calls.compile("k.o", "-lineinfo")[0] == 0
    assert calls.remote_programs() == []
    assert calls.compile("k.o", "-Xcompiler=-march=native")[0] == 0
    assert calls.remote_programs() == ["cicc", "cudafe++", "ptxas"]


def test_a_result_with_a_name_of_the_user_is_made_here(calls: Calls) -> None:
    calls.compile("k.ptx", "-ptx")
    assert calls.remote_programs() == []
    assert (calls.folder / "k.ptx").exists()
