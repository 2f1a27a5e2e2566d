"""The loader as a C library: installed, moved, found by CMake and pkg-config, linked both ways."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from loader_stubs import Workbench, run

from loader_objects import LOADER

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLES = LOADER.parent / "docs" / "reference" / "c-interface"
CMAKES = {"system": "cmake", "newest": str(Path(sys.executable).with_name("cmake"))}
MULTIARCH = "lib/x86_64-linux-gnu"
QUICK = ("-DCMAKE_BUILD_TYPE=Debug",)


def done(*command: object, **environment: str) -> str:
    found = subprocess.run(
        list(map(str, command)),
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The loader, compiled once by the system's CMake."""
    if shutil.which("cmake") is None or shutil.which("pkg-config") is None:
        pytest.skip("cmake or pkg-config is not installed")
    folder = tmp_path_factory.mktemp("cmake") / "build"
    done("cmake", "-S", LOADER, "-B", folder, "-DCMAKE_INSTALL_LIBDIR=lib", *QUICK)
    done("cmake", "--build", folder, "--parallel", "2")
    return folder


@pytest.fixture(scope="module")
def prefix(build: Path) -> Path:
    """An installation whose path has a space, moved after it was made."""
    first = build.parent / "a first" / "place"
    done("cmake", "--install", build, "--prefix", first)
    return first.rename(build.parent / "the second")


@pytest.fixture
def site(workbench: Workbench, tmp_path: Path) -> Path:
    """A core and its plugin for sm_90."""
    workbench.plugin(tmp_path, "sm_90")
    return workbench.core(tmp_path)


def by_cmake(cmake: str, prefix: Path, folder: Path) -> tuple[Path, Path]:
    where = f"-DCMAKE_PREFIX_PATH={prefix}"
    done(CMAKES[cmake], "-S", LOADER / "example", "-B", folder, where)
    done(CMAKES[cmake], "--build", folder)
    return folder / "open_plugin", folder / "open_plugin_static"


def by_pkg_config(prefix: Path, folder: Path) -> tuple[Path, Path]:
    place = str(prefix / "lib" / "pkgconfig")
    source = LOADER / "example" / "open_plugin.c"
    programs = folder / "open_plugin", folder / "open_plugin_static"
    for program, name in zip(
        programs, ("archsplit-loader", "archsplit-loader-static"), strict=True
    ):
        asked = ("--define-prefix", "--cflags", "--libs", f"{name} >= 1.1")
        words = shlex.split(done("pkg-config", *asked, PKG_CONFIG_PATH=place))
        done("gcc", "-std=c11", "-Wall", "-Werror", source, "-o", program, *words)
    return programs


def check_program(workbench: Workbench, prefix: Path, program: Path, face: Path) -> None:
    path = {"LD_LIBRARY_PATH": f"{prefix}/lib:{workbench.folder}"}
    command = [str(program), str(face), "stub_answer"]
    asked = run([*command, "9.0"], path)
    assert (asked.stdout, asked.stderr) == ("42\n", "")
    assert run(command, {**path, "STAND_IN_GPUS": "9.0"}).stdout == "42\n"
    other = run(command, {**path, "STAND_IN_GPUS": "8.0"})
    assert other.returncode == 1
    assert "no plugin of vecsort 1.2.3 serves device 0" in other.stderr
    lost = run([str(program), str(face.parent), "stub_answer", "9.0"], path)
    assert "no loader: can't be opened: No such file or directory" in lost.stderr


@pytest.mark.parametrize("way", ["system", "newest", "pkg-config"])
def test_c_program_opens_a_plugin(
    workbench: Workbench, prefix: Path, site: Path, tmp_path: Path, way: str
) -> None:
    folder = tmp_path / "consumer"
    folder.mkdir()
    is_cmake = way in CMAKES
    programs = by_cmake(way, prefix, folder) if is_cmake else by_pkg_config(prefix, folder)
    needed = [done("readelf", "-d", program) for program in programs]
    assert "libarchsplit_loader.so.1]" in needed[0]
    assert "archsplit" not in needed[1].replace(str(tmp_path), "")
    for program in programs:
        check_program(workbench, prefix, program, site)
    # What links the static library doesn't offer the loader to the rest of its process.
    assert " archsplit_" not in done("readelf", "-W", "--dyn-syms", programs[1])


