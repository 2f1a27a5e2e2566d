"""``archsplit nvcc`` and ``archsplit-nvcc``: a compiler wrapper for nvcc.

Most calls of a build are hits, and a hit may take 50 ms more than Python's start. So modules that
only other calls need are imported late: `re` is 2 ms, `typing` 3, pathlib 5, argparse 6,
dataclasses 9, the modules that plan and run steps 90.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys

from archsplit import __version__
from archsplit.compiler.direct_hit import invocation_keys, record_bases, restore_hit
from archsplit.nvcc.driver_search import TRIED_VARIABLE, find_real_nvcc, split_launcher, tried_paths
from archsplit.nvcc.variables import EPOCH
from archsplit.system.env import cache_dir, original_environment
from archsplit.system.outputs import open_streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn, TypeAlias

    from rich.console import Console

    from archsplit.cli.options import Verbs
    from archsplit.nvcc.cmdline import CommandLine
    from archsplit.system.process import SubprocessRunner

    _Options: TypeAlias = argparse.Namespace | "_NoOptions"

OPTIONS_VARIABLE = "ARCHSPLIT_NVCC_OPTIONS"
_CALLS_VARIABLE = "ARCHSPLIT_NVCC_CALLS"
_BROKEN_PIPE = 128 + 13
"""Exit code that a shell gives to a program that SIGPIPE ended."""


class _StoppedError(BaseException):
    """A signal ends the process, after incomplete outputs are removed."""


def add_to(verbs: Verbs) -> None:
    """Add the verb to the command line."""
    from archsplit.cli.verbs import add_verb

    parser = add_verb(
        verbs,
        "nvcc",
        "archsplit nvcc -- -arch=sm_90 -c sort.cu -o sort.o",
        "archsplit nvcc --jobs 8 --table steps.csv -- -arch=sm_90 -c sort.cu",
        usage="archsplit nvcc [OPTIONS] -- NVCC_ARGS",
        description="Output, exit code, dependency files and warnings are nvcc's own. A command"
        " line that is not supported runs nvcc itself, and one line gives the reason.",
    )
    _add_options(parser)
    parser.add_argument("nvcc_args", nargs="*", metavar="NVCC_ARGS", help="nvcc's own arguments")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace, _: Console) -> int:
    from archsplit.nvcc.cmdline import CommandLine, FallBackToNvccError

    command = CommandLine(arguments.nvcc_args)
    nvcc = _real_nvcc(arguments.nvcc)
    try:
        return _compile(arguments, nvcc, command)
    except FallBackToNvccError as reason:
        _become_nvcc(nvcc, command.argv, str(reason))


def launcher() -> NoReturn:
    """Run ``archsplit-nvcc``: all arguments are nvcc's; the wrapper's come from a variable.

    A first argument that is nvcc, by its path or its bare name, names the real one, as a compiler
    launcher gets it.
    """
    # A process of a second makes few circles of objects, and looking for them is 5 % of its time.
    gc.disable()
    open_streams()
    try:
        _end(_launch())
    except KeyboardInterrupt:
        _end_by_interrupt()
    except BrokenPipeError:
        # The reader has closed the pipe. Python would report that a second time at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_BROKEN_PIPE)
    except Exception as error:
        from archsplit.errors import ArchsplitError

        # An unexpected fault keeps its traceback, for a report.
        if not isinstance(error, ArchsplitError):
            raise
        _say(f"error: {error}")
        sys.exit(error.exit_code)


def _launch() -> int:
    options = os.environ.get(OPTIONS_VARIABLE, "")
    named, argv = split_launcher(sys.argv[1:])
    # The options may name another nvcc. As they are a variable, they are in the key.
    has_named = named is None and "--nvcc" in options
    nvcc = "" if has_named else _real_nvcc(named)
    environment = _environment(nvcc) if nvcc else original_environment(os.environ)
    try:
        cwd = os.getcwd()  # noqa: PTH109 - pathlib is 5 ms of a hit
    except FileNotFoundError:
        if not nvcc:
            raise
        _become_nvcc(nvcc, argv, "the working folder was removed")
    bases = record_bases(cwd, environment)
    key, shared = invocation_keys(
        argv, cwd=cwd, environment=environment, nvcc=nvcc, version=__version__, bases=bases
    )
    restored = restore_hit(key, environment, shared_key=shared, bases=bases)
    if restored is not None:
        _print(restored)
        _count_call("cached")
        return 0

    from archsplit.nvcc.cmdline import CommandLine, FallBackToNvccError

    command = CommandLine(argv)
    try:
        if nvcc:
            _check_compiles(command, environment)
        arguments = _parse_options_variable(options)
        nvcc = nvcc or _real_nvcc(arguments.nvcc)
        return _compile(arguments, nvcc, command, (key, shared))
    except FallBackToNvccError as reason:
        _become_nvcc(nvcc, argv, str(reason))


def _end(code: int) -> NoReturn:
    """End without Python's orderly end, which would be a fifth of a hit's time."""
    atexit._run_exitfuncs()  # noqa: SLF001 - it has no public name
    sys.stdout.flush()
    os._exit(code)


def _end_by_interrupt() -> NoReturn:
    """End as nvcc ends by Ctrl-C: without a message, and by the signal."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    # Reached only if SIGINT is blocked.
    raise KeyboardInterrupt


