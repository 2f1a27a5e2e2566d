"""Ask nvcc what it would do, and decide whether that can be planned."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.compiler.invocation import FallBackToNvccError
from archsplit.compiler.module_id import module_id_seed
from archsplit.errors import TranscriptError
from archsplit.nvcc.cmdline import (
    FLAG_VARIABLES,
    NvccArguments,
    parse_arguments,
    unsupported_reason,
)
from archsplit.nvcc.dryrun import parse_dryrun
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
    """What nvcc would do, and what follows from it.

    Attributes:
        arguments: the command line, taken apart.
        transcript: nvcc's steps, in its order.
        plan: the steps to run.
        environment: what the steps see.
        numbered: whether intermediate files have numbers in their names, as without ``--keep``.
    """

    arguments: NvccArguments
    transcript: Transcript
    plan: RelaxedPlan
    environment: Mapping[str, str]
    numbered: bool


def query_dryrun(order: Invocation, folder: Path, runner: Runner) -> DryRunResult:
    """Ask nvcc about the command line, with all its intermediate files in ``folder``.

    Raises:
        LeftToNvccError: it isn't understood, or nvcc refuses it and shall say so itself.
    """
    if reason := unsupported_reason(order.argv):
        raise FallBackToNvccError(reason)
    if odd := unusable_character(str(folder)):
        raise FallBackToNvccError(f"{odd!r} is in the path of the temporary folder")
    arguments = parse_arguments(order.argv)
    transcript, numbered = _transcript(order, arguments, folder, runner)
    # The transcript has what these variables add.
    environment = {
        name: value for name, value in order.environment.items() if name not in FLAG_VARIABLES
    }
    # What a tool leaves behind when it is killed goes away with the folder.
    environment |= {**transcript.environment, "TMPDIR": str(folder)}
    _check_rules(transcript)
    plan = RelaxedPlan(steps=transcript.steps, texts={})
    if not (order.faithful or arguments.keep):
        templates = _templates(order, transcript, environment, runner)
        relocatable = any("--device-c" in step.argv for step in transcript.steps)
        place = Path("/") if relocatable else None
        seed = partial(module_id_seed, cwd=order.cwd, flags=arguments.query, place=place)
        everywhere = not order.verify
        plan = relax_order(transcript, seed=seed, templates=templates, everywhere=everywhere)
    return DryRunResult(
        arguments=arguments,
        transcript=transcript,
        plan=plan,
        environment=environment,
        numbered=numbered,
    )


def _check_rules(transcript: Transcript) -> None:
    if transcript.dependencies and any("-P" in step.argv for step in transcript.steps):
        raise FallBackToNvccError("with -P nobody can tell what a source includes")
    for rule in transcript.dependencies:
        if rule.path is not None and not rule.path.parent.is_dir():
            raise FallBackToNvccError("")


def _transcript(
    order: Invocation, arguments: NvccArguments, folder: Path, runner: Runner
) -> tuple[Transcript, bool]:
    kept = ("--keep", "--keep-dir", str(folder))
    try:
        return _parsed(order, (*kept, *arguments.query), folder, runner), False
    except TranscriptError as error:
        if arguments.keep:
            raise FallBackToNvccError(_reason(error)) from error
    # Two sources of one name would share their files' names. Without --keep nvcc numbers them.
    try:
        return _parsed(order, arguments.query, folder, runner), True
    except TranscriptError as error:
        raise FallBackToNvccError(_reason(error)) from error


def _parsed(order: Invocation, argv: tuple[str, ...], folder: Path, runner: Runner) -> Transcript:
    environment = {**order.environment, "TMPDIR": str(folder)}
    done = _run((str(order.nvcc), "--dryrun", *argv), order, environment, runner)
    if done.returncode != 0 or done.stdout:
        # nvcc refuses, or answers a question: its own words are the best.
        raise FallBackToNvccError("")
    return parse_dryrun(done.stderr, folder=folder, cwd=order.cwd)


def _templates(
    order: Invocation, transcript: Transcript, environment: Mapping[str, str], runner: Runner
) -> dict[Path, str]:
    found = {}
    for embedded, argv in empty_container_commands(transcript).items():
        if _run(argv, order, environment, runner).returncode == 0:
            found[embedded] = embedded.read_text()
    return found


def _run(
    argv: tuple[str, ...], order: Invocation, environment: Mapping[str, str], runner: Runner
) -> CompletedProcess:
    command = Command(argv=argv, cwd=order.cwd, env=environment, undecodable="surrogateescape")
    return runner.run(command)


def _reason(error: TranscriptError) -> str:
    # The first line has what wasn't understood; the command itself is long and nvcc's own.
    return str(error).partition("\n")[0].removesuffix(":")
