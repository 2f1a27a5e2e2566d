"""Runner of a graph: the longest critical path first, within the pool's slots and memory.

In: a `Graph`, a `Pool`, an `Executor` and optionally a `ResultCache`. Out: an `Outcome`.
One thread owns all state and handles one event after the other:

    graph ─> Schedule.ready ──> lookup in the cache ──hit──────────────> succeeded
                  ^                    │ miss                               │
                  │                    v                                    v
                  │        admission ─> Pool.acquire ─> program ─> exit ─> RunLog ─> Outcome
                  │                                       │ ^
                  └── out of memory: retry, then solo ────┘ └─ MemoryWatchdog

Each lookup and each program puts one event into a common queue at its end. An event costs the same
however many steps run or wait: nothing here loops over all of them. A failed step stops only the
steps after it in the graph's order, so the reported failure does not depend on which step ends
first.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import os
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, Protocol

from archsplit.errors import DiskFullError, StepError
from archsplit.scheduler.executor import (
    DaemonThreads,
    LocalExecutor,
    MemoryWatchdog,
    RunningTask,
    is_out_of_memory,
)
from archsplit.scheduler.outcome import RunLog, file_size
from archsplit.scheduler.pool import ALL_MEMORY, Denied, PoolRequest, WaitReason
from archsplit.scheduler.schedule import (
    CoreAllocator,
    Estimates,
    ExpectedUse,
    MemoryAdmission,
    Schedule,
    minutes_left,
    parallel_seconds,
)
from archsplit.system.patterns import lazy_pattern
from archsplit.system.process import output_tail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from archsplit.scheduler.executor import Executor
    from archsplit.scheduler.graph import Graph, Step
    from archsplit.scheduler.history import History
    from archsplit.scheduler.outcome import FinishedStep, Outcome
    from archsplit.scheduler.pool import Grant, Pool
    from archsplit.system.process import CompletedProcess, Starter
    from archsplit.system.terminal import ProgressSink

_SHARED_ATTEMPTS = 3
"""Attempts after running out of memory before a step is run with no other."""
_KILL_WAIT_SECONDS = 5.0
"""Seconds for a killed step to end; longer than its grace period."""
_IDLE_RETRY = 1.0
"""Longest wait in seconds between two attempts to start steps."""
_LOOKUP_SECONDS = 0.05
"""Longest wait for lookups before a result is stored."""
_LOOKUP_THREADS = 64
"""Lookups at a time; each may wait for another process that computes the same step."""
_NO_SPACE = lazy_pattern("No space left on device|fatal error: when writing output to")
NO_SPACE_HINT = "the disk is full: free space where TMPDIR points, and run the command again"
_MIN_FREE_BYTES = 1 << 20
"""Bytes; a compiler that fails with less free space most likely fails for that reason."""
_COMPILER_TOO_NEW = lazy_pattern(r"gcc versions later than (\d+) are not supported")
_MISSING_HEADER = lazy_pattern(
    r"error: ((?:cublas|cufft|cufile|curand|cusolver|cusparse|nvjpeg|nvrtc)(?:Lt|Mg)?)\w*\.h: No"
)
"""A header that comes with one of CUDA's libraries, and not with nvcc."""


class ResultCache(Protocol):
    """Results of steps; its methods never raise."""

    def restore(self, step: Step) -> CompletedProcess | None:
        """Write the step's outputs and return its exit; None for a miss.

        The step's inputs exist. The call is made in another thread, so it may be slow; meanwhile
        the step holds neither a slot nor memory.
        """
        ...

    def store(self, step: Step, done: CompletedProcess) -> None:
        """Store the result of a step that missed, ran and succeeded."""
        ...


class RunOptions(NamedTuple):
    """Options of a run of a graph.

    Attributes:
        pool: slots and memory.
        runner: starts child processes.
        progress: gets the progress.
        history: measurements of earlier runs; this run's are added and saved.
        parallel: True to give idle cores to long steps that can use them.
        result_cache: results of earlier runs.
        keep_going: True to run all steps that need no failed one.
        executor: runs the steps, and is closed at the end; None for child processes of ``runner``.
    """

    pool: Pool
    runner: Starter
    progress: ProgressSink
    history: History | None = None
    parallel: bool = True
    result_cache: ResultCache | None = None
    keep_going: bool = False
    executor: Executor | None = None


