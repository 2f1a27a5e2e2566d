from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_samples import MB, step

from archsplit.scheduler import history as module
from archsplit.scheduler.graph import Graph
from archsplit.scheduler.history import History, merge_estimates
from archsplit.scheduler.outcome import FinishedStep, Outcome
from archsplit.scheduler.schedule import StepEstimate

if TYPE_CHECKING:
    from pathlib import Path

KEYED = Graph(steps=(step("one", key="k1"), step("two", key="k2"), step("nameless")))


def finished(position: int, seconds: float, *, cores: int = 1, fault: str = "") -> FinishedStep:
    return FinishedStep(
        name=KEYED.steps[position].name,
        position=position,
        started=1.0,
        ended=1.0 + seconds,
        slot=0,
        cores=cores,
        returncode=0,
        stdout="",
        stderr="",
        fault=fault,
        cpu_seconds=7.0,
        peak_memory=100 * MB,
        attempts=1,
    )


def outcome(*done: FinishedStep) -> Outcome:
    return Outcome(finished=done, failure=None, seconds=0.0)


def test_history_is_read_by_the_next_run(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "history"
    assert History(folder, "a.cu").estimates == {}
    both = outcome(finished(0, 2.0), finished(1, 3.0, cores=4), finished(2, 9.0))
    History(folder, "a.cu").update(KEYED, both)
    assert History(folder, "a.cu").estimates == {
        "k1": StepEstimate(2.0, 100 * MB),
        "k2": StepEstimate(7.0, 100 * MB),
    }
    assert History(folder, "b.cu").estimates == {}
    assert [path.suffix for path in folder.iterdir()] == [".json"]


def test_the_sizes_of_outputs_are_there_next_time(tmp_path: Path) -> None:
    graph = Graph(steps=(step("one", writes="a b", folder=tmp_path, key="k"),))
    (tmp_path / "a").write_bytes(b"12345")
    History(tmp_path / "history", "g").update(graph, outcome(finished(0, 2.0)))
    assert History(tmp_path / "history", "g").estimates["k"].sizes == (5, 0)


def test_farm_measures_only_the_time_on_its_worker(tmp_path: Path) -> None:
    there = finished(0, 64.0)._replace(peak_memory=0, worker_seconds=3.0)
    history = History(tmp_path, "g")
    history.update(KEYED, outcome(there))
    assert history.estimates["k1"] == StepEstimate(3.0, 0)
    history.update(KEYED, outcome(finished(0, 3.0)))
    # Farms measure no memory, and a result that a farm had took no time.
    hit = finished(0, 0.1)._replace(worker_seconds=0.0)
    for one in (there, hit):
        history.update(KEYED, outcome(one))
        assert history.estimates["k1"] == StepEstimate(3.0, 100 * MB)


def test_failed_step_adds_no_estimate(tmp_path: Path) -> None:
    history = History(tmp_path, "a.cu")
    history.update(KEYED, outcome(finished(0, 2.0, fault="failed with exit status 1")))
    assert history.estimates == {}


def test_two_processes_add_to_one_file(tmp_path: Path) -> None:
    first, second = History(tmp_path, "g"), History(tmp_path, "g")
    assert (first.estimates, second.estimates) == ({}, {})
    first.update(KEYED, outcome(finished(0, 2.0)))
    second.update(KEYED, outcome(finished(1, 2.0)))
    assert set(History(tmp_path, "g").estimates) == {"k1", "k2"}


DAMAGED = [
    b"",
    b"\xff\xfe",
    b"[]",
    b"{}",
    b'{"schema": 2, "group": "g", "steps": {}}',
    b'{"schema": 1, "group": "other", "steps": {}}',
    b'{"schema": 1, "group": "g", "steps": []}',
    b'{"schema": 1, "group": "g", "steps": {"k": [1]}}',
    b'{"schema": 1, "group": "g", "steps": {"k": [1, 2, 3]}}',
    b'{"schema": 1, "group": "g", "steps": {"k": [1, 2, ["3"]]}}',
    b'{"schema": 1, "group": "g", "steps": {"k": ["1", 2]}}',
    b'{"schema": 1, "group": "g", "steps": {"k": [1, 2.5]}}',
    b'{"schema": 1, "group": "g", "steps": {"k": [-1, 2]}}',
    b'{"schema": 1, "group": "g", "steps": {"k": [Infinity, 2]}}',
    b'{"schema": 1, "group": "g", "steps": {"k": [NaN, 2]}}',
    b'{"schema": 1, "group": "g", "steps": {"k": 7}}',
]


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_file_is_replaced(tmp_path: Path, content: bytes) -> None:
    History(tmp_path, "g").update(KEYED, outcome(finished(0, 2.0)))
    (path,) = tmp_path.iterdir()
    path.write_bytes(content)
    assert History(tmp_path, "g").estimates == {}
    History(tmp_path, "g").update(KEYED, outcome(finished(0, 4.0)))
    assert History(tmp_path, "g").estimates == {"k1": StepEstimate(4.0, 100 * MB)}


def test_unwritable_history_is_empty(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    History(tmp_path / "file", "g").update(KEYED, outcome(finished(0, 2.0)))
    assert History(tmp_path / "file", "g").estimates == {}


def test_failed_write_leaves_no_temporary_file(tmp_path: Path) -> None:
    name = next(iter(_names(tmp_path, "g")))
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    History(tmp_path, "g").update(KEYED, outcome(finished(0, 2.0)))
    assert [path.name for path in tmp_path.iterdir()] == [name]


def _names(folder: Path, *groups: str) -> list[str]:
    for group in groups:
        History(folder, group).update(KEYED, outcome(finished(0, 2.0)))
    return sorted(path.name for path in folder.iterdir())


def test_file_names_are_readable_and_harmless(tmp_path: Path) -> None:
    names = _names(tmp_path, "/src/a b/kernel.cu", "../../etc", "x" * 500, "\udcff", "")
    assert any(name.startswith("src-a-b-kernel.cu-") for name in names)
    assert len(names) == 5
    assert all(len(name) < 80 and not name.startswith(".") for name in names)


def test_the_store_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_FILES", 8)
    monkeypatch.setattr(module, "_MOST_STEPS", 1)
    names = _names(tmp_path, *(f"g{number}" for number in range(20)))
    assert len(names) <= 8
    assert any(name.startswith("g19") for name in names)
    History(tmp_path, "g19").update(KEYED, outcome(finished(1, 2.0)))
    assert set(History(tmp_path, "g19").estimates) == {"k2"}
    document = json.loads(next(tmp_path.glob("g19-*")).read_text())
    assert document["schema"] == 1


MEASURED = st.builds(StepEstimate, st.floats(0, 1e6), st.integers(0, 1 << 40))


@given(MEASURED, MEASURED)
def test_memory_is_never_taken_for_less_than_it_was_just_seen(
    old: StepEstimate, new: StepEstimate
) -> None:
    assert merge_estimates(None, new) == new
    mixed = merge_estimates(old, new)
    assert max(old.memory, new.memory) >= mixed.memory >= new.memory
    low, high = sorted((old.seconds, new.seconds))
    assert low - 0.001 <= mixed.seconds <= high + 0.001


def test_earlier_memory_is_forgotten_in_time() -> None:
    known = StepEstimate(1.0, 8000 * MB)
    for _ in range(20):
        known = merge_estimates(known, StepEstimate(1.0, 1000 * MB))
    assert known.memory < 1100 * MB
