"""Every way to install, from an index of files: what comes, what pip says, what stays."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from split_samples import Sample, split

from splitter.wheels.packing import packed

if TYPE_CHECKING:
    from pathlib import Path

    from splitter.workshop import Workshop

STUB = """Metadata-Version: 2.1
Name: packaging
Version: 25.0
"""


@pytest.fixture(scope="module")
def index(sample: Sample, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All wheels, and an empty one for what the fat wheel required."""
    from splitter.splitting.archive import write_members  # noqa: PLC0415 (one fixture's alone)
    from splitter.wheels.info import WheelInfo  # noqa: PLC0415 (the same)
    from splitter.wheels.names import WheelName  # noqa: PLC0415 (the same)

    folder = tmp_path_factory.mktemp("index")
    for wheel in sample.out.glob("*.whl"):
        (folder / wheel.name).symlink_to(wheel)
    name = WheelName.parse("packaging-25.0-py3-none-any.whl")
    info = WheelInfo(generator="a test", tags=name.tags).encode()
    with (folder / str(name)).open("wb") as file:
        own = {f"{name.dist_info}/METADATA": packed(STUB.encode())}
        write_members(file, name, {**own, f"{name.dist_info}/WHEEL": packed(info)})
    return folder


def environment(folder: Path) -> Path:
    """A virtual environment without pip of its own."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


def pip(python: Path, *words: str) -> str:
    command = [sys.executable, "-m", "pip", "--python", str(python), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def installed(python: Path) -> set[str]:
    return set(pip(python, "list", "--format", "freeze").split())


def offline(index: Path) -> tuple[str, ...]:
    return ("--quiet", "--no-index", "--no-compile", "--find-links", str(index))


CORE = {"toyfat==1.0", "packaging==25.0"}


def test_every_mode_installs_what_it_says_and_leaves_nothing(index: Path, tmp_path: Path) -> None:
    python = environment(tmp_path)
    everything = {f"toyfat-{each}==1.0" for each in ("cc80", "cc86", "cc87", "cc90", "ptx")}
    for wanted, packs in (
        ("toyfat", set()),
        ("toyfat[cc89]", {"toyfat-cc86==1.0"}),
        ("toyfat[all,more]", everything),
    ):
        pip(python, "install", *offline(index), wanted)
        assert installed(python) == CORE | packs
        assert "No broken requirements" in pip(python, "check")
    names = [each.partition("=")[0] for each in installed(python)]
    pip(python, "uninstall", "--quiet", "--yes", *names)
    (site,) = tmp_path.glob("lib/python*/site-packages")
    assert [path for path in site.rglob("*") if not path.is_dir()] == []


def test_pack_of_another_release_is_seen_by_pip_check(
    sample: Sample, index: Path, tmp_path: Path, workshop: Workshop
) -> None:
    python = environment(tmp_path / "env")
    pip(python, "install", *offline(index), "toyfat[cc90]")
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    metadata = site / "toyfat-1.0.dist-info" / "METADATA"
    newer = site / "toyfat-1.1.dist-info"
    metadata.write_text(metadata.read_text().replace("Version: 1.0", "Version: 1.1"))
    metadata.parent.rename(newer)
    command = [sys.executable, "-m", "pip", "--python", str(python), "check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "toyfat-cc90 1.0 has requirement toyfat==1.0, but you have toyfat 1.1" in done.stdout


def test_core_that_requires_all_brings_all(
    sample: Sample, index: Path, tmp_path: Path, workshop: Workshop
) -> None:
    out = split(sample.fat, tmp_path / "out", workshop, install_all=True)
    (out / "packaging-25.0-py3-none-any.whl").symlink_to(index / "packaging-25.0-py3-none-any.whl")
    python = environment(tmp_path / "env")
    pip(python, "install", *offline(out), "toyfat")
    assert {"toyfat-cc80==1.0", "toyfat-ptx==1.0"} < installed(python)
    assert "No broken requirements" in pip(python, "check")
