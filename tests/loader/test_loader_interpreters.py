"""Other interpreters than one with one lock: subinterpreters, and Python without a lock."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from loader_packs import SplitSite, split_site
from loader_stubs import interpreter

if TYPE_CHECKING:
    from pathlib import Path

    from loader_stubs import Workbench

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
FREE_THREADED = ("3.13t", "3.14t")

# In a subinterpreter whatever is raised ends the code, and the script with it.
SUBINTERPRETERS = """
import sys
if sys.version_info >= (3, 13):
    import _interpreters as interpreters
else:
    import _xxsubinterpreters as interpreters
CODE = {code!r}
exec(CODE)
for _ in range(2):
    try:
        one = interpreters.create("legacy")
    except TypeError:
        one = interpreters.create(isolated=False)
    failure = interpreters.run_string(one, CODE)
    assert failure is None, failure
    interpreters.destroy(one)
exec(CODE)
"""
OWN_LOCK = """
import _interpreters as interpreters, threading
CODE = {code!r}
def run():
    one = interpreters.create("isolated")
    failures.append(interpreters.run_string(one, CODE))
    interpreters.destroy(one)
failures = []
threads = [threading.Thread(target=run) for _ in range(4)]
for each in threads: each.start()
for each in threads: each.join()
assert failures == [None] * 4, failures
exec(CODE)
"""
USE = """
import ctypes, vecsort
toy = ctypes.CDLL({library!r})
print(vecsort.load().stub_answer(), chr(toy.first_letter(0)), vecsort.explain().healthy,
      flush=True)
"""
RACE = """
import sys, threading, vecsort
assert not sys._is_gil_enabled()
barrier, found = threading.Barrier(8), []
def race():
    barrier.wait()
    found.append((vecsort.load(), vecsort.load(capability="8.0"), vecsort.explain().healthy))
threads = [threading.Thread(target=race) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
assert len({tuple(map(id, each)) for each in found}) == 1
print(len(found), not sys._is_gil_enabled())
"""


@pytest.fixture
def core(workbench: Workbench, tmp_path: Path) -> SplitSite:
    """A split core, and beside it one with library plugins."""
    core = split_site(workbench, tmp_path)
    core.add("cc90", "sm_90")
    workbench.core(tmp_path)
    for target in ("sm_80", "sm_90"):
        workbench.plugin(tmp_path, target)
    return core


def told(workbench: Workbench, core: SplitSite, version: str, code: str) -> str:
    child = {"PYTHONPATH": str(core.site), "PYTHONDONTWRITEBYTECODE": "1"}
    environment = {"PATH": os.environ["PATH"], **child, **workbench.environment("9.0")}
    done = subprocess.run(
        [interpreter(version), "-c", code], env=environment, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("version", VERSIONS)
def test_subinterpreter_loads_the_same_plugin(
    workbench: Workbench, core: SplitSite, version: str
) -> None:
    code = SUBINTERPRETERS.format(code=USE.format(library=str(core.library)))
    assert told(workbench, core, version, code) == "42 h True\n" * 4


@pytest.mark.parametrize("version", VERSIONS[3:])
def test_racing_subinterpreters_with_their_own_locks_are_served(
    workbench: Workbench, core: SplitSite, version: str
) -> None:
    code = OWN_LOCK.format(code=USE.format(library=str(core.library)))
    assert told(workbench, core, version, code).split("\n")[-2] == "42 h True"


@pytest.mark.parametrize("version", FREE_THREADED)
def test_racing_threads_without_a_lock_are_served(
    workbench: Workbench, core: SplitSite, version: str
) -> None:
    assert told(workbench, core, version, RACE) == "8 True\n"
