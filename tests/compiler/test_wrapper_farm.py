"""The compiler wrapper with other machines: empty folders, in which actions run without a farm."""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from archsplit.compiler import wrapper, wrapper_farm
from archsplit.compiler.invocation import Invocation, PooledRunner, ReportFiles, WrapperContext
from archsplit.compiler.wrapper import run_wrapper
from archsplit.errors import DiskFullError
from archsplit.nvcc.cmdline import CommandLine
from archsplit.remote.action import action_spec
from archsplit.remote.dask_worker import DaskAction, run_action
from archsplit.remote.endpoint import EngineChoice, parse_endpoint
from archsplit.scheduler.executor import DaemonThreads, LocalExecutor
from archsplit.scheduler.pool import LocalPool
from archsplit.system.process import CompletedProcess, SubprocessRunner
from archsplit.system.terminal import SilentProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from archsplit.compiler.wrapper_graph import Compilation
    from archsplit.nvcc.toolkit import Toolkit
    from archsplit.remote.endpoint import DaskEndpoint, Endpoint
    from archsplit.remote.farm_executor import ExecutorSettings
    from archsplit.scheduler.executor import Ended
    from archsplit.scheduler.graph import Graph, Step
    from archsplit.scheduler.outcome import Outcome

pytestmark = pytest.mark.nvcc

SOURCE = """\
#include "h.h"
static __global__ void kernel(int *p) { int unused; p[threadIdx.x] = VALUE; }
void run(int *p) { kernel<<<1, 32>>>(p); }
"""


class Worker:
    """An executor that runs each action in an empty folder, as all workers do."""

    is_local = False
    moved = 0

    def __init__(self, settings: ExecutorSettings) -> None:
        self._settings = settings
        self._threads = DaemonThreads()
        self.actions: list[DaskAction] = []
        self.judged: list[Step] = []
        self.files: dict[str, set[str]] = {}
        self.is_closed = False

    def start(self, step: Step, *, cores: int, ended: Ended) -> Worker:
        assert cores == 1
        tools = self._settings["tools"](step)
        spec = action_spec(step, self._settings["paths"], tools)
        files = {str(name): text for name, text in spec.texts.items()}
        files |= {str(name): path.read_bytes() for name, path in spec.inputs.items()}
        action = DaskAction(
            argv=list(spec.argv),
            environment=dict(spec.environment),
            files=files,
            inputs=[],
            outputs=[str(name) for name in spec.outputs],
            tools={},
        )
        self.actions.append(action)
        self.files[program_name(action)] = {Path(tool.path).name for tool in tools}

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
        self.judged.append(step)
        return f"{step.name} failed" if done.returncode else ""

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
            graph_runner=PooledRunner(
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
            command=CommandLine(("-c", "k.cu", "-o", output, "-arch=sm_80", *words)),
            cwd=self.folder,
            environment={**os.environ, "SECRET": "of the user", "CICC_MADE_UP": "known to cicc"},
            reproducible=True,
            reports=ReportFiles(),
        )
        code = run_wrapper(invocation, context)
        return code, stderr.getvalue().decode()

    def remote_programs(self) -> list[str]:
        """Return the names of the programs of all actions, and forget the workers."""
        found = [action for worker in self.workers for action in worker.actions]
        self.workers.clear()
        return sorted(map(program_name, found))


def program_name(action: DaskAction) -> str:
    # After the check of the tools: /bin/sh -c TEXT archsplit PROGRAM.
    program = action["argv"][4]
    if steps := action["files"].get(".archsplit/steps"):
        (program,) = re.findall(r"part=0; (?:\(.* && )?(\S+)", steps.decode())
    name = program.rpartition("/")[2]
    # The host's compiler, whatever its name is.
    return name if name in {"cicc", "cudafe++", "ptxas"} else "c++"


