"""The query to nvcc for the steps of a command line (``--dryrun``).

In: an invocation and a private folder. Out: the steps of nvcc in its own order, and the same steps
in an order that lets them run side by side. What can't be planned is left to nvcc.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.compiler.early_dryrun import dryrun_query
from archsplit.compiler.invocation import FallBackToNvccError
from archsplit.compiler.module_id import module_id_seed
from archsplit.errors import TranscriptError
from archsplit.nvcc.cmdline import (
    NvccArguments,
    parse_arguments,
)
from archsplit.nvcc.dryrun import parse_dryrun
from archsplit.nvcc.options import FLAG_VARIABLES, unsupported_reason
from archsplit.nvcc.reorder import RelaxedPlan, empty_container_commands, relax_order
from archsplit.nvcc.step_args import unusable_character
from archsplit.system.process import Command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archsplit.compiler.invocation import Invocation
    from archsplit.nvcc.steps import Transcript
    from archsplit.system.process import CompletedProcess, Runner


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunResult:
    """The steps of an invocation, and what follows from them.

    Attributes:
        invocation: the call of the wrapper.
        folder: the private folder of all intermediate files.
        arguments: nvcc's command line, parsed.
        transcript: nvcc's steps, in its order.
        plan: the steps to run.
        environment: of the steps.
        numbered: intermediate files have numbers in their names, as without ``--keep``.
    """

    invocation: Invocation
    folder: Path
    arguments: NvccArguments
    transcript: Transcript
    plan: RelaxedPlan
    environment: Mapping[str, str]
    numbered: bool


def query_dryrun(invocation: Invocation, folder: Path, runner: Runner) -> DryRunResult:
    """Ask nvcc for the steps of a command line, with all intermediate files in ``folder``.

    Raises:
        FallBackToNvccError: the steps aren't understood, or nvcc refuses the command line.
    """
    if reason := unsupported_reason(invocation.argv):
        raise FallBackToNvccError(reason)
    if character := unusable_character(str(folder)):
        raise FallBackToNvccError(f"{character!r} is in the path of the temporary folder")
    return _Query(invocation, folder, runner, parse_arguments(invocation.argv)).run()


@dataclass(frozen=True, slots=True)
class _Query:
    """A query for one command line."""

    invocation: Invocation
    folder: Path
    runner: Runner
    arguments: NvccArguments

    def run(self) -> DryRunResult:
        """Return the steps of the invocation."""
        transcript, numbered = self._transcript()
        # The transcript has what these variables add.
        environment = {
            name: value
            for name, value in self.invocation.environment.items()
            if name not in FLAG_VARIABLES
        }
        # What a tool leaves behind when it is killed goes away with the folder.
        environment |= {**transcript.environment, "TMPDIR": str(self.folder)}
        _check_depfiles(transcript)
        return DryRunResult(
            invocation=self.invocation,
            folder=self.folder,
            arguments=self.arguments,
            transcript=transcript,
            plan=self._plan(transcript, environment),
            environment=environment,
            numbered=numbered,
        )

    def _plan(self, transcript: Transcript, environment: Mapping[str, str]) -> RelaxedPlan:
        invocation = self.invocation
        # With --keep, the names of nvcc's files are what its user wants to see.
        if invocation.faithful or self.arguments.keep:
            return RelaxedPlan(steps=transcript.steps, texts={})
        relocatable = any("--device-c" in step.argv for step in transcript.steps)
        seed = partial(
            module_id_seed,
            cwd=invocation.cwd,
            flags=self.arguments.query,
            place=Path("/") if relocatable else None,
        )
        return relax_order(
            transcript,
            seed=seed,
            templates=self._templates(transcript, environment),
            everywhere=not invocation.verify,
        )

    def _transcript(self) -> tuple[Transcript, bool]:
        """Return nvcc's steps, and whether intermediate files have numbers."""
        try:
            return self._parse(keep=True), False
        except TranscriptError as error:
            if self.arguments.keep:
                raise FallBackToNvccError(_reason(error)) from error
        # Two sources of one name would share their files' names. Without --keep nvcc numbers them.
        try:
            return self._parse(keep=False), True
        except TranscriptError as error:
            raise FallBackToNvccError(_reason(error)) from error

    def _parse(self, *, keep: bool) -> Transcript:
        invocation, early = self.invocation, self.invocation.early
        command = dryrun_query(
            str(invocation.nvcc),
            self.arguments.query,
            self.folder,
            cwd=invocation.cwd,
            environment=invocation.environment,
            keep=keep,
        )
        # Options that were in files or variables make another command.
        is_known = early is not None and early.command == command
        done = early.result() if early is not None and is_known else self.runner.run(command)
        if done.returncode != 0 or done.stdout:
            # nvcc refuses, or prints its version or help: its own words are the best.
            raise FallBackToNvccError("")
        return parse_dryrun(done.stderr, folder=self.folder, cwd=self.invocation.cwd)

    def _templates(self, transcript: Transcript, environment: Mapping[str, str]) -> dict[Path, str]:
        """Return the text that fatbinary writes for a container without images, by its path."""
        texts = {}
        for path, argv in empty_container_commands(transcript).items():
            if self._start(argv, environment).returncode == 0:
                texts[path] = path.read_text()
        return texts

    def _start(self, argv: tuple[str, ...], environment: Mapping[str, str]) -> CompletedProcess:
        cwd = self.invocation.cwd
        return self.runner.run(
            Command(argv=argv, cwd=cwd, env=environment, undecodable="surrogateescape")
        )


def _check_depfiles(transcript: Transcript) -> None:
    """Refuse rules for make that can't be written.

    Raises:
        FallBackToNvccError: nvcc writes them, or says why not.
    """
    if transcript.dependencies and any("-P" in step.argv for step in transcript.steps):
        raise FallBackToNvccError("with -P no line markers name the included files")
    for rule in transcript.dependencies:
        if rule.path is not None and not rule.path.parent.is_dir():
            raise FallBackToNvccError("")


def _reason(error: TranscriptError) -> str:
    # The first line has what wasn't understood; the command itself is long and nvcc's own.
    return str(error).partition("\n")[0].removesuffix(":")
