"""Actions: steps without a place, for machines that share no folder with this one.

In: a step with absolute paths. Out: an `ActionSpec` with paths relative to the root of an empty
folder. The recipe's folder becomes that root, and the private folder a folder below it:

    src/add.cu, include/add.h         files of the recipe, as the commands name them
    .archsplit/work/000-add/add.ii    files of the private folder
    .archsplit/tools                  digests of the tools, in the form of sha256sum
    .archsplit/steps                  the commands of an action that runs several steps
    .archsplit/toolkit/usr/local/...  files of a shipped toolkit, below the paths of this machine

Tools are named or shipped. The first program of each action compares named tools with their
digests: a server may ignore the properties that a client asks for, so that they alone are no
protection from another toolkit. A shipped toolkit is an input like others. Its headers have another
path in the action, so that text of the preprocessor gets this machine's paths back, and the host
compiler maps the others: the results are those of this machine.

Line information in PTX has the folder in which `cicc` runs: it gets this machine's name of that
folder afterwards.

`StepClock` has the times of an action by two clocks: the ends of stages here, and the stages that a
worker reports. Its `Placement` is by the clock of this machine alone. Clocks of machines differ,
but the last stage of a worker ends when the reply comes.
"""

from __future__ import annotations

import re
import shlex
import time
import uuid
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from archsplit.errors import EngineRefusedError
from archsplit.nvcc.dryrun import is_host_compiler, option_values
from archsplit.scheduler.executor import Placement, Stage
from archsplit.scheduler.graph import Step
from archsplit.system.process import Command

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from pathlib import Path

__pure__ = True

