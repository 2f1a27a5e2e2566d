"""The gallery: its page and chart are those of the measured data, and the data adds up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

GALLERY = Path(__file__).parents[2] / "recipes/gallery"


def test_the_page_and_the_chart_have_the_measured_data() -> None:
    check = [sys.executable, str(GALLERY / "page.py"), "--check"]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_measured_parts_of_each_wheel_add_up_to_its_download() -> None:
    wheels = json.loads((GALLERY / "results.json").read_text())["wheels"]
    measured = [wheel for wheel in wheels.values() if "gpus" in wheel]
    assert len(measured) > 9
    for wheel in measured:
        for gpu in wheel["gpus"].values():
            parts = ("used", "for_other_gpus", "link_code", "not_device_code")
            assert sum(gpu[part] for part in parts) == gpu["whole"] == wheel["download"]
