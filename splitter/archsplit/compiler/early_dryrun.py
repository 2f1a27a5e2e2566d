"""The dry run of a command line, before all that plans and runs steps is imported.

nvcc refuses many command lines: configure scripts try options, and people mistype them. Such a
refusal takes one dry run more than nvcc's own. Where nvcc accepts the command line, the plan
follows from the same dry run.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.nvcc.options import KEEP_FOLDER, dryrun_words
from archsplit.system.fs import temporary_dir
from archsplit.system.process import Command, SubprocessRunner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from archsplit.system.process import CompletedProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyDryRun:
    """A dry run that nvcc accepted.

    Attributes:
        folder: the private folder of all intermediate files.
        command: the command of the dry run.
        done: its result.
        cleanup: removes the folder when it is closed.
    """

    folder: Path
    command: Command
    done: CompletedProcess
    cleanup: contextlib.ExitStack


def run_early(
    nvcc: str, argv: Sequence[str], *, cwd: Path, environment: Mapping[str, str]
) -> EarlyDryRun | None:
    """Return the dry run; None where nvcc refuses the command line, or prints something itself."""
    cleanup = contextlib.ExitStack()
    folder = cleanup.enter_context(temporary_dir())
    command = dryrun_query(nvcc, dryrun_words(argv), folder, cwd=cwd, environment=environment)
    done = SubprocessRunner().run(command)
    if done.returncode != 0 or done.stdout:
        cleanup.close()
        return None
    return EarlyDryRun(folder=folder, command=command, done=done, cleanup=cleanup)


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
