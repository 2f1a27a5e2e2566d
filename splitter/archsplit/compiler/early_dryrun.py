"""The dry run of a command line, beside the imports of the planner.

nvcc refuses many command lines: configure scripts try options, and people mistype them. Such a
refusal takes little more than nvcc's own, because nvcc refuses within milliseconds. Where nvcc
accepts the command line, the plan follows from the same dry run.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from archsplit.nvcc.options import KEEP_FOLDER, dryrun_words
from archsplit.system.fs import temporary_dir
from archsplit.system.process import Command, SubprocessRunner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from archsplit.system.process import CompletedProcess


_REFUSAL_SECONDS = 0.015
"""Seconds in which nvcc refuses most command lines. It accepts one after a question to gcc."""


class EarlyDryRun:
    """A dry run that has been started.

    Args:
        command: the command of the dry run.
        folder: the private folder of all intermediate files.
        cleanup: removes the folder when it is closed.
    """

    def __init__(self, command: Command, folder: Path, cleanup: contextlib.ExitStack) -> None:
        self.command = command
        self.folder = folder
        self.cleanup = cleanup
        self._results: list[CompletedProcess] = []
        self._running = SubprocessRunner().start(command)
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()
        self._thread.join(_REFUSAL_SECONDS)
        cleanup.callback(self._stop)

    @property
    def is_refused(self) -> bool:
        """Return True if nvcc has refused the command line, or printed something itself."""
        return any(done.returncode != 0 or done.stdout for done in self._results)

    def result(self) -> CompletedProcess:
        """Wait for the end of the dry run, and return its result."""
        self._thread.join()
        return self._results[0]

    def _wait(self) -> None:
        self._results.append(self._running.wait())

    def _stop(self) -> None:
        # A hit needs no plan.
        if self._thread.is_alive():
            self._running.kill(grace=0)
            self._thread.join()


def run_early(
    nvcc: str, argv: Sequence[str], *, cwd: Path, environment: Mapping[str, str]
) -> EarlyDryRun:
    """Start the dry run of a command line."""
    cleanup = contextlib.ExitStack()
    folder = cleanup.enter_context(temporary_dir())
    # The same words as the plan's, or its result could not be used for the plan.
    command = dryrun_query(nvcc, dryrun_words(argv), folder, cwd=cwd, environment=environment)
    return EarlyDryRun(command, folder, cleanup)


def dryrun_query(
    nvcc: str,
    words: Sequence[str],
    folder: Path,
    *,
    cwd: Path,
    environment: Mapping[str, str],
    keep: bool = True,
) -> Command:
    """Return the command that asks nvcc for its steps.

    Args:
        words: nvcc's arguments without those about intermediate files.
        folder: the private folder of all intermediate files.
        keep: give each of them a name without a number.
    """
    kept = ("--keep", f"--{KEEP_FOLDER}", str(folder)) if keep else ()
    return Command(
        argv=(nvcc, "--dryrun", *kept, *words),
        cwd=cwd,
        env={**environment, "TMPDIR": str(folder)},
        undecodable="surrogateescape",
    )