def _print(restored: tuple[str, str, str]) -> None:
    stdout, stderr, note = restored
    for stream, text in ((sys.stdout.buffer, stdout), (sys.stderr.buffer, stderr)):
        if text:
            stream.write(text.encode(errors="surrogateescape"))
            stream.flush()
    if note:
        _say(note)


class _NoOptions:
    """Values of the options where none is given: argparse takes 8 ms to find them."""

    nvcc = jobs = memory = cache = graph = table = save = verbose = None
    reproducible = verify = explain = False


def _parse_options_variable(options: str) -> _Options:
    if not options:
        return _NoOptions()
    import argparse
    import shlex

    # The name of the variable is in error messages, because the user typed no options.
    parser = argparse.ArgumentParser(prog=OPTIONS_VARIABLE, add_help=False)
    _add_options(parser)
    return parser.parse_args(shlex.split(options))


def _add_options(parser: argparse.ArgumentParser) -> None:
    from archsplit.cli import options

    execution = f"""
{options.JOBS}
{options.MEMORY}
{options.CACHE}
--reproducible  one core for each step
--verify        run nvcc too, and compare the outputs
"""
    reports = f"""
{options.EXPLAIN}
--graph FILE    write the graph of the steps as DOT, for graphviz
--table FILE    write seconds, memory and sizes of each step as CSV
--verbose FILE  write the commands, numbered
--save DIR      keep all intermediate files here
"""
    # A string: the path of a hit has no pathlib.
    options.add_options(parser, options.NVCC, types={"PATH": str})
    options.add_options(parser.add_argument_group("execution"), execution)
    options.add_engine_options(parser)
    options.add_options(parser.add_argument_group("reports"), reports)


def _compile(
    arguments: _Options, nvcc: str, command: CommandLine, keys: tuple[str, str] = ("", "")
) -> int:
    """Carry out a command line of nvcc, and return its exit code.

    Raises:
        FallBackToNvccError: only nvcc itself can carry it out.
    """
    command.check_supported()

    from archsplit.system.process import SubprocessRunner
    from archsplit.system.signals import restore_child_signal

    restore_child_signal()
    runner = SubprocessRunner()
    return _remove_outputs_on_signal(
        runner, lambda: _run_wrapper(arguments, nvcc, command, runner, keys)
    )


def _count_call(text: str) -> None:
    """Add a line to the record that a build which started the wrapper reads."""
    path = os.environ.get(_CALLS_VARIABLE)
    if not path:
        return
    line = " ".join(text.split())
    try:
        # One write for each line: wrappers of a parallel build share the file.
        with open(path, "ab", buffering=0) as file:  # noqa: PTH123 - pathlib is 5 ms of a hit
            file.write(f"{line}\n".encode(errors="replace"))
    except OSError:
        # A compilation must not fail because of a report.
        return


def _check_compiles(command: CommandLine, environment: Mapping[str, str]) -> None:
    """Refuse a command line without anything to compile, before modules are imported for it.

    Raises:
        FallBackToNvccError: nvcc prints something, only links, or misses a source.
    """
    from archsplit.nvcc.cmdline import FLAG_VARIABLES, FallBackToNvccError

    command.check_supported()
    # Flags in NVCC_APPEND_FLAGS may turn a query into a compilation.
    has_flags = any(environment.get(name) for name in FLAG_VARIABLES)
    # The dry run accepts a source that is missing.
    if (command.compiles_nothing and not has_flags) or not all(
        map(os.path.exists, command.sources)
    ):
        raise FallBackToNvccError("")