@pytest.mark.parametrize(("asked", "is_found"), [("1.0", True), ("1.2", False), ("2.0", False)])
def test_find_package_refuses_another_version(
    prefix: Path, tmp_path: Path, asked: str, is_found: bool
) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16...4.0)\nproject(asks LANGUAGES C)\n"
        f"find_package(archsplit_loader {asked} REQUIRED)\n"
        "message(STATUS \"glibc: '${archsplit_loader_GLIBC}'\")\n"
    )
    command = ["cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}"]
    found = run(list(map(str, command)), {})
    assert (found.returncode == 0) == is_found, found.stderr
    expected = "glibc: ''" if is_found else "version: 1.1"
    # CMake breaks its lines.
    assert expected in " ".join((found.stdout + found.stderr).split())


def words(folder: Path, *arguments: str, **environment: str) -> list[str]:
    place = {"PKG_CONFIG_PATH": str(folder / "pkgconfig"), **environment}
    printed = done("pkg-config", "--cflags", "--libs", *arguments, "archsplit-loader", **place)
    return [os.path.normpath(word) for word in shlex.split(printed)]


@pytest.mark.parametrize("libdir", ["lib", MULTIARCH])
def test_pkg_config_knows_every_prefix(build: Path, tmp_path: Path, libdir: str) -> None:
    done("cmake", f"-DCMAKE_INSTALL_LIBDIR={libdir}", build)
    prefix = tmp_path / "a b"
    # A relative prefix counts from the folder in which cmake runs.
    subprocess.run(
        ["cmake", "--install", str(build), "--prefix", "a b"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    expected = [f"-I{prefix}/include", f"-L{prefix}/{libdir}", "-larchsplit_loader"]
    assert words(prefix / libdir) == expected
    assert words(prefix / libdir, "--define-prefix") == expected
    moved = prefix.rename(tmp_path / "moved")
    assert words(moved / libdir, "--define-prefix")[0] == f"-I{moved}/include"
    stage = tmp_path / "stage"
    done("cmake", "--install", build, "--prefix", "/opt/q", DESTDIR=str(stage))
    root = stage / "opt" / "q"
    assert words(root / libdir, PKG_CONFIG_SYSROOT_DIR=str(stage))[:2] == [
        f"-I{root}/include",
        f"-L{root}/{libdir}",
    ]
    done("cmake", "-DCMAKE_INSTALL_LIBDIR=lib", build)


def test_installed_library_is_versioned_and_hardened(prefix: Path) -> None:
    library = prefix / "lib" / "libarchsplit_loader.so"
    assert library.readlink() == Path("libarchsplit_loader.so.1")
    assert library.resolve().name == "libarchsplit_loader.so.1.1"
    text = done("readelf", "-nW", "-d", "--dyn-syms", library)
    assert "[libarchsplit_loader.so.1]" in text
    assert "archsplit_core_read@@ARCHSPLIT_LOADER_1.1" in text
    assert "archsplit_loader_create@@ARCHSPLIT_LOADER_1.0" in text
    assert {"__stack_chk_fail", "NOW", "Build"} <= set(text.replace("@", " ").split())
    rows = [line.split() for line in text.splitlines() if " GLOBAL DEFAULT " in line]
    exported = {row[7].partition("@")[0] for row in rows if row[6] != "UND"}
    assert {name.partition("_")[0].lower() for name in exported} == {"archsplit"}


def test_promise_of_an_old_glibc_is_checked(build: Path, tmp_path: Path) -> None:
    library = shutil.copy(build / "libarchsplit_loader.so", tmp_path)
    script = LOADER / "cmake" / "check_glibc.cmake"
    asked = ["cmake", f"-DLIBRARY={library}", "-DOBJDUMP=objdump"]
    kept = run([*asked, "-DGLIBC=9.9", "-P", str(script)], {})
    assert kept.returncode == 0, kept.stderr
    refused = run([*asked, "-DGLIBC=2.3", "-P", str(script)], {})
    assert refused.returncode != 0
    assert "needs a newer glibc than 2.3: " in " ".join(refused.stderr.split())
    assert not Path(library).exists()


def by_subdirectory(folder: Path) -> Path:
    """The sources as a part of the program's own project, which installs nothing of them."""
    (folder / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16...4.0)\nproject(inside LANGUAGES C)\n"
        f'add_subdirectory("{LOADER}" loader EXCLUDE_FROM_ALL)\n'
        f'add_executable(inside "{LOADER}/example/open_plugin.c")\n'
        "target_link_libraries(inside PRIVATE archsplit::loader_static)\n"
    )
    done("cmake", "-S", folder, "-B", folder / "build")
    done("cmake", "--build", folder / "build", "--parallel", "2")
    return folder / "build" / "inside"


@pytest.mark.stress
def test_sources_may_be_a_part_of_another_project(
    workbench: Workbench, site: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    check_program(workbench, folder, by_subdirectory(folder), site)
    assert "archsplit_loader" not in done("cmake", "--install", folder / "build", "--prefix", "x")


@pytest.mark.stress
def test_zig_keeps_the_promise_of_glibc_2_17(tmp_path: Path) -> None:
    compiler = f"'{sys.executable}' -m ziglang cc -target x86_64-linux-gnu.2.17"
    place = {"HOME": str(tmp_path), "CC": compiler}
    asked = ("-DARCHSPLIT_GLIBC=2.17", "-DCMAKE_INSTALL_LIBDIR=lib")
    done("cmake", "-S", LOADER, "-B", tmp_path / "build", *asked, **place)
    done("cmake", "--build", tmp_path / "build", "--parallel", "2", **place)
    done("cmake", "--install", tmp_path / "build", "--prefix", tmp_path / "p", **place)
    assert "glibc=2.17\n" in (tmp_path / "p/lib/pkgconfig/archsplit-loader.pc").read_text()


def cpp_sample(prefix: Path, folder: Path) -> list[str]:
    """With the static library; the test of the page links the shared one."""
    source = shutil.copytree(SAMPLES, folder / "source")
    lists = source / "CMakeLists.txt"
    lists.write_text(lists.read_text().replace("archsplit::loader)", "archsplit::loader_static)"))
    where = f"-DCMAKE_PREFIX_PATH={prefix}"
    done("cmake", "-S", source, "-B", folder, where, "-DCMAKE_CXX_FLAGS=-Wall -Werror")
    done("cmake", "--build", folder)
    assert "archsplit" not in done("readelf", "-d", folder / "greet").replace(str(folder), "")
    return [str(folder / "greet")]


def ctypes_sample(prefix: Path, folder: Path) -> list[str]:
    return [sys.executable, str(SAMPLES / "greet.py")]


@pytest.mark.parametrize("sample", [cpp_sample, ctypes_sample])
def test_samples_of_the_manual_say_each_decision(
    workbench: Workbench,
    prefix: Path,
    site: Path,
    tmp_path: Path,
    sample: Callable[[Path, Path], list[str]],
) -> None:
    command = sample(prefix, tmp_path / "sample")
    path = {"LD_LIBRARY_PATH": f"{prefix}/lib:{workbench.folder}"}
    # The stub has no such function: the plugin was opened, which is the sample's work.
    opened = run([*command, str(site), "9.0"], path)
    assert "tinyvec_name" in opened.stderr
    assert f"decision: {site.parents[1]}/vecsort_plugins/cuda/sm_90/libvecsort.so" in opened.stderr
    refused = run([*command, str(site), "8.0"], path)
    assert refused.returncode == 1
    assert "no plugin of vecsort 1.2.3 serves" in refused.stderr
    (site / "core.pack").unlink()
    lost = run([*command, str(site), "8.0"], path)
    assert f"({site}/core.pack); install the core again" in lost.stderr
