"""The test suite itself, started as on the machines of other people."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def pytest_on(test: str, folder: Path, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{TESTS}/{test}"]
    command += [f"--basetemp={folder / 'pytest'}", "--confcutdir", str(TESTS)]
    # Coverage and workers of the outer run are not for the inner one.
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_"))}
    return subprocess.run(  # type: ignore[call-overload,no-any-return] # options by name
        command, env=kept, cwd=TESTS.parent, capture_output=True, text=True, check=False, **options
    )


def test_ctrl_c_reaches_tests_despite_an_ignored_start(tmp_path: Path) -> None:
    # So it is under nohup, in the background of a script, and on many runners of CI.
    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    done = pytest_on("system/test_fs_replace_all.py", tmp_path, preexec_fn=ignore)
    assert done.returncode == 0, done.stdout
