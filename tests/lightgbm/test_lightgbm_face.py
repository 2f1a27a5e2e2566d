"""The file that stands in for LightGBM's libpath.py, with a stand-in for the loader."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

OVERLAY = Path(__file__).parents[2] / "recipes" / "lightgbm" / "overlay" / "libpath.py"
STAND_IN_LOADER = """
import ctypes, os

class StandInFunction:
    restype = ctypes.c_int

    def __init__(self, name):
        self.name = name

    def __call__(self, *arguments):
        print(self.name, *arguments, self.restype.__name__)
        return 0

class StandInLibrary:
    def __getattr__(self, name):
        setattr(self, name, StandInFunction(name))
        return getattr(self, name)

def load():
    if "NO_GPU" in os.environ:
        raise RuntimeError("pip install 'x[sm90]'")
    print("opened")
    return StandInLibrary()
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "boosting"
    (folder / "_archsplit").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "_archsplit" / "__init__.py").write_text(STAND_IN_LOADER)
    shutil.copy(OVERLAY, folder)
    return tmp_path


def run(package: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # What LightGBM does while it is imported, before the script.
    beginning = (
        "import ctypes\nfrom boosting.libpath import _LIB\n"
        "_LIB.LGBM_GetLastError.restype = ctypes.c_char_p\n"
        "_LIB.callback = 'callback'\n"
        "assert _LIB.LGBM_RegisterLogCallback(_LIB.callback) == 0\n"
        "print('imported')\n"
    )
    command = [sys.executable, "-c", beginning + script]
    env = {"PYTHONPATH": str(package), **environment}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_first_call_opens_the_plugin_and_sets_the_log_callback(package: Path) -> None:
    done = run(package, "_LIB.LGBM_One(1, 2); _LIB.LGBM_One(3); _LIB.LGBM_GetLastError()")
    assert done.stdout.splitlines() == [
        "imported",
        "opened",
        "LGBM_RegisterLogCallback callback c_int",
        "LGBM_One 1 2 c_int",
        "LGBM_One 3 c_int",
        "LGBM_GetLastError c_char_p",
    ]


def test_a_later_callback_takes_over(package: Path) -> None:
    done = run(package, "_LIB.LGBM_One(); _LIB.LGBM_RegisterLogCallback('other')")
    assert done.stdout.splitlines()[-1] == "LGBM_RegisterLogCallback other c_int"


def test_without_a_plugin_the_first_call_says_so(package: Path) -> None:
    done = run(package, "_LIB.LGBM_One()", NO_GPU="1")
    assert done.stdout == "imported\n"
    assert "RuntimeError: pip install 'x[sm90]'" in done.stderr


def test_null_handle_can_be_freed(package: Path) -> None:
    assert run(package, "print(_LIB.LGBM_DatasetFree(None))", NO_GPU="1").stdout.endswith("\n0\n")


def test_unknown_lightgbm_names_are_missing(package: Path) -> None:
    done = run(package, "print(hasattr(_LIB, 'callback'), hasattr(_LIB, 'other'))")
    assert done.stdout.splitlines()[-1] == "True False"
