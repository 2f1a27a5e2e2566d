"""Actions: steps without a place, for machines that share no folder with this one.

In: a step with absolute paths. Out: an `ActionSpec` with paths relative to the root of an empty
folder. The recipe's folder becomes that root, and the private folder a folder below it:

    src/add.cu, include/add.h         files of the recipe, as the commands name them
    .archsplit/work/000-add/add.ii    files of the private folder
    .archsplit/tools                  digests of the tools, in the form of sha256sum
    .archsplit/steps                  the commands of an action that runs several steps

The first program of each action compares the tools with these digests. A server may ignore the
properties that a client asks for, so that they alone are no protection from another toolkit.
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
sha256sum --check --strict --status {TOOLS_FILE} || {{
    sha256sum --check --strict --quiet {TOOLS_FILE}
    exit {OTHER_TOOLS_STATUS}
}}
TMPDIR=$PWD/.archsplit/tmp
export TMPDIR
mkdir -p "$TMPDIR" && exec "$@"
"""
_FAILED_PART = re.compile(r"archsplit: step (\d+) of the action failed\n\Z")
_LEFT_OUT = {"TMPDIR", "HOME", "PWD"}
"""Variables that name folders of this machine, and change no result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFile:
    """A file of the tools, which every machine must have at the same path.

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
    """

    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    inputs: Mapping[PurePosixPath, Path]
    outputs: Mapping[PurePosixPath, Path]
    texts: Mapping[PurePosixPath, bytes]


class PathMap:
    """Names of files in actions.

    Args:
        root: the folder in which the commands run.
        private: the folder of all intermediate files.
    """

    def __init__(self, root: Path, private: Path) -> None:
        self._root = root
        self._private = private

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
        word = word.replace(f"{self._private}/", f"{WORK_FOLDER}/")
        word = word.replace(str(self._private), WORK_FOLDER)
        return word.replace(f"{self._root}/", "")


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
    tools = tuple(tools)
    # Sorted, so that the same tools are the same action for all machines.
    rows = sorted({f"{tool.sha256}  {tool.path}\n" for tool in tools})
    texts = {TOOLS_FILE: "".join(rows).encode(errors="surrogateescape")}
    # nvcc calls `ptxas` by its name alone: what runs has to be the file that is compared.
    programs = {PurePosixPath(tool.path).name: tool.path for tool in tools}
    calls = [
        (
            programs.get(command.argv[0]) or paths.text(command.argv[0]),
            *map(paths.text, command.argv[1:]),
        )
        for command in commands
    ]
    argv: tuple[str, ...] = calls[0]
    if step.parts:
        texts[STEPS_FILE] = _script(step, paths, calls, environments, common)
        argv = ("/bin/sh", str(STEPS_FILE))
    return ActionSpec(
        argv=("/bin/sh", "-c", _CHECKED_RUN, "archsplit", *argv),
        environment=tuple(sorted(common.items())),
        inputs={paths.name(path): path for path in step.reads},
        outputs={paths.name(path): path for path in step.writes},
        texts=texts,
    )


def _environment(command: Command, paths: PathMap) -> dict[str, str]:
    found = {name: paths.text(text) for name, text in command.env.items() if name not in _LEFT_OUT}
    # Folders of this machine in PATH would make each machine's actions different ones.
    return {**found, "PATH": _SEARCH_PATH}


def _script(
    step: Step,
    paths: PathMap,
    calls: list[tuple[str, ...]],
    environments: list[dict[str, str]],
    common: Mapping[str, str],
) -> bytes:
    """Return the shell commands of an action that runs several steps."""
    folders = {paths.name(path).parent for part in step.parts for path in part.writes}
    lines = [shlex.join(["mkdir", "-p", *sorted(map(str, folders))])]
    for number, call in enumerate(calls):
        # Variables of this command alone; the others are those of the action.
        more = sorted(environments[number].items() - common.items())
        assigned = [f"{name}={shlex.quote(value)}" for name, value in more]
        lines.append(f"part={number}; {' '.join([*assigned, shlex.join(call)])} || fail $?")
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


def other_tools_error(name: str, said: str, address: str) -> EngineRefusedError:
    """Return the error of a step whose worker has other tools.

    Args:
        name: of the step.
        said: the output of the check.
        address: of the farm.
    """
    found = ", ".join(line.partition(":")[0] for line in said.splitlines() if ": FAILED" in line)
    return EngineRefusedError(
        f"a worker of {address} has other tools than this machine for {name}: {found}",
        hint="workers need the same toolkit and host compiler at the same paths; use this machine's"
        " image for them, or ask for others with --remote-property",
    )
