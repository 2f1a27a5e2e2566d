"""From sources to the plan of one object per source and target; sources are read, not compiled."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from splitter.engine.graph import Step
from splitter.errors import OutputError, RecipeError
from splitter.nvcc.dryrun import parse
from splitter.nvcc.included import listed_files, listing_command
from splitter.nvcc.options import dryrun_command
from splitter.nvcc.shard import module_id, shard
from splitter.nvcc.shell import unusable
from splitter.nvcc.steps import FIRST_MEMORY, WEIGHTS, StepKind
from splitter.recipe.inputs import unlisted_inputs
from splitter.system.run import check

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import PurePosixPath

    from splitter.arch.target import Target
    from splitter.nvcc.shard import Shards
    from splitter.nvcc.steps import NvccStep, Transcript
    from splitter.site import BuildSite
    from splitter.system.run import Command, Runner

_ASK_SECONDS = 120.0
_UNLISTED_HINT = (
    "write the file's name in the #include, or put it into a folder of source.include: the build id"
    " and the source distribution have only what the recipe's text leads to"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """How the objects of a library come about.

    Attributes:
        steps: what must run.
        texts: files that must be there before, with their content.
        files: each target's objects, one a source, in the sources' order.
        relocatable: those that each target's device link takes, none where there is no such link.
        warnings: what nvcc said when it was asked for its plan.
    """

    steps: tuple[Step, ...]
    texts: Mapping[Path, str]
    files: Mapping[Target, tuple[Path, ...]]
    relocatable: Mapping[Target, tuple[Path, ...]]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """Turns every source of a recipe into a plan, by asking nvcc."""

    site: BuildSite
    runner: Runner

    def plan(self, targets: Sequence[Target], *, jobs: int) -> Objects:
        """Ask nvcc about every source, ``jobs`` at a time, and plan the objects of ``targets``.

        Raises:
            OutputError: nvcc can't have the path of the private folder.
            RecipeError: nor that of the recipe; or a source includes what the recipe doesn't list.
            ToolFailedError: nvcc refuses the flags.
            TranscriptError: nvcc would do something that archsplit doesn't know.
        """
        self._check_paths()
        passes = list(self._passes(targets)) if targets else []
        with ThreadPoolExecutor(max_workers=jobs) as pool:
            planned = list(pool.map(self._plan_pass, passes))
            viewed = list(pool.map(self._viewed, planned))
        parts = [part for part, _ in viewed]
        if faults := dict.fromkeys(fault for _, found in viewed for fault in found):
            raise RecipeError("\n".join(faults), hint=_UNLISTED_HINT)
        return Objects(
            steps=tuple(step for part in parts for step in self._steps(part)),
            texts={path: text for part in parts for path, text in part.texts.items()},
            files=_by_target(targets, (part.shards.objects for part in parts)),
            relocatable=_by_target(targets, (part.shards.relocatable for part in parts)),
            warnings=tuple(dict.fromkeys(line for part in parts for line in part.warnings)),
        )

    def _check_paths(self) -> None:
        folder, root = str(self.site.folder), str(self.site.recipe.root)
        if odd := unusable(folder):
            hint = f"set TMPDIR to a folder without {odd!r} in its path"
            raise OutputError(f"nvcc can't work in {folder}", hint=hint)
        if odd := next((odd for odd in "$`" if odd in root), None):
            hint = f"move it to a folder without {odd!r} in its path"
            raise RecipeError(f"nvcc can't compile what is in {root}", hint=hint)

    def _passes(self, targets: Sequence[Target]) -> Iterator[_Pass]:
        # One pass over all targets of the release, also of those that are not built now, keeps
        # __CUDA_ARCH_LIST__ the same: CUB puts it into the names of its namespaces.
        for number, source in enumerate(self.site.recipe.source.files):
            name = f"{number:03}-{source.stem}"
            if self.site.recipe.compile.host_pass == "once":
                release = self.site.recipe.targets.all
                yield _Pass(source=source, folder=name, release=release, targets=tuple(targets))
            else:
                for target in targets:
                    folder = f"{name}-{target}"
                    yield _Pass(source=source, folder=folder, release=(target,), targets=(target,))

    def _plan_pass(self, one: _Pass) -> _Part:
        folder = self.site.folder / one.folder
        folder.mkdir()
        transcript = self._transcript(one, folder)
        texts = {}
        if transcript.module_id is not None:
            identifier = module_id(package=self.site.recipe.project.name, source=str(one.source))
            texts[transcript.module_id] = identifier
        shards = shard(transcript, one.targets, folder=folder, objcopy=self.site.host.objcopy)
        environment = transcript.environment
        rule = folder / "listing.d"
        listing = listing_command(transcript, rule)
        return _Part(
            name=one.folder,
            source=one.source,
            shards=shards,
            view=transcript.host_view,
            listing=self.site.command(listing, environment=environment, timeout=_ASK_SECONDS),
            rule=rule,
            environment=environment,
            texts=texts,
            warnings=transcript.diagnostics,
        )

    def _transcript(self, one: _Pass, folder: Path) -> Transcript:
        argv = dryrun_command(
            self.site.toolkit,
            self.site.compile_options,
            source=one.source,
            targets=one.release,
            folder=folder,
        )
        command = self.site.command(argv, timeout=_ASK_SECONDS)
        done = check(self.runner, command, what="nvcc --dryrun")
        return parse(done.stderr, folder=folder, cwd=self.site.recipe.root)

    def _viewed(self, part: _Part) -> tuple[_Part, tuple[str, ...]]:
        """Have the host's compiler read the source, and see what it includes.

        Preprocessing is a step of the build; it isn't done twice.
        """
        done = self.runner.run(part.listing)
        if done.returncode != 0:
            # The build's own step fails in the same way, and that is where its error belongs.
            return part, ()
        listed = map(Path, listed_files(part.rule.read_text(errors="surrogateescape")))
        found = unlisted_inputs(self.site.recipe, listed, self.site.toolkit.root)
        faults = tuple(f"{part.source}: {fault}" for fault in found)
        return part.without_preprocessing(done.stderr), faults

    def _steps(self, part: _Part) -> Iterator[Step]:
        for number, step in enumerate(part.shards.steps):
            yield Step(
                name=f"{part.name}/{number:02} {step.kind.value}{_for(step)}",
                command=self.site.command(step.argv, environment=part.environment),
                reads=step.reads,
                writes=step.writes,
                weight=WEIGHTS[step.kind],
                memory=FIRST_MEMORY[step.kind][0],
                memory_per_byte=FIRST_MEMORY[step.kind][1],
                key=f"{part.name} {step.kind.value}{_for(step)}",
            )


def _by_target(
    targets: Sequence[Target], parts: Iterable[Mapping[Target, Path]]
) -> dict[Target, tuple[Path, ...]]:
    files: dict[Target, tuple[Path, ...]] = dict.fromkeys(targets, ())
    for part in parts:
        for target, path in part.items():
            files[target] += (path,)
    return files


def _for(step: NvccStep) -> str:
    return f" {step.target}" if step.target is not None else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """One call of nvcc: a source, all targets that nvcc is told, and those that are wanted."""

    source: PurePosixPath
    folder: str
    release: tuple[Target, ...]
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What came of one pass."""

    name: str
    source: PurePosixPath
    shards: Shards
    view: NvccStep
    listing: Command
    rule: Path
    environment: Mapping[str, str]
    texts: Mapping[Path, str]
    warnings: tuple[str, ...]

    def without_preprocessing(self, said: str) -> _Part:
        """The part once its source has been preprocessed, which printed ``said``."""
        if self.view.kind is not StepKind.PREPROCESS:
            return self
        steps = tuple(step for step in self.shards.steps if step.writes != self.view.writes)
        warnings = (*self.warnings, *filter(None, [said.rstrip()]))
        return replace(self, shards=replace(self.shards, steps=steps), warnings=warnings)