@pytest.fixture
def calls(tmp_path: Path, small_toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(tmp_path, small_toolkit.nvcc, monkeypatch)


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
    assert programs == ["c++", "cicc", "cudafe++", "ptxas"]
    # The headers of CUDA travel with what is compiled for the host, and with nothing else.
    with_headers = {name for name, files in worker.files.items() if "cuda_runtime.h" in files}
    assert with_headers == {"c++"}


def test_step_is_judged_by_its_own_executor(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    here: list[Step] = []

    def find_fault(self: LocalExecutor, step: Step, done: CompletedProcess) -> str:
        del self, done
        here.append(step)
        return ""

    monkeypatch.setattr(LocalExecutor, "find_fault", find_fault)
    assert calls.compile("k.o")[0] == 0
    (worker,) = calls.workers
    assert len(worker.judged) == len(worker.actions)
    assert all(step.is_remote for step in worker.judged)
    assert here
    assert not any(step.is_remote for step in here)


def test_object_without_its_depfile_is_removed(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_depfiles(compilation: Compilation, outcome: Outcome) -> None:
        del outcome
        assert [path.name for path in compilation.graph.steps[-1].writes if path.exists()]
        raise DiskFullError("no space left")

    monkeypatch.setattr(wrapper, "_write_depfiles", write_depfiles)
    with pytest.raises(DiskFullError):
        calls.compile("k.o", "-MD", engine=False)
    assert not (calls.folder / "k.o").exists()


def test_error_of_a_worker_equals_nvccs(calls: Calls) -> None:
    (calls.folder / "k.cu").write_text('__global__ void k() { asm("no such thing;"); }\n')
    code, said = calls.compile("x.o", engine=False)
    # With the same names of the private folder and of the PTX.
    assert calls.compile("x.o") == (code, said)
    assert code != 0
    assert "syntax error" in said
    assert "k.ptx" in said
    assert "ptxas" in calls.remote_programs()
    assert not (calls.folder / "x.o").exists()


DEBUGGED = """\
#include "deep/../inline.h"
#include <cuda_fp16.h>
__global__ void kernel(int *p, __half2 *q) { *p = twice(*p) + 1; *q = __hmax2(q[0], q[1]); }
void run(int *p) { kernel<<<1, 1>>>(p, nullptr); }
"""


@pytest.fixture
def debugged(tmp_path: Path, whole_toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Calls for a source whose headers are in the results of all compilers."""
    calls = Calls(tmp_path, whole_toolkit.nvcc, monkeypatch)
    (calls.folder / "deep").mkdir()
    (calls.folder / "inline.h").write_text(
        "__host__ __device__ __forceinline__ int twice(int x) { return x * 7 + x; }\n"
    )
    (calls.folder / "k.cu").write_text(DEBUGGED)
    return calls


@pytest.mark.parametrize(
    ("words", "leaving"),
    [
        # The host compiler writes the name of its folder.
        (("-g",), ["cicc", "cudafe++", "ptxas"]),
        # So does cicc, and ptxas the times of sources.
        (("-lineinfo",), ["c++", "cudafe++"]),
        (("-G",), ["c++", "cudafe++"]),
    ],
    ids=["host", "lines", "device"],
)
def test_debug_information_has_the_names_and_times_of_this_machine(
    debugged: Calls, words: tuple[str, ...], leaving: list[str]
) -> None:
    # The time of a source is in a cubin.
    os.utime(debugged.folder / "inline.h", (1_700_000_000.5, 1_700_000_000.5))
    assert debugged.compile("here.o", *words, engine=False) == (0, "")
    assert debugged.compile("there.o", *words) == (0, "")
    assert debugged.remote_programs() == leaving
    objects = [(debugged.folder / name).read_bytes() for name in ("here.o", "there.o")]
    assert objects[0] == objects[1]


@pytest.mark.parametrize(
    ("words", "programs"),
    [
        (("-dlto", "-rdc=true", "-Xcompiler=-fsanitize=address"), ["cudafe++"]),
        (("-optix-ir",), []),
    ],
    ids=["LTO and sanitizer", "OptiX"],
)
def test_results_with_the_name_of_a_folder_are_made_here(
    debugged: Calls, words: tuple[str, ...], programs: list[str]
) -> None:
    # With the same name of the output, and so of the private folder.
    debugged.compile("k.o", *words, engine=False)
    here = (debugged.folder / "k.o").read_bytes()
    debugged.compile("k.o", *words)
    assert debugged.remote_programs() == programs
    assert (debugged.folder / "k.o").read_bytes() == here
