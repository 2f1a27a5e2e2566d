"""NCCL at run time: found beside the plugin when it is needed, and a clear word where it is not."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "recipes" / "lightgbm" / "overlay" / "nccl_at_run_time.cpp"


def compiled(source: Path, library: Path, *flags: str) -> Path:
    library.parent.mkdir(parents=True)
    command = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-I{library.parent}", *flags]
    (library.parent / "nccl.h").write_text(f'#include "{HERE / "stand_in_nccl.h"}"\n')
    subprocess.run(["g++", *command, str(source), "-o", str(library), "-ldl"], check=True)
    return library


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """Return the path of the plugin in site-packages."""
    folder = tmp_path / "boosting_plugins" / "cuda" / "sm_90"
    return compiled(SOURCE, folder / "libboosting.so")


def run(plugin: Path, script: str) -> str:
    beginning = "import ctypes, sys\nlib = ctypes.CDLL(sys.argv[1])\n"
    command = [sys.executable, "-c", beginning + script, str(plugin)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_library_without_nccl_opens_and_names_it(plugin: Path) -> None:
    text = run(
        plugin,
        "lib.ncclGetErrorString.restype = ctypes.c_char_p\n"
        "print(lib.ncclGroupStart(), lib.ncclGetErrorString(2).decode())",
    )
    assert text == "2 there is no libnccl.so.2; pip install nvidia-nccl-cu13"


def test_nccl_is_found_in_its_wheel(plugin: Path, tmp_path: Path) -> None:
    place = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    compiled(HERE / "stand_in_nccl.c", place, "-x", "c")
    text = run(
        plugin,
        "class Id(ctypes.Structure):\n"
        "    _fields_ = [('internal', ctypes.c_char * 128)]\n"
        "one, made, got = Id(), ctypes.c_void_p(), ctypes.c_int()\n"
        "print(lib.ncclGroupStart(), lib.ncclGroupEnd())\n"
        "print(lib.ncclGetUniqueId(ctypes.byref(one)))\n"
        "print(lib.ncclCommInitRank(ctypes.byref(made), 3, one, 2))\n"
        "sent = ctypes.byref(ctypes.c_int(5))\n"
        "print(lib.ncclAllReduce(sent, ctypes.byref(got), ctypes.c_size_t(10), 2, 0, None, None))\n"
        "print(got.value)\n"
        "lib.ncclGetErrorString.restype = ctypes.c_char_p\n"
        "print(lib.ncclGetErrorString(1).decode())",
    )
    assert text.splitlines() == ["41 42", "0", "327", "0", "17", "stand-in"]


def test_opening_the_plugin_looks_for_nothing(plugin: Path) -> None:
    assert ctypes.CDLL(str(plugin)).ncclGroupStart.restype is ctypes.c_int
    needed = subprocess.run(["readelf", "-d", plugin], check=True, capture_output=True, text=True)
    assert "libnccl" not in needed.stdout
