"""The gallery: wheels are measured step by step, and the page has what was measured."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prepared import desk_with_wheel

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit

GALLERY = Path(__file__).parents[2] / "recipes/gallery"


def test_the_page_and_the_chart_have_the_measured_data() -> None:
    check = [sys.executable, str(GALLERY / "page.py"), "--check"]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_measured_parts_of_each_wheel_add_up_to_its_download() -> None:
    wheels = json.loads((GALLERY / "results.json").read_text())["wheels"]
    measured = [wheel for wheel in wheels.values() if "gpus" in wheel]
    assert len(measured) > 9
    for found in measured:
        for gpu in found["gpus"].values():
            parts = ("used", "for_other_gpus", "link_code", "not_device_code")
            assert sum(gpu[part] for part in parts) == gpu["whole"] == found["download"]


@pytest.mark.nvcc
def test_a_wheel_interrupted_after_inspect_gets_the_missing_steps(
    tmp_path: Path, small_toolkit: Toolkit, downloads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = desk_with_wheel(tmp_path, small_toolkit, downloads)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(desk.folder))
    spec = importlib.util.spec_from_file_location("measure", GALLERY / "measure.py")
    assert spec is not None
    assert spec.loader is not None
    measure = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(measure)
    monkeypatch.setattr(measure, "LEAST_FREE", 0)
    out = tmp_path / "results.json"
    for steps in (["--steps", "inspect"], ["--steps", "inspect", "slim", "split"]):
        argv = ["measure.py", "xgboost", "absent", "--out", str(out), *steps]
        monkeypatch.setattr("sys.argv", argv)
        assert measure.main() == 0
        wheels = json.loads(out.read_text())["wheels"]
        assert wheels["absent"]["problems"][0].startswith("download: exit code 1: ")
        assert list(wheels["xgboost"]["seconds"]) == steps[1:]
    found = json.loads(out.read_text())["wheels"]["xgboost"]
    assert found["problems"] == []
    words = [found["gpus"][name]["runs"].split()[0] for name in ("T4", "H100", "B200")]
    assert words == ["nothing", "native", "JIT"]
    assert found["split"]["H100"] < found["split"]["sum"]
    assert found["slim_h100"] < found["download"]
    # Another wheel of the version, as pip of another Python takes it, is measured from the start.
    other = {**found, "file": "xgboost-other.whl", "seconds": {"inspect": 1, "slim": 1}}
    out.write_text(json.dumps({"wheels": {"xgboost": other}}))
    assert measure.main() == 0
    again = json.loads(out.read_text())["wheels"]["xgboost"]
    assert (again["file"], list(again["seconds"])) == (found["file"], list(found["seconds"]))
    assert again["problems"] == []
