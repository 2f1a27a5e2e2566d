"""Moved from archsplit.build.context.

From nvcc's steps to a graph that the engine can run.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from archsplit.compiler.step_key import is_host_compiler
from archsplit.nvcc.step_args import OUTPUT_FLAGS
from archsplit.nvcc.steps import FIRST_MEMORY, WEIGHTS, NvccStep, StepKind
from archsplit.scheduler.graph import Graph, Step
from archsplit.system.fs import is_replaceable
from archsplit.system.process import Command, run_checked

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping
    from pathlib import Path

    from archsplit.compiler.dryrun_query import DryRunResult
    from archsplit.compiler.invocation import Invocation
    from archsplit.system.process import Runner

_READING = {StepKind.PREPROCESS, StepKind.HOST_COMPILE}


_C_SECONDS = 0.3


def step_from_nvcc(
    step: NvccStep,
    command: Command,
    *,
    name: str,
    key: str,
    wide: tuple[str, ...] = (),
    first: bool = False,
) -> Step:
    """One of nvcc's steps for the engine, with first guesses of what it takes."""
    memory, memory_per_byte = FIRST_MEMORY[step.kind]
    reads_source = not step.reads and step.kind in _READING
    is_c = reads_source and any(word.endswith(".c") for word in step.argv[1:])
    return Step(
        name=name,
        command=command,
        reads=step.reads,
        writes=step.writes,
        # C has no templates.
        weight=min(_C_SECONDS, WEIGHTS[step.kind]) if is_c else WEIGHTS[step.kind],
        memory=memory,
        memory_per_byte=memory_per_byte,
        key=key,
        parallel_flags=wide,
        reads_source=reads_source,
        runs_first=first,
    )


