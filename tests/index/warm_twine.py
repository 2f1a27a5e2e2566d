"""Twine's processes, forked from one that has imported twine: an import takes half a second."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from typing import TYPE_CHECKING

from archsplit.system.process import CompletedProcess, SubprocessRunner

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from archsplit.system.process import Command

_CHILD = "archsplit.index.twine_child"
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([_CHILD])


class WarmTwine(SubprocessRunner):
    """Runs twine in a process that is forked; all other programs are started."""

    def run(self, command: Command) -> CompletedProcess:
        # A program that can't start is a matter of its start.
        if command.argv[1:3] != ("-m", _CHILD) or "PYTHONHOME" in command.env:
            return super().run(command)
        begin = time.monotonic()
        log = command.cwd / "printed"
        child = _FORKS.Process(
            target=_run, args=(command.argv[3:], command.cwd, dict(command.env), log)
        )
        child.start()
        child.join()
        assert child.exitcode is not None
        return CompletedProcess(
            returncode=child.exitcode,
            stdout="",
            stderr=log.read_text(),
            seconds=time.monotonic() - begin,
        )


def _run(words: tuple[str, ...], folder: Path, environment: Mapping[str, str], log: Path) -> None:
    from archsplit.index.twine_child import run_request  # noqa: PLC0415 (imported there already)

    with log.open("wb") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.exit(run_request(words))
