"""The C code under sanitizers, with damaged files and racing threads, and in other compilers."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import pytest
from loader_stubs import HERE, LOADER, SANITIZERS, STRICT, Workbench, compile_c, run, sources

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = 250_000
HEADERS = ("plugin.h", "plugin_loader.h")
COMPILERS = {
    "gcc": ["gcc"],
    "clang": ["clang"],
    "zig": [sys.executable, "-m", "ziglang", "cc"],
}
PLUS_PLUS = {"gcc": ["g++"], "clang": ["clang++"], "zig": [sys.executable, "-m", "ziglang", "c++"]}


@pytest.fixture(scope="module")
def fuzzer(workbench: Workbench) -> Path:
    source = str(HERE / "fuzz_descriptor.c")
    return compile_c(workbench.folder / "fuzz", *STRICT, *SANITIZERS, source, *sources(), "-ldl")


def test_plugin_cut_off_at_any_byte_is_truncated(
    workbench: Workbench, fuzzer: Path, tmp_path: Path
) -> None:
    done = run([str(fuzzer), str(workbench.stub(tmp_path / "p.so"))], {})
    assert done.returncode == 0, done.stderr


def test_damaged_plugins_are_read_without_a_fault(
    workbench: Workbench, fuzzer: Path, tmp_path: Path
) -> None:
    plugin = workbench.stub(tmp_path / "p.so")
    done = run([str(fuzzer), str(plugin), str(ROUNDS), "1"], {})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{ROUNDS} inputs;")
    for verdict in ("accepted", "malformed", "truncated", "not-elf", "no-descriptor"):
        assert f" {verdict} 0 " not in done.stdout, done.stdout


def test_threads_may_race_to_the_first_load(workbench: Workbench, tmp_path: Path) -> None:
    program = str(HERE / "loader_probe.c")
    flags = ("-g", "-O1", "-fsanitize=thread")
    compile_c(workbench.folder / "race", *STRICT, *flags, program, *sources(), "-ldl", "-lpthread")
    workbench.plugin(tmp_path, "sm_90")
    folder = tmp_path / "vecsort_plugins"
    for program in ("race", "probe"):
        done = workbench.probe(folder, "--open", 0, "--threads", 8, gpus="9.0", program=program)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("opened, the answer is 42") == 16
        assert "all threads have the same plugin" in done.stdout


def try_compile(command: list[str], folder: Path, *arguments: str) -> None:
    """Compile something, and fail with the compiler's words; skip when it is not installed."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    caches = dict.fromkeys(("HOME", "ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"), str(folder))
    include = f"-I{LOADER / 'include'}"
    done = run([*command, include, *arguments, "-c", "-o", str(folder / "out.o")], caches)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", COMPILERS)
def test_sources_compile_without_a_warning(tmp_path: Path, name: str) -> None:
    more = ("-Wstrict-prototypes", "-Wmissing-prototypes", "-fvisibility=hidden")
    for source in sources():
        try_compile(COMPILERS[name], tmp_path, *STRICT, *more, source)


@pytest.mark.parametrize("name", COMPILERS)
def test_public_headers_are_c_and_cplusplus(tmp_path: Path, name: str) -> None:
    for standard, suffix, commands in (("c11", "c", COMPILERS), ("c++11", "cc", PLUS_PLUS)):
        for header in HEADERS:
            source = tmp_path / f"user.{suffix}"
            source.write_text(f'#include "{header}"\nint main(void) {{ return 0; }}\n')
            flags = (f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
            try_compile(commands[name], tmp_path, *flags, str(source))
