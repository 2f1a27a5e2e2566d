"""Files that several verbs write: the findings of a check, and copies of unchanged inputs.

CI systems read the findings as SARIF or JUnit XML. ``--copy`` of ``split`` and ``slim`` passes
through what neither changes.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.errors import BudgetError, VerifyError
from archsplit.system.finding import Finding
from archsplit.system.fs import copy_into, write_file

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from archsplit.errors import NothingToDoError


def add_finding_files(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add ``--sarif`` and ``--junit``."""
    parser.add_argument(
        "--sarif", type=Path, metavar="FILE", help="write the findings as SARIF, for code scanning"
    )
    parser.add_argument(
        "--junit", type=Path, metavar="FILE", help="write the findings as JUnit XML, a test report"
    )


@contextlib.contextmanager
def finding_files(arguments: argparse.Namespace, *, check: str, checked: str) -> Iterator[None]:
    """Write the files when the block ends, with the findings that it raises.

    Args:
        arguments: with ``sarif`` and ``junit``.
        check: the verb.
        checked: the path of the checked file or folder.
    """
    try:
        yield
    except (BudgetError, VerifyError) as error:
        own = getattr(error, "findings", ())
        # A limit of the whole has no records: its message is the finding.
        hint = error.hint or ""
        whole = Finding(code="limit", subject="", found=error.message, expected="", hint=hint)
        _write(arguments, own or (whole,), check=check, checked=checked)
        raise
    _write(arguments, (), check=check, checked=checked)


def _write(
    arguments: argparse.Namespace, findings: Sequence[Finding], *, check: str, checked: str
) -> None:
    if arguments.sarif is None and arguments.junit is None:
        return
    from archsplit.system.finding_reports import junit_report, sarif_report

    if arguments.sarif is not None:
        write_file(arguments.sarif, sarif_report(findings, checked=checked))
    if arguments.junit is not None:
        write_file(arguments.junit, junit_report(findings, checked=checked, check=check))


def add_copy(parser: argparse.ArgumentParser) -> None:
    """Add ``--copy``."""
    parser.add_argument(
        "--copy",
        action="store_true",
        help="where there is nothing to do, write the file as it is, and end with 0",
    )


def copy_unchanged(source: Path, out: Path, nothing: NothingToDoError, console: Console) -> Path:
    """Copy a file without device code to remove, and print the reason.

    Raises:
        OutputError: the copy can't be written.
    """
    target = copy_into(source, out)
    # The hint of the error names --copy, which was given.
    reason = str(nothing).partition("\nhint: ")[0]
    console.print(f"copied as it is: {reason}", markup=False, soft_wrap=True)
    return target
