"""ccache's own test suites for nvcc, run by ccache's own harness.

``CCACHE_SOURCES`` names a folder with ccache's sources; its ``test/run`` needs cuobjdump and
nvdisasm on the ``PATH``. Two things in copies of the suites are changed. The targets are 8.0 and
8.6, because CUDA 13 has no 5.0. A ``-D`` that nothing uses is expected to be a miss there, because
the suites compile plain C++ with it, which archsplit caches as a whole only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from source_roots import SOURCE_PATH

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit

pytestmark = [pytest.mark.nvcc, pytest.mark.stress]
SUITES = ("nvcc", "nvcc_direct", "nvcc_ldir")
_UNUSED = "# Specified define, but unused"
_COUNTER = re.compile(r"(expect_stat (\w+)) (\d+)")


def with_a_miss(suite: str) -> str:
    """Expect a miss of the define that nothing uses, and all that follows in this test."""
    before, found, rest = suite.partition(_UNUSED)
    test, end, later = rest.partition("TEST ")
    more = {"preprocessed_cache_hit": -1, "cache_miss": 1, "files_in_cache": 1}

    def counted(match: re.Match[str]) -> str:
        return f"{match[1]} {int(match[3]) + more.get(match[2], 0)}"

    return f"{before}{found}{_COUNTER.sub(counted, test)}{end}{later}"


@pytest.mark.skipif("CCACHE_SOURCES" not in os.environ, reason="no sources of ccache")
@pytest.mark.parametrize("base", ["", "{folder}"])
@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_of_ccache_passes(suite: str, base: str, tmp_path: Path, toolkit: Toolkit) -> None:
    if shutil.which("cuobjdump") is None:
        pytest.skip("cuobjdump is missing")
    shutil.copytree(Path(os.environ["CCACHE_SOURCES"]) / "test", tmp_path / "test")
    for name in SUITES:
        path = tmp_path / "test" / "suites" / f"{name}.bash"
        text = path.read_text().replace("compute_50", "compute_80")
        text = text.replace("compute_52", "compute_86").replace("sm_52", "sm_86")
        path.write_text(with_a_miss(text))
    shim = tmp_path / "ccache"
    script = Path(__file__).with_name("ccache_shim.py")
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$@"\n')
    shim.chmod(0o755)
    (tmp_path / "build").mkdir()
    around = {
        "PATH": f"{toolkit.nvcc.parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "PYTHONPATH": SOURCE_PATH,
        "CCACHE": str(shim),
        "VERBOSE": "1",
        "ARCHSPLIT_CACHE_BASE_DIR": base.format(folder=tmp_path),
    }
    argv = ("bash", str(tmp_path / "test" / "run"), suite)
    done = subprocess.run(
        argv, cwd=tmp_path / "build", env=around, capture_output=True, text=True, check=False
    )
    assert "Skipped" not in done.stdout
    assert done.returncode == 0, done.stdout[-3000:]
