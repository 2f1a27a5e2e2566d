"""The graph of a compilation: nvcc's steps as commands that the scheduler can run.

In: an invocation and a private folder for intermediate files. nvcc prints its steps (``--dryrun``)
in its own order; the plan lets them run in parallel, and nvcc runs what can't be planned. Out: the
steps with their files and first estimates of time and memory, and the outputs that are staged: made
in the private folder, and moved to their final paths at the end. A build by recipe makes its
steps with `step_from_nvcc`, too.
"""

from __future__ import annotations

import itertools
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from archsplit.cache.usage import stat_text
from archsplit.compiler.keys import has_unsupported_flags, line_info_flag
from archsplit.compiler.prefix_map import PrefixMap
from archsplit.compiler.tool_identity import is_gnu_compiler
from archsplit.errors import TranscriptError
from archsplit.nvcc.cmdline import FLAG_VARIABLES, KEEP_FOLDER, FallBackToNvccError
from archsplit.nvcc.dryrun import (
    FIRST_MEMORY,
    OUTPUT_FLAGS,
    SECONDS_PER_BYTE,
    WEIGHTS,
    NvccStep,
    StepKind,
    is_host_compiler,
    option_values,
    parse_dryrun,
    unusable_character,
)
from archsplit.nvcc.module_id import module_id_seed
from archsplit.nvcc.preprocessed_text import include_markers, with_assert_locations
from archsplit.nvcc.step_order import RelaxedPlan, empty_container_commands, relax_order
from archsplit.scheduler.graph import Graph, Step
from archsplit.system.outputs import is_replaceable
from archsplit.system.patterns import lazy_pattern
from archsplit.system.process import Command, run_checked

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

    from archsplit.compiler.invocation import Invocation, WrapperContext
    from archsplit.nvcc.dryrun import Transcript
    from archsplit.system.process import Runner

_SOURCE_READERS = {StepKind.PREPROCESS, StepKind.HOST_COMPILE}
_STAGEABLE = {StepKind.HOST_COMPILE, StepKind.CICC, StepKind.PTXAS, StepKind.FATBINARY}
_C_SECONDS = 0.3
"""First estimate for a source in C."""

_NUMBERED = lazy_pattern(r"tmpxft_[0-9a-f]+_[0-9a-f]+-\d+_")
_PARALLEL_FLAGS = {
    StepKind.CICC: ("-split-compile", "{cores}"),
    StepKind.PTXAS: ("-split-compile={cores}",),
}
_NOT_PARALLEL = lazy_pattern(r"-?-split-compile.*|-g|-jobserver|-O0")
_FIRST_SPLIT_COMPILE = (12, 4)
"""First CUDA version with ``-split-compile``."""
_SOURCE = "--orig_src_path_name"
_VERSION = lazy_pattern(r"-D__CUDACC_VER_(MAJOR|MINOR)__=(\d+)")


def step_from_nvcc(
    step: NvccStep,
    command: Command,
    *,
    name: str,
    key: str,
    inputs: tuple[Path, ...] = (),
    parallel_flags: tuple[str, ...] = (),
    runs_first: bool = False,
    check: Callable[[], None] | None = None,
    unit: str = "",
) -> Step:
    """Return a step of nvcc for the scheduler, with first estimates of seconds and memory.

    Args:
        name: unique in the graph.
        key: the step's name in the history.
        inputs: files that the step reads and no other step writes, without files of the tools.
        parallel_flags: arguments that let the step use several cores.
        runs_first: see `Step`.
        check: see `Step`.
        unit: see `Step`.
    """
    memory, memory_per_byte = FIRST_MEMORY[step.kind]
    reads_source = not step.reads and step.kind in _SOURCE_READERS
    is_c = reads_source and any(word.endswith(".c") for word in step.argv[1:])
    return Step(
        name=name,
        command=command,
        reads=(*step.reads, *inputs),
        writes=step.writes,
        # C has no templates.
        weight=min(_C_SECONDS, WEIGHTS[step.kind]) if is_c else WEIGHTS[step.kind],
        seconds_per_byte=SECONDS_PER_BYTE.get(step.kind, 0.0),
        memory=memory,
        memory_per_byte=memory_per_byte,
        key=key,
        parallel_flags=parallel_flags,
        reads_source=reads_source,
        runs_first=runs_first,
        check=check,
        unit=unit,
    )


def read_markers(path: Path) -> bytes:
    """Return the include markers of a preprocessed text."""
    return include_markers(path.read_bytes())


