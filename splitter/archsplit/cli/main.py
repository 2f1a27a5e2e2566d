"""Command ``archsplit``: find the verb, run it, turn errors into exit codes.

A verb is imported when it is asked for, and nothing but the standard library before that:
``--version`` takes little more than Python's start. The completion scripts are made here, too, of
the parser with all verbs, by ``shtab``: they start no Python when the user presses Tab.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import os
import signal
import sys
from typing import TYPE_CHECKING

from archsplit import __version__
from archsplit.cli.verbs import (
    SHARED_MODULES,
    VERBS,
    VerbParser,
    check_options,
    check_verb,
    list_verbs,
)
from archsplit.errors import (
    ArchsplitError,
    BudgetError,
    DiskFullError,
    InputError,
    InterruptedByUserError,
    OutOfMemoryError,
    VerifyError,
)
from archsplit.system.outputs import open_streams
from archsplit.system.signals import restore_child_signal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import NoReturn

SHELLS = ("bash", "zsh", "tcsh")
_FILES = {"subject", "files", "gpus"}
"""Arguments that take a path or something else, such as the name of a package."""

EXIT_CODES_TOPIC = "exit-codes"
"""``archsplit help exit-codes``: the one page of help that is not about a verb."""
_PATH_ERRORS = {errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP}
"""Errors that `pathlib` raises even if it is only asked whether a path exists."""
_CLOSED_PIPE = 128 + signal.SIGPIPE
"""Exit code of a command whose reader has gone: what a shell says of SIGPIPE."""


_MORE_HELP = """\
archsplit help VERB        options and examples of a verb
archsplit help exit-codes  all exit codes
man archsplit              all of it (man needs the environment's bin on PATH)"""


def entry_point() -> NoReturn:
    """Run the command that was installed."""
    open_streams()
    sys.exit(main(sys.argv[1:]))


def main(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, _terminated)
    restore_child_signal()
    try:
        code = _run(argv)
        # What is left in the buffer is written here, where a closed pipe can still be met.
        sys.stdout.flush()
    except ArchsplitError as error:
        # A build's log has lines of many programs.
        name = "archsplit nvcc: " if list(argv[:1]) == ["nvcc"] else ""
        _say(f"{name}error: {error}")
        _annotate(error)
        return error.exit_code
    except BrokenPipeError:
        _drop_output()
        return _CLOSED_PIPE
    except (OSError, MemoryError) as error:
        return _system_error_code(error)
    except SystemExit as ended:
        # A console of rich's ends the process itself, with 1.
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        return _CLOSED_PIPE
    except (KeyboardInterrupt, Exception) as error:
        if not _is_interrupt(error):
            raise
        _say("error: interrupted; no partial output was left")
        return InterruptedByUserError.exit_code
    return code


def _system_error_code(error: OSError | MemoryError) -> int:
    """Print an error of the system and return the exit code; raise one that isn't expected."""
    if isinstance(error, MemoryError) or error.errno == errno.ENOMEM:
        _say("error: there is too little memory\nhint: end other programs, or see: ulimit -a")
        return OutOfMemoryError.exit_code
    # An error of a file, and not of a stream, has the file's name.
    if error.filename is None and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        _drop_output()
        _say("error: no space left while writing the output\nhint: free some space")
        return DiskFullError.exit_code
    if error.filename is None or error.errno not in _PATH_ERRORS:
        raise error
    hint = "name another path, or change the permissions of its folders"
    _say(f"error: {error.filename}: {error.strerror}\nhint: {hint}")
    return InputError.exit_code


def _drop_output() -> None:
    # Python must not complain about it again at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: Sequence[str]) -> int:
    words = _resolve_help(argv)
    if words == [EXIT_CODES_TOPIC]:
        sys.stdout.write(f"{exit_codes()}\n")
        return 0
    parser = _parser(words)
    if words and words[0].startswith("-"):
        # argparse would report a misspelled option as a missing verb.
        check_options("", words[:1], parser._option_string_actions)  # noqa: SLF001
    elif words:
        check_verb(words[0], ["help"])
        check_options(words[0], words[1:], _all_options(parser, words[0]))
    try:
        if not words:
            # A user who types only the name is looking for the verbs.
            parser.print_help(sys.stderr)
        arguments = parser.parse_args(words)
        # Pages name the command that made them.
        arguments.command_line = ("archsplit", *words)
    except SystemExit as done:
        # Help and the version are in the buffer: see `main`.
        return int(done.code or 0)
    # Not for help, nor for the version: 60 ms.
    from archsplit.cli.options import check_report_files
    from archsplit.system.resources import reuse_freed_memory
    from archsplit.system.safe_output import SafeConsole, safe_streams

    # A compiler's "file.cu:100:" is not an emoji.
    console = SafeConsole(stderr=True, highlight=False, emoji=False)
    # nvcc's own output must stay the same, byte for byte.
    is_nvcc = bool(words) and words[0] == "nvcc"
    if not is_nvcc:
        reuse_freed_memory()
        check_report_files(arguments)
    with contextlib.nullcontext() if is_nvcc else safe_streams():
        code: int = arguments.run(arguments, console)
        # Here, where a closed pipe can still be met.
        sys.stdout.flush()
    return code


def _resolve_help(argv: Sequence[str]) -> list[str]:
    """Return a command line with ``help VERB`` as ``VERB --help``."""
    if list(argv[:1]) != ["help"]:
        return list(argv)
    if list(argv[1:2]) == [EXIT_CODES_TOPIC]:
        return [EXIT_CODES_TOPIC]
    if argv[1:]:
        check_verb(argv[1], [EXIT_CODES_TOPIC])
    return [*argv[1:], "--help"]


def _all_options(parser: argparse.ArgumentParser, verb: str) -> set[str]:
    """Return all options of a verb and of its own verbs."""
    own = _verb_parsers(parser)[verb]
    parsers = (own, *_verb_parsers(own).values())
    return {option for each in parsers for option in each._option_string_actions}  # noqa: SLF001


def _verb_parsers(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    # argparse has no public way to the parsers of verbs.
    actions = parser._actions  # noqa: SLF001
    found = (each for each in actions if isinstance(each, argparse._SubParsersAction))  # noqa: SLF001
    return next((each.choices for each in found), {})


def _say(text: str) -> None:
    from archsplit.system.safe_output import SafeConsole

    SafeConsole(stderr=True, highlight=False, emoji=False).print(text, markup=False, soft_wrap=True)


def _annotate(error: ArchsplitError) -> None:
    """Show findings of a check beside the job, in GitHub Actions.

    The compiler wrapper doesn't come here: its errors are nvcc's.
    """
    if isinstance(error, (VerifyError, BudgetError)) and os.environ.get("GITHUB_ACTIONS") == "true":
        # One annotation for each finding: CI shows a list, and a long text is cut.
        findings = getattr(error, "findings", ())
        for code, text in [(one.code, str(one)) for one in findings] or [("limit", str(error))]:
            # Log commands end at the end of a line; these are the escapes that the runner knows.
            line = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
            sys.stderr.write(f"::error title=archsplit {code}::{line}\n")


def _is_interrupt(error: BaseException | None) -> bool:
    """Return True if a signal caused an error, directly or by another exception.

    Where the signal comes while Python takes a lock for a thread, an error of that lock comes out.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def whole_parser() -> argparse.ArgumentParser:
    """Return the parser with all verbs, for the reference that is made from it."""
    return _parser([], everything=True)


def _parser(argv: Sequence[str], *, everything: bool = False) -> argparse.ArgumentParser:
    parser = VerbParser(
        prog="archsplit",
        usage="archsplit [--version] [--help] VERB ...",
        description="Split CUDA wheels into a core and one small plugin wheel per GPU target.",
        epilog=f"{list_verbs()}\n\n{_MORE_HELP}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"archsplit {__version__}", help="show the version"
    )
    parser.add_argument(
        "--print-completion",
        choices=SHELLS,
        action=_PrintCompletion,
        help="print the completion script of a shell and exit",
    )
    # The epilog has the verbs in their groups.
    verbs = parser.add_subparsers(
        prog="archsplit", required=True, metavar="VERB", help=argparse.SUPPRESS
    )
    wanted = VERBS if everything else [argv[0]] if argv and argv[0] in VERBS else []
    for name in wanted:
        module, _, function = SHARED_MODULES.get(name, f"{name}:add_to").partition(":")
        getattr(importlib.import_module(f"archsplit.cli.{module}"), function)(verbs)
    return parser


class _PrintCompletion(argparse.Action):
    """Prints the completion of a shell, and ends the command."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        del namespace, option_string

        sys.stdout.write(completion_script(whole_parser(), str(values)))
        parser.exit()


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the completion of a shell; the parser is changed."""
    from pathlib import Path

    import shtab

    for action in _actions(parser):
        # shtab leaves out what has no help; the list of verbs has it in the epilog.
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            action.help, action.metavar = "a verb", None
        elif action.metavar in {"DIR", "FOLDER"}:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined] # shtab reads it
        elif action.type is Path or action.dest in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined] # shtab reads it
    return f"{shtab.complete(parser, shell)}\n"


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to them
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            # Aliases share one parser.
            for inner in dict.fromkeys(action.choices.values()):
                yield from _actions(inner)


def exit_codes() -> str:
    """Return the table of exit codes, one line for each."""
    kinds = sorted(_kinds(ArchsplitError), key=lambda kind: kind.exit_code)
    lines = [f"  {kind.exit_code:3} {(kind.__doc__ or '').splitlines()[0]}" for kind in kinds]
    own = ("    0 Success.", "    1 A bug in archsplit.")
    closed = f"  {_CLOSED_PIPE} Standard output was closed by its reader."
    return "\n".join(["exit codes:", *own, *lines, closed])


def _kinds(kind: type[ArchsplitError]) -> Iterator[type[ArchsplitError]]:
    for each in kind.__subclasses__():
        yield each
        yield from _kinds(each)


def _terminated(*_: object) -> NoReturn:
    # As for Ctrl-C: the stack unwinds, and every context manager removes what it made.
    raise KeyboardInterrupt
