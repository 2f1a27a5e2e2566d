"""Run again what was written down, and compare with what the cache knows of it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from splitter.cache.entry import DamagedError, decode
from splitter.cache.parts import key_of
from splitter.cache.store import Kind
from splitter.engine.execute import run_graph
from splitter.engine.graph import Graph
from splitter.errors import ToolNotFoundError
from splitter.reuse.commands import known
from splitter.reuse.products import contents
from splitter.reuse.steps import StepMemory
from splitter.reuse.tools import GROUP, Tools

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from splitter.cache.cache import Cache
    from splitter.cache.entry import Entry
    from splitter.engine.graph import Step
    from splitter.reuse.repeatable import Repeatable
    from splitter.system.pool import Pool
    from splitter.system.progress import ProgressSink
    from splitter.system.run import Completed, Starter

_MOST_CORES = 16
_FILE = "file "


@dataclass(slots=True, kw_only=True)
class Repeated:
    """What came of running a compilation again.

    Attributes:
        same: names of steps that made what the cache knows; "" for the whole compilation.
        different: those that didn't, and the keys of the entries that are wrong then.
        why_not: why nothing could be compared; "" where something was.
    """

    same: list[str] = field(default_factory=list)
    different: dict[str, tuple[str, ...]] = field(default_factory=dict)
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
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

    def run(self, done: Repeatable) -> Repeated:
        """Run all of it, and compare what the cache knows of it."""
        for step in done.steps:
            if not step.command.cwd.is_dir():
                return Repeated(why_not=f"{step.command.cwd} is gone")
        places = {
            path: self.made / str(number) / path.name
            for number, path in enumerate(done.outputs(self.private))
        }
        todo = done.written_to(places)
        if todo is None:
            return Repeated(why_not="it writes a file that no argument names")
        self._lay_out(todo)
        compared = _Comparison(todo, self._memory(todo), self.private)
        try:
            outcome = run_graph(
                Graph(steps=tuple(_with_cores(step, todo.cores) for step in todo.steps)),
                pool=self.pool,
                runner=self.runner,
                progress=self.progress,
                spread=False,
                memo=compared,
            )
        except ToolNotFoundError as error:
            return Repeated(why_not=str(error))
        if outcome.failure is not None:
            return Repeated(why_not=f"{outcome.failure.name} {outcome.failure.fault}")
        found = self._judged(todo, compared)
        self._compare_whole(todo, found)
        if not found.same and not found.different:
            found.why_not = "what it reads, or a tool, has changed, or its results are gone"
        return found

    def _lay_out(self, todo: Repeatable) -> None:
        files = [*todo.texts, *(path for step in todo.steps for path in step.writes)]
        for folder in {path.parent for path in files}:
            folder.mkdir(parents=True, exist_ok=True)
        for path, text in todo.texts.items():
            path.write_bytes(text.encode(errors="surrogateescape"))

    def _memory(self, todo: Repeatable) -> StepMemory:
        tools = Tools(runner=self.runner, digests=self.cache.digests, cwd=todo.steps[0].command.cwd)
        self.cache.digests.load(GROUP)
        return StepMemory(
            self.cache, tools, private=self.private, precise=todo.precise, spread=todo.spread
        )

    def _judged(self, todo: Repeatable, compared: _Comparison) -> Repeated:
        found = Repeated(same=compared.same)
        for step, entry in compared.different:
            if self._is_another_number_of_cores(step, entry, compared):
                found.same.append(step.name)
            else:
                # What was made of it is of no use either.
                found.different[step.name] = (key_of(entry.parts), *todo.wholes)
        return found

    def _is_another_number_of_cores(self, step: Step, entry: Entry, compared: _Comparison) -> bool:
        """Whether the step makes what is known when it works on more cores, or on fewer.

        A tool that is given several makes other code, and how many it had nobody knows any more.
        """
        for cores in range(1, _MOST_CORES + 1) if step.wide else ():
            ran = self.runner.run(step.command_for(cores))
            if ran.returncode == 0 and compared.made(step) == entry.files:
                return True
        return False

    def _compare_whole(self, todo: Repeatable, found: Repeated) -> None:
        """Compare what the cache knows of the whole compilation, if it surely made just this."""
        if not all(not step.wide or todo.cores.get(step.name) for step in todo.steps):
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

    def _entry(self, key: str) -> Entry | None:
        blob = self.cache.local.get(Kind.ACTION, key)
        try:
            return None if blob is None else decode(blob)
        except DamagedError:
            return None

    def _is_unchanged(self, entry: Entry, cwd: Path) -> bool:
        """Whether all files that a whole compilation has read are as they were."""
        return all(
            self.cache.digests.of(str(cwd / part.name.removeprefix(_FILE)), group=GROUP)
            == part.value
            for part in entry.parts
            if part.name.startswith(_FILE)
        )


class _Comparison:
    """Lets every step run, and compares what it makes with what is known of it."""

    def __init__(self, todo: Repeatable, memory: StepMemory, private: Path) -> None:
        self._steps = {step.name: step for step in todo.steps}
        self._todo = todo
        self._memory = memory
        self._private = private
        self._expected: dict[str, Entry] = {}
        self.same: list[str] = []
        self.different: list[tuple[Step, Entry]] = []

    def recall(self, step: Step) -> Completed | None:
        """See `splitter.engine.memo.Memo`; nothing is put in place."""
        if step.name in self._todo.cached:
            found = self._memory.look(self._steps[step.name])
            if found is not None:
                self._expected[step.name] = found.entry
        return None

    def remember(self, step: Step, done: Completed) -> None:
        """See `splitter.engine.memo.Memo`."""
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
        """What the step has written, as the cache would have it."""
        found = known(step, self._private, precise=self._todo.precise)
        return None if found is None else contents(step, found)


def _with_cores(step: Step, cores: Mapping[str, int]) -> Step:
    return dataclasses.replace(step, command=step.command_for(cores.get(step.name) or 1), wide=())
