from __future__ import annotations

from archsplit.scheduler.plan import ExpectedUse, MemoryAdmission


def test_before_anybody_is_refused_everybody_may_ask() -> None:
    line = MemoryAdmission(now=0.0, running=())
    assert line.lets_pass(1 << 50, seconds=1e9)
    line.passed(1 << 50, seconds=1e9)


def test_who_passes_must_end_in_time_or_leave_enough() -> None:
    line = MemoryAdmission(now=10.0, running=[ExpectedUse(20.0, 300), ExpectedUse(12.0, 100)])
    line.refuse(500, short=250)
    # At 20 s 400 bytes will have become free, of which 250 are spoken for.
    assert line.lets_pass(400, seconds=10.0)
    assert not line.lets_pass(400, seconds=10.1)
    assert line.lets_pass(150, seconds=99.0)
    line.passed(150, seconds=99.0)
    assert not line.lets_pass(1, seconds=99.0)
    line.passed(300, seconds=5.0)
    assert line.lets_pass(0, seconds=99.0)


def test_who_needs_as_much_as_one_that_was_refused_needs_not_ask() -> None:
    line = MemoryAdmission(now=0.0, running=[ExpectedUse(5.0, 1000)])
    line.refuse(500, short=250)
    assert not line.lets_pass(500, seconds=1.0)
    line.refuse(200, short=10)
    assert not line.lets_pass(200, seconds=1.0)
    assert line.lets_pass(199, seconds=1.0)


def test_to_be_alone_is_to_wait_for_the_last() -> None:
    line = MemoryAdmission(now=0.0, running=[ExpectedUse(5.0, 100), ExpectedUse(9.0, 100)])
    line.refuse(1 << 60, short=1 << 60)
    assert line.lets_pass(50, seconds=9.0)
    assert not line.lets_pass(50, seconds=9.5)


def test_where_only_other_processes_are_in_the_way_all_may_pass() -> None:
    line = MemoryAdmission(now=0.0, running=())
    line.refuse(500, short=100)
    assert line.lets_pass(400, seconds=1e9)
