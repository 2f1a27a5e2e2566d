from __future__ import annotations

from archsplit.scheduler.schedule import ExpectedUse, MemoryAdmission


def test_before_anybody_is_refused_everybody_may_ask() -> None:
    line = MemoryAdmission(now=0.0, running=())
    assert line.admits(1 << 50, seconds=1e9)
    line.count_started(1 << 50, seconds=1e9)


def test_step_passes_a_waiting_one_if_it_ends_in_time_or_leaves_enough() -> None:
    line = MemoryAdmission(now=10.0, running=[ExpectedUse(20.0, 300), ExpectedUse(12.0, 100)])
    line.hold_back(500, short=250)
    # At 20 s 400 bytes will have become free, of which 250 are spoken for.
    assert line.admits(400, seconds=10.0)
    assert not line.admits(400, seconds=10.1)
    assert line.admits(150, seconds=99.0)
    line.count_started(150, seconds=99.0)
    assert not line.admits(1, seconds=99.0)
    line.count_started(300, seconds=5.0)
    assert line.admits(0, seconds=99.0)


def test_step_as_large_as_a_refused_one_is_refused() -> None:
    line = MemoryAdmission(now=0.0, running=[ExpectedUse(5.0, 1000)])
    line.hold_back(500, short=250)
    assert not line.admits(500, seconds=1.0)
    line.hold_back(200, short=10)
    assert not line.admits(200, seconds=1.0)
    assert line.admits(199, seconds=1.0)


def test_step_ending_after_the_last_running_one_is_held_back() -> None:
    line = MemoryAdmission(now=0.0, running=[ExpectedUse(5.0, 100), ExpectedUse(9.0, 100)])
    line.hold_back(1 << 60, short=1 << 60)
    assert line.admits(50, seconds=9.0)
    assert not line.admits(50, seconds=9.5)


def test_step_passes_if_only_other_processes_are_in_the_way() -> None:
    line = MemoryAdmission(now=0.0, running=())
    line.hold_back(500, short=100)
    assert line.admits(400, seconds=1e9)
