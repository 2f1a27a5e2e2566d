"""The command ``archsplit``: find the verb, run it, turn errors into exit codes.

A verb is imported when it is asked for, and nothing but the standard library before that:
``--version`` takes little more than Python's start.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from typing import TYPE_CHECKING

from archsplit import __version__
from archsplit.errors import ArchsplitError, InterruptedByUserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import NoReturn

VERBS: Mapping[str, str] = {
    "build": "build the core wheel and one plugin wheel per target",
    "plan": "print what a build would run",
    "verify": "re-read every wheel of a folder and check it",
    "inspect": "show what device code a file or package holds",
    "diff": "show what grew between two builds",
    "advise": "propose targets for the GPUs that users have",
    "slim": "take device code out of a library, wheel or environment",
    "split": "split a finished fat wheel, without building anything",
    "join": "make fat libraries again, of a core and all its packs",
    "gather": "put the wheels of one release, built in several places, into one folder",
    "publish": "upload a release to a package index, the core last",
    "index": "keep a static package index: a folder that any web server or object store serves",
    "install": "install the packs of this machine's GPUs",
    "doctor": "say what serves which GPU for an installed core",
    "nvcc": "compile as nvcc would, with its steps side by side",
    "cache": "explain, count, trim, check or move the compile cache",
    "toolkit": "say which nvcc is used and what it can compile for",
}
"""The modules of this package that are verbs, each with its line in the list of verbs."""
_CLOSED_PIPE = 128 + signal.SIGPIPE
"""The exit code of a command whose reader has gone: what a shell says of SIGPIPE."""


def entry_point() -> NoReturn:
    """Run the command that was installed."""
    sys.exit(main(sys.argv[1:]))


def main(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, _terminated)
    try:
        code = _run(argv)
        # What is left in the buffer is written here, where a closed pipe can still be met.
        sys.stdout.flush()
    except ArchsplitError as error:
        _say(f"archsplit: {error}")
        return error.exit_code
    except BrokenPipeError:
        # Python must not complain about it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _CLOSED_PIPE
    except SystemExit as ended:
        # A console of rich's ends the process itself, with 1.
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        return _CLOSED_PIPE
    except (KeyboardInterrupt, Exception) as error:
        if not _is_interrupt(error):
            raise
        _say("archsplit: interrupted; nothing half-made was left")
        return InterruptedByUserError.exit_code
    return code


def _run(argv: Sequence[str]) -> int:
    try:
        arguments = _parser(argv).parse_args(argv)
    except SystemExit as done:
        # Help and the version are in the buffer: see `main`.
        return int(done.code or 0)
    # Not for help, nor for the version: 60 ms.
    from rich.console import Console

    # A compiler's "file.cu:100:" is no emoji.
    code: int = arguments.run(arguments, Console(stderr=True, highlight=False, emoji=False))
    return code


def _say(text: str) -> None:
    from rich.console import Console

    errors = Console(stderr=True, highlight=False, emoji=False)
    errors.print(text, markup=False, soft_wrap=True)


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether it came of a signal, also by way of another exception.

    Where the signal comes while Python takes a lock for a thread, an error of that lock comes out.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def whole_parser() -> argparse.ArgumentParser:
    """Return the parser with all verbs, for the reference that is made from it."""
    return _parser([], everything=True)


def _parser(argv: Sequence[str], *, everything: bool = False) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="archsplit",
        description="Split CUDA wheels into a core and one small plugin wheel per GPU target.",
        epilog=_exit_codes(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"archsplit {__version__}",
        help="show the version and exit",
    )
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    wanted = VERBS if everything else [argv[0]] if argv and argv[0] in VERBS else []
    for name in wanted:
        importlib.import_module(f"archsplit.cli.{name}").add_to(verbs)
    if not wanted:
        # The names are enough for the list of verbs, and for what is no verb.
        for name, text in VERBS.items():
            verbs.add_parser(name, help=text)
    return parser


def _exit_codes() -> str:
    kinds = sorted(_kinds(ArchsplitError), key=lambda kind: kind.exit_code)
    lines = [f"  {kind.exit_code:3} {(kind.__doc__ or '').splitlines()[0]}" for kind in kinds]
    return "\n".join(["exit codes:", "    0 Success.", "    1 A fault of archsplit's own.", *lines])


def _kinds(kind: type[ArchsplitError]) -> Iterator[type[ArchsplitError]]:
    for each in kind.__subclasses__():
        yield each
        yield from _kinds(each)


def _terminated(signum: int, frame: object) -> NoReturn:
    # As for Ctrl-C: the stack unwinds, and every context manager removes what it made.
    del signum, frame
    raise KeyboardInterrupt
