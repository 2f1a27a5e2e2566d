"""A farm behind the compiler wrapper: the long steps of a compilation run on other machines.

In: a planned compilation and a farm. Out: a graph, a pool and an executor that run the
preprocessor, fatbinary and the last step here, and the compilers on the farm:

    here   source ─> preprocess ──┐                        ┌─> fatbinary ─> assemble ─> object
    farm                          └─> cicc ─> ptxas, cudafe++ ─> host compile ──┘

So workers need no header of the project: preprocessed text is sent, as by sccache-dist. Every
result comes back, and so the compile cache holds the entries of a compilation on this machine.
The farm is reached when the first step needs it: hits of the cache open no connection.

Its machines have the same tools. `ToolFiles` lists a step's tools with their digests: its program,
the parts that the program starts, and the headers and libraries of CUDA that no step declares. The
worker compares them before it runs the step.

Steps with line information run here: their results have names, times and sizes of this machine's
sources.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.cache.file_digests import FileDigests
from archsplit.compiler.keys import DEPFILE_FLAG, has_unsupported_flags, line_info_flag
from archsplit.compiler.machine_facts import PROGRAM_GROUP
from archsplit.compiler.tool_identity import ToolIdentities
from archsplit.errors import ToolNotFoundError
from archsplit.nvcc.dryrun import is_host_compiler, option_values
from archsplit.nvcc.variables import hashed_variables
from archsplit.remote.action import WORK_FOLDER, PathMap, ToolFile
from archsplit.remote.connection import open_executor
from archsplit.remote.farm_executor import ExecutorSettings
from archsplit.scheduler.executor import LocalExecutor
from archsplit.scheduler.graph import Graph
from archsplit.system.env import cache_dir
from archsplit.system.process import Command, run_checked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from archsplit.compiler.wrapper_graph import Compilation
    from archsplit.remote.endpoint import EngineChoice
    from archsplit.scheduler.executor import Ended, Executor, RunningStep
    from archsplit.scheduler.graph import Step
    from archsplit.system.process import CompletedProcess, Runner, Starter

_HEADER_GROUP = "toolkit headers"
_LINKERS = ("collect2", "ld")


class ToolFiles:
    """The files of the tools of each step, with their digests.

    Args:
        runner: asks compilers for their parts.
        folder: folder of known digests.
        cwd: the working directory of the steps.
        headers: returns paths below the folders of CUDA's headers.
        objcopy: the program of that name, which has no parts; None if no step runs it.
        libraries: files that links read and don't declare.
        stubs: sources of the toolkit that commands compile and don't declare.
    """

    def __init__(
        self,
        runner: Runner,
        folder: Path,
        *,
        cwd: Path,
        headers: Callable[[], Iterable[Path]],
        objcopy: Path | None = None,
        libraries: Sequence[Path] = (),
        stubs: Sequence[Path] = (),
    ) -> None:
        self._digests = FileDigests(folder)
        self._digests.load(PROGRAM_GROUP)
        self._digests.load(_HEADER_GROUP)
        self._runner = runner
        self._tools = ToolIdentities(runner=runner, digests=self._digests, cwd=cwd)
        self._find_headers = headers
        self._objcopy = objcopy
        self._libraries = libraries
        self._stubs = stubs
        self._common_files: dict[str, tuple[ToolFile, ...]] = {}
        self._lock = threading.Lock()

    def __call__(self, step: Step) -> tuple[ToolFile, ...]:
        """Return the files of a step's tools; several threads may call it.

        Raises:
            ToolNotFoundError: one of them is gone.
        """
        with self._lock:
            return tuple(dict.fromkeys(self._find_all(step)))

    def save(self) -> None:
        """Store the digests for the next build."""
        self._digests.save()

    def _find_all(self, step: Step) -> Iterator[ToolFile]:
        for part in step.parts or (step,):
            yield from self._find(part.command)
            yield from self._named_files(part.command.argv)

    def _named_files(self, argv: tuple[str, ...]) -> Iterator[ToolFile]:
        """Yield the libraries and stubs of the toolkit that the arguments name."""
        for path in (*self._stubs, *self._libraries):
            if str(path) in argv:
                yield self._file(path, PROGRAM_GROUP)

    def _find(self, command: Command) -> Iterator[ToolFile]:
        if self._objcopy is not None and command.argv[0] == str(self._objcopy):
            # `ToolIdentities` takes each other program for a compiler with parts.
            yield self._file(self._objcopy, PROGRAM_GROUP)
            return
        for path in self._tools.files(command.argv, command.env):
            yield self._file(path, PROGRAM_GROUP)
        if is_host_compiler(command.argv[0]):
            compiles = not {"-E", "-c", "-S"}.isdisjoint(command.argv)
            yield from self._headers() if compiles else self._link_parts(command)

    def _headers(self) -> tuple[ToolFile, ...]:
        if "headers" not in self._common_files:
            paths = sorted(set(self._find_headers()))
            found = (self._file(path, _HEADER_GROUP) for path in paths if path.is_file())
            self._common_files["headers"] = tuple(found)
        return self._common_files["headers"]

    def _link_parts(self, command: Command) -> tuple[ToolFile, ...]:
        if "link" not in self._common_files:
            paths = [*self._libraries]
            for part in _LINKERS:
                argv = (command.argv[0], f"-print-prog-name={part}")
                query = Command(argv=argv, cwd=command.cwd, env=command.env)
                name = run_checked(self._runner, query, what=f"asking for {part}").stdout.strip()
                # A bare name is one that the compiler looks for on the PATH.
                place = shutil.which(name, path=command.env.get("PATH", ""))
                paths += [] if place is None else [Path(place)]
            self._common_files["link"] = tuple(self._file(path, PROGRAM_GROUP) for path in paths)
        return self._common_files["link"]

    def _file(self, path: Path | None, group: str) -> ToolFile:
        digest = None if path is None else self._digests.digest(str(path), group=group)
        if path is None or digest is None:
            raise ToolNotFoundError(f"a tool is missing: {path or 'a compiler'}")
        return ToolFile(path=str(path), sha256=digest)


_REMOTE = {"cicc", "ptxas", "cudafe++"}
_CUDAFE_DEBUG = "--debug_mode"
_FILE_FLAGS = ("-include", "-imacros", "-fprofile", "-fplugin", "-specs", "--specs", "@")
"""Arguments by which a host compiler reads files that no step declares."""
_NATIVE_FLAGS = {"-march=native", "-mtune=native", "-mcpu=native"}
_INTERMEDIATE = {"-lto", "-olto", "--emit-optix-ir"}
"""Options of cicc for LTO and OptiX IR, which have the name of their folder."""
_SANITIZER = "-fsanitize"
"""Start of options with which a host compiler writes the path of its input."""
_TEXTS = {".c", ".cpp", ".d", ".ptx", ".s"}
_CUDA_VARIABLES = {"CICC_PATH", "NVVMIR_LIBRARY_DIR", "LD_LIBRARY_PATH"}


class WrapperFarm:
    """Runs the long steps of a compilation on a farm, and all others here; an `Executor`.

    Args:
        compilation: the compilation.
        choice: the farm.
        starter: starts programs here.

    Attributes:
        graph: the steps, with marks at those for the farm.
    """

    is_local = True
    moved = 0

    def __init__(self, compilation: Compilation, choice: EngineChoice, starter: Starter) -> None:
        graph = compilation.graph
        self._compilation = compilation
        self._choice = choice
        self._local = LocalExecutor(starter)
        self._remote_executor: Executor | None = None
        self._closing = contextlib.ExitStack()
        self._tools: ToolFiles | None = None
        self._private = compilation.folder
        # nvcc's own order, without texts, has files that only its own steps know of.
        sent = filter(self._can_send, graph.steps if compilation.texts else ())
        self._remote = {step.name: self._remote_step(step) for step in sent}
        marked = (step._replace(is_remote=step.name in self._remote) for step in graph.steps)
        self.graph = Graph(steps=tuple(marked))

    def start(self, step: Step, *, cores: int, ended: Ended) -> RunningStep:
        """See `Executor.start`."""
        if not step.is_remote:
            return self._local.start(step, cores=cores, ended=ended)
        if self._remote_executor is None:
            self._remote_executor = self._closing.enter_context(self._open())
        remote = self._remote[step.name]
        return self._remote_executor.start(remote, cores=1, ended=partial(self._end, remote, ended))

    def find_fault(self, step: Step, done: CompletedProcess) -> str:
        """See `Executor.find_fault`."""
        if self._remote_executor is None or not step.is_remote:
            return self._local.find_fault(step, done)
        return self._remote_executor.find_fault(step, done)

    def kill_unawaited(self) -> None:
        """See `Executor.kill_unawaited`."""
        self._local.kill_unawaited()

    def close(self) -> None:
        """See `Executor.close`."""
        self._local.close()
        if self._remote_executor is not None:
            self._remote_executor.close()
        self._closing.close()
        if self._tools is not None:
            self._tools.save()

    def _can_send(self, step: Step) -> bool:
        """Return True if a step reads and writes only files of the private folder."""
        argv = step.command.argv
        files = (*step.reads, *step.writes)
        # The last step writes where the command line says; the first one reads sources.
        if not step.reads or not all(path.is_relative_to(self._private) for path in files):
            return False
        if has_unsupported_flags(argv) or any(word.startswith(_FILE_FLAGS) for word in argv[1:]):
            return False
        if is_host_compiler(argv[0]):
            # Debug information has the folder, and two names for a file with line markers.
            return not {"-c", "-S"}.isdisjoint(argv) and not (
                "-E" in argv
                or "assembler" in argv
                or not _NATIVE_FLAGS.isdisjoint(argv)
                or any(word.startswith(_SANITIZER) for word in argv)
                or line_info_flag(argv[1:])
            )
        name = Path(argv[0]).name
        if name == "cicc" and not _INTERMEDIATE.isdisjoint(argv):
            return False
        # Only cudafe++ passes no name of a folder on with debug information.
        return name in _REMOTE and not line_info_flag(
            word for word in argv[1:] if word != _CUDAFE_DEBUG
        )

    def _remote_step(self, step: Step) -> Step:
        """Return the step with all its files and the variables that its tools read."""
        argv, texts = step.command.argv, self._compilation.texts
        named = (path for path in texts if str(path) in argv)
        # A stub includes them by their bare names.
        embedded = (
            path
            for path in texts
            for source in step.reads
            if source.suffix == ".cpp"
            and path.parent == source.parent
            and path.name.endswith(".fatbin.c")
        )
        depfiles = map(Path, option_values(argv, (DEPFILE_FLAG,)))
        environment = {**step.command.env}
        # All others are this user's: a token has no business on a worker.
        sent = {*hashed_variables(environment), *_CUDA_VARIABLES}
        environment = {name: text for name, text in environment.items() if name in sent}
        environment["PATH"] = step.command.env["PATH"]
        # Compilers believe it, if it names the folder in which they run.
        pwd = Path(step.command.env.get("PWD", ""))
        if pwd.is_absolute() and pwd.is_dir() and pwd.samefile(step.command.cwd):
            environment["PWD"] = str(pwd)
        reads = tuple(dict.fromkeys((*step.reads, *named, *embedded)))
        return step._replace(
            command=step.command._replace(argv=argv, env=environment),
            reads=reads,
            writes=(*step.writes, *depfiles),
            parallel_flags=(),
        )

    @contextlib.contextmanager
    def _open(self) -> Iterator[Executor]:
        compilation = self._compilation
        invocation = compilation.invocation
        self._tools = ToolFiles(
            compilation.context.runner,
            Path(cache_dir(invocation.environment)) / "digests",
            cwd=invocation.cwd,
            headers=self._headers,
        )
        steps = tuple(self._remote.values())
        settings = ExecutorSettings(
            # No other folder: names of this machine's folders mean nothing there.
            paths=PathMap(self._private, self._private),
            tools=self._tools,
            # Later steps here and the cache read them.
            wanted=frozenset(path for step in steps for path in step.writes),
            priorities={},
        )
        note = compilation.context.warn if compilation.context.explain_cache else _ignore
        with open_executor(
            self._choice.endpoint, Graph(steps=steps), settings, note=note
        ) as executor:
            yield executor

    def _headers(self) -> Iterator[Path]:
        # What a stub includes is beside `cuda_runtime.h` and in the folder `crt`.
        for root in self._toolkits():
            folder = root / "include"
            yield from folder.glob("*.h*")
            yield from (folder / "crt").glob("*")

    def _toolkits(self) -> set[Path]:
        """Return the folders of the toolkits, as the commands name them."""
        return {
            Path(os.path.normpath(text)).parents[1]
            for step in self._remote.values()
            if (text := step.command.env.get("CICC_PATH"))
        }

    def _end(self, step: Step, ended: Ended, done: CompletedProcess | BaseException) -> None:
        """Pass an exit on with this machine's names; called in a thread of the library's."""
        if isinstance(done, BaseException):
            ended(done)
            return
        try:
            for path in step.writes if done.returncode == 0 else ():
                self._rename_folder(path)
        except OSError as error:
            ended(error)
            return
        ended(done._replace(stdout=self._localize(done.stdout), stderr=self._localize(done.stderr)))

    def _rename_folder(self, path: Path) -> None:
        """Write this machine's name of the private folder into a text."""
        if path.suffix not in _TEXTS or not path.is_file():
            return
        content = path.read_bytes()
        if WORK_FOLDER.encode() in content:
            text = self._localize(os.fsdecode(content))
            path.write_bytes(os.fsencode(text))

    def _localize(self, text: str) -> str:
        """Return a text with this machine's names of an action's files."""
        return text.replace(WORK_FOLDER, str(self._private))


def _ignore(text: str) -> None:
    del text
