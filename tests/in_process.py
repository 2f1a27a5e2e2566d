"""Command lines of archsplit in this process, for tests of what a command prints and returns.

A process of its own takes 0.2 to 0.6 CPU seconds before its verb begins. Signals, closed pipes,
memory and imports at the start need one.
"""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import sys
import threading
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

import pytest

from archsplit.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path


def run_archsplit(
    *words: str | Path,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    inherits: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a command line; return its exit code and all that it and its children print.

    Args:
        environment: variables to set.
        inherits: False to unset all others.
    """
    arguments = [str(word) for word in words]
    with TemporaryFile("w+") as stdout, TemporaryFile("w+") as stderr:
        with (
            _surroundings(cwd, environment or {}, inherits=inherits),
            _streams(0, stdout.fileno(), stderr.fileno()),
        ):
            code = exit_code(arguments)
        printed = []
        for file in (stdout, stderr):
            file.seek(0)
            printed.append(file.read())
    return subprocess.CompletedProcess(["archsplit", *arguments], code, *printed)


def exit_code(words: list[str]) -> int:
    """Run a command line; return its exit code."""
    try:
        return main(words)
    except SystemExit as ended:
        return int(ended.code or 0)


def run_on_terminal(
    words: list[str], cwd: Path, *, run: Callable[[list[str]], int] = exit_code, **environment: str
) -> tuple[int, str]:
    """Run a command line on a terminal; return its exit code and all that the terminal got."""
    reader, writer = pty.openpty()
    blocks, ended = list[bytes](), threading.Event()
    thread = threading.Thread(target=_read_terminal, args=(reader, blocks, ended))
    thread.start()
    try:
        with _surroundings(cwd, environment), _streams(writer, writer, writer):
            code = run(words)
    finally:
        os.close(writer)
        ended.set()
        thread.join()
        os.close(reader)
    return code, b"".join(blocks).decode(errors="replace")


def _read_terminal(reader: int, blocks: list[bytes], ended: threading.Event) -> None:
    # At the end of a terminal, Linux gives an error in place of no bytes.
    with contextlib.suppress(OSError):
        while True:
            is_last = ended.is_set()
            if select.select([reader], [], [], 0.1)[0]:
                blocks.append(os.read(reader, 1 << 16))
            # A server of `warm_programs` that began meanwhile has the terminal as long as it lives.
            elif is_last:
                return


@contextlib.contextmanager
def _surroundings(
    cwd: Path | None, environment: Mapping[str, str], *, inherits: bool = True
) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [] if inherits else set(os.environ).difference(environment):
            patch.delenv(name)
        for name, text in environment.items():
            patch.setenv(name, text)
        if cwd is not None:
            patch.chdir(cwd)
        yield


@contextlib.contextmanager
def _streams(*files: int) -> Iterator[None]:
    """Put files in place of the standard streams, for this process and its children."""
    kept = [os.dup(number) for number in range(3)]
    streams = sys.stdin, sys.stdout, sys.stderr
    try:
        for number, file in enumerate(files):
            os.dup2(file, number)
        with (
            open(0, closefd=False) as sys.stdin,
            open(1, "w", closefd=False) as sys.stdout,
            open(2, "w", 1, errors="backslashreplace", closefd=False) as sys.stderr,
        ):
            yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams
        for number, file in enumerate(kept):
            os.dup2(file, number)
            os.close(file)
