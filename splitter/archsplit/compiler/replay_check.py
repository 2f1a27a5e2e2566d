"""Sampled re-execution: run recorded steps again, and compare with the cache.

In: recordings of compilations. Out: the results that are equal, those that aren't with the keys of
their entries, and the reasons why a compilation couldn't be run again.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.cache.entry import compute_key, decode_entry
from archsplit.cache.local import StoreKind
from archsplit.cache.sealed import DamagedError
from archsplit.compiler.file_resolver import PROGRAM_GROUP
from archsplit.compiler.replay import decode_recording
from archsplit.compiler.step_cache import StepCache, read_outputs
from archsplit.compiler.step_key import step_key
from archsplit.compiler.tool_identity import ToolIdentities
from archsplit.errors import ToolNotFoundError
from archsplit.scheduler.graph import Graph
from archsplit.scheduler.runner import run_graph
from archsplit.system.fs import temporary_dir

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping
    from pathlib import Path

    from archsplit.cache.cache import Cache
    from archsplit.cache.entry import CacheEntry
    from archsplit.compiler.replay import Recording
    from archsplit.scheduler.graph import Step
    from archsplit.scheduler.pool import Pool
    from archsplit.system.process import CompletedProcess, Starter
    from archsplit.system.terminal import ProgressSink

_MOST_CORES = 16
_FILE = "file "


@dataclass(slots=True, kw_only=True)
class ReplayResult:
    """The result of running a compilation again.

    Attributes:
        same: names of steps that made what the cache knows; "" for the whole compilation.
        different: those that didn't, and the keys of the entries that are wrong then.
        why_not: why nothing could be compared; "" where something was.
    """

    same: list[str] = field(default_factory=list)
    different: dict[str, tuple[str, ...]] = field(default_factory=dict)
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayer:
    """Runs compilations again.

    Attributes:
        cache: what is compared with; nothing is stored in it.
        private: an empty folder for intermediate files. Its path is as long as the one of before,
            for some results are known by that.
        made: an empty folder for what is made.
    """

    cache: Cache
    pool: Pool
    runner: Starter
    progress: ProgressSink
    private: Path
    made: Path

    def run(self, done: Recording) -> ReplayResult:
        """Run all of it, and compare what the cache knows of it."""
        for step in done.steps:
            # A checkout that was removed is no fault of the cache.
            if not step.command.cwd.is_dir():
                return ReplayResult(why_not=f"{step.command.cwd} is gone")
        places = {
            path: self.made / str(number) / path.name
            for number, path in enumerate(done.outputs(self.private))
        }
        todo = done.written_to(places)
        if todo is None:
            return ReplayResult(why_not="it writes a file that no argument names")
        self._lay_out(todo)
        # Each step is compared as it ends, before a later step may overwrite a file.
        compared = _Comparison(todo, self._step_cache(todo), self.private)
        try:
            outcome = run_graph(
                Graph(steps=tuple(_with_cores(step, todo.cores) for step in todo.steps)),
                pool=self.pool,
                runner=self.runner,
                progress=self.progress,
                parallel=False,
                result_cache=compared,
            )
        except ToolNotFoundError as error:
            return ReplayResult(why_not=str(error))
        if outcome.failure is not None:
            return ReplayResult(why_not=f"{outcome.failure.name} {outcome.failure.fault}")
        found = self._judged(todo, compared)
        self._compare_whole(todo, found)
        if not found.same and not found.different:
            found.why_not = "what it reads, or a tool, has changed, or its results are gone"
        return found

    def _lay_out(self, todo: Recording) -> None:
        files = [*todo.texts, *(path for step in todo.steps for path in step.writes)]
        for folder in {path.parent for path in files}:
            folder.mkdir(parents=True, exist_ok=True)
        for path, text in todo.texts.items():
            path.write_bytes(text.encode(errors="surrogateescape"))

    def _step_cache(self, todo: Recording) -> StepCache:
        tools = ToolIdentities(
            runner=self.runner, digests=self.cache.digests, cwd=todo.steps[0].command.cwd
        )
        self.cache.digests.load(PROGRAM_GROUP)
        return StepCache(
            self.cache, tools, private=self.private, precise=todo.precise, spread=todo.spread
        )

    def _judged(self, todo: Recording, compared: _Comparison) -> ReplayResult:
        found = ReplayResult(same=compared.same)
        for step, entry in compared.different:
            if self._is_another_number_of_cores(step, entry, compared):
                found.same.append(step.name)
            else:
                # What was made of it is of no use either.
                found.different[step.name] = (compute_key(entry.components), *todo.wholes)
        return found

    def _is_another_number_of_cores(
        self, step: Step, entry: CacheEntry, compared: _Comparison
    ) -> bool:
        """Return True if the step makes the cached result on another number of cores.

        A tool that is given several makes other code, and how many it had nobody knows any more.
        """
        for cores in range(1, _MOST_CORES + 1) if step.parallel_flags else ():
            ran = self.runner.run(step.command_for(cores))
            # Bytes are compared with the entry: the number of cores isn't in it.
            if ran.returncode == 0 and compared.made(step) == entry.files:
                return True
        return False

    def _compare_whole(self, todo: Recording, found: ReplayResult) -> None:
        """Compare what the cache knows of the whole compilation, if it surely made just this."""
        if not all(not step.parallel_flags or todo.cores.get(step.name) for step in todo.steps):
            return
        for key, files in todo.wholes.items():
            entry = self._entry(key)
            if not all(path.exists() for path in files.values()):
                # Only a part was wanted.
                continue
            if entry is None or not self._is_unchanged(entry, todo.steps[0].command.cwd):
                continue
            made = {role: path.read_bytes() for role, path in files.items()}
            if all(entry.files.get(role) == content for role, content in made.items()):
                found.same.append("")
            else:
                found.different[""] = (*found.different.get("", ()), key)

    def _entry(self, key: str) -> CacheEntry | None:
        blob = self.cache.local.get(StoreKind.ACTION, key)
        try:
            return None if blob is None else decode_entry(blob)
        except DamagedError:
            return None

    def _is_unchanged(self, entry: CacheEntry, cwd: Path) -> bool:
        """Return True if all input files of a whole compilation are unchanged."""
        return all(
            self.cache.digests.digest(str(cwd / part.name.removeprefix(_FILE)), group=PROGRAM_GROUP)
            == part.value
            for part in entry.components
            if part.name.startswith(_FILE)
        )


class _Comparison:
    """Lets every step run, and compares what it makes with what is known of it."""

    def __init__(self, todo: Recording, step_cache: StepCache, private: Path) -> None:
        self._steps = {step.name: step for step in todo.steps}
        self._todo = todo
        self._step_cache = step_cache
        self._private = private
        self._expected: dict[str, CacheEntry] = {}
        self.same: list[str] = []
        self.different: list[tuple[Step, CacheEntry]] = []

    def restore(self, step: Step) -> CompletedProcess | None:
        """See `archsplit.scheduler.runner.ResultCache`; nothing is put in place."""
        if step.name in self._todo.cached:
            found = self._step_cache.find(self._steps[step.name])
            if found is not None:
                self._expected[step.name] = found.entry
        return None

    def store(self, step: Step, done: CompletedProcess) -> None:
        """See `archsplit.scheduler.runner.ResultCache`."""
        del done
        entry = self._expected.get(step.name)
        if entry is None:
            return
        asked = self._steps[step.name]
        if self.made(asked) == entry.files:
            self.same.append(step.name)
        else:
            self.different.append((asked, entry))

    def made(self, step: Step) -> dict[str, bytes] | None:
        """Return the outputs of a step as an entry of the cache has them."""
        found = step_key(step, self._private, precise=self._todo.precise)
        return None if found is None else read_outputs(step, found)


def _with_cores(step: Step, cores: Mapping[str, int]) -> Step:
    return dataclasses.replace(
        step, command=step.command_for(cores.get(step.name) or 1), parallel_flags=()
    )


@dataclass(slots=True, kw_only=True)
class ReplaySample:
    """The results of a sample.

    Attributes:
        written_down: how many compilations could be chosen from.
        same: what was made again as the cache knows it.
        different: what wasn't, each with the keys of the entries that are wrong then.
        why_not: compilations that couldn't be made again, and why.
    """

    written_down: int = 0
    same: list[str] = field(default_factory=list)
    different: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    why_not: list[tuple[str, str]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """The number of results that were compared."""
        return len(self.same) + len(self.different)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySampler:
    """Chooses compilations at random, and steps of them, and has them run again.

    Attributes:
        cache: what is compared with; nothing is stored in it.
        chance: decides.
    """

    cache: Cache
    chance: random.Random
    pool: Pool
    runner: Starter
    progress: ProgressSink
    _compared: dict[str, set[str]] = field(default_factory=dict)

    def sample(self, most: float) -> ReplaySample:
        """Compare so many results, or a few more, or all that can be had."""
        found = ReplaySample()
        names = list(self.cache.miss_log.recording_names())
        self.chance.shuffle(names)
        found.written_down = len(names)
        while names and found.size < most:
            for name in tuple(names):
                if found.size < most and not self._add(name, found):
                    names.remove(name)
        return found

    def _add(self, name: str, found: ReplaySample) -> bool:
        """Have a part of a compilation run again; False if nothing was learned from it."""
        blob = self.cache.miss_log.read_recording(name)
        compared = self._compared.setdefault(name, set())
        with temporary_dir() as private, temporary_dir() as made:
            done = None if blob is None else decode_recording(blob, private=private)
            chosen = None if done is None else self._chosen(done, compared)
            if chosen is None:
                return False
            ran = Replayer(
                cache=self.cache,
                pool=self.pool,
                runner=self.runner,
                progress=self.progress,
                private=private,
                made=made,
            ).run(chosen)
        new = {*ran.same, *ran.different} - compared
        compared |= new
        found.same += [chosen.called(step) for step in ran.same if step in new]
        found.different += [
            (chosen.called(step), keys) for step, keys in ran.different.items() if step in new
        ]
        if ran.why_not and not compared:
            found.why_not.append((chosen.subject, ran.why_not))
        return bool(new)

    def _chosen(self, done: Recording, compared: set[str]) -> Recording | None:
        """A step that wasn't compared yet, with what leads to it; or all steps."""
        everything = {""} if done.wholes else set[str]()
        left = sorted((done.cached | everything) - compared)
        if not left:
            return None
        step = self.chance.choice(left)
        return done.leading_to(step) if step else done