_NUMBERED = re.compile(r"tmpxft_[0-9a-f]+_[0-9a-f]+-\d+_")
_SPREADING = {
    StepKind.CICC: ("-split-compile", "{cores}"),
    StepKind.PTXAS: ("-split-compile={cores}",),
}
_UNSPREADABLE = re.compile(r"-?-split-compile.*|-g|-jobserver|-O0")
_FIRST_SPREADING = (12, 4)
_VERSION = re.compile(r"-D__CUDACC_VER_(MAJOR|MINOR)__=(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapperGraph:
    """What runs, and what is left to do afterwards.

    Attributes:
        graph: the steps, in the order in which nvcc would run them.
        texts: files that must be there before, with their content.
        staged: outputs that are made in the private folder, and where they belong: archives, and
            what is there and no regular file.
    """

    graph: Graph
    texts: Mapping[Path, str]
    staged: Mapping[Path, Path]

    def renamed(self, names: Mapping[Path, str]) -> WrapperGraph:
        """The same plan, with other names for translation units."""
        return replace(self, texts={**self.texts, **names})


def plan_graph(
    order: Invocation, answer: DryRunResult, folder: Path, runner: Runner
) -> WrapperGraph:
    """Turn the answer into a graph of commands.

    Raises:
        ToolFailedError: the host compiler doesn't name its archiver.
    """
    steps = list(answer.plan.steps)
    places = {final: folder / f"output-{at}" / final.name for at, final in _staged(steps, folder)}
    for at, step in enumerate(steps):
        if step.kind is StepKind.ARCHIVE:
            step = _with_archiver(order, answer, step, runner)  # noqa: PLW2901 - the same step
        steps[at] = _moved(step, places, order.cwd)
    for path in (path for step in steps for path in step.writes):
        if path.is_relative_to(folder):
            path.parent.mkdir(exist_ok=True)
    read = {path for step in steps for path in step.reads}
    read |= {path for rule in answer.transcript.dependencies for path in rule.sources}
    needed = [_without_leftovers(step, read | {*places.values()}, folder) for step in steps]
    spread = not order.faithful and _can_spread(answer)
    graph = Graph(
        steps=tuple(
            _step(order, answer, number, step, folder=folder, spread=spread)
            for number, step in enumerate(needed)
        )
    )
    return WrapperGraph(
        graph=graph,
        texts=answer.plan.texts,
        staged={private: final for final, private in places.items()},
    )


def _without_leftovers(step: NvccStep, read: Container[Path], folder: Path) -> NvccStep:
    # Some files are named that not every run of a tool makes. What nobody reads may be missing.
    wanted = (path for path in step.writes if path in read or not path.is_relative_to(folder))
    return replace(step, writes=tuple(wanted))


def _staged(steps: Iterable[NvccStep], folder: Path) -> Iterator[tuple[int, Path]]:
    """Give the outputs that are made in the private folder, each with the number of its step."""
    for at, step in enumerate(steps):
        for path in step.writes:
            private = path.is_relative_to(folder)
            # nvcc removes an old archive, and tools remove what they can't finish.
            if not private and (step.kind is StepKind.ARCHIVE or not is_replaceable(path)):
                yield at, path


def _moved(step: NvccStep, places: Mapping[Path, Path], cwd: Path) -> NvccStep:
    """Return the step with other places for some files."""
    return replace(
        step,
        argv=(step.argv[0], *_words_moved(step, places, cwd)),
        reads=tuple(places.get(path, path) for path in step.reads),
        writes=tuple(places.get(path, path) for path in step.writes),
    )


def _words_moved(step: NvccStep, places: Mapping[Path, Path], cwd: Path) -> Iterator[str]:
    for before, word in itertools.pairwise(step.argv):
        flag, equals, value = word.rpartition("=")
        place = places.get(cwd / value)
        # A macro may have the value of a name.
        names = (flag if equals else before) in OUTPUT_FLAGS
        if place is None or not (
            names or step.kind is StepKind.ARCHIVE or cwd / word in step.reads
        ):
            yield word
        else:
            yield f"{flag}{equals}{place}"


def _with_archiver(
    order: Invocation, answer: DryRunResult, step: NvccStep, runner: Runner
) -> NvccStep:
    # nvcc has its shell ask the compiler.
    question = (step.argv[0], "-print-prog-name=ar")
    command = Command(argv=question, cwd=order.cwd, env=answer.environment)
    archiver = run_checked(runner, command, what="asking for the archiver").stdout.strip()
    return replace(step, argv=(archiver, *step.argv[1:]))


def _can_spread(answer: DryRunResult) -> bool:
    words = (word for step in answer.plan.steps for word in step.argv)
    found = {match[1]: int(match[2]) for word in words if (match := _VERSION.fullmatch(word))}
    return (found.get("MAJOR", 0), found.get("MINOR", 0)) >= _FIRST_SPREADING


def _step(
    order: Invocation,
    answer: DryRunResult,
    number: int,
    step: NvccStep,
    *,
    folder: Path,
    spread: bool,
) -> Step:
    label = step.kind.value if step.target is None else f"{step.kind.value} {step.target}"
    spreads = spread and not any(map(_UNSPREADABLE.fullmatch, step.argv))
    command = Command(
        argv=(*step.argv, *_kept_names(answer, step, folder)),
        cwd=order.cwd,
        env=answer.environment,
        undecodable="surrogateescape",
    )
    return step_from_nvcc(
        step,
        command,
        name=f"{number:02} {label}",
        key=f"{label} {_file(step)}",
        wide=_SPREADING.get(step.kind, ()) if spreads else (),
    )


def _kept_names(answer: DryRunResult, step: NvccStep, folder: Path) -> Iterator[str]:
    """Give what makes debug information name the kept files, as nvcc's does."""
    gnu = is_host_compiler(step.argv[0])
    if answer.arguments.keep is not None and step.kind is StepKind.HOST_COMPILE and gnu:
        yield f"-ffile-prefix-map={folder}/={answer.arguments.kept_prefix}"


def _file(step: NvccStep) -> str:
    named = [*step.writes, *step.reads]
    return _NUMBERED.sub("", named[0].name) if named else ""


def history_group(order: Invocation, answer: DryRunResult) -> str:
    """What a compilation is remembered by: the first source that it names, or what it makes."""
    for step in answer.transcript.steps:
        if "--orig_src_path_name" in step.argv:
            return step.argv[step.argv.index("--orig_src_path_name") + 1]
    outputs = [str(path) for step in answer.transcript.steps for path in step.writes]
    return outputs[-1] if outputs else str(order.cwd)
