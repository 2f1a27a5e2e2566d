"""``slim --unregistered zero`` on a GPU: the same bytes of many operations, and its undo.

The environment is a copy of links to the one of this Python, so that nothing of it is changed.
PyTorch has to be installed in it. The test prints what a list of proven libraries would need.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from archsplit.cli.main import main
from archsplit.system.fs import sha256

pytestmark = pytest.mark.gpu

PROGRAM = Path(__file__).with_name("operations_on_gpu.py")


def operations(site: Path) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, str(PROGRAM)],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    results: dict[str, str] = json.loads(done.stdout)
    return results


def digests(site: Path) -> dict[str, str]:
    """Return the SHA-256 of the libraries of NVIDIA's wheels and of PyTorch."""
    return {str(path.relative_to(site)): sha256(path) for path in sorted(site.rglob("*.so*"))}


def test_operations_give_the_same_bytes_and_undo_restores_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site"
    # Links in place of copies: slim writes new files, and never into a file that is there.
    source = sysconfig.get_path("purelib")
    subprocess.run(["cp", "-al", source, str(site)], check=True)
    assert (site / "torch").is_dir(), "PyTorch has to be installed beside the tests"
    before = digests(site)
    first, again = operations(site), operations(site)
    steady = {name for name, result in first.items() if again[name] == result}
    words = ["slim", "--site-packages", str(site)]
    choice = ["--device", "native", "--unregistered", "zero"]
    assert main([*words, *choice, "--json", "--ignore-record"]) == 0
    zeroed = [file for file in json.loads(capsys.readouterr().out)["files"] if file["zeroed"]]
    after = operations(site)
    assert {name: after[name] for name in steady if after[name] != first[name]} == {}
    for file in zeroed:
        print(file["path"], before[file["path"]], file["unregistered"])  # noqa: T201
    assert main([*words, "--undo"]) == 0
    assert digests(site) == before
