"""What ran when on which slot, in the format of Chrome's and Perfetto's trace viewers; pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from archsplit.scheduler.outcome import FinishedStep, Outcome

__pure__ = True

_MICROSECONDS = 1e6


def chrome_trace(outcome: Outcome) -> str:
    """The run as trace JSON: a row for each slot, a bar for each step.

    The format: "Trace Event Format", complete events ("X") and thread names ("M").
    """
    slots = sorted({done.slot for done in outcome.finished})
    names = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": slot, "args": {"name": f"slot {slot}"}}
        for slot in slots
    ]
    bars = [_bar(done) for done in outcome.finished]
    document = {"traceEvents": [*names, *bars], "displayTimeUnit": "ms"}
    return json.dumps(document, indent=1) + "\n"


def _bar(done: FinishedStep) -> dict[str, object]:
    return {
        "ph": "X",
        "name": done.name,
        "cat": "failed" if done.fault else "step",
        "pid": 1,
        "tid": done.slot,
        "ts": round(done.started * _MICROSECONDS),
        "dur": round(done.seconds * _MICROSECONDS),
        "args": {
            "cpu seconds": round(done.cpu_seconds, 3),
            "peak memory": done.peak_memory,
            "cores": done.cores,
            "attempts": done.attempts,
            "exit status": done.returncode,
        },
    }
