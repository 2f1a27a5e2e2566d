"""A call of the compiler wrapper: nvcc's command line, the way archsplit runs it, and its context.

Options are in files and in variables, too: CMake's "Unix Makefiles" puts include folders and
objects into files (``--options-file``). Their content decides about outputs and depfiles, so the
dry run gets their options as arguments.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, NamedTuple

from archsplit.nvcc.cmdline import CommandLine, FallBackToNvccError
from archsplit.nvcc.variables import depfile_variable
from archsplit.scheduler.history import History
from archsplit.scheduler.pool import MixedPool
from archsplit.scheduler.runner import RunOptions, run_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from archsplit.cache.config import Settings
    from archsplit.remote.endpoint import EngineChoice
    from archsplit.scheduler.executor import Executor
    from archsplit.scheduler.graph import Graph
    from archsplit.scheduler.outcome import Outcome
    from archsplit.scheduler.pool import Pool
    from archsplit.scheduler.runner import ResultCache
    from archsplit.system.process import Runner, Starter
    from archsplit.system.terminal import ProgressSink

_MAX_FILES = 100
_MAX_CHARACTERS = 1 << 20
"""Half of what Linux takes for a program's arguments and environment."""


class Invocation(NamedTuple):
    """A call of the compiler wrapper.

    Attributes:
        nvcc: the real compiler driver.
        command: nvcc's command line; as the user gave it, until `with_all_options`.
        cwd: nvcc's working directory, absolute.
        environment: nvcc's environment.
        reproducible: give no step more than one core, because more cores change the bytes.
        verify: run nvcc too, and compare.
        reports: reports to write.
        direct_key: the key of the direct record, by which `direct_hit` finds a hit; "" for none.
        shared_key: the key of the direct record for all checkouts and machines; "" for none.
        bases: the folders of ``base-dir`` (ccache's ``base_dir``).
        option_files: the files whose options are in ``command``, as absolute paths.
    """

    nvcc: Path
    command: CommandLine
    cwd: Path
    environment: Mapping[str, str]
    reports: ReportFiles
    reproducible: bool = False
    verify: bool = False
    direct_key: str = ""
    shared_key: str = ""
    bases: tuple[str, ...] = ()
    option_files: tuple[str, ...] = ()


class ReportFiles(NamedTuple):
    """Reports on a compilation; each file or folder is None when it isn't wanted.

    Attributes:
        graph: the steps and their dependencies, in the DOT language.
        table: a CSV row for each step: seconds, peak memory, bytes read and written.
        save: a folder for all intermediate files, named with the number of their step.
        verbose: all commands, numbered, one argument a line.
    """

    graph: Path | None = None
    table: Path | None = None
    save: Path | None = None
    verbose: Path | None = None

    @property
    def any(self) -> bool:
        """Return True if at least one report is wanted."""
        return self != ReportFiles()


def with_all_options(invocation: Invocation) -> Invocation:
    """Return the invocation with the options of variables and of files on its command line.

    Raises:
        FallBackToNvccError: see `expand_options`, or only nvcc can carry out the command line, or
            a variable asks for more outputs.
    """
    command, environment = invocation.command.with_variables(invocation.environment)
    command, files = expand_options(command, invocation.cwd)
    command.check_supported()
    if name := depfile_variable(environment):
        raise FallBackToNvccError(f"{name} asks the host compiler for dependency rules")
    # nvcc's shell expands variables, and the key of a direct record has only some of them.
    has_variable = any("$" in word for word in (str(invocation.cwd), *command.argv))
    return invocation._replace(
        command=command,
        environment=environment,
        option_files=files,
        direct_key="" if has_variable else invocation.direct_key,
        # The words in a file may name another checkout.
        shared_key="" if has_variable or files else invocation.shared_key,
    )


def expand_options(command: CommandLine, cwd: Path) -> tuple[CommandLine, tuple[str, ...]]:
    """Return the command line with the options of its option files, and the files.

    If a file can't be read, the command line stays as it is, and nvcc reports the error.

    Raises:
        FallBackToNvccError: a file can be read only once, or there are too many files or options.
    """
    names: list[str] = []

    def read(name: str) -> str:
        names.append(name)
        path = cwd / name
        # A file may name itself.
        if len(names) > _MAX_FILES:
            raise FallBackToNvccError("it has too many option files")
        # The content of a FIFO is gone once it has been read.
        if path.exists() and not path.is_file():
            raise FallBackToNvccError(f"its options are in {name}, which is not a regular file")
        return path.read_text(errors="surrogateescape")

    try:
        expanded = command.with_options_files(read)
    except (OSError, ValueError):
        return command, ()
    # The dry run gets the options as arguments, which the kernel limits.
    if names and sum(map(len, expanded.argv)) > _MAX_CHARACTERS:
        raise FallBackToNvccError("its option files have too many options")
    return expanded, tuple(str(cwd / name) for name in names)


class PooledRunner(NamedTuple):
    """A runner of graphs, with the pool and the history that all runs share.

    Attributes:
        pool: cores and memory.
        runner: starts programs.
        progress: receives the start and the end of each step.
        history: folder of the durations and memory peaks of earlier runs.
    """

    pool: Pool
    runner: Starter
    progress: ProgressSink
    history: Path

    def run(
        self,
        graph: Graph,
        *,
        group: str,
        parallel: bool,
        result_cache: ResultCache | None = None,
        executor: Executor | None = None,
        remote_slots: int = 0,
    ) -> Outcome:
        """Run a graph.

        Args:
            group: the key of its steps in the history.
            parallel: let steps use more than one core.
            result_cache: restores results instead of running steps.
            executor: runs the steps, some of them on other machines; None if all run here.
            remote_slots: maximum number of steps on other machines at a time.
        """
        is_local = executor is None
        return run_graph(
            graph,
            RunOptions(
                pool=self.pool if is_local else MixedPool(self.pool, remote_slots),
                runner=self.runner,
                progress=self.progress,
                # The times of other machines say nothing about this one.
                history=History(self.history, group) if is_local else None,
                parallel=parallel and is_local,
                result_cache=result_cache,
                executor=executor,
            ),
        )


class WrapperContext(NamedTuple):
    """Programs, streams and settings that a compilation works with.

    Attributes:
        runner: starts programs.
        graph_runner: runs graphs.
        stdout: receives the standard output of the tools.
        stderr: receives warnings and errors of the tools.
        warn: prints a message of archsplit itself.
        cache: settings of the cache; None for no cache.
        explain_cache: report hits, and the reason of each miss.
        farm: the farm for the long steps; None for this machine only.
        call_counter: receives ``cached`` or ``compiled``; the default, `str`, ignores it.
    """

    runner: Runner
    graph_runner: PooledRunner
    stdout: IO[bytes]
    stderr: IO[bytes]
    warn: Callable[[str], None]
    cache: Settings | None = None
    explain_cache: bool = False
    farm: EngineChoice | None = None
    call_counter: Callable[[str], object] = str

    def write_output(self, stdout: str, stderr: str) -> None:
        """Print the output of tools, byte for byte."""
        self.stdout.write(stdout.encode(errors="surrogateescape"))
        self.stderr.write(stderr.encode(errors="surrogateescape"))
        self.stdout.flush()
        self.stderr.flush()
