"""Reports on an outcome: trace, graph and table."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from scheduler_samples import MB, shell, step

from archsplit.scheduler.graph import Graph
from archsplit.scheduler.outcome import (
    TABLE_HEADER,
    FinishedStep,
    Outcome,
    format_chrome_trace,
    format_graph_dot,
    format_steps_table,
)

if TYPE_CHECKING:
    from pathlib import Path

GRAPH = Graph(
    steps=(
        step('cicc "sm_90"', "a", "k.ptx", weight=4),
        step("ptxas", "k.ptx", "k.cubin", weight=2),
        step("host", "a", "k.o", weight=3),
    )
)


def finished(position: int, started: float, ended: float, **more: object) -> FinishedStep:
    usual: dict[str, object] = {
        "slot": 0,
        "cores": 1,
        "returncode": 0,
        "stdout": "",
        "stderr": "",
        "fault": "",
        "cpu_seconds": 1.5,
        "peak_memory": 300 * MB,
        "attempts": 1,
    }
    return FinishedStep(
        name=GRAPH.steps[position].name,
        position=position,
        started=started,
        ended=ended,
        **{**usual, **more},  # type: ignore[arg-type]
    )


OUTCOME = Outcome(
    finished=(
        finished(0, 0.0, 2.0, cores=2),
        finished(1, 2.0, 2.5, fault="failed with exit status 1", returncode=1),
        finished(2, 0.25, 3.25, slot=2),
    ),
    failure=None,
    seconds=3.25,
)


def test_the_trace_has_a_bar_for_each_step_on_its_slot() -> None:
    events = json.loads(format_chrome_trace(OUTCOME))["traceEvents"]
    names = {event["args"]["name"]: event["tid"] for event in events if event["ph"] == "M"}
    assert names == {"slot 0": 0, "slot 2": 2}
    bars = [event for event in events if event["ph"] == "X"]
    assert [(bar["name"], bar["tid"]) for bar in bars] == [
        ('cicc "sm_90"', 0),
        ("ptxas", 0),
        ("host", 2),
    ]
    assert [bar["cat"] for bar in bars] == ["step", "failed", "step"]
    assert (bars[2]["ts"], bars[2]["dur"]) == (250_000, 3_000_000)
    assert bars[1]["args"]["exit status"] == 1
    assert (bars[0]["args"]["peak memory"], bars[0]["args"]["cores"]) == (300 * MB, 2)


def test_the_drawing_has_steps_and_edges() -> None:
    lines = format_graph_dot(GRAPH).splitlines()
    assert '    n0 [label="cicc \\"sm_90\\"\\n4.00 s"];' in lines
    assert "    n0 -> n1;" in lines
    assert '    n2 [label="host\\n3.00 s"];' in lines


def test_the_drawing_shows_measured_seconds() -> None:
    text = format_graph_dot(GRAPH, OUTCOME)
    assert 'n2 [label="host\\n3.00 s"]' in text
    assert 'n0 [label="cicc \\"sm_90\\"\\n2.00 s"]' in text


def test_backslash_of_a_name_is_one_in_the_drawing() -> None:
    graph = Graph(steps=(step("a\\n.cu"),))
    assert '[label="a\\\\n.cu\\n' in format_graph_dot(graph)


@pytest.mark.skipif(shutil.which("dot") is None, reason="graphviz is not installed")
def test_graphviz_understands_the_drawing() -> None:
    done = subprocess.run(
        ["dot", "-Tplain"],
        input=format_graph_dot(GRAPH),
        text=True,
        capture_output=True,
        check=True,
    )
    assert done.stdout.count("node ") == 3


def test_the_table_counts_the_bytes_of_declared_files() -> None:
    sizes = {"a": 10, "k.ptx": 200, "k.cubin": 3000, "k.o": 4}
    text = format_steps_table(GRAPH, OUTCOME, size_of=lambda path: sizes[path.name])
    header, *rows = csv.reader(io.StringIO(text))
    assert tuple(header) == TABLE_HEADER
    assert rows[0] == ['cicc "sm_90"', "2.000", "1.500", str(300 * MB), "10", "200"]
    assert [row[4:] for row in rows[1:]] == [["200", "3000"], ["10", "4"]]


def test_missing_file_has_no_bytes(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("four")
    graph = Graph(steps=(shell(tmp_path, "one", "true", "in", "out"),))
    done = OUTCOME.finished[0]
    outcome = Outcome(finished=(done,), failure=None, seconds=1.0)
    assert format_steps_table(graph, outcome).splitlines()[1].endswith(",4,0")
