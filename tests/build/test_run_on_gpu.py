"""The GPU step of the recipes' nox sessions, with a core whose doctor reports what a test says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

RECIPES = Path(__file__).parents[2] / "recipes"
CORE = "tiny-1.0-py3-none-any.whl"
DOCTOR = """\
import json, os, sys
if "--json" in sys.argv:
    print(json.dumps({"devices": json.loads(os.environ["TINY_DEVICES"])}))
    # As the real one, before the packs are installed.
    sys.exit(1)
print("doctor", *sys.argv[1:])
"""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a recipe's check and its wheels."""
    root = tmp_path_factory.mktemp("a release")
    (root / "tiny_on_gpu.py").write_text("import sys, tiny; sys.exit(tiny.STATUS)\n")
    info = "tiny-1.0.dist-info"
    members = {
        "tiny/__init__.py": "import os\nSTATUS = int(os.environ.get('TINY_STATUS', '0'))\n",
        "tiny/doctor.py": DOCTOR,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    wheels = root / "dist"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / CORE, "w") as core:
        for name, text in members.items():
            core.writestr(name, text)
    listed = [{"role": "plugin", "file": "tiny_sm90.whl"}, {"role": "core", "file": CORE}]
    (wheels / "archsplit-manifest.json").write_text(json.dumps({"wheels": listed}))
    return root


def run_on_gpu(
    release: Path, *options: str, devices: str, status: str = "0"
) -> subprocess.CompletedProcess[str]:
    site = str(release / "site")
    settings = {"TINY_DEVICES": devices, "TINY_STATUS": status}
    pip = {"PIP_TARGET": site, "PIP_UPGRADE": "1", "PIP_NO_INDEX": "1", "PYTHONPATH": site}
    script = [sys.executable, str(RECIPES / "run_on_gpu.py"), str(release), str(release / "dist")]
    return subprocess.run(
        [*script, *options],
        env={**os.environ, **settings, **pip},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_gpu_kernels_are_skipped_and_required_kernels_fail(
    release: Path,
) -> None:
    done = run_on_gpu(release, devices="[]", status="3")
    assert (done.returncode, done.stdout) == (
        0,
        "tiny: no GPU here: imported, and the kernels were left out\n",
    ), done.stderr
    assert run_on_gpu(release, "--gpu", devices="[]").returncode == 1


def test_with_a_gpu_the_packs_are_installed_and_the_kernels_run(release: Path) -> None:
    here = '[{"name": "H100"}]'
    done = run_on_gpu(release, "--gpu", devices=here)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines == [
        f"doctor --install --find-links {release / 'dist'}",
        "doctor",
        "tiny: the kernels ran on H100",
    ]
    assert run_on_gpu(release, devices=here, status="3").returncode == 3


@pytest.mark.parametrize("name", ["cuda-kernels", "custc", "cuimgops", "fpscan"])
def test_each_recipe_has_one_compiling_check(name: str) -> None:
    (check,) = (RECIPES / name).glob("*_on_gpu.py")
    compile(check.read_text(), str(check), "exec")


def test_a_folder_without_a_check_or_a_core_is_refused(release: Path, tmp_path: Path) -> None:
    script = RECIPES / "run_on_gpu.py"
    for words in [(tmp_path, release / "dist"), (release, tmp_path)]:
        done = subprocess.run(
            [sys.executable, script, *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert f"{tmp_path} has no " in done.stderr
