"""Sampled re-execution: recorded steps are run again, and compared with the cache.

A recording holds the steps of a compilation, the text files that they started with, and the keys of
the cache's entries. The private folder's name is a placeholder in it. In: recordings. Out: the
results that are equal, those that aren't with the keys of their entries, and the reasons why a
compilation couldn't be run again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archsplit.cache.entry import compute_key, decode_entry
from archsplit.cache.local import StoreKind
from archsplit.cache.sealed import DamagedError, seal, unseal
from archsplit.compiler.direct_hit import hashed_environment
from archsplit.compiler.file_resolver import PROGRAM_GROUP
from archsplit.compiler.keys import step_key
from archsplit.compiler.step_cache import StepCache, read_outputs
from archsplit.compiler.tool_identity import ToolIdentities
from archsplit.errors import ToolNotFoundError
from archsplit.scheduler.graph import Graph, Step
from archsplit.scheduler.runner import run_graph
from archsplit.system.fs import temporary_dir
from archsplit.system.process import Command

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator, Mapping

    from archsplit.cache.cache import Cache
    from archsplit.cache.entry import CacheEntry
    from archsplit.scheduler.pool import Pool
    from archsplit.system.process import CompletedProcess, Starter
    from archsplit.system.terminal import ProgressSink

_PRIVATE = "\ue000the private folder\ue000"
_NEEDED = ("PATH", "LD_LIBRARY_PATH", "NVVMIR_LIBRARY_DIR")
"""Variables that tools need to find their files. No others are recorded: some are secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Steps that can be run again.

    Attributes:
        subject: name of the compilation for users.
        steps: in the order of the plan.
        cached: names of the steps whose results the cache may have.
        cores: number of cores of each step, if it is known.
        texts: content of the files that existed before the steps.
        precise: see `archsplit.compiler.keys.has_line_info`.
        spread: True if steps could use more than one core.
        wholes: keys of entries for the whole compilation, each with its files by role.
    """

    subject: str
    steps: tuple[Step, ...]
    cached: frozenset[str]
    cores: Mapping[str, int]
    texts: Mapping[Path, str]
    precise: bool
    spread: bool
    wholes: Mapping[str, Mapping[str, Path]]

    def called(self, step: str) -> str:
        """Return the label of a step's result; "" stands for all steps."""
        return f"{step or 'the whole'} of {self.subject}"

    def leading_to(self, name: str) -> Recording:
        """Return the recording with the step of this name and its dependencies only."""
        wanted = [at for at, step in enumerate(self.steps) if step.name == name]
        steps = tuple(self.steps[at] for at in needed_steps(Graph(steps=self.steps), wanted))
        return replace(self, steps=steps)

    def outputs(self, private: Path) -> tuple[Path, ...]:
        """Return the files that steps write outside of the private folder."""
        written = (path for step in self.steps for path in step.writes)
        return tuple(path for path in written if not path.is_relative_to(private))

    def written_to(self, places: Mapping[Path, Path]) -> Recording | None:
        """Return the recording with other outputs, or None if no argument names an output."""
        named = {
            step.command.cwd / _value(word) for step in self.steps for word in step.command.argv
        }
        # A step that writes by a fixed name would overwrite the user's file.
        if not named.issuperset(places):
            return None
        wholes = {
            key: {role: places.get(path, path) for role, path in files.items()}
            for key, files in self.wholes.items()
        }
        steps = tuple(_moved(step, places) for step in self.steps)
        return replace(self, steps=steps, wholes=wholes)


def needed_steps(graph: Graph, wanted: Iterable[int]) -> list[int]:
    """Return the positions of steps and of their dependencies, sorted."""
    found = set[int]()
    # Iterative: a recipe's graph may be deeper than Python's stack.
    left = list(wanted)
    while left:
        at = left.pop()
        if at not in found:
            found.add(at)
            left += graph.dependencies[at]
    return sorted(found)


