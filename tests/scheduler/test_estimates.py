from __future__ import annotations

from pathlib import Path

from scheduler_samples import MB, step

from archsplit.scheduler.schedule import DEFAULT_MEMORY, Estimates, StepEstimate, minutes_left

STEPS = (
    step("cicc a", weight=6, memory=1000 * MB, key="a"),
    step("cicc b", weight=6, memory=1000 * MB),
    step("other", weight=1),
)


def test_the_history_is_better_than_a_guess() -> None:
    forecast = Estimates(STEPS, {"a": StepEstimate(2.5, 400 * MB), "": StepEstimate(99.0, 1)})
    assert list(forecast.seconds) == [2.5, 6, 1]
    assert [forecast.is_measured(at) for at in range(3)] == [True, False, False]
    assert forecast.memory(0) == 440 * MB
    assert forecast.memory(1) == 1000 * MB
    assert forecast.memory(2) == DEFAULT_MEMORY


def test_memory_of_a_step_is_expected_of_its_kind() -> None:
    forecast = Estimates(STEPS, {})
    forecast.observe(0, 3000 * MB)
    forecast.observe(0, 2000 * MB)
    assert forecast.memory(1) == 3300 * MB
    assert forecast.memory(2) == DEFAULT_MEMORY


def test_too_large_guess_loses_its_weight() -> None:
    forecast = Estimates(STEPS, {})
    forecast.observe(0, 0)
    assert forecast.memory(1) == 1000 * MB
    forecast.observe(0, 100 * MB)
    assert forecast.memory(1) == 500 * MB
    for _ in range(20):
        forecast.observe(0, 100 * MB)
    assert forecast.memory(1) == 110 * MB


def test_observed_memory_of_a_step_is_its_floor() -> None:
    forecast = Estimates(STEPS, {"a": StepEstimate(2.5, 400 * MB)})
    forecast.observe(0, 1000 * MB)
    assert forecast.memory(0) == 1100 * MB
    # One that is known says nothing of the others.
    assert forecast.memory(1) == 1000 * MB


def test_memory_is_estimated_from_the_input_size() -> None:
    steps = [STEPS[1]._replace(reads=(Path("a"), Path("b")), memory=100 * MB, memory_per_byte=75)]
    sizes = {Path("a"): 10 * MB, Path("b"): 2 * MB}
    asked = []

    def size_of(path: Path) -> int:
        asked.append(path)
        return sizes[path]

    forecast = Estimates(steps, {}, size_of=size_of)
    assert asked == []
    assert forecast.memory(0) == 1100 * MB
    assert forecast.memory(0) == 1100 * MB
    assert asked == [Path("a"), Path("b")]


def test_input_size_predicts_the_first_run() -> None:
    sized = STEPS[1]._replace(reads=(Path("a"),), weight=0.9, seconds_per_byte=1.5e-6)
    steps = [sized, sized._replace(seconds_per_byte=0.0), sized._replace(key="known")]
    known = {"known": StepEstimate(7.0, 0)}
    forecast = Estimates(steps, known, size_of=lambda _: 2_000_000)
    assert [forecast.ready_seconds(at) for at in range(3)] == [3.0, 0.9, 7.0]
    # The order of the steps and the share that is done keep the first guess.
    assert forecast.seconds == (0.9, 0.9, 7.0)
    assert Estimates(steps, known).ready_seconds(0) == 0.9


def test_the_minutes_left_follow_from_the_speed_up_to_now() -> None:
    # A tenth of the work in ten minutes.
    assert minutes_left(600.0, done=10.0, total=100.0) == 90
    assert minutes_left(600.0, done=99.0, total=100.0) == 0
    assert minutes_left(600.0, done=1.0, total=100.0) == 0
    assert minutes_left(600.0, done=0.0, total=0.0) == 0
