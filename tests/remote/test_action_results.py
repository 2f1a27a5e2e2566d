"""Results of actions in the compile cache: found by content, in another folder, too."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from shell_steps import Work

from archsplit.cache.cache import Cache
from archsplit.cache.config import resolve_settings
from archsplit.remote.action import PathMap
from archsplit.remote.action_results import ActionResults
from archsplit.scheduler.graph import Graph
from archsplit.scheduler.pool import LocalPool
from archsplit.scheduler.runner import RunOptions, run_graph
from archsplit.system.process import SubprocessRunner
from archsplit.system.terminal import SilentProgress

if TYPE_CHECKING:
    from pathlib import Path


def run(work: Work, cache: Path, text: str) -> int:
    """Run two steps, and return the number of those that were found."""
    (work.root / "source").write_text(text)
    first = work.step("first", f"cat source > {work.private}/a; echo said", "source", "a")
    second = work.step("second", f"cat {work.private}/a > {work.private}/b", writes="b")._replace(
        reads=(work.private / "a",),
    )
    variables = {"ARCHSPLIT_CACHE": "on", "ARCHSPLIT_CACHE_DIR": str(cache)}
    variables |= {"ARCHSPLIT_CACHE_MIN_SECONDS": "0", "ARCHSPLIT_CACHE_MIN_SIZE": "0"}
    store = Cache(resolve_settings(variables), warn=pytest.fail)
    results = ActionResults(store, PathMap(work.root, work.private), lambda _: work.tools)
    outcome = run_graph(
        Graph(steps=(first, second)),
        RunOptions(
            pool=LocalPool(2),
            runner=SubprocessRunner(),
            progress=SilentProgress(),
            result_cache=results,
        ),
    )
    store.close()
    assert outcome.failure is None
    assert [done.output for done in outcome.finished] == ["said\n", ""]
    assert (work.private / "b").read_text() == text
    return results.hits


def test_results_are_found_by_the_content_of_the_action(tmp_path: Path) -> None:
    cache, here = tmp_path / "cache", Work(tmp_path / "here")
    assert run(here, cache, "text") == 0
    # Other folders, as on another machine.
    there = Work(tmp_path / "there")
    assert run(there, cache, "text") == 2
    assert run(there, cache, "another text") == 0
    there.tools = (replace(there.tools[0], sha256="0" * 64),)
    assert run(there, cache, "text") == 0
