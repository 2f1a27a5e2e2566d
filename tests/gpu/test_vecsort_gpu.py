"""vecsort on a real GPU; asked for with ``-m gpu``, and then it fails where there is none.

VECSORT_WHEELS names a folder of wheels that were built elsewhere. Without it, the vecsort that is
installed beside pytest is checked.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.gpu
def test_vecsort_passes_its_checks_on_a_gpu() -> None:
    wheels = os.environ.get("VECSORT_WHEELS")
    script = ["vecsort_on_gpu.py", wheels] if wheels else ["vecsort_checks.py"]
    done = subprocess.run(
        [sys.executable, str(HERE / script[0]), *script[1:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, done.stdout
