"""The command ``archsplit``: find the verb, run it, turn errors into exit codes."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console

from splitter.errors import ArchsplitError, InterruptedByUserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_VERBS = (
    *("build", "plan", "verify", "inspect", "diff", "advise", "slim", "split"),
    *("join", "gather", "publish", "index", "install", "doctor", "nvcc", "cache", "toolkit"),
)
"""Each is a module of this package; only the one that was asked for is imported."""


def entry_point() -> NoReturn:
    """What the installed command runs."""
    sys.exit(main(sys.argv[1:]))


def main(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, _terminated)
    # A compiler's "file.cu:100:" is no emoji.
    errors = Console(stderr=True, highlight=False, emoji=False)
    try:
        arguments = _parser(argv).parse_args(argv)
        code: int = arguments.run(arguments, errors)
    except ArchsplitError as error:
        errors.print(f"archsplit: {error}", markup=False, soft_wrap=True)
        return error.exit_code
    except BrokenPipeError:
        # Whoever read our output has gone; Python must not complain about it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (KeyboardInterrupt, Exception) as error:
        if not _is_interrupt(error):
            raise
        errors.print("archsplit: interrupted; nothing half-made was left", markup=False)
        return InterruptedByUserError.exit_code
    return code


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether it came of a signal, also by way of another exception.

    Where the signal comes while Python takes a lock for a thread, an error of that lock comes out.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def whole_parser() -> argparse.ArgumentParser:
    """The parser with all verbs, for the reference that is made from it."""
    return _parser([])


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="archsplit",
        description="Split CUDA wheels into a core and one small plugin wheel per GPU target.",
        epilog=_exit_codes(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    for name in [argv[0]] if argv and argv[0] in _VERBS else _VERBS:
        importlib.import_module(f"splitter.cli.{name}").add_to(verbs)
    return parser


class _Version(argparse.Action):
    """Look up the version when it is asked for: that takes a tenth of a short command's time."""

    def __call__(self, parser: argparse.ArgumentParser, *others: object) -> NoReturn:
        from importlib.metadata import version  # noqa: PLC0415

        del others
        parser.exit(message=f"archsplit {version('archsplit')}\n")


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
