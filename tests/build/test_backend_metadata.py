"""The hooks of the backend that compile nothing, and editable installations."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from archsplit import backend
from archsplit.errors import RecipeError, TargetError, VerifyError
from source_roots import SOURCE_PATH

if TYPE_CHECKING:
    from archsplit.release.report import Release

pytestmark = pytest.mark.nvcc


@pytest.fixture
def here(recipe: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe's folder as the current one, as frontends call hooks."""
    monkeypatch.chdir(recipe)
    monkeypatch.setenv("PATH", environment["PATH"])
    return recipe


def dist_info(wheel: Path) -> dict[str, bytes]:
    """The metadata of a wheel, without the files that only the finished wheel can have."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" in name]
        found = {name.partition("/")[2]: archive.read(name) for name in names}
    built = ("WHEEL", "RECORD", "sboms/")
    return {name: text for name, text in found.items() if not name.startswith(built)}


def written(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_a_cores_metadata_needs_no_nvcc(
    built: tuple[Path, Release], here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    name = backend.prepare_metadata_for_build_wheel(str(tmp_path), {"nvcc": "/nowhere/nvcc"})
    assert name == "tinyvec-1.2.3.dist-info"
    (core,) = built[0].glob("tinyvec-*.whl")
    assert written(tmp_path / name) == dist_info(core)
    editable = tmp_path / "editable"
    editable.mkdir()
    settings = {"target": "sm_80,sm_90"}
    assert backend.prepare_metadata_for_build_editable(str(editable), settings) == name
    assert written(editable / name) == dist_info(core)


def test_a_plugins_metadata_has_the_licenses_of_the_toolkit(
    built: tuple[Path, Release], here: Path, tmp_path: Path
) -> None:
    settings: dict[str, str | list[str]] = {"target": "sm_90"}
    name = backend.prepare_metadata_for_build_wheel(str(tmp_path), settings)
    (plugin,) = built[0].glob("tinyvec_sm90-*.whl")
    assert written(tmp_path / name) == dist_info(plugin)
    assert name == "tinyvec_sm90-1.2.3.dist-info"
    with pytest.raises(TargetError, match="has no target sm_100"):
        backend.prepare_metadata_for_build_wheel(str(tmp_path), {"target": "sm_100"})


def test_metadata_changed_during_the_build_is_refused(here: Path, tmp_path: Path) -> None:
    name = backend.prepare_metadata_for_build_wheel(str(tmp_path))
    readme = here / "README.md"
    readme.write_text(f"{readme.read_text()}\nMore.\n")
    with pytest.raises(VerifyError, match=r"metadata of tinyvec 1\.2\.3 differs from the one in"):
        backend.build_wheel(str(tmp_path), None, str(tmp_path / name))


def test_table_contradicting_the_recipe_is_refused(here: Path, tmp_path: Path) -> None:
    project = here / "pyproject.toml"
    project.write_text(project.read_text().replace('name = "tinyvec"', 'name = "other"'))
    with pytest.raises(RecipeError, match=r"project\.name is 'other', expected 'tinyvec'"):
        backend.prepare_metadata_for_build_wheel(str(tmp_path))
    command = [sys.executable, "-m", "archsplit", "plan", "--check", str(here)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "project.name is 'other'" in done.stderr) == (3, True)


@pytest.fixture
def environment_of_backend(environment: dict[str, str]) -> dict[str, str]:
    """For builds without isolation: what the tests' own Python has, only on the path."""
    path = os.pathsep.join([*filter(None, sys.path), SOURCE_PATH])
    return {**environment, "PYTHONPATH": path, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def test_resolvers_read_a_local_project(
    here: Path, environment_of_backend: dict[str, str], tmp_path: Path
) -> None:
    # No nvcc can be found: a resolver that compiled would fail.
    environment = {**environment_of_backend, "ARCHSPLIT_NVCC": "/nowhere/nvcc"}
    uv = str(Path(sys.executable).with_name("uv"))
    python = ("--python", sys.executable, "--no-build-isolation", "--offline", "--no-config")
    cache = ("--cache-dir", str(tmp_path / "uv"))
    compiled = subprocess.run(
        [uv, "pip", "compile", *python, *cache, str(here / "pyproject.toml")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert compiled.returncode == 0, compiled.stderr
    requirements = tmp_path / "requirements.in"
    requirements.write_text(f"tinyvec @ {here.as_uri()}\n")
    pinned = subprocess.run(
        [uv, "pip", "compile", *python, *cache, str(requirements)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert pinned.stdout.splitlines()[-2].startswith("tinyvec @ file://"), pinned.stderr
    report = tmp_path / "report.json"
    dry = ("--dry-run", "--quiet", "--report", str(report), "--no-build-isolation", "--no-deps")
    pip = [sys.executable, "-m", "pip", "install", *dry, "--ignore-installed", str(here)]
    subprocess.run(pip, env=environment, check=True, capture_output=True)
    assert '"version": "1.2.3"' in report.read_text()
    # What `pyproject-build`, tox and others go by.
    reader = "import build.util as b, sys; one = b.project_wheel_metadata(sys.argv[1], False)"
    reader += "; print(one.get_all('Provides-Extra'))"
    read = subprocess.run(
        [sys.executable, "-c", reader, str(here)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "'sm90'" in read.stdout, read.stderr


TRY = """
import tinyvec, tinyvec.doctor, tinyvec._archsplit as loader
from tinyvec.more import word
print(tinyvec.__file__)
print(loader.__file__)
print(word)
print([(each.verdict, each.targets) for each in loader.explain().candidates])
"""


@pytest.mark.parametrize(
    ("installer", "settings", "plugins"),
    [
        ("pip", (), "[]"),
        ("uv", ("--config-setting", "target=sm_80"), "[('accepted', ('sm_80',))]"),
    ],
)
def test_an_editable_core_is_imported_from_its_source_tree(
    here: Path,
    environment_of_backend: dict[str, str],
    tmp_path: Path,
    installer: str,
    settings: tuple[str, ...],
    plugins: str,
) -> None:
    # A path that a shell, and the file with the path, could break at.
    tree = Path(shutil.move(here, tmp_path / "my näme"))
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    python = str(venv / "bin" / "python")
    words = {
        "pip": [sys.executable, "-m", "pip", "--python", python, "install"],
        "uv": [str(Path(sys.executable).with_name("uv")), "pip", "install", "--python", python],
    }[installer]
    subprocess.run(
        [*words, "--no-deps", "--no-build-isolation", *settings, "-e", str(tree)],
        env=environment_of_backend,
        check=True,
        capture_output=True,
        cwd=tmp_path,
    )
    # A file that is written after the installation is there at once.
    package = tree / "python" / "tinyvec"
    (package / "more.py").write_text("word = 'new'\n")
    plain = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-c", TRY], capture_output=True, text=True, check=False, env=plain, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    own, loader, word, candidates = done.stdout.splitlines()
    assert own == str(package / "__init__.py")
    assert loader.startswith(str(venv))
    assert word == "new"
    assert candidates == plugins
    shutil.rmtree(tree)
    gone = subprocess.run(
        [python, "-c", "import tinyvec"], capture_output=True, text=True, check=False, env=plain
    )
    assert "its source tree is not there" in gone.stderr
    assert "hint: pip install -e FOLDER" in gone.stderr