def run_graph(graph: Graph, options: RunOptions) -> Outcome:
    """Run every step after its dependencies, as the pool allows.

    A failure stops the later steps in the graph's order; the earlier steps go on. So the reported
    failure is the first failure of a serial run.

    Raises:
        ToolNotFoundError: a program can't be started.
        ToolFailedError: a program ran past its timeout.
        InterruptedByUserError: the runner was canceled from outside.
    """
    known = {} if options.history is None else options.history.estimates
    outcome = GraphRunner(graph, Estimates(graph.steps, known, size_of=file_size), options).run()
    if options.history is not None:
        options.history.update(graph, outcome)
    return outcome


def check_outcome(
    graph: Graph, outcome: Outcome, *, keep_going: bool = False
) -> tuple[FinishedStep, ...]:
    """Return the finished steps in the graph's order.

    Args:
        graph: the steps that ran.
        outcome: the outcome of the run.
        keep_going: True to report all failed steps, not only the first.

    Raises:
        StepError: a step failed, or did not write one of its outputs.
        DiskFullError: a step failed because the disk is full.
    """
    failed = [step for step in outcome.finished if step.fault]
    if keep_going and len(failed) > 1:
        texts = (str(_failure_error(graph.steps[one.position], one)) for one in failed)
        skipped = len(graph.steps) - len(outcome.finished)
        raise StepError(
            "\n".join(texts) + f"\n{len(failed)} steps failed; not run because of them: {skipped}"
        )
    if outcome.failure is not None:
        raise _failure_error(graph.steps[outcome.failure.position], outcome.failure)
    return outcome.finished


def is_disk_full(step: Step, failed: FinishedStep) -> bool:
    """Return True if a step failed because the disk is full."""
    # gcc's reason may be "No such file or directory", and there is space when it has ended.
    is_reported = _NO_SPACE.search(failed.stderr) is not None
    return is_reported or any(has_no_space(path.parent) for path in step.writes)


def _failure_error(step: Step, failed: FinishedStep) -> StepError | DiskFullError:
    output = output_tail(failed.stdout, failed.stderr)
    # The same message as without groups.
    culprit = step.parts[failed.failed_part] if step.parts else step
    command = culprit.command_for(failed.cores).text()
    message = f"{culprit.name} {failed.fault}\n  {command}\n{output}"
    if is_disk_full(step, failed):
        return DiskFullError(message, hint=NO_SPACE_HINT)
    # The error of CUDA's crt/host_config.h for a g++ that came out after the toolkit.
    if newest := _COMPILER_TOO_NEW.search(failed.stderr):
        program = f"g++-{newest[1]}"
        return StepError(message, hint=f"install {program}, and set NVCC_CCBIN={program}")
    if header := _MISSING_HEADER.search(failed.stderr):
        line = f'cuda-libraries = ["{header[1]}"]'
        hint = f"{line} in [link] of a recipe finds the library and its headers"
        return StepError(message, hint=hint)
    return StepError(message)


def has_no_space(folder: Path) -> bool:
    """Return True if a folder's disk has no room for a tool's file."""
    if not folder.is_dir():
        return False
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize < _MIN_FREE_BYTES


