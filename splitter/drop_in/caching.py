"""Between a compilation and the cache: what is looked for when, and what is stored."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from splitter import __version__
from splitter.cache.cache import Cache
from splitter.cache.settings import config_file
from splitter.engine.graph import Graph
from splitter.nvcc.arguments import not_followed, taken_apart
from splitter.nvcc.commands import values
from splitter.nvcc.rules import makes_more, rule_text
from splitter.nvcc.steps import StepKind
from splitter.reuse.commands import LISTING, is_odd, is_precise, with_listing
from splitter.reuse.compilations import WHOLE, Compilations, Done
from splitter.reuse.direct_record import DirectRecord, Place, save
from splitter.reuse.keeping import keep
from splitter.reuse.requests import request
from splitter.reuse.steps import StepMemory
from splitter.reuse.tools import GROUP, Tools, driver_files
from splitter.system.files import write_over
from splitter.system.places import cache_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from splitter.cache.settings import Settings
    from splitter.drop_in.asking import Answer
    from splitter.drop_in.order import Order
    from splitter.drop_in.planning import Plan
    from splitter.drop_in.standing_in import Surroundings
    from splitter.engine.outcome import Outcome
    from splitter.reuse.compilations import Recalled
    from splitter.reuse.requests import Request

_COMPILED = {StepKind.CUDAFE, StepKind.CICC, StepKind.PTXAS, StepKind.FATBINARY}
_COMPILED |= {StepKind.PREPROCESS, StepKind.HOST_COMPILE}
_MADE = "makes more than rules"
"""A note beside what is stored: rules name the output as their target then."""


class Caching:
    """One compilation's dealings with the cache.

    Args:
        order: what is asked for.
        around: the effects.
        settings: of the cache; its mode isn't ``off``.
    """

    def __init__(self, order: Order, around: Surroundings, settings: Settings) -> None:
        self._order = order
        self._around = around
        self._cache = Cache(settings, warn=around.warn)
        self._cache.digests.load(GROUP)
        self._tools = Tools(runner=around.runner, digests=self._cache.digests, cwd=order.cwd)
        self._began = time.time_ns()
        whole = not settings.strict and settings.mode != "verify"
        self._request = self._asked() if whole else None
        self._known: Compilations | None = None
        self._memory: StepMemory | None = None

    def recall(self) -> bool:
        """Leave the results where nvcc would, and say what it would say; False if unknown."""
        asked, environment = self._request, self._order.environment
        if asked is None:
            return False
        self._known = Compilations(self._cache, asked, environment=environment, tools=self._tools)
        found = self._known.recall().get(*WHOLE)
        if found is None or not self._left(found, asked):
            return False
        self._note(found, asked)
        self._around.say(found.stdout, found.stderr)
        if self._around.explain_cache:
            self._around.warn(f"all of it was known ({found.tier})")
        return True

    def listed(self, todo: Plan, folder: Path) -> Plan:
        """The plan, with compiles for the host that list what they read."""
        steps = tuple(with_listing(step, folder) for step in todo.graph.steps)
        return replace(todo, graph=Graph(steps=steps))

    def memory(self, todo: Plan, folder: Path) -> StepMemory:
        """What knows the results of single steps."""
        words = (word for step in todo.graph.steps for word in step.command.argv)
        self._memory = StepMemory(
            self._cache,
            self._tools,
            private=folder,
            precise=is_precise(words),
            spread=not self._order.reproducible,
        )
        return self._memory

    def remember(self, answer: Answer, todo: Plan, outcome: Outcome, folder: Path) -> None:
        """Store what the whole compilation made, if it went well."""
        why: tuple[str, ...] = ("its includes were not looked at",)
        if self._known is not None:
            why = self._known.explain()
        self._tell(answer, why)
        if self._memory is not None:
            self._memory.check()
        wholes: dict[str, Mapping[str, Path]] = {}
        if self._known is not None and self._request is not None:
            done = self._done(answer, todo, outcome, folder, self._request)
            if done is not None:
                wholes = self._known.remember(done)
            if wholes and self._order.direct:
                self._cache.digests.forget_answers()
                stored = self._known.recall(counted=False).get(*WHOLE)
                if stored is not None:
                    self._note(stored, self._request)
        if outcome.failure is None:
            self._keep(answer, todo, outcome, folder, wholes)

    def _keep(
        self,
        answer: Answer,
        todo: Plan,
        outcome: Outcome,
        folder: Path,
        wholes: Mapping[str, Mapping[str, Path]],
    ) -> None:
        """Write down what was run, so that `archsplit cache verify` can run it again."""
        keep(
            self._cache,
            todo.graph.steps,
            subject=" ".join(sorted(_sources(answer))),
            private=folder,
            before=todo.texts,
            precise=is_precise(word for step in todo.graph.steps for word in step.command.argv),
            spread=not self._order.reproducible,
            cores={each.name: each.cores for each in outcome.finished if each.attempts},
            wholes=wholes,
        )

    def close(self) -> None:
        """Finish what is under way."""
        self._cache.close()

    def _asked(self) -> Request | None:
        order = self._order
        arguments = taken_apart(order.argv)
        if order.files.any or arguments.keep or arguments.has_files or not_followed(order.argv):
            return None
        nvcc = os.path.realpath(order.nvcc)
        spread = "" if order.reproducible else " spread"
        return request(
            arguments.asked,
            nvcc=nvcc,
            driver=self._tools.driver(nvcc, order.environment),
            cwd=order.cwd,
            environment=order.environment,
            salt=self._cache.settings.salt,
            version=__version__ + spread,
        )

    def _note(self, found: Recalled, asked: Request) -> None:
        """Keep a record of the hit, with which the next one is found sooner."""
        order, settings = self._order, self._cache.settings
        nvcc = os.path.realpath(order.nvcc)
        driver = driver_files(nvcc)
        usual = cache_folder(order.environment) == settings.folder and settings.mode == "on"
        if not order.direct or driver is None or not usual:
            return
        files = [*driver, str(config_file(order.environment))]
        digests = self._cache.digests
        record = DirectRecord(
            request=asked.key,
            entry=found.key,
            row=found.row,
            links=((str(order.nvcc), nvcc),),
            observed=tuple((path, digests.of(path, group=GROUP) or "") for path in files),
            places=(
                *(Place(str(asked.path(role)), role) for role in found.outputs),
                *(
                    Place(str(asked.path(role)), "", text.decode(errors="surrogateescape"))
                    for role, text in self._rules(found).items()
                ),
            ),
        )
        save(settings.folder, order.direct, record)

    def _left(self, found: Recalled, asked: Request) -> bool:
        try:
            for role, content in (*found.outputs.items(), *self._rules(found).items()):
                write_over(asked.path(role), content)
        except OSError:
            # nvcc says it best.
            return False
        return True

    def _rules(self, found: Recalled) -> dict[str, bytes]:
        """Return the rules for make that were found, by what they are."""
        rules, made = taken_apart(self._order.argv).rules, _MADE in found.notes
        return {
            role: rule_text([markers], options=rules, made=made)
            for role, markers in found.rules.items()
        }

    def _done(
        self, answer: Answer, todo: Plan, outcome: Outcome, folder: Path, asked: Request
    ) -> Done | None:
        steps = answer.transcript.steps
        kinds = {step.kind for step in steps}
        rules = {rule.path: rule.sources for rule in answer.transcript.dependencies if rule.path}
        if outcome.failure is not None or not kinds <= _COMPILED or answer.numbered or todo.staged:
            return None
        commands = tuple(step.command.argv for step in todo.graph.steps)
        seen = {
            path
            for step in todo.graph.steps
            for path in step.writes
            if any(values(step.command.argv, (LISTING,)))
        }
        # What is preprocessed to standard output, and what lists nothing of what it reads.
        unseen = any(
            not (step.writes or step.kind is not StepKind.PREPROCESS)
            or (step.kind is StepKind.HOST_COMPILE and not step.reads and not seen & {*step.writes})
            for step in steps
        )
        if unseen or len(rules) != len(answer.transcript.dependencies):
            return None
        if any(is_odd(argv) for argv in commands):
            return None
        made = (path for step in todo.graph.steps for path in step.writes)
        listed = (Path(name) for argv in commands for name in values(argv, (LISTING,)))
        finished = outcome.finished
        said = [f"{line}\n" for line in answer.transcript.diagnostics]
        stderr = "".join([*said, *(each.stderr for each in finished)])
        if str(folder) in stderr:
            return None
        return Done(
            outputs={
                "": {asked.role(path): path for path in made if not path.is_relative_to(folder)}
            },
            texts=tuple(
                path for step in steps if step.kind is StepKind.PREPROCESS for path in step.writes
            ),
            listings=tuple(listed),
            rules={asked.role(path): sources for path, sources in rules.items()},
            notes={"": {_MADE: "1"} if makes_more(answer.transcript) else {}},
            commands=commands,
            environment=answer.environment,
            private=folder,
            began=self._began,
            stdout="".join(each.stdout for each in finished),
            stderr=stderr,
            seconds=outcome.seconds,
            cpu_seconds=sum(each.cpu_seconds for each in finished) + self._saved(),
            memory=max((each.peak_memory for each in finished), default=0),
        )

    def _saved(self) -> float:
        """What steps that were known would have taken: that is saved, too, next time."""
        return 0.0 if self._memory is None else self._memory.saved

    def _tell(self, answer: Answer, why: tuple[str, ...]) -> None:
        told = () if self._memory is None else self._memory.told
        lines = (*(("", line) for line in why), *((each.target, each.line) for each in told))
        for source in _sources(answer):
            self._cache.notebook.tell(source, lines)
        if self._around.explain_cache:
            for _, line in lines:
                self._around.warn(line)


def _sources(answer: Answer) -> set[str]:
    """The sources of a compilation, absolute."""
    return {
        name
        for step in answer.transcript.steps
        for name in values(step.argv, ("--orig_src_path_name",))
    }
