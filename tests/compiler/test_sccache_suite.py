"""sccache's own system tests for nvcc, run by sccache's own harness, unchanged.

``SCCACHE_SYSTEM_TESTS`` names the program that ``cargo test --no-run --test system`` has built in a
folder with sccache's sources (0.10), with ``--no-default-features``. sccache's other system tests
are for gcc, clang, hipcc and its server.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from source_roots import SOURCE_PATH

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit

pytestmark = [pytest.mark.nvcc, pytest.mark.stress]


@pytest.mark.skipif("SCCACHE_SYSTEM_TESTS" not in os.environ, reason="no system tests of sccache")
def test_the_system_tests_of_sccache_pass(tmp_path: Path, whole_toolkit: Toolkit) -> None:
    tests = Path(os.environ["SCCACHE_SYSTEM_TESTS"])
    shim = tmp_path / "sccache"
    script = Path(__file__).with_name("sccache_shim.py")
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$@"\n')
    shim.chmod(0o755)
    around = {
        **{name: os.environ[name] for name in ("HOME", "LD_LIBRARY_PATH") if name in os.environ},
        "PATH": f"{whole_toolkit.root / 'bin'}:/usr/bin:/bin",
        "PYTHONPATH": SOURCE_PATH,
        "CARGO_BIN_EXE_sccache": str(shim),
        "SHIM_FOLDER": str(tmp_path),
    }
    done = subprocess.run(
        [tests, "test_cuda_sccache_command", "--test-threads", "1"],
        cwd=tests.parents[3],
        env=around,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "2 passed" in done.stdout
    # The tests run twice: with and without sccache's preprocessor cache.
    expected = ["misses of PTX expected", "hits of PTX expected"] * 2
    assert (tmp_path / "differences").read_text().splitlines() == expected