class Compilation(NamedTuple):
    """A planned compilation of the wrapper.

    Attributes:
        dryrun: the steps that nvcc printed, and the plan.
        context: the programs, streams and settings.
        graph: the steps, in the order in which nvcc would run them.
        texts: files that must be there before the steps, with their content.
        staged: the final path of each output that is first written to the private folder, by its
            path there: archives, outputs that exist and aren't regular files, and outputs of steps
            that may end before a step that nvcc runs earlier.
        old_stats: stats of outputs, taken before the steps run.
        markers: returns the include markers of a preprocessed text.
    """

    dryrun: DryRunResult
    context: WrapperContext
    graph: Graph
    texts: Mapping[Path, str]
    staged: Mapping[Path, Path]
    old_stats: Mapping[Path, str]
    markers: Callable[[Path], bytes] = read_markers

    @property
    def invocation(self) -> Invocation:
        """Return the call of the wrapper."""
        return self.dryrun.invocation

    @property
    def folder(self) -> Path:
        """Return the private folder of all intermediate files."""
        return self.dryrun.folder

    @property
    def diagnostics(self) -> str:
        """Return the warnings of nvcc itself."""
        return "".join(f"{line}\n" for line in self.dryrun.transcript.diagnostics)

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the source files, absolute, in the order of the steps."""
        steps = self.dryrun.transcript.steps
        names = (name for step in steps for name in option_values(step.argv, (_SOURCE,)))
        return tuple(dict.fromkeys(names))

    @property
    def history_group(self) -> str:
        """Return the key of the compilation in the history: its first source or last output."""
        outputs = [path for step in self.dryrun.transcript.steps for path in step.writes]
        names = [*self.sources[:1], *map(str, reversed(outputs))]
        return names[0] if names else str(self.invocation.cwd)

    def with_module_ids(self, module_ids: Mapping[Path, str]) -> Compilation:
        """Return the compilation with other module ids, by their files."""
        return self._replace(texts={**self.texts, **module_ids})


def plan_compilation(dryrun: DryRunResult, context: WrapperContext) -> Compilation:
    """Turn the result of a dry run into a graph of commands.

    Raises:
        FallBackToNvccError: an output's path is a folder.
        ToolFailedError: the host compiler doesn't name its archiver.
    """
    folder, cwd = dryrun.folder, dryrun.invocation.cwd
    steps = list(dryrun.plan.steps)
    private_paths = {
        final: folder / f"output-{number}" / final.name
        for number, final in _outputs_to_stage(steps, folder, has_farm=context.farm is not None)
    }
    for number, step in enumerate(steps):
        is_archive = step.kind is StepKind.ARCHIVE
        planned = _with_archiver(dryrun, step, context) if is_archive else step
        steps[number] = _stage_outputs(planned, private_paths, cwd)
    for path in (path for step in steps for path in step.writes):
        if path.is_relative_to(folder):
            path.parent.mkdir(exist_ok=True)
    read = {path for step in steps for path in step.reads} | {*private_paths.values()}
    read |= {path for rule in dryrun.transcript.depfiles for path in rule.sources}
    needed = [_without_unread_outputs(step, read, folder) for step in steps]
    parallel = _can_split_steps(dryrun)
    return Compilation(
        dryrun=dryrun,
        context=context,
        graph=Graph(
            steps=tuple(
                _step(dryrun, number, step, parallel=parallel) for number, step in enumerate(needed)
            )
        ),
        texts=dryrun.plan.texts,
        staged={private: final for final, private in private_paths.items()},
        old_stats={path: stat_text(str(path)) for step in needed for path in step.writes},
    )


def _without_unread_outputs(step: NvccStep, read: Container[Path], folder: Path) -> NvccStep:
    # A command may name files that the tool doesn't always write. A private file that no step reads
    # may be missing.
    wanted = (path for path in step.writes if path in read or not path.is_relative_to(folder))
    return step._replace(writes=tuple(wanted))


def _outputs_to_stage(
    steps: Sequence[NvccStep], folder: Path, *, has_farm: bool
) -> Iterator[tuple[int, Path]]:
    """Yield the outputs to stage, with their steps' numbers.

    Args:
        steps: the steps.
        folder: the private folder.
        has_farm: True if steps run on other machines, which know only the names of private files.
    """
    early = _early_steps(steps)
    for number, step in enumerate(steps):
        for path in step.writes:
            private = path.is_relative_to(folder)
            # nvcc removes an old archive, and tools remove what they can't finish.
            is_archive = step.kind is StepKind.ARCHIVE
            # Each tool has its own message and exit code if its output's path is a folder.
            if not private and os.path.isdir(path):  # noqa: PTH112 - False without access
                raise FallBackToNvccError("")
            # If an earlier step of nvcc's fails, nvcc leaves the old output.
            is_staged = (has_farm or number in early) and _can_stage(step, path)
            if not private and (is_archive or is_staged or not is_replaceable(path)):
                yield number, path


def _early_steps(steps: Sequence[NvccStep]) -> set[int]:
    """Return the steps that may end before a step that nvcc runs earlier."""
    writers = {path: number for number, step in enumerate(steps) for path in step.writes}
    needed: list[set[int]] = []
    for number, step in enumerate(steps):
        direct = {writers[path] for path in step.reads if writers.get(path, number) < number}
        needed.append(direct.union(*(needed[number] for number in direct)))
    return {number for number, before in enumerate(needed) if len(before) < number}


def _can_stage(step: NvccStep, path: Path) -> bool:
    """Return True if the step has one output, whose content doesn't depend on its path."""
    return (
        step.kind in _STAGEABLE
        and len(step.writes) == 1
        and not has_unsupported_flags(step.argv)
        # The tool itself reports a folder that it can't write.
        and os.access(path.parent, os.W_OK)
    )


