from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

from archsplit.backend import build_wheel
from archsplit.errors import UsageError
from archsplit.system.fs import sha256
from source_roots import SOURCE_PATH

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.release.report import Release

pytestmark = pytest.mark.nvcc


class Frontend:
    """The frontend of PEP 517 that people use, as a child process."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment

    def build(self, folder: Path, out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check"]
        return subprocess.run(
            [*command, "--outdir", str(out), *arguments, str(folder)],
            capture_output=True,
            text=True,
            check=False,
            env=self.environment,
        )


@pytest.fixture
def frontend(environment: dict[str, str]) -> Frontend:
    return Frontend(environment)


def digests(report: Release) -> dict[str, str]:
    return {wheel.file: wheel.sha256 for wheel in report.wheels}


def core_members(wheel: Path) -> dict[str, bytes]:
    """The files of a core, without what depends on the plugins that were built beside it.

    The backend builds no plugin, so its core has no digest of one.
    """
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    (identity,) = (name for name in members if name.endswith("/_archsplit/core.json"))
    content = json.loads(members[identity])
    content.pop("digests", None)
    members[identity] = json.dumps(content).encode()
    (record,) = (name for name in members if name.endswith("/RECORD"))
    table = identity.replace("core.json", "core.pack")
    del members[table]
    others = (identity.encode(), table.encode())
    lines = members[record].splitlines()
    members[record] = b"".join(line for line in lines if not line.startswith(others))
    return members


def test_the_backend_makes_the_core(
    built: tuple[Path, Release], recipe: Path, tmp_path: Path, frontend: Frontend
) -> None:
    done = frontend.build(recipe, tmp_path / "out", "--wheel")
    assert done.returncode == 0, done.stdout + done.stderr
    # The line of the last stage, too.
    assert "Checked all wheels in " in done.stdout + done.stderr
    (core,) = (tmp_path / "out").iterdir()
    assert core_members(core) == core_members(built[0] / core.name)


def test_a_setting_makes_a_plugin_from_the_source_distribution(
    built: tuple[Path, Release], recipe: Path, tmp_path: Path, frontend: Frontend
) -> None:
    # Without --wheel, build makes the source distribution first, and the wheel from that.
    done = frontend.build(recipe, tmp_path / "out", "--config-setting", "target=sm_90")
    assert done.returncode == 0, done.stdout + done.stderr
    source, plugin = sorted((tmp_path / "out").iterdir(), key=lambda path: path.suffix)
    assert source.name == "tinyvec-1.2.3.tar.gz"
    assert digests(built[1])[plugin.name] == sha256(plugin)
    with tarfile.open(source) as archive:
        names = archive.getnames()
    assert "tinyvec-1.2.3/PKG-INFO" in names
    assert "tinyvec-1.2.3/src/add.cu" in names


def test_source_distributions_are_reproducible(
    recipe: Path, tmp_path: Path, frontend: Frontend
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for out in (first, second):
        assert frontend.build(recipe, out, "--sdist").returncode == 0
        (recipe / "src" / "add.cu").touch()
    name = "tinyvec-1.2.3.tar.gz"
    assert sha256(first / name) == sha256(second / name)


def test_an_unknown_setting_is_refused(recipe: Path, tmp_path: Path, frontend: Frontend) -> None:
    done = frontend.build(recipe, tmp_path / "out", "--wheel", "--config-setting", "arch=sm_90")
    assert done.returncode != 0
    assert "unknown --config-setting arch" in done.stdout + done.stderr
    assert "hint: known settings: target, nvcc, jobs" in done.stdout + done.stderr


def test_meaningless_setting_is_refused(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recipe)
    with pytest.raises(UsageError, match="jobs=many is not a number of 1 or more"):
        build_wheel(str(tmp_path), {"jobs": "many"})
    # Frontends give what is repeated as a list.
    with pytest.raises(UsageError, match="target is given more than once"):
        build_wheel(str(tmp_path), {"target": ["sm_80", "sm_90"]})
    for settings, fault in (
        ({"remote-jobs": "8"}, "remote-jobs needs a build farm"),
        ({"remote": "ray://head"}, "'ray://head' is not the address of a build farm"),
        ({"remote": "tcp://head:8786"}, "is not the address of a dask scheduler"),
        ({"remote": "http://farm"}, "is not the address of a build farm"),
    ):
        with pytest.raises(UsageError, match=fault):
            build_wheel(str(tmp_path), settings)


def test_backend_works_with_packages_only_on_sys_path(
    built: tuple[Path, Release], recipe: Path, tmp_path: Path, frontend: Frontend
) -> None:
    # As under pip's build isolation: a Python that has nothing installed, and a path.
    script = "import archsplit.backend as b; import sys; print(b.build_wheel(sys.argv[1]))"
    bare = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    path = os.pathsep.join([*filter(None, sys.path), SOURCE_PATH])
    done = subprocess.run(
        [str(bare / "bin" / "python"), "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=recipe,
        env={**frontend.environment, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    name = done.stdout.strip()
    assert core_members(tmp_path / name) == core_members(built[0] / name)