class GraphRunner:
    """The state of one run; used by one thread."""

    def __init__(self, graph: Graph, estimates: Estimates, options: RunOptions) -> None:
        pool = options.pool
        self._graph = graph
        self._estimates = estimates
        self._pool = pool
        self._executor = options.executor or LocalExecutor(options.runner)
        self._progress = options.progress
        self._urgency = graph.critical_path(estimates.seconds)
        ranks = graph.ranks(estimates.seconds)
        self._schedule = Schedule(graph, ranks, keep_going=options.keep_going)
        self._allocator = CoreAllocator(
            graph, estimates, self._schedule, pool, enabled=options.parallel
        )
        self._log = RunLog(graph)
        self._watchdog = MemoryWatchdog(pool)
        # This machine's steps and a farm's have slots of their own.
        self._kinds = len({step.is_remote for step in graph.steps})
        self._active: dict[int, RunningTask] = {}
        self._alone: set[int] = set()
        self._free_slots: list[int] = []
        self._ended_count = 0
        self._ended_seconds = 0.0
        self._all_seconds = sum(estimates.seconds)
        # A step is looked up or run, never both at a time: its position tells which has ended.
        self._ended: SimpleQueue[tuple[int, CompletedProcess | BaseException | None]] = (
            SimpleQueue()
        )
        self._lookups = PendingLookups(options.result_cache, self._ended.put)

    def run(self) -> Outcome:
        """Run to the end; on an exception, kill all programs first."""
        self._lookups.add(self._schedule.ready)
        try:
            while not self._schedule.is_finished:
                self._handle_events(self._start_ready())
        except BaseException:
            self._kill_all()
            raise
        finally:
            self._lookups.close()
            self._executor.close()
        while self._lookups.has_results:
            self._lookups.store_result()
        return self._log.outcome(self._schedule.first_failed)

    # Starting

    def _start_ready(self) -> float:
        """Start all steps that may start; return the seconds until the next attempt."""
        self._start_lookups()
        running = tuple(self._active.values())
        admission = MemoryAdmission(now=self._log.now(), running=self._expected_uses(running))
        retry = _IDLE_RETRY
        full: set[bool] = set()
        for position in self._ready_now():
            is_remote = self._graph.steps[position].is_remote
            if is_remote in full:
                continue
            seconds, memory = self._estimates.seconds[position], self._memory(position)
            if not admission.admits(memory, seconds=seconds):
                continue
            request = PoolRequest(memory, self._urgency[position], is_remote)
            grant = self._pool.acquire(request)
            if not isinstance(grant, Denied):
                self._start(position, grant, memory)
                admission.count_started(memory, seconds=seconds)
                continue
            retry = min(retry, grant.retry or retry)
            # Without a slot no later step of its kind can start either; with too little memory a
            # smaller one can.
            if grant.reason is not WaitReason.MEMORY:
                full.add(is_remote)
                if len(full) == self._kinds:
                    break
                continue
            admission.hold_back(memory, short=grant.short)
        return retry

    def _ready_now(self) -> Iterator[int]:
        """Yield the ready steps, while steps are started in between."""
        at = 0
        ready = self._schedule.ready
        while at < len(ready):
            position = ready[at]
            yield position
            # A step that was started is gone from the list.
            if at < len(ready) and ready[at] == position:
                at += 1

    def _start_lookups(self) -> None:
        for position in self._lookups.take_new():
            # A failure may have made it needless meanwhile.
            if position in self._schedule.ready:
                self._schedule.start(position)
                self._lookups.start(position, self._graph.steps[position])

    def _memory(self, position: int) -> int:
        if self._graph.steps[position].is_remote:
            return 0
        return ALL_MEMORY if position in self._alone else self._estimates.memory(position)

    def _expected_uses(self, tasks: Iterable[RunningTask]) -> Iterator[ExpectedUse]:
        return (ExpectedUse(self._expected_end(task), task.held_memory) for task in tasks)

    def _expected_end(self, task: RunningTask) -> float:
        seconds = parallel_seconds(task.cores, self._estimates.ready_seconds(task.position))
        return max(task.started + seconds, self._log.now())

    def _cores(self, position: int) -> int:
        if not self._allocator.is_candidate(position):
            return 1
        ends = {position: self._expected_end(task) for position, task in self._active.items()}
        ends |= dict.fromkeys(self._lookups.active, math.inf)
        return self._allocator.cores(position, self._active, ends, self._log.now())

    def _start(self, position: int, grant: Grant, memory: int) -> None:
        try:
            cores = self._cores(position)
            running = self._executor.start(
                self._graph.steps[position], cores=cores, ended=partial(self._put_end, position)
            )
        except BaseException:
            grant.release()
            raise
        now = self._log.now()
        # The lowest free number: traces have as many rows as steps ran at a time.
        slot = heapq.heappop(self._free_slots) if self._free_slots else len(self._active)
        task = RunningTask(
            position, running, grant, slot=slot, cores=cores, started=now, memory=memory
        )
        self._active[position] = task
        self._schedule.start(position)
        if self._executor.is_local:
            self._watchdog.check_soon(now)
        self._log.add_start(position)

    def _put_end(self, position: int, done: CompletedProcess | BaseException) -> None:
        self._ended.put((position, done))

    # Ending

    def _handle_events(self, retry: float) -> None:
        """Handle all events that are there, or check memory; wait at most ``retry`` seconds."""
        is_waiting = self._lookups.has_results and bool(self._lookups.active)
        while self._ended.empty() and not is_waiting and self._lookups.has_results:
            self._lookups.store_result()
        watched = self._executor.is_local and bool(self._active)
        until_check = self._watchdog.next_check - self._log.now()
        try:
            limit = min(retry, until_check) if watched else retry
            # Programs wait for lookups, which take milliseconds, unless another process makes the
            # result: then that one may wait for a result of this one.
            limit = min(limit, _LOOKUP_SECONDS) if is_waiting else limit
            self._handle_end(*self._ended.get(timeout=max(0.0, limit)))
            # All of them, before steps are started again: many steps end at a time on a farm.
            while not self._ended.empty():
                self._handle_end(*self._ended.get())
        except Empty:
            if is_waiting:
                self._lookups.store_result()
            if watched and self._log.now() >= self._watchdog.next_check:
                # The end of a farm's step frees no memory here.
                steps, active = self._graph.steps, self._active.values()
                local = [task for task in active if not steps[task.position].is_remote]
                self._watchdog.check(self._log.now(), local)

    def _handle_end(self, position: int, done: CompletedProcess | BaseException | None) -> None:
        task = self._remove_ended(position)
        if isinstance(done, BaseException):
            raise done
        # The exit code of a canceled step is its signal's: the step has not failed.
        if task.is_canceled:
            self._schedule.discard(position)
        elif isinstance(task, RunningTask) and done is not None:
            self._handle_exit(task, done)
        else:
            self._handle_lookup(position, done)

    def _remove_ended(self, position: int) -> RunningTask | Lookup:
        if position in self._lookups.active:
            return self._lookups.active.pop(position)
        task = self._active.pop(position)
        heapq.heappush(self._free_slots, task.slot)
        task.grant.release()
        return task

    def _handle_lookup(self, position: int, restored: CompletedProcess | None) -> None:
        if restored is None:
            self._schedule.requeue(position)
            return
        self._check_outputs(position)
        self._log.add_cached(position, restored)
        self._succeeded(position, 0.0)

    def _check_outputs(self, position: int) -> None:
        check = self._graph.steps[position].check
        if check is not None:
            check()

    def _succeeded(self, position: int, seconds: float) -> None:
        name = self._graph.steps[position].name
        self._ended_seconds += self._estimates.seconds[position]
        self._progress.finish_step(self._progress_label(name), seconds)
        self._lookups.add(self._schedule.succeed(position))

    def _progress_label(self, name: str) -> str:
        if self._executor.is_local:
            return name
        # Without it the user can't see whether a farm is busy or idle, or the network is slow.
        self._ended_count += 1
        running = len(self._active)
        remaining = len(self._graph.steps) - self._ended_count - running
        minutes = minutes_left(self._log.now(), done=self._ended_seconds, total=self._all_seconds)
        left = f", {minutes} min left" if minutes else ""
        moved = f"{self._executor.moved / 1e6:.1f} MB moved"
        return f"{name}; {running} running, {remaining} remaining, {moved}{left}"

    def _handle_exit(self, task: RunningTask, done: CompletedProcess) -> None:
        position, step = task.position, self._graph.steps[task.position]
        self._estimates.observe(position, max(done.peak_memory, task.peak_memory))
        fault = self._executor.find_fault(step, done)
        # A farm has begun a step again before it reports such an end.
        is_here = self._executor.is_local and not step.is_remote
        needs_memory = is_out_of_memory(done) and is_here and not task.is_alone
        if fault and (task.killed_for_memory or needs_memory):
            self._restart(task, step)
            return
        self._log.add_finished(task, done, fault, is_remote=not is_here)
        if fault:
            running: dict[int, RunningTask | Lookup] = {**self._active, **self._lookups.active}
            for each in self._schedule.fail(position):
                running[each].cancel()
        else:
            self._check_outputs(position)
            self._succeeded(position, done.seconds)
            self._lookups.add_result(step, done)

    def _restart(self, task: RunningTask, step: Step) -> None:
        position, how = task.position, "when there is more"
        if not task.killed_for_memory or self._log.attempts(position) >= _SHARED_ATTEMPTS:
            self._alone.add(position)
            how = "without other steps"
        self._progress.note(f"{step.name} ran out of memory; it is run again {how}")
        self._schedule.requeue(position)

    def _kill_all(self) -> None:
        """Kill all programs and wait for their ends."""
        for task in self._active.values():
            task.cancel()
        # An exception of a signal's handler can interrupt any line above, and an event may be lost:
        # hence the timeout.
        with contextlib.suppress(Empty):
            while self._active:
                ended, _ = self._ended.get(timeout=_KILL_WAIT_SECONDS)
                # A lookup, or a step that the signal kept out of the list.
                if ended in self._active:
                    self._remove_ended(ended)
        self._executor.kill_unawaited()