def _run_wrapper(
    arguments: _Options,
    nvcc: str,
    command: CommandLine,
    runner: SubprocessRunner,
    keys: tuple[str, str],
) -> int:
    import contextlib
    from pathlib import Path

    from archsplit.cache.config import active_settings
    from archsplit.compiler.invocation import Invocation, PooledRunner, ReportFiles, WrapperContext
    from archsplit.compiler.wrapper import run_wrapper
    from archsplit.scheduler.pool_choice import find_pool

    invocation = Invocation(
        nvcc=Path(nvcc),
        command=command,
        cwd=Path.cwd(),
        environment=_environment(nvcc),
        # SOURCE_DATE_EPOCH is set for builds with the same bytes each time.
        reproducible=arguments.reproducible or EPOCH in os.environ,
        verify=arguments.verify,
        direct_key=keys[0],
        shared_key=keys[1],
        reports=ReportFiles(
            graph=arguments.graph,
            table=arguments.table,
            save=arguments.save,
            verbose=arguments.verbose,
        ),
    )
    farm = None
    if not isinstance(arguments, _NoOptions):
        from archsplit.cli.options import engine_choice

        farm = engine_choice(arguments, os.environ)
    found = find_pool(os.environ, jobs=arguments.jobs, memory=arguments.memory)
    with contextlib.closing(found.pool):
        graph_runner = PooledRunner(
            pool=found.pool,
            runner=runner,
            progress=_Notes(),
            history=Path(cache_dir(os.environ)) / "history",
        )
        context = WrapperContext(
            runner=runner,
            graph_runner=graph_runner,
            stdout=sys.stdout.buffer,
            stderr=sys.stderr.buffer,
            warn=_say,
            cache=active_settings(os.environ, mode=arguments.cache),
            explain_cache=arguments.explain,
            farm=farm,
            call_counter=_count_call,
        )
        return run_wrapper(invocation, context)


class _Notes:
    """A progress sink that prints notes only: the tools print everything else."""

    def begin_stage(self, title: str, total: int, done: str) -> None:
        """See `ProgressSink.begin_stage`."""

    def start_step(self, label: str) -> None:
        """See `ProgressSink.start_step`."""

    def finish_step(self, label: str, seconds: float) -> None:
        """See `ProgressSink.finish_step`."""

    def note(self, text: str) -> None:
        """See `ProgressSink.note`."""
        _say(text)


def _real_nvcc(named: str | None) -> str:
    return find_real_nvcc(named, wrapper=sys.argv[0], environment=os.environ, site_folders=sys.path)


def _environment(nvcc: str) -> dict[str, str]:
    """Return the environment of nvcc and its tools."""
    tried = tried_paths(nvcc, os.environ)
    given = original_environment(os.environ)
    return {**given, TRIED_VARIABLE: tried} if tried else given


def _say(text: str) -> None:
    # Importing it takes 60 ms, and names are rarely hostile.
    if not all(map(str.isprintable, text.split("\n"))):
        from archsplit.system.safe_output import printable

        text = printable(text)
    sys.stderr.write(f"archsplit: {text}\n")
    sys.stderr.flush()


def _become_nvcc(nvcc: str, argv: Sequence[str], reason: str) -> NoReturn:
    """Replace this process by nvcc; without a reason, in silence."""
    import signal

    if reason:
        _say(f"running nvcc itself: {reason}")
        _count_call(f"nvcc {reason}")
    # Python ignores SIGPIPE, and a child inherits that; nvcc must end when its reader has gone.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execve(nvcc, [nvcc, *argv], _environment(nvcc))  # noqa: S606 - the caller asked for nvcc


def _remove_outputs_on_signal(runner: SubprocessRunner, work: Callable[[], int]) -> int:
    """Run some work; a signal ends the process after incomplete outputs are removed."""
    import signal

    from archsplit.errors import InterruptedByUserError
    from archsplit.system.signals import STOP_SIGNALS

    caught: list[int] = []

    def stop(number: int, _: object) -> NoReturn:
        # A second Ctrl-C must not interrupt the removal of incomplete outputs.
        for other in STOP_SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        caught.append(number)
        runner.cancel()
        raise _StoppedError(number)

    for number in STOP_SIGNALS:
        signal.signal(number, stop)
    try:
        code = work()
    except (_StoppedError, InterruptedByUserError):
        code = InterruptedByUserError.exit_code
    # The shell and make see the signal itself, not an exit code that stands for it.
    for one in caught:
        signal.signal(one, signal.SIG_DFL)
        os.kill(os.getpid(), one)
    return code
