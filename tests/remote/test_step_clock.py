"""Times of a step by the clock of this machine, whatever the clock of its worker is."""

from __future__ import annotations

from archsplit.remote.action import StepClock


def stages(clock: StepClock) -> list[tuple[str, float, float, bool]]:
    return [
        (each.name, each.begin, each.seconds, each.is_on_worker)
        for each in clock.placement().stages
    ]


def test_the_last_stage_of_a_worker_ends_with_the_reply() -> None:
    times = iter([10.0, 11.0, 20.0, 21.0])
    clock = StepClock(lambda: next(times))
    clock.end_stage("upload")
    # The worker's clock is far ahead, and the server has left one stage out.
    there = [
        ("input fetch", 5000.0, 5001.0),
        ("execution", 5001.0, 5004.0),
        ("output upload", 0, 0),
    ]
    clock.end_remote("w1", there)
    clock.end_stage("download")
    assert clock.placement().worker == "w1"
    assert stages(clock) == [
        ("upload", 0.0, 1.0, False),
        ("queue", 1.0, 5.0, False),
        ("input fetch", 6.0, 1.0, True),
        ("execution", 7.0, 3.0, True),
        ("download", 10.0, 1.0, False),
    ]


def test_a_server_without_times_has_a_queue_alone() -> None:
    times = iter([0.0, 4.0])
    clock = StepClock(lambda: next(times))
    clock.end_remote("a worker", [("execution", 0.0, 0.0)])
    assert stages(clock) == [("queue", 0.0, 4.0, False)]


def test_a_step_that_joins_a_running_one_has_waited_for_nothing() -> None:
    times = iter([0.0, 2.0])
    clock = StepClock(lambda: next(times))
    clock.end_remote("w1", [("execution", 100.0, 109.0)])
    assert stages(clock) == [("queue", 0.0, 0.0, False), ("execution", 0.0, 2.0, True)]
