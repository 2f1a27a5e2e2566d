"""How many programs to run at a time."""

from __future__ import annotations

import os


def available_cores() -> int:
    """How many cores this process may use; fewer than the machine has under taskset or cgroups."""
    return len(os.sched_getaffinity(0))


def job_count(text: str) -> int:
    """Read a number of jobs as a user writes it.

    Raises:
        ValueError: it is not a whole number of 1 or more, in plain digits.
    """
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ValueError(f"{text!r} is not a number of 1 or more")
    return int(text)
