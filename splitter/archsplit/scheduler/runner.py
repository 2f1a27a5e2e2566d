"""Ask what may know the results of steps, before they are started and after they have run.

Run a graph: start what may start, wait for what runs, watch its memory.

Run a graph, longest critical path first, with cores and memory as what limits it.

What may know the result of a step, so that it needn't run.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Protocol

from archsplit.errors import DiskFullError, StepError
from archsplit.scheduler.estimates import Estimates
from archsplit.scheduler.plan import (
    CoreAllocator,
    ExpectedUse,
    MemoryAdmission,
    Schedule,
    parallel_seconds,
)
from archsplit.scheduler.pool import ALL_MEMORY, Denied, PoolRequest, WaitReason
from archsplit.scheduler.run_log import RunLog
from archsplit.scheduler.task import MemoryWatchdog, RunningTask, is_out_of_memory, task_fault
from archsplit.system.process import output_tail

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from archsplit.scheduler.graph import Graph, Step
    from archsplit.scheduler.history import History
    from archsplit.scheduler.outcome import FinishedStep, Outcome
    from archsplit.scheduler.pool import Grant, Pool
    from archsplit.system.process import CompletedProcess, Starter
    from archsplit.system.progress import ProgressSink


class Lookup:
    """A step whose result is being looked for; it holds neither cores nor memory.

    Attributes:
        is_cancelled: whether an earlier step has failed meanwhile.
    """

    def __init__(self, position: int) -> None:
        self.position = position
        self.is_cancelled = False

    def cancel(self) -> None:
        """What is found is of no use any more."""
        self.is_cancelled = True


class PendingLookups:
    """What was asked in one run, and what is left to be remembered.

    Args:
        result_cache: what may know results; None where nothing does.
        answered: is told, in another thread, what came of each question.
    """

    def __init__(
        self,
        result_cache: ResultCache | None,
        answered: Callable[[tuple[Lookup, CompletedProcess | BaseException | None]], None],
    ) -> None:
        self.active: dict[int, Lookup] = {}
        self._memo = result_cache
        self._answered = answered
        self._asked: set[int] = set()
        self._fresh: list[tuple[Step, CompletedProcess]] = []

    def start(self, position: int, step: Step) -> bool:
        """Look for the result in a thread of its own; False if that was done, or is of no use."""
        if self._memo is None or position in self._asked:
            return False
        self._asked.add(position)
        self.active[position] = asking = Lookup(position)
        threading.Thread(target=self._look, args=(self._memo, asking, step), daemon=True).start()
        return True

    def add_result(self, step: Step, done: CompletedProcess) -> None:
        """A step has run, and succeeded."""
        if self._memo is not None:
            self._fresh.append((step, done))

    def store_results(self) -> None:
        """Have what was made remembered; to be called when there is time."""
        while self._memo is not None and self._fresh:
            self._memo.store(*self._fresh.pop(0))

    def _look(self, result_cache: ResultCache, asking: Lookup, step: Step) -> None:
        try:
            found = result_cache.restore(step)
        except BaseException as error:  # noqa: BLE001 - raised again by who is told
            self._answered((asking, error))
        else:
            self._answered((asking, found))


_PATIENT_ATTEMPTS = 3
"""How often a step may be killed for its memory before it runs alone."""
_LAST_SECONDS = 5.0
"""Within which a killed step has ended; longer than the grace that it is given."""
_IDLE_RETRY = 1.0
"""Seconds; as nothing but an end matters then, this is never too late."""


class GraphRunner:
    """The state of one run, used by one thread."""

    def __init__(
        self,
        graph: Graph,
        forecast: Estimates,
        *,
        pool: Pool,
        runner: Starter,
        progress: ProgressSink,
        parallel: bool,
        result_cache: ResultCache | None = None,
    ) -> None:
        self._graph = graph
        self._forecast = forecast
        self._pool = pool
        self._runner = runner
        self._progress = progress
        self._urgency = graph.critical_path(forecast.seconds)
        self._schedule = Schedule(graph, graph.ranks(forecast.seconds))
        self._spread = CoreAllocator(graph, forecast, self._schedule, pool, enabled=parallel)
        self._journal = RunLog(graph, forecast, self._urgency)
        self._watch = MemoryWatchdog(pool)
        self._active: dict[int, RunningTask] = {}
        self._alone: set[int] = set()
        self._ended: SimpleQueue[
            tuple[RunningTask | Lookup, CompletedProcess | BaseException | None]
        ] = SimpleQueue()
        self._recollection = PendingLookups(result_cache, self._ended.put)

    def run(self) -> Outcome:
        """Run to the end; whatever is raised, nothing runs any more."""
        self._journal.add_ready(self._schedule.ready, after="")
        try:
            while not self._schedule.is_finished:
                self._wait(self._start_all())
        except BaseException:
            self._abandon()
            raise
        self._recollection.store_results()
        return self._journal.outcome(self._schedule.first_failed)

    # Starting

    def _start_all(self) -> float:
        """Start what may start; return after how many seconds to try again, whatever happens."""
        self._ask()
        line = MemoryAdmission(now=self._journal.now(), running=self._expected())
        retry, short = _IDLE_RETRY, set()
        for position in tuple(self._schedule.ready):
            seconds, memory = self._forecast.seconds[position], self._memory(position)
            if not line.admits(memory, seconds=seconds):
                short.add(position)
                continue
            # Asked before, because it counts the slot that the step gets as idle.
            cores = self._cores(position)
            answer = self._pool.acquire(PoolRequest(memory, self._urgency[position]))
            if not isinstance(answer, Denied):
                self._start(position, answer, memory, cores)
                line.count_started(memory, seconds=seconds)
                continue
            retry = min(retry, answer.retry or retry)
            if answer.reason is not WaitReason.MEMORY:
                break
            short.add(position)
            line.hold_back(memory, short=answer.short)
        self._journal.update_waits(short)
        return retry

    def _ask(self) -> None:
        for position in tuple(self._schedule.ready):
            if self._recollection.start(position, self._graph.steps[position]):
                self._schedule.start(position)

    def _memory(self, position: int) -> int:
        return ALL_MEMORY if position in self._alone else self._forecast.memory(position)

    def _expected(self) -> list[ExpectedUse]:
        return [ExpectedUse(self._end(one), one.held_memory) for one in self._active.values()]

    def _end(self, one: RunningTask) -> float:
        seconds = parallel_seconds(one.cores, self._forecast.seconds[one.position])
        return max(one.started + seconds, self._journal.now())

    def _cores(self, position: int) -> int:
        ends = {each: self._end(one) for each, one in self._active.items()}
        ends |= dict.fromkeys(self._recollection.active, math.inf)
        return self._spread.cores(position, self._active, ends, self._journal.now())

    def _start(self, position: int, grant: Grant, memory: int, cores: int) -> None:
        try:
            running = self._runner.start(self._graph.steps[position].command_for(cores))
        except BaseException:
            grant.release()
            raise
        now, slot = self._journal.now(), self._free_slot()
        active = RunningTask(
            position, running, grant, slot=slot, cores=cores, started=now, memory=memory
        )
        self._active[position] = active
        active.wait_in_thread(self._ended.put)
        self._schedule.start(position)
        self._watch.check_soon(now)
        self._journal.add_start(active)

    def _free_slot(self) -> int:
        taken = {one.slot for one in self._active.values()}
        return next(slot for slot in itertools.count() if slot not in taken)

    # Ending

    def _wait(self, retry: float) -> None:
        """Wait for the end of a step, for the next look at memory, or for ``retry`` seconds."""
        if self._ended.empty():
            self._recollection.store_results()
        until_look = self._watch.next_check - self._journal.now()
        try:
            limit = min(retry, until_look) if self._active else retry
            one, done = self._ended.get(timeout=max(0.0, limit))
        except Empty:
            if self._active and self._journal.now() >= self._watch.next_check:
                self._watch.check(self._journal.now(), self._active.values())
            return
        self._forget(one)
        if isinstance(done, BaseException):
            raise done
        if one.is_cancelled:
            self._schedule.discard(one.position)
        elif isinstance(one, RunningTask) and done is not None:
            self._settle(one, done)
        else:
            self._answered(one.position, done)

    def _forget(self, one: RunningTask | Lookup) -> None:
        if isinstance(one, Lookup):
            del self._recollection.active[one.position]
        else:
            del self._active[one.position]
            one.grant.release()

    def _answered(self, position: int, found: CompletedProcess | None) -> None:
        if found is None:
            self._schedule.requeue(position)
            return
        self._journal.add_cached(position, found)
        self._succeeded(position, 0.0)

    def _succeeded(self, position: int, seconds: float) -> None:
        name = self._graph.steps[position].name
        self._progress.finish_step(name, seconds)
        self._journal.add_ready(self._schedule.succeed(position), after=name)

    def _settle(self, active: RunningTask, done: CompletedProcess) -> None:
        position, step = active.position, self._graph.steps[active.position]
        self._forecast.observe(position, max(done.peak_memory, active.peak_memory))
        wrong = task_fault(step, done)
        if wrong and (active.killed_for_memory or (is_out_of_memory(done) and not active.is_alone)):
            self._again(active, step)
            return
        self._journal.add_finished(active, done, wrong)
        if wrong:
            running: dict[int, RunningTask | Lookup] = {**self._active, **self._recollection.active}
            for each in self._schedule.fail(position):
                running[each].cancel()
        else:
            self._succeeded(position, done.seconds)
            self._recollection.add_result(step, done)

    def _again(self, active: RunningTask, step: Step) -> None:
        position, how = active.position, "when there is more"
        if not active.killed_for_memory or self._journal.attempts(position) >= _PATIENT_ATTEMPTS:
            self._alone.add(position)
            how = "alone"
        self._progress.note(f"{step.name} got too little memory; it is run again {how}")
        self._schedule.requeue(position)
        self._journal.add_ready([position], after="")

    def _abandon(self) -> None:
        """Kill what runs, and wait until it is gone."""
        for active in self._active.values():
            active.cancel()
        # A signal's exception may have come between any two lines above, so that an end was lost.
        with contextlib.suppress(Empty):
            while self._active:
                one, _ = self._ended.get(timeout=_LAST_SECONDS)
                self._forget(one)
        self._runner.kill_unawaited()


_NO_SPACE = "No space left on device"
_LITTLE_SPACE = 1 << 20
"""Bytes; a compiler that fails where less is free most likely failed for that reason."""


def run_graph(
    graph: Graph,
    *,
    pool: Pool,
    runner: Starter,
    progress: ProgressSink,
    history: History | None = None,
    parallel: bool = True,
    result_cache: ResultCache | None = None,
) -> Outcome:
    """Run every step, each after those whose files it reads, as the pool allows.

    A failure stops what comes after it in the graph's order; what comes before goes on, so the
    failure reported is the one that running one after the other would have met first.

    Args:
        history: what earlier runs have taken; what this one takes is added and saved.
        parallel: give idle cores to long steps that can use them.
        result_cache: what may know results, so that steps needn't run.

    Raises:
        ToolNotFoundError: a program can't be started.
        ToolFailedError: a program ran past its timeout.
        InterruptedByUserError: the runner was cancelled from outside.
    """
    known = {} if history is None else history.estimates
    forecast = Estimates(graph.steps, known, size_of=_size)
    loop = GraphRunner(
        graph,
        forecast,
        pool=pool,
        runner=runner,
        progress=progress,
        parallel=parallel,
        result_cache=result_cache,
    )
    outcome = loop.run()
    if history is not None:
        history.update(graph, outcome)
    return outcome


def run_graph_checked(
    graph: Graph,
    *,
    pool: Pool,
    runner: Starter,
    progress: ProgressSink,
    history: History | None = None,
    parallel: bool = False,
    result_cache: ResultCache | None = None,
) -> tuple[FinishedStep, ...]:
    """Run a graph as `run_graph` does; a step's failure is an error.

    Returns:
        What each step left, in the graph's order.

    Raises:
        StepError: a step failed, or left out a file that it should have written.
        DiskFullError: a step failed because the disk is full.
        InterruptedByUserError: the runner was cancelled from outside.
    """
    outcome = run_graph(
        graph,
        pool=pool,
        runner=runner,
        progress=progress,
        history=history,
        parallel=parallel,
        result_cache=result_cache,
    )
    if outcome.failure is not None:
        raise _error(graph.steps[outcome.failure.position], outcome.failure)
    return outcome.finished


def _error(step: Step, failed: FinishedStep) -> StepError | DiskFullError:
    said = output_tail(failed.stdout, failed.stderr)
    message = f"{step.name} {failed.fault}\n  {step.command_for(failed.cores).text()}\n{said}"
    if is_disk_full(step, failed):
        hint = "no space left: free some where TMPDIR points, and run it again"
        return DiskFullError(message, hint=hint)
    return StepError(message)


def is_disk_full(step: Step, failed: FinishedStep) -> bool:
    """Whether a step failed because the disk is full."""
    # gcc calls a full disk "No such file or directory", so what it says is not enough.
    return _NO_SPACE in failed.stderr or any(_is_full(path.parent) for path in step.writes)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _is_full(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize < _LITTLE_SPACE


class ResultCache(Protocol):
    """Knows results of steps; never raises."""

    def restore(self, step: Step) -> CompletedProcess | None:
        """Put in place what the step would write, and return what it would say; None if unknown.

        All that the step reads is there. It may take a while, and is called from threads of its
        own; meanwhile the step holds neither cores nor memory.
        """
        ...

    def store(self, step: Step, done: CompletedProcess) -> None:
        """A step of which nothing was known has run, and succeeded."""
        ...
