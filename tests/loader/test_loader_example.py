"""The example in C, built as its users would: through CMake, and through pkg-config."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from loader_stubs import LIBRARY, LOADER, Workbench, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def done(*command: object, **environment: str) -> str:
    found = subprocess.run(
        list(map(str, command)),
        env=environment or None,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the loader is installed for C programs."""
    if shutil.which("cmake") is None or shutil.which("pkg-config") is None:
        pytest.skip("cmake or pkg-config is not installed")
    folder = tmp_path_factory.mktemp("cmake")
    done("cmake", "-S", LOADER, "-B", folder / "build", "-DCMAKE_INSTALL_LIBDIR=lib")
    done("cmake", "--build", folder / "build")
    done("cmake", "--install", folder / "build", "--prefix", folder / "prefix")
    return folder / "prefix"


def by_cmake(prefix: Path, folder: Path) -> Path:
    source = LOADER / "example"
    done("cmake", "-S", source, "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix}")
    done("cmake", "--build", folder)
    return folder / "open_plugin"


def by_pkg_config(prefix: Path, folder: Path) -> Path:
    place = str(prefix / "lib" / "pkgconfig")
    words = done("pkg-config", "--cflags", "--libs", "archsplit-loader", PKG_CONFIG_PATH=place)
    source, program = LOADER / "example" / "open_plugin.c", folder / "open_plugin"
    done("gcc", "-std=c11", "-Wall", "-Werror", source, "-o", program, *words.split())
    return program


@pytest.mark.parametrize("build", [by_cmake, by_pkg_config])
def test_example_opens_a_plugin(
    workbench: Workbench, prefix: Path, tmp_path: Path, build: Callable[[Path, Path], Path]
) -> None:
    program = build(prefix, tmp_path)
    workbench.plugin(tmp_path, "sm_90")
    identity = ("vecsort", "1.2.3", "11" * 32, "22" * 32, LIBRARY)
    command = [str(program), *identity, str(tmp_path / "vecsort_plugins"), "stub_answer"]
    path = {"LD_LIBRARY_PATH": f"{prefix}/lib:{workbench.folder}"}
    asked = run([*command, "9.0"], path)
    assert (asked.stdout, asked.stderr) == ("42\n", "")
    assert run(command, {**path, "STAND_IN_GPUS": "9.0"}).stdout == "42\n"
    other = run(command, {**path, "STAND_IN_GPUS": "8.0"})
    assert other.returncode == 1
    assert "no plugin of vecsort 1.2.3 serves device 0" in other.stderr
