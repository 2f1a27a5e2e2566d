from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from scheduler_samples import FakeRunner, plenty, step

from archsplit.scheduler.graph import Graph
from archsplit.scheduler.pool import LocalPool
from archsplit.scheduler.runner import RunOptions, run_graph
from archsplit.scheduler.schedule import allocate_cores, parallel_seconds
from archsplit.system.process import Command, CompletedProcess
from archsplit.system.terminal import SilentProgress

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("seconds", "idle", "waiting", "wide", "cores"),
    [
        # The only one on 16 cores, or beside six others like it.
        (10.0, 16, 0, 0, 16),
        (10.0, 9, 6, 6, 7),
        # All cores have something to do, or will have.
        (10.0, 8, 7, 0, 1),
        (10.0, 1, 0, 0, 1),
        (10.0, 0, 0, 0, 1),
        # Too short to be worth it.
        (0.9, 16, 0, 0, 1),
    ],
)
def test_long_steps_use_idle_cores(
    seconds: float, idle: int, waiting: int, wide: int, cores: int
) -> None:
    assert allocate_cores(seconds, slots=16, idle=idle, waiting=waiting, parallel=wide) == cores


def test_one_step_gets_no_more_threads_than_slots() -> None:
    assert allocate_cores(10.0, slots=2, idle=2, waiting=0, parallel=0) == 2


def test_step_on_shared_cores_gains_less() -> None:
    assert [parallel_seconds(cores, 8.0) for cores in (1, 3, 6, 24)] == [8.0, 8.0, 4.0, 1.0]


def compilation(folder: Path, targets: int) -> Graph:
    """Preprocess, cicc and ptxas for each target, of which the last two can spread."""
    steps = []
    for at in range(targets):
        steps += [
            step(f"pre{at}", "", f"i{at}", folder=folder, weight=0.05),
            step(
                f"cicc{at}",
                f"i{at}",
                f"p{at}",
                folder=folder,
                weight=5,
                parallel_flags=("--n={cores}",),
            ),
            step(
                f"ptxas{at}",
                f"p{at}",
                f"c{at}",
                folder=folder,
                weight=2,
                parallel_flags=("--n={cores}",),
            ),
        ]
    return Graph(steps=tuple(steps))


def cores_of(folder: Path, targets: int, slots: int) -> dict[str, set[int]]:
    def behaviour(command: Command) -> CompletedProcess:
        time.sleep(0.01 if command.argv[0].startswith("pre") else 0.1)
        return CompletedProcess(returncode=0, stdout="", stderr="", seconds=0.0)

    outcome = run_graph(
        compilation(folder, targets),
        RunOptions(
            pool=LocalPool(slots, plenty(folder)),
            runner=FakeRunner(behaviour),
            progress=SilentProgress(),
        ),
    )
    found: dict[str, set[int]] = {}
    for done in outcome.finished:
        found.setdefault(done.name.rstrip("0123456789"), set()).add(done.cores)
    return found


def test_with_few_targets_and_many_cores_all_long_steps_spread(tmp_path: Path) -> None:
    found = cores_of(tmp_path, targets=7, slots=16)
    assert found["pre"] == {1}
    # As many threads for each: not one of the seven holds up the others.
    assert found["cicc"] == {7}
    assert min(found["ptxas"]) >= 7


def test_one_target_gets_all_cores(tmp_path: Path) -> None:
    assert cores_of(tmp_path, targets=1, slots=8) == {"pre": {1}, "cicc": {8}, "ptxas": {8}}


def test_with_more_targets_than_cores_nothing_spreads_until_the_end(tmp_path: Path) -> None:
    found = cores_of(tmp_path, targets=9, slots=4)
    assert 1 in found["cicc"]
