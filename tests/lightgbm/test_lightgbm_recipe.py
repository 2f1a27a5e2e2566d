"""The recipe, laid out from the source distribution on the index."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from archsplit.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "lightgbm"

pytestmark = pytest.mark.download


def fetch(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RECIPE / "fetch.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def nccl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stand-in: the header is copied, and not read."""
    folder = tmp_path_factory.mktemp("nccl")
    (folder / "include").mkdir()
    (folder / "include" / "nccl.h").touch()
    return folder


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory: pytest.TempPathFactory, nccl: Path) -> Path:
    folder = tmp_path_factory.mktemp("lightgbm") / "recipe"
    names = ("--name", "my-boosting", "--package", "boosting")
    done = fetch(str(folder), "--nccl", str(nccl), *names)
    assert done.returncode == 0, done.stderr
    return folder


def test_recipe_has_the_chosen_name(laid_out: Path) -> None:
    recipe = load_recipe(laid_out)
    assert (recipe.project.name, recipe.python.package) == ("my-boosting", "boosting")
    assert sum(file.suffix == ".cu" for file in recipe.source.files) == 15
    assert recipe.compile.relocatable


def test_sources_match_its_cmake_build(laid_out: Path) -> None:
    names = {str(file) for file in load_recipe(laid_out).source.files}
    assert "src/nccl_at_run_time.cpp" in names
    assert "src/c_api.cpp" in names
    assert "src/main.cpp" not in names
    assert len(names) == 15 + 54 + 4 + 1


def test_recipe_exports_the_whole_c_interface(laid_out: Path) -> None:
    recipe = load_recipe(laid_out)
    header = (laid_out / recipe.interface.header).read_text()
    declared = re.findall(r"^LIGHTGBM_C_EXPORT [^;]*?\b(LGBM_\w+)\(", header, re.MULTILINE)
    assert sorted(recipe.interface.symbols) == sorted(declared)


def test_every_licence_is_there(laid_out: Path) -> None:
    names = {path.name for path in load_recipe(laid_out).project.license_files}
    assert {"LightGBM.txt", "fmt.txt", "nanoarrow.txt", "nanoarrow-NOTICE.txt"} <= names


def test_another_file_is_refused(tmp_path: Path, nccl: Path) -> None:
    (tmp_path / "other.tar.gz").write_bytes(b"other")
    where = (str(tmp_path / "out"), "--nccl", str(nccl))
    done = fetch(*where, "--sdist", str(tmp_path / "other.tar.gz"))
    assert done.returncode == 1
    assert "other.tar.gz has the SHA-256 " in done.stderr
    assert not (tmp_path / "out").exists()


def test_existing_folder_is_not_changed(laid_out: Path, nccl: Path) -> None:
    done = fetch(str(laid_out), "--nccl", str(nccl))
    assert done.returncode == 2
    assert "is there already" in done.stderr


def test_missing_nccl_gets_a_hint(tmp_path: Path) -> None:
    done = fetch(str(tmp_path / "out"), "--nccl", str(tmp_path))
    assert done.returncode == 1
    assert "nccl.h not found in" in done.stderr