OTHER_TOOLS_STATUS = 113
"""Exit status of an action whose machine has other tools."""
TOOLS_FILE = PurePosixPath(".archsplit/tools")
STEPS_FILE = PurePosixPath(".archsplit/steps")
TOOLKIT_FOLDER = PurePosixPath(".archsplit/toolkit")
"""The root of shipped files in an action."""
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
_COMPILES = {"-E", "-c", "-S"}
_MAPPED_PATHS = re.compile(r"-f(?:file|macro|debug)-prefix-map=")
# Line markers of the preprocessor; other words of a source stay as they are.
_RESTORE_MARKERS = f'/^# [0-9]/s|"{TOOLKIT_FOLDER}/|"/|'
_PARENT = re.compile(rf"{re.escape(str(TOOLKIT_FOLDER))}/[^=:]*?(?=/\.\./)")
_FAILED_PART = re.compile(r"archsplit: step (\d+) of the action failed\n\Z")
_LINE_INFO = {"-generate-line-info", "--generate-line-info"}
# Not the root of the action: where that is "/", names in it can't be told from others.
_MAKE_FOLDER = r"""mkdir -p .archsplit/cwd && ln -s ../../.archsplit .archsplit/cwd/.archsplit
here=$(cd -P .archsplit/cwd && printf %s "$PWD" | sed 's/[][\.*^$|]/\\&/g')
"""
_LEFT_OUT = {"TMPDIR", "HOME", "PWD"}
"""Variables that name folders of this machine, and change no result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFile:
    """A file of the tools, which every machine has at the same path, or gets.

    Attributes:
        sha256: in hexadecimal digits.
    """

    path: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedFolders:
    """The folders of a toolkit that workers get by digest.

    Attributes:
        paths: absolute paths of the folders, as the commands name them.
        links: relative targets of the symbolic links to folders in them, by path.
    """

    paths: tuple[str, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)

    def has(self, path: str) -> bool:
        """Return True for a file in one of the folders."""
        return any(path.startswith(f"{folder}/") for folder in self.paths)

    def text(self, word: str) -> str:
        """Return an argument or a variable with the folders' names in actions."""
        for folder in self.paths:
            word = re.sub(
                # Neither a folder with a longer name, nor twice.
                rf"(?<!{re.escape(str(TOOLKIT_FOLDER))}){re.escape(folder)}(?=[/\"':= ]|$)",
                lambda found: f"{TOOLKIT_FOLDER}{found[0]}",
                word,
            )
        return word

    def name(self, path: str) -> PurePosixPath:
        """Return the name of a shipped file in actions, without links and parents in it."""
        done: list[str] = []
        rest = [*reversed(PurePosixPath(path).parts[1:])]
        while rest:
            part = rest.pop()
            link = self.links.get("/" + "/".join([*done, part]))
            if link is not None:
                rest += reversed(PurePosixPath(link).parts)
            elif part == "..":
                done.pop()
            else:
                done.append(part)
        return PurePosixPath(TOOLKIT_FOLDER, *done)

    def used_links(self, files: Iterable[PurePosixPath]) -> dict[PurePosixPath, str]:
        """Return the targets of the links that lead to one of some files."""
        used = {folder for file in files for folder in file.parents}
        names = {TOOLKIT_FOLDER / path.lstrip("/"): path for path in self.links}
        return {name: self.links[path] for name, path in names.items() if self.name(path) in used}


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
        named_tools: digests of the files of the tools that are not shipped, by their paths.
        tools: the shipped files of the tools.
        links: targets of symbolic links between them.
        folders: names of empty folders.
    """

    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    inputs: Mapping[PurePosixPath, Path]
    outputs: Mapping[PurePosixPath, Path]
    texts: Mapping[PurePosixPath, bytes]
    named_tools: Mapping[str, str] = field(default_factory=dict)
    tools: Mapping[PurePosixPath, ToolFile] = field(default_factory=dict)
    links: Mapping[PurePosixPath, str] = field(default_factory=dict)
    folders: tuple[PurePosixPath, ...] = ()


class PathMap:
    """Names of files in actions.

    Args:
        root: the folder in which the commands run.
        private: the folder of all intermediate files.
        shipped: the folders of the toolkit that workers get; those of none if all tools are named.
    """

    def __init__(self, root: Path, private: Path, shipped: ShippedFolders | None = None) -> None:
        self.shipped = shipped or ShippedFolders()
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
        return self.shipped.text(word.replace(f"{self._root}/", ""))

    def host_words(self, words: Iterable[str]) -> Iterator[str]:
        """Yield the arguments of a host compiler, whose results name headers by this machine."""
        if self.shipped.paths:
            # For headers of the toolkit that no other argument maps; a later argument wins.
            yield f"-ffile-prefix-map={TOOLKIT_FOLDER}/=/"
        for word in words:
            # Restored markers have the path of this machine, and included files that of the action.
            if _MAPPED_PATHS.match(word) and self.shipped.text(word) != word:
                yield word
            yield self.text(word)


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
    shipped = {
        paths.shipped.name(each.path): each for each in tools if paths.shipped.has(each.path)
    }
    # Sorted, so that the same tools are the same action for all machines.
    named = {each.path: each.sha256 for each in {*tools}.difference(shipped.values())}
    rows = sorted(f"{digest}  {path}\n" for path, digest in named.items())
    texts = {TOOLS_FILE: "".join(rows).encode(errors="surrogateescape")}
    # nvcc calls `ptxas` by its name alone: what runs has to be the file that is compared.
    programs = {PurePosixPath(tool.path).name: tool.path for tool in tools}
    calls = [_call(command.argv, programs, paths) for command in commands]
    argv: tuple[str, ...] = calls[0]
    restored = {
        number: paths.text(output)
        for number, command in enumerate(commands)
        if shipped and "-E" in command.argv
        for output in option_values(command.argv, ("-o",))
    }
    named_in = [number for number, each in enumerate(commands) if _names_folder(each.argv)]
    if step.parts or restored or named_in:
        outputs = [part.writes for part in step.parts or (step,)]
        folders = {paths.name(path).parent for writes in outputs for path in writes}
        after = {
            number: shlex.join(["sed", "-i", _RESTORE_MARKERS, text])
            for number, text in restored.items()
        }
        for number in named_in:
            after[number] = _name_folder_in_ptx(commands[number], paths)
        texts[STEPS_FILE] = _script(folders, calls, environments, common, after, named_in)
        argv = ("/bin/sh", str(STEPS_FILE))
    words = (word for call in calls for word in call)
    values = (value for environment in environments for value in environment.values())
    return ActionSpec(
        argv=("/bin/sh", "-c", _CHECKED_RUN, "archsplit", *argv),
        environment=tuple(sorted(common.items())),
        inputs={paths.name(path): path for path in step.reads},
        outputs={paths.name(path): path for path in step.writes},
        texts=texts,
        named_tools=named,
        tools=shipped,
        links=paths.shipped.used_links(shipped),
        # `bin/../include` can't be opened without a folder `bin`.
        folders=tuple(
            sorted(
                {PurePosixPath(one) for text in (*words, *values) for one in _PARENT.findall(text)}
            )
        ),
    )


def _call(argv: tuple[str, ...], programs: Mapping[str, str], paths: PathMap) -> tuple[str, ...]:
    """Return a command with the names of the action."""
    name = PurePosixPath(argv[0]).name
    if name in programs and paths.shipped.has(programs[name]):
        return (str(paths.shipped.name(programs[name])), *map(paths.text, argv[1:]))
    program = programs.get(argv[0]) or paths.text(argv[0])
    is_compiler = is_host_compiler(program) and not _COMPILES.isdisjoint(argv)
    words = paths.host_words(argv[1:]) if is_compiler else map(paths.text, argv[1:])
    return (program, *words)


def _environment(command: Command, paths: PathMap) -> dict[str, str]:
    found = {name: paths.text(text) for name, text in command.env.items() if name not in _LEFT_OUT}
    # Folders of this machine in PATH would make each machine's actions different ones.
    return {**found, "PATH": _SEARCH_PATH}


def _script(
    folders: Iterable[PurePosixPath],
    calls: list[tuple[str, ...]],
    environments: list[dict[str, str]],
    common: Mapping[str, str],
    after: Mapping[int, str],
    named_in: Collection[int],
) -> bytes:
    """Return the shell commands of an action that runs several steps.

    Args:
        folders: names of the folders that the steps write to.
        calls: the commands.
        environments: the variables of each command.
        common: the variables that all commands have.
        after: commands that follow them, by their positions.
        named_in: positions of the commands whose results name their folder.
    """
    lines = [shlex.join(["mkdir", "-p", *sorted(map(str, folders))])]
    for number, call in enumerate(calls):
        # Variables of this command alone; the others are those of the action.
        more = sorted(environments[number].items() - common.items())
        assigned = [f"{name}={shlex.quote(value)}" for name, value in more]
        words = " ".join([*assigned, shlex.join(call)])
        if number in named_in:
            words = f"(cd -P .archsplit/cwd && export PWD && {words})"
        lines.append(f"part={number}; {words} || fail $?")
        if more_work := after.get(number):
            lines.append(f"{more_work} || fail $?")
    function = 'fail() { echo "archsplit: step $part of the action failed" >&2; exit "$1"; }'
    made = _MAKE_FOLDER if named_in else ""
    return "\n".join([f"{made}{function}", *lines, ""]).encode(errors="surrogateescape")


def _names_folder(argv: tuple[str, ...]) -> bool:
    """Return True for a command whose PTX names the folder in which it runs."""
    return PurePosixPath(argv[0]).name == "cicc" and not _LINE_INFO.isdisjoint(argv)


def _name_folder_in_ptx(command: Command, paths: PathMap) -> str:
    """Return a shell command that writes this machine's name of the folder into PTX."""
    # By the name that compilers take.
    there = command.env.get("PWD") or str(command.cwd)
    escaped = shlex.quote(re.sub(r"[\\&|]", r"\\\g<0>", there))
    (ptx,) = option_values(command.argv, ("-o",))
    expression = f"""'/^[[:space:]]*\\.file/s|"'"$here"'/|"'{escaped}'/|'"""
    return f"sed -i {expression} {shlex.quote(paths.text(ptx))}"


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


