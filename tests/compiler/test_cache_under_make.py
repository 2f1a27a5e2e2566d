"""The cache under make: what make tells its children is not a part of a compilation's key."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from wrapper_project import KNOWN, SOURCE, settle

from source_roots import SOURCE_PATH

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.nvcc.toolkit import Toolkit

pytestmark = pytest.mark.nvcc

MAKEFILE = """
all: k.o n.o
k.o: k.cu
\t$(PLUS)$(NVCC) -c $< -o $@ -arch=sm_80
n.o: n.cpp
\t$(PLUS)$(NVCC) -c $< -o $@
"""
PLAIN_RULE, MAKES_RULE = MAKEFILE.replace("$(PLUS)", ""), MAKEFILE.replace("$(PLUS)", "+")
JOBSERVERS = ("pipe", "fifo")


@pytest.fixture(scope="module")
def make() -> str:
    found = shutil.which("make")
    if found is None:
        pytest.skip("make is missing")
    return found


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("make") / "project"
    folder.mkdir()
    (folder / "k.cu").write_text(SOURCE)
    (folder / "h.h").write_text("#define VALUE 1\n")
    (folder / "n.cpp").write_text("int n() { return 1; }\n")
    settle()
    return folder


def built(make: str, *arguments: str, rule: str, project: Path, toolkit: Toolkit) -> list[str]:
    """Return the wrapper's messages about the cache when make builds everything again."""
    (project / "Makefile").write_text(rule)
    wrapper = f"'{sys.executable}' -c 'from archsplit.cli.nvcc import launcher; launcher()'"
    environment = {
        "PATH": f"{toolkit.nvcc.parent}:/usr/bin:/bin",
        "PYTHONPATH": SOURCE_PATH,
        "XDG_RUNTIME_DIR": str(project.parent),
        "ARCHSPLIT_CACHE": "on",
        "ARCHSPLIT_CACHE_DIR": str(project.parent / "store"),
        "ARCHSPLIT_CACHE_MIN_SECONDS": "0",
        "ARCHSPLIT_NVCC_OPTIONS": "--explain --reproducible",
    }
    done = subprocess.run(
        (make, "-B", *arguments, f"NVCC={wrapper}"),
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [line.removeprefix("archsplit: ") for line in done.stderr.splitlines()]


def test_jobs_and_variables_of_make_change_no_key(
    make: str, project: Path, toolkit: Toolkit
) -> None:
    built(make, "-j2", "O=a", rule=PLAIN_RULE, project=project, toolkit=toolkit)
    for rule in (PLAIN_RULE, MAKES_RULE):
        said = built(make, "-j8", "O=b", rule=rule, project=project, toolkit=toolkit)
        assert said == [*KNOWN, *KNOWN], rule


@pytest.mark.parametrize("style", JOBSERVERS)
def test_both_kinds_of_jobservers_change_no_key(
    make: str, style: str, project: Path, toolkit: Toolkit
) -> None:
    # GNU make has had a choice since its version 4.4.
    said = subprocess.run((make, "--help"), capture_output=True, text=True, check=True).stdout
    if "--jobserver-style" not in said:
        pytest.skip("this make has no choice of jobservers")
    built(make, "-j2", "O=a", rule=MAKES_RULE, project=project, toolkit=toolkit)
    given = (f"--jobserver-style={style}", "-j3", "O=c")
    for rule in (PLAIN_RULE, MAKES_RULE):
        said_now = built(make, *given, rule=rule, project=project, toolkit=toolkit)
        assert said_now == [*KNOWN, *KNOWN], rule