def encode_recording(done: Recording, *, private: Path) -> bytes:
    """Return a recording as bytes, with a placeholder for the private folder."""
    described = {
        "subject": done.subject,
        "steps": list(map(_step_row, done.steps)),
        "cached": sorted(done.cached),
        "cores": dict(done.cores),
        "texts": {str(path): text for path, text in done.texts.items()},
        "precise": done.precise,
        "spread": done.spread,
        "wholes": {
            key: {role: str(path) for role, path in files.items()}
            for key, files in done.wholes.items()
        },
    }
    # Another process runs the steps again in a private folder of its own.
    text = json.dumps(described).replace(_quoted(str(private)), _quoted(_PRIVATE))
    return seal(text.encode())


def decode_recording(blob: bytes, *, private: Path) -> Recording | None:
    """Return a recording for another private folder, or None if it is damaged."""
    try:
        text = unseal(blob).decode().replace(_quoted(_PRIVATE), _quoted(str(private)))
        row = json.loads(text)
        return Recording(
            subject=row["subject"],
            steps=tuple(_step(each, private) for each in row["steps"]),
            cached=frozenset(row["cached"]),
            cores=row["cores"],
            texts={Path(path): content for path, content in row["texts"].items()},
            precise=row["precise"],
            spread=row["spread"],
            wholes={
                key: {role: Path(path) for role, path in files.items()}
                for key, files in row["wholes"].items()
            },
        )
    except (DamagedError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _quoted(text: str) -> str:
    return json.dumps(text)[1:-1]


def _value(word: str) -> str:
    return word.rpartition("=")[2]


def _moved(step: Step, places: Mapping[Path, Path]) -> Step:
    words = tuple(_renamed(word, step.command.cwd, places) for word in step.command.argv)
    return replace(
        step,
        command=replace(step.command, argv=words),
        reads=tuple(places.get(path, path) for path in step.reads),
        writes=tuple(places.get(path, path) for path in step.writes),
    )


def _renamed(word: str, cwd: Path, places: Mapping[Path, Path]) -> str:
    value = _value(word)
    place = places.get(cwd / value)
    return word if place is None else word.removesuffix(value) + str(place)


def _step_row(step: Step) -> dict[str, Any]:
    return {
        "name": step.name,
        "argv": step.command.argv,
        "cwd": str(step.command.cwd),
        "environment": dict(_kept(step.command.env)),
        "reads": list(map(str, step.reads)),
        "writes": list(map(str, step.writes)),
        "wide": step.parallel_flags,
    }


def _step(row: dict[str, Any], private: Path) -> Step:
    return Step(
        name=row["name"],
        command=Command(
            argv=tuple(row["argv"]),
            cwd=Path(row["cwd"]),
            env={**row["environment"], "TMPDIR": str(private)},
            undecodable="surrogateescape",
        ),
        reads=tuple(map(Path, row["reads"])),
        writes=tuple(map(Path, row["writes"])),
        parallel_flags=tuple(row["wide"]),
    )


def _kept(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for part in hashed_environment(environment):
        name = part.name.partition(" ")[2]
        yield name, environment[name]
    yield from ((name, environment[name]) for name in _NEEDED if name in environment)


def save_recording(
    cache: Cache,
    steps: Iterable[Step],
    *,
    subject: str,
    private: Path,
    before: Iterable[Path],
    precise: bool,
    spread: bool = False,
    cores: Mapping[str, int] | None = None,
    wholes: Mapping[str, Mapping[str, Path]] | None = None,
) -> None:
    """Store the recording of a compilation; skip one whose files can't be read any more.

    Args:
        subject: name for users; a later recording of the same folder and name replaces it.
        before: files in the private folder that existed before the steps.
        cores: number of cores of each step, if it is known.
        wholes: see `Recording.wholes`.
    """
    recorded = tuple(steps)
    if not cache.writable or not recorded:
        return
    try:
        done = Recording(
            subject=subject,
            steps=recorded,
            cached=frozenset(
                step.name
                for step in recorded
                if step_key(step, private, precise=precise) is not None
            ),
            cores=cores or {},
            texts={path: path.read_bytes().decode(errors="surrogateescape") for path in before},
            precise=precise,
            spread=spread,
            wholes=wholes or {},
        )
    except OSError:
        return
    folder = str(recorded[0].command.cwd)
    name = [folder, subject, *map(str, done.outputs(private))]
    cache.miss_log.write_recording(
        hashlib.sha256(json.dumps(name).encode()).hexdigest(),
        encode_recording(done, private=private),
    )


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