def describe_tools(tools: Iterable[ToolFile], shipped: ShippedFolders) -> str:
    """Return the beginning of a sentence on the tools of a worker."""
    places = [shipped.has(tool.path) for tool in tools]
    count = sum(places)
    ships = f"{count} files of the toolkit are shipped, " if count else ""
    return f"{ships}{len(places) - count} files of the tools are the same on"


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
        " image for them, or ask for others with --remote-property; --remote-toolkit shipped sends"
        " the toolkit, but not the host compiler",
    )


class StepClock:
    """The stages of a step so far.

    Args:
        now: returns seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._began = self._last = now()
        self._worker, self._worker_began = "", 0.0
        self._stages: list[Stage] = []

    def end_stage(self, name: str) -> None:
        """Add a stage from the end of the last one until now."""
        begin, self._last = self._last, self._now()
        self._add(name, begin, self._last)

    def end_remote(self, worker: str, stages: Iterable[tuple[str, float, float]]) -> None:
        """Add the stages on a worker, and before them the wait for it.

        Args:
            worker: its name.
            stages: names, begins and ends by the clock of the worker, in the order of time.
        """
        sent, self._last, self._worker = self._last, self._now(), worker
        # Servers may leave out any of the times.
        known = [(name, begin, end) for name, begin, end in stages if 0 < begin <= end]
        shift = self._last - max((end for _, _, end in known), default=0.0)
        first = min((begin for _, begin, _ in known), default=0.0)
        # A server that has joined the step with a running one began before it was asked.
        self._worker_began = first
        self._add("queue", sent, max(first + shift, sent))
        for name, begin, end in known:
            self._add(name, max(begin + shift, sent), max(end + shift, sent), is_on_worker=True)

    def placement(self) -> Placement:
        """Return the stages so far."""
        return Placement(worker=self._worker, stages=tuple(self._stages), began=self._worker_began)

    def _add(self, name: str, begin: float, end: float, *, is_on_worker: bool = False) -> None:
        stage = Stage(
            name=name, begin=begin - self._began, seconds=end - begin, is_on_worker=is_on_worker
        )
        self._stages.append(stage)
