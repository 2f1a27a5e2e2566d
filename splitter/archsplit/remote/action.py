"""Actions: steps that name no folder of this machine, for machines that share no folder with it.

In: a step with absolute paths. Out: an `ActionSpec` with paths relative to the root of an empty
folder. The recipe's folder becomes that root, and the private folder a folder below it:

    src/add.cu, include/add.h         files of the recipe, as the commands name them
    .archsplit/work/000-add/add.ii    files of the private folder
    .archsplit/tools                  digests of the tools, in the form of sha256sum
    .archsplit/steps                  the commands of an action that runs several steps

Workers have this machine's tools at the same paths. The first program of each action compares them
with their digests: a server may ignore the properties that a client asks for, so properties don't
protect from another toolkit.
"""

from __future__ import annotations

import re
import shlex
import uuid
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from archsplit.errors import EngineRefusedError
from archsplit.scheduler.graph import Step
from archsplit.system.process import Command

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__pure__ = True

OTHER_TOOLS_STATUS = 113
"""Exit status of an action whose machine has other tools."""
TOOLS_FILE = PurePosixPath(".archsplit/tools")
STEPS_FILE = PurePosixPath(".archsplit/steps")
WORK_FOLDER = ".archsplit/work"
"""The private folder in an action."""
_SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"
# The second sha256sum prints the files that differ; the first one is quiet for the usual case.
_CHECKED_RUN = f"""\
test -s {TOOLS_FILE} && ! sha256sum --check --strict --status {TOOLS_FILE} && {{
    sha256sum --check --strict --quiet {TOOLS_FILE}
    exit {OTHER_TOOLS_STATUS}
}}
TMPDIR=$PWD/.archsplit/tmp
export TMPDIR
mkdir -p "$TMPDIR" && exec "$@"
"""
_FAILED_PART = re.compile(r"archsplit: step (\d+) of the action failed\n\Z")
_PATH_START = (
    r"""((?:^|[\s=,:;"'(])(?:-(?:[A-Za-z]|isystem|iquote|idirafter|include|imacros)|@)?)"""
)
"""Text before an absolute path: with the root /src, lib/src/k.cu and /usr/src/k.h stay."""
_LEFT_OUT = {"TMPDIR", "HOME", "PWD"}
"""Variables that name folders of this machine, and change no result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFile:
    """A file of the tools, which every machine has at the same path.

    Attributes:
        sha256: in hexadecimal digits.
    """

    path: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionSpec:
    """A command that needs nothing but its inputs and the tools.

    Attributes:
        argv: the check of the tools, then the program and its arguments.
        environment: sorted by name.
        inputs: places of this machine's files by their names in the action.
        outputs: the same for the files that the command writes.
        texts: the content of further inputs: of `TOOLS_FILE`, and of `STEPS_FILE` if the action
            runs several steps.
        tools: digests of the files of the tools, by their paths.
    """

    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    inputs: Mapping[PurePosixPath, Path]
    outputs: Mapping[PurePosixPath, Path]
    texts: Mapping[PurePosixPath, bytes]
    tools: Mapping[str, str]


class PathMap:
    """Names of files in actions.

    Args:
        root: the folder in which the commands run.
        private: the folder of all intermediate files.
    """

    def __init__(self, root: Path, private: Path) -> None:
        self._root = root
        self._private = private
        self._root_start = re.compile(_PATH_START + re.escape(f"{root}/"))

    def name(self, path: Path) -> PurePosixPath:
        """Return the name of a file in actions.

        Raises:
            ValueError: the file is in neither folder.
        """
        if path.is_relative_to(self._private):
            return PurePosixPath(WORK_FOLDER, path.relative_to(self._private))
        return PurePosixPath(path.relative_to(self._root))

    def text(self, word: str) -> str:
        """Return an argument or a variable with names for both folders."""
        # The private folder first: it may be below the other one.
        return self._root_start.sub(r"\1", word.replace(str(self._private), WORK_FOLDER))


def action_spec(
    step: Step, paths: PathMap, tools: Iterable[ToolFile], *, cores: int = 1
) -> ActionSpec:
    """Return the action of a step.

    Args:
        step: declares all files that it opens but the tools.
        paths: the folders of the build.
        tools: the files that the step's program consists of.
        cores: see `Step.command_for`.

    Raises:
        ValueError: a file of the step is in neither folder.
    """
    commands = [part.command for part in step.parts] or [step.command_for(cores)]
    environments = [_environment(command, paths) for command in commands]
    # Steps of one source have the same variables, and only a link has others.
    common = dict(set.intersection(*(set(each.items()) for each in environments)))
    # Sorted, so that the same tools are the same action for all machines.
    digests = {each.path: each.sha256 for each in tools}
    rows = sorted(f"{digest}  {path}\n" for path, digest in digests.items())
    texts = {TOOLS_FILE: "".join(rows).encode(errors="surrogateescape")}
    # nvcc calls `ptxas` by its name only: what runs has to be the file that is compared.
    programs = {PurePosixPath(path).name: path for path in digests}
    calls = [_call(command.argv, programs, paths) for command in commands]
    argv = calls[0]
    if step.parts:
        folders = {paths.name(path).parent for part in step.parts for path in part.writes}
        texts[STEPS_FILE] = _script(folders, calls, environments, common)
        argv = ("/bin/sh", str(STEPS_FILE))
    return ActionSpec(
        argv=("/bin/sh", "-c", _CHECKED_RUN, "archsplit", *argv),
        environment=tuple(sorted(common.items())),
        inputs={paths.name(path): path for path in step.reads},
        outputs={paths.name(path): path for path in step.writes},
        texts=texts,
        tools=digests,
    )


def _call(argv: tuple[str, ...], programs: Mapping[str, str], paths: PathMap) -> tuple[str, ...]:
    """Return a command with the names of the action."""
    program = programs.get(argv[0]) or paths.text(argv[0])
    return (program, *map(paths.text, argv[1:]))


def _environment(command: Command, paths: PathMap) -> dict[str, str]:
    found = {name: paths.text(text) for name, text in command.env.items() if name not in _LEFT_OUT}
    # Folders of this machine in PATH would make each machine's actions different ones.
    return {**found, "PATH": _SEARCH_PATH}


def _script(
    folders: Iterable[PurePosixPath],
    calls: list[tuple[str, ...]],
    environments: list[dict[str, str]],
    common: Mapping[str, str],
) -> bytes:
    """Return the shell commands of an action that runs several steps.

    Args:
        folders: names of the folders that the steps write to.
        calls: the commands.
        environments: the variables of each command.
        common: the variables that all commands have.
    """
    lines = [shlex.join(["mkdir", "-p", *sorted(map(str, folders))])]
    for number, call in enumerate(calls):
        # The action has the variables that all commands share.
        more = sorted(environments[number].items() - common.items())
        assigned = [f"{name}={shlex.quote(value)}" for name, value in more]
        words = " ".join([*assigned, shlex.join(call)])
        lines.append(f"part={number}; {words} || fail $?")
    function = 'fail() { echo "archsplit: step $part of the action failed" >&2; exit "$1"; }'
    return "\n".join([function, *lines, ""]).encode(errors="surrogateescape")


def failed_part(stderr: str) -> tuple[int, str]:
    """Return the position of an action's failed step, and the rest of the output."""
    found = _FAILED_PART.search(stderr)
    return (0, stderr) if found is None else (int(found[1]), stderr[: found.start()])


def probe_step(root: Path, private: Path) -> Step:
    """Return a step that copies a file, for a check of a farm; the file is written.

    Args:
        root: a folder to make for its input.
        private: a folder to make for its output.
    """
    root.mkdir()
    private.mkdir()
    probe = root / "probe"
    # Random, so that no farm has the result before.
    probe.write_text(f"{uuid.uuid4()}\n")
    output = private / "copy"
    script = f"cat {probe} > {output}"
    command = Command(argv=("/bin/sh", "-c", script), cwd=root, env={})
    return Step(name="a check", command=command, reads=(probe,), writes=(output,))


def other_tools_error(name: str, output: str, address: str) -> EngineRefusedError:
    """Return the error of a step whose worker has other tools.

    Args:
        name: of the step.
        output: of the check.
        address: of the farm.
    """
    found = ", ".join(line.partition(":")[0] for line in output.splitlines() if ": FAILED" in line)
    return EngineRefusedError(
        f"a worker of {address} has other tools than this machine for {name}: {found}",
        hint="workers need the same toolkit and host compiler at the same paths; use this machine's"
        " image for them, or ask for others with --remote-property",
    )