def _stage_outputs(step: NvccStep, private_paths: Mapping[Path, Path], cwd: Path) -> NvccStep:
    """Return the step with private paths for staged files."""
    return step._replace(
        argv=(step.argv[0], *_staged_words(step, private_paths, cwd)),
        reads=tuple(private_paths.get(path, path) for path in step.reads),
        writes=tuple(private_paths.get(path, path) for path in step.writes),
    )


def _staged_words(step: NvccStep, private: Mapping[Path, Path], cwd: Path) -> Iterator[str]:
    for before, word in itertools.pairwise(step.argv):
        flag, equals, value = word.rpartition("=")
        path = private.get(cwd / value)
        # The value of a macro may look like the output's name.
        is_output = (flag if equals else before) in OUTPUT_FLAGS
        if path is None or not (
            is_output or step.kind is StepKind.ARCHIVE or cwd / word in step.reads
        ):
            yield word
        else:
            yield f"{flag}{equals}{path}"


def _with_archiver(dryrun: DryRunResult, step: NvccStep, context: WrapperContext) -> NvccStep:
    # nvcc's own command has this query as a shell substitution.
    command = Command(
        argv=(step.argv[0], "-print-prog-name=ar"),
        cwd=dryrun.invocation.cwd,
        env=dryrun.environment,
    )
    reply = run_checked(context.runner, command, what="asking for the archiver")
    return step._replace(argv=(reply.stdout.strip(), *step.argv[1:]))


def _can_split_steps(dryrun: DryRunResult) -> bool:
    words = (word for step in dryrun.plan.steps for word in step.argv)
    found = {match[1]: int(match[2]) for word in words if (match := _VERSION.fullmatch(word))}
    return (found.get("MAJOR", 0), found.get("MINOR", 0)) >= _FIRST_SPLIT_COMPILE


def _step(dryrun: DryRunResult, number: int, step: NvccStep, *, parallel: bool) -> Step:
    label = f"{step.kind.value} {step.target}".rstrip()
    can_split = parallel and not any(map(_NOT_PARALLEL.fullmatch, step.argv))
    command = Command(
        argv=(step.argv[0], *_base_map(dryrun, step), *step.argv[1:], *_prefix_map(dryrun, step)),
        cwd=dryrun.invocation.cwd,
        env=dryrun.environment,
        undecodable="surrogateescape",
    )
    return step_from_nvcc(
        step,
        command,
        name=f"{number:02} {label}",
        key=f"{label} {_file_label(step)}",
        check=partial(_map_assertions, dryrun, step),
        parallel_flags=_PARALLEL_FLAGS.get(step.kind, ()) if can_split else (),
    )


def _map_assertions(dryrun: DryRunResult, step: NvccStep) -> None:
    """Map the file names of assertions in the output of the preprocessor, as `_base_map`."""
    if step.kind is not StepKind.PREPROCESS or not _base_map(dryrun, step):
        return
    prefixes = PrefixMap(bases=dryrun.invocation.bases)
    for path in step.writes:
        text = path.read_bytes()
        mapped = with_assert_locations(text, prefixes.gcc_name)
        if mapped != text:
            path.write_bytes(mapped)


def _base_map(dryrun: DryRunResult, step: NvccStep) -> tuple[str, ...]:
    """Return the flags for ``base-dir``, which stand before the user's own: the last ones count."""
    program = step.argv[0]
    if not dryrun.invocation.bases or not is_host_compiler(program):
        return ()
    is_mapped = step.kind in _SOURCE_READERS and is_gnu_compiler(program, dryrun.environment)
    return PrefixMap(bases=dryrun.invocation.bases).gcc_flags if is_mapped else ()


def _prefix_map(dryrun: DryRunResult, step: NvccStep) -> Iterator[str]:
    """Yield the option that takes the private folder's name out of debug information."""
    if step.kind is not StepKind.HOST_COMPILE or not is_host_compiler(step.argv[0]):
        return
    command = dryrun.invocation.command
    if command.keep_folder is not None:
        # As in nvcc's own objects, it names the kept files.
        yield f"-ffile-prefix-map={dryrun.folder}/={command.kept_prefix}"
    elif dryrun.invocation.reproducible and line_info_flag(step.argv):
        # The folder's name begins with TMPDIR. nvcc's own files have random names.
        yield f"-fdebug-prefix-map={dryrun.folder}/="


