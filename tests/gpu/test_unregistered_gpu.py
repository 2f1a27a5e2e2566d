"""``slim --unregistered zero`` on a GPU: the same bytes of many operations, and its undo.

`prove_unregistered.py` works on a copy of links to the environment of this Python, in which PyTorch
has to be installed; ``nox -s gpu_tests`` prints what a list of proven libraries needs.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

PROGRAM = Path(__file__).with_name("prove_unregistered.py")


def test_operations_give_the_same_bytes_and_undo_restores_all(tmp_path: Path) -> None:
    assert importlib.util.find_spec("torch"), "PyTorch has to be installed beside the tests"
    found = [name for name in ("torch", "cupy", "jax") if importlib.util.find_spec(name)]
    command = [
        sys.executable,
        str(PROGRAM),
        "--out",
        str(tmp_path),
        "--frameworks",
        ",".join(found),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout)  # noqa: T201
    assert done.returncode == 0, done.stdout + done.stderr
    evidence = json.loads((tmp_path / "evidence.json").read_text())
    assert evidence["different"] == []
    assert evidence["undone"]