class PendingLookups:
    """Lookups of one run, and new results that are still to be stored.

    Args:
        result_cache: None for a run without a cache.
        ended: called in another thread with the result of each lookup.

    Attributes:
        active: running lookups by position.
    """

    def __init__(
        self,
        result_cache: ResultCache | None,
        ended: Callable[[tuple[int, CompletedProcess | BaseException | None]], None],
    ) -> None:
        self.active: dict[int, Lookup] = {}
        self._result_cache = result_cache
        self._ended = ended
        self._threads = DaemonThreads(_LOOKUP_THREADS)
        self._new: list[int] = []
        self._results: list[tuple[Step, CompletedProcess]] = []

    def add(self, positions: Iterable[int]) -> None:
        """Add steps that have become ready, to be looked up."""
        if self._result_cache is not None:
            self._new += positions

    def take_new(self) -> list[int]:
        """Return the added steps, each once."""
        new, self._new = self._new, []
        return new

    def start(self, position: int, step: Step) -> None:
        """Start the lookup of a step in another thread."""
        assert self._result_cache is not None
        self.active[position] = Lookup()
        self._threads.call(partial(self._restore, self._result_cache, position, step))

    def add_result(self, step: Step, done: CompletedProcess) -> None:
        """Add the result of a step that has succeeded."""
        if self._result_cache is not None:
            self._results.append((step, done))

    @property
    def has_results(self) -> bool:
        """Return True if there are results to store."""
        return bool(self._results)

    def store_result(self) -> None:
        """Store the oldest new result; called while the runner is idle."""
        assert self._result_cache is not None
        self._result_cache.store(*self._results.pop(0))

    def close(self) -> None:
        """Release the threads."""
        self._threads.close()

    def _restore(self, result_cache: ResultCache, position: int, step: Step) -> None:
        try:
            restored = result_cache.restore(step)
        except BaseException as error:  # noqa: BLE001 - raised again by `GraphRunner`
            self._ended((position, error))
        else:
            self._ended((position, restored))


class Lookup:
    """A running lookup of a step's result; holds neither slot nor memory.

    Attributes:
        is_canceled: True if an earlier step has failed meanwhile.
    """

    def __init__(self) -> None:
        self.is_canceled = False

    def cancel(self) -> None:
        """Ignore the result."""
        self.is_canceled = True
