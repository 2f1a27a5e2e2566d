"""Full disks, under each verb that writes wheels: an error, and the earlier outputs are whole."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from slim_full_disk import archsplit
from slim_site_samples import made
from slim_wheel_samples import fat_wheel

from handmade_samples import THREE, Maker, container, image

pytestmark = pytest.mark.stress
DRIVER = Path(__file__).with_name("slim_full_disk.py")
UNSHARE = ("unshare", "--mount", "--map-root-user")
ALLOWS_MOUNTS = subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two fat wheels of one name, their libraries, another wheel, a split and an environment."""
    folder = tmp_path_factory.mktemp("inputs")
    more = container(image("sm_80", 0x20000), image("sm_90", 0x40000), image("compute_90", 0x8000))
    for name, containers in (("old", (*THREE, more)), ("new", (more, *THREE))):
        (folder / name / "library").mkdir(parents=True)
        library = Maker(folder=folder / name / "library").library(containers)
        shutil.copyfile(library, folder / name / "libfat.so")
        fat_wheel(folder / name, library=library.read_bytes())
    wheel = next((folder / "old").glob("*.whl"))
    done = archsplit("split", wheel, "--out", folder / "split")
    assert done.returncode == 0, done.stderr
    other = fat_wheel(folder, name="other-1.0-py3-none-manylinux_2_17_x86_64.whl")
    assert other.exists()
    (folder / "env").mkdir()
    shutil.copytree(made(folder / "env").site, folder / "site", symlinks=True)
    return folder


@pytest.mark.skipif(not ALLOWS_MOUNTS, reason="this system permits no mounts")
@pytest.mark.parametrize(
    "verb",
    [
        *("slim-file", "slim-wheel", "slim-site", "slim-undo", "slim-commit"),
        *("split", "join", "gather", "index", "mirror"),
    ],
)
def test_earlier_outputs_survive_a_full_disk(verb: str, inputs: Path, tmp_path: Path) -> None:
    (tmp_path / "inputs").symlink_to(inputs)
    done = subprocess.run(
        [*UNSHARE, sys.executable, str(DRIVER), verb, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    assert runs[-1]["code"] == 0, runs[-1]
    # At least one run had too little space.
    assert len(runs) > 1
    for run in runs[:-1]:
        assert run["code"] == 11, run
        assert "Traceback" not in run["error"]
        pages = ("index.html", "index.json", ".json", ".lock")
        assert [name for name in run["lost"] if not name.endswith(pages)] == [], run
        assert run["again"] == 0, run
