"""Between a compilation and the cache: what is looked for when, and what is stored."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit import __version__
from archsplit.cache.cache import Cache
from archsplit.cache.config import config_file
from archsplit.compiler.direct_cache import WHOLE, CompletedCompile, DirectCache
from archsplit.compiler.direct_record import DirectRecord, OutputPlace, save_record
from archsplit.compiler.replay import save_recording
from archsplit.compiler.request_key import compile_request
from archsplit.compiler.step_cache import StepCache
from archsplit.compiler.step_key import (
    DEPFILE_FLAG,
    has_line_info,
    has_unsupported_flags,
    with_depfile,
)
from archsplit.compiler.tool_identity import GROUP, ToolIdentities, driver_files
from archsplit.nvcc.cmdline import parse_arguments, unsupported_reason
from archsplit.nvcc.depfile import depfile_text, has_other_outputs
from archsplit.nvcc.step_args import option_values
from archsplit.nvcc.steps import StepKind
from archsplit.scheduler.graph import Graph
from archsplit.system.fs import cache_folder, overwrite_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archsplit.cache.config import Settings
    from archsplit.compiler.direct_cache import CachedResult
    from archsplit.compiler.dryrun_query import DryRunResult
    from archsplit.compiler.invocation import Invocation
    from archsplit.compiler.request_key import CompileRequest
    from archsplit.compiler.wrapper import WrapperContext
    from archsplit.compiler.wrapper_graph import WrapperGraph
    from archsplit.scheduler.outcome import Outcome

_COMPILED = {StepKind.CUDAFE, StepKind.CICC, StepKind.PTXAS, StepKind.FATBINARY}
_COMPILED |= {StepKind.PREPROCESS, StepKind.HOST_COMPILE}
_MADE = "makes more than rules"
"""A note beside what is stored: rules name the output as their target then."""


class WrapperCacheSession:
    """One compilation's dealings with the cache.

    Args:
        order: what is asked for.
        around: the effects.
        settings: of the cache; its mode isn't ``off``.
    """

    def __init__(self, order: Invocation, around: WrapperContext, settings: Settings) -> None:
        self._order = order
        self._around = around
        self._cache = Cache(settings, warn=around.warn)
        self._cache.digests.load(GROUP)
        self._tools = ToolIdentities(
            runner=around.runner, digests=self._cache.digests, cwd=order.cwd
        )
        self._began = time.time_ns()
        whole = not settings.strict and settings.mode != "verify"
        self._request = self._asked() if whole else None
        self._known: DirectCache | None = None
        self._memory: StepCache | None = None

    def recall(self) -> bool:
        """Leave the results where nvcc would, and say what it would say; False if unknown."""
        asked, environment = self._request, self._order.environment
        if asked is None:
            return False
        self._known = DirectCache(self._cache, asked, environment=environment, tools=self._tools)
        found = self._known.recall().get(*WHOLE)
        if found is None or not self._left(found, asked):
            return False
        self._note(found, asked)
        self._around.say(found.stdout, found.stderr)
        if self._around.explain_cache:
            self._around.warn(f"all of it was known ({found.tier})")
        return True

    def listed(self, todo: WrapperGraph, folder: Path) -> WrapperGraph:
        """The plan, with compiles for the host that list what they read."""
        steps = tuple(with_depfile(step, folder) for step in todo.graph.steps)
        return replace(todo, graph=Graph(steps=steps))

    def memory(self, todo: WrapperGraph, folder: Path) -> StepCache:
        """What knows the results of single steps."""
        words = (word for step in todo.graph.steps for word in step.command.argv)
        self._memory = StepCache(
            self._cache,
            self._tools,
            private=folder,
            precise=has_line_info(words),
            spread=not self._order.reproducible,
        )
        return self._memory

    def remember(
        self, answer: DryRunResult, todo: WrapperGraph, outcome: Outcome, folder: Path
    ) -> None:
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
                self._cache.digests.recheck()
                stored = self._known.recall(counted=False).get(*WHOLE)
                if stored is not None:
                    self._note(stored, self._request)
        if outcome.failure is None:
            self._keep(answer, todo, outcome, folder, wholes)

    def _keep(
        self,
        answer: DryRunResult,
        todo: WrapperGraph,
        outcome: Outcome,
        folder: Path,
        wholes: Mapping[str, Mapping[str, Path]],
    ) -> None:
        """Write down what was run, so that `archsplit cache verify` can run it again."""
        save_recording(
            self._cache,
            todo.graph.steps,
            subject=" ".join(sorted(_sources(answer))),
            private=folder,
            before=todo.texts,
            precise=has_line_info(word for step in todo.graph.steps for word in step.command.argv),
            spread=not self._order.reproducible,
            cores={each.name: each.cores for each in outcome.finished if each.attempts},
            wholes=wholes,
        )

    def close(self) -> None:
        """Finish what is under way."""
        self._cache.close()

    def _asked(self) -> CompileRequest | None:
        order = self._order
        arguments = parse_arguments(order.argv)
        if (
            order.files.any
            or arguments.keep
            or arguments.has_options_files
            or unsupported_reason(order.argv)
        ):
            return None
        nvcc = os.path.realpath(order.nvcc)
        spread = "" if order.reproducible else " spread"
        return compile_request(
            arguments.query,
            nvcc=nvcc,
            driver=self._tools.driver(nvcc, order.environment),
            cwd=order.cwd,
            environment=order.environment,
            salt=self._cache.settings.salt,
            version=__version__ + spread,
        )

    def _note(self, found: CachedResult, asked: CompileRequest) -> None:
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
            observed=tuple((path, digests.digest(path, group=GROUP) or "") for path in files),
            places=(
                *(OutputPlace(str(asked.path(role)), role) for role in found.outputs),
                *(
                    OutputPlace(str(asked.path(role)), "", text.decode(errors="surrogateescape"))
                    for role, text in self._rules(found).items()
                ),
            ),
        )
        save_record(settings.folder, order.direct, record)

    def _left(self, found: CachedResult, asked: CompileRequest) -> bool:
        try:
            for role, content in (*found.outputs.items(), *self._rules(found).items()):
                overwrite_file(asked.path(role), content)
        except OSError:
            # nvcc says it best.
            return False
        return True

    def _rules(self, found: CachedResult) -> dict[str, bytes]:
        """Return the rules for make that were found, by what they are."""
        rules, made = parse_arguments(self._order.argv).depfile, _MADE in found.notes
        return {
            role: depfile_text([markers], options=rules, made=made)
            for role, markers in found.rules.items()
        }

    def _done(
        self,
        answer: DryRunResult,
        todo: WrapperGraph,
        outcome: Outcome,
        folder: Path,
        asked: CompileRequest,
    ) -> CompletedCompile | None:
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
            if any(option_values(step.command.argv, (DEPFILE_FLAG,)))
        }
        # What is preprocessed to standard output, and what lists nothing of what it reads.
        unseen = any(
            not (step.writes or step.kind is not StepKind.PREPROCESS)
            or (step.kind is StepKind.HOST_COMPILE and not step.reads and not seen & {*step.writes})
            for step in steps
        )
        if unseen or len(rules) != len(answer.transcript.dependencies):
            return None
        if any(has_unsupported_flags(argv) for argv in commands):
            return None
        made = (path for step in todo.graph.steps for path in step.writes)
        listed = (Path(name) for argv in commands for name in option_values(argv, (DEPFILE_FLAG,)))
        finished = outcome.finished
        said = [f"{line}\n" for line in answer.transcript.diagnostics]
        stderr = "".join([*said, *(each.stderr for each in finished)])
        if str(folder) in stderr:
            return None
        return CompletedCompile(
            outputs={
                "": {asked.role(path): path for path in made if not path.is_relative_to(folder)}
            },
            texts=tuple(
                path for step in steps if step.kind is StepKind.PREPROCESS for path in step.writes
            ),
            listings=tuple(listed),
            rules={asked.role(path): sources for path, sources in rules.items()},
            notes={"": {_MADE: "1"} if has_other_outputs(answer.transcript) else {}},
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

    def _tell(self, answer: DryRunResult, why: tuple[str, ...]) -> None:
        told = () if self._memory is None else self._memory.told
        lines = (*(("", line) for line in why), *((each.target, each.line) for each in told))
        for source in _sources(answer):
            self._cache.miss_log.write_reasons(source, lines)
        if self._around.explain_cache:
            for _, line in lines:
                self._around.warn(line)


def _sources(answer: DryRunResult) -> set[str]:
    """The sources of a compilation, absolute."""
    return {
        name
        for step in answer.transcript.steps
        for name in option_values(step.argv, ("--orig_src_path_name",))
    }