def _file_label(step: NvccStep) -> str:
    """Return the name of a step's first file, without what nvcc numbers by process."""
    named = [*step.writes, *step.reads]
    return _NUMBERED.sub("", named[0].name) if named else ""


class DryRunResult(NamedTuple):
    """Steps of an invocation, and the plan to run them.

    Attributes:
        invocation: the call of the wrapper.
        folder: the private folder of all intermediate files.
        transcript: nvcc's steps, in its order.
        plan: the steps to run.
        environment: environment of the steps.
        numbered: intermediate files have numbers in their names, as without ``--keep``.
    """

    invocation: Invocation
    folder: Path
    transcript: Transcript
    plan: RelaxedPlan
    environment: Mapping[str, str]
    numbered: bool


def query_dryrun(invocation: Invocation, folder: Path, runner: Runner) -> DryRunResult:
    """Ask nvcc for the steps of a command line, with all intermediate files in ``folder``.

    Raises:
        FallBackToNvccError: the steps aren't understood, or nvcc refuses the command line.
    """
    if character := unusable_character(str(folder)):
        raise FallBackToNvccError(f"{character!r} is in the path of the temporary folder")
    return _Query(invocation, folder, runner).run()


class _Query(NamedTuple):
    """A query for one command line."""

    invocation: Invocation
    folder: Path
    runner: Runner

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
            transcript=transcript,
            plan=self._plan(transcript, environment),
            environment=environment,
            numbered=numbered,
        )

    @property
    def _is_kept(self) -> bool:
        return self.invocation.command.keep_folder is not None

    def _plan(self, transcript: Transcript, environment: Mapping[str, str]) -> RelaxedPlan:
        invocation = self.invocation
        # With --keep, the names of nvcc's files are what its user wants to see.
        if self._is_kept:
            return RelaxedPlan(steps=transcript.steps, texts={})
        relocatable = any("--device-c" in step.argv for step in transcript.steps)

        def seed(source: str) -> str:
            # Below a base, module ids are the same in every checkout, also in relocatable code.
            bases = (base for base in invocation.bases if source.startswith(f"{base}/"))
            place = next(bases, "/" if relocatable else invocation.cwd)
            flags = invocation.command.dryrun_argv
            return module_id_seed(source, cwd=invocation.cwd, flags=flags, place=Path(place))

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
            if self._is_kept:
                raise FallBackToNvccError(_reason(error)) from error
        # Two sources of one name would share their files' names. Without --keep nvcc numbers them.
        try:
            return self._parse(keep=False), True
        except TranscriptError as error:
            raise FallBackToNvccError(_reason(error)) from error

    def _parse(self, *, keep: bool) -> Transcript:
        kept = ("--keep", f"--{KEEP_FOLDER}", str(self.folder)) if keep else ()
        command = Command(
            argv=(
                str(self.invocation.nvcc),
                "--dryrun",
                *kept,
                *self.invocation.command.dryrun_argv,
            ),
            cwd=self.invocation.cwd,
            env={**self.invocation.environment, "TMPDIR": str(self.folder)},
            undecodable="surrogateescape",
        )
        done = self.runner.run(command)
        if done.returncode != 0 or done.stdout:
            # nvcc reports an error, or prints its version or help; no reason is added to that.
            raise FallBackToNvccError("")
        return parse_dryrun(
            done.stderr,
            folder=self.folder,
            cwd=self.invocation.cwd,
            environment=self.invocation.environment,
        )

    def _templates(self, transcript: Transcript, environment: Mapping[str, str]) -> dict[Path, str]:
        """Return the text that fatbinary writes for a container without images, by its path."""
        texts = {}
        for path, argv in empty_container_commands(transcript).items():
            command = Command(
                argv=argv, cwd=self.invocation.cwd, env=environment, undecodable="surrogateescape"
            )
            if self.runner.run(command).returncode == 0:
                texts[path] = path.read_text()
        return texts


def _check_depfiles(transcript: Transcript) -> None:
    """Refuse depfiles that can't be written.

    Raises:
        FallBackToNvccError: nvcc writes them, or says why not.
    """
    if transcript.depfiles and any("-P" in step.argv for step in transcript.steps):
        raise FallBackToNvccError("with -P no line markers name the included files")
    for rule in transcript.depfiles:
        if rule.path is not None and (not rule.path.parent.is_dir() or rule.path.is_dir()):
            raise FallBackToNvccError("")


def _reason(error: TranscriptError) -> str:
    # The first line has the unknown part; the rest is nvcc's long command.
    return str(error).partition("\n")[0].removesuffix(":")
