"""Ask nvcc what it would do, and decide whether that can be planned."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from splitter.drop_in.naming import unit_seed
from splitter.drop_in.order import LeftToNvccError
from splitter.errors import TranscriptError
from splitter.nvcc.arguments import FLAG_VARIABLES, Arguments, not_followed, taken_apart
from splitter.nvcc.dryrun import parse
from splitter.nvcc.loosen import Loosened, empty_containers, loosen
from splitter.nvcc.shell import unusable
from splitter.system.run import Command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from splitter.drop_in.order import Order
    from splitter.nvcc.steps import Transcript
    from splitter.system.run import Completed, Runner


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What nvcc would do, and what follows from it.

    Attributes:
        arguments: the command line, taken apart.
        transcript: nvcc's steps, in its order.
        plan: the steps to run.
        environment: what the steps see.
        numbered: whether intermediate files have numbers in their names, as without ``--keep``.
    """

    arguments: Arguments
    transcript: Transcript
    plan: Loosened
    environment: Mapping[str, str]
    numbered: bool


def ask(order: Order, folder: Path, runner: Runner) -> Answer:
    """Ask nvcc about the command line, with all its intermediate files in ``folder``.

    Raises:
        LeftToNvccError: it isn't understood, or nvcc refuses it and shall say so itself.
    """
    if reason := not_followed(order.argv):
        raise LeftToNvccError(reason)
    if odd := unusable(str(folder)):
        raise LeftToNvccError(f"{odd!r} is in the path of the temporary folder")
    arguments = taken_apart(order.argv)
    transcript, numbered = _transcript(order, arguments, folder, runner)
    # The transcript has what these variables add.
    environment = {
        name: value for name, value in order.environment.items() if name not in FLAG_VARIABLES
    }
    # What a tool leaves behind when it is killed goes away with the folder.
    environment |= {**transcript.environment, "TMPDIR": str(folder)}
    _check_rules(transcript)
    plan = Loosened(steps=transcript.steps, texts={})
    if not (order.faithful or arguments.keep):
        templates = _templates(order, transcript, environment, runner)
        relocatable = any("--device-c" in step.argv for step in transcript.steps)
        place = Path("/") if relocatable else None
        seed = partial(unit_seed, cwd=order.cwd, flags=arguments.asked, place=place)
        everywhere = not order.verify
        plan = loosen(transcript, seed=seed, templates=templates, everywhere=everywhere)
    return Answer(
        arguments=arguments,
        transcript=transcript,
        plan=plan,
        environment=environment,
        numbered=numbered,
    )


def _check_rules(transcript: Transcript) -> None:
    if transcript.dependencies and any("-P" in step.argv for step in transcript.steps):
        raise LeftToNvccError("with -P nobody can tell what a source includes")
    for rule in transcript.dependencies:
        if rule.path is not None and not rule.path.parent.is_dir():
            raise LeftToNvccError("")


def _transcript(
    order: Order, arguments: Arguments, folder: Path, runner: Runner
) -> tuple[Transcript, bool]:
    kept = ("--keep", "--keep-dir", str(folder))
    try:
        return _parsed(order, (*kept, *arguments.asked), folder, runner), False
    except TranscriptError as error:
        if arguments.keep:
            raise LeftToNvccError(_reason(error)) from error
    # Two sources of one name would share their files' names. Without --keep nvcc numbers them.
    try:
        return _parsed(order, arguments.asked, folder, runner), True
    except TranscriptError as error:
        raise LeftToNvccError(_reason(error)) from error


def _parsed(order: Order, argv: tuple[str, ...], folder: Path, runner: Runner) -> Transcript:
    environment = {**order.environment, "TMPDIR": str(folder)}
    done = _run((str(order.nvcc), "--dryrun", *argv), order, environment, runner)
    if done.returncode != 0 or done.stdout:
        # nvcc refuses, or answers a question: its own words are the best.
        raise LeftToNvccError("")
    return parse(done.stderr, folder=folder, cwd=order.cwd)


def _templates(
    order: Order, transcript: Transcript, environment: Mapping[str, str], runner: Runner
) -> dict[Path, str]:
    found = {}
    for embedded, argv in empty_containers(transcript).items():
        if _run(argv, order, environment, runner).returncode == 0:
            found[embedded] = embedded.read_text()
    return found


def _run(
    argv: tuple[str, ...], order: Order, environment: Mapping[str, str], runner: Runner
) -> Completed:
    command = Command(argv=argv, cwd=order.cwd, env=environment, undecodable="surrogateescape")
    return runner.run(command)


def _reason(error: TranscriptError) -> str:
    # The first line has what wasn't understood; the command itself is long and nvcc's own.
    return str(error).partition("\n")[0].removesuffix(":")
