"""The C code under sanitizers, with damaged files and racing threads, and in other compilers."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import pytest
from loader_packs import split_site
from loader_sanitized import Sanitized, sanitized
from loader_stubs import HERE, STRICT, Stub, Workbench, compile_c, run

from loader_objects import LOADER, loader_objects, sources

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Race = Callable[[Workbench, "Sanitized", Path], None]

ROUNDS = 30_000
HEADERS = ("archsplit/plugin.h", "archsplit/plugin_loader.h")
COMPILERS = {
    "gcc": ["gcc"],
    "clang": ["clang"],
    "zig": [sys.executable, "-m", "ziglang", "cc"],
}
PLUS_PLUS = {"gcc": ["g++"], "clang": ["clang++"], "zig": [sys.executable, "-m", "ziglang", "c++"]}


@pytest.fixture(scope="module", params=["gcc", "clang"])
def addresses(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Sanitized:
    """AddressSanitizer and UndefinedBehaviorSanitizer."""
    return sanitized("address", request.param, tmp_path_factory.mktemp("addresses"))


@pytest.fixture(scope="module", params=["gcc", "clang"])
def threads(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sanitized:
    """ThreadSanitizer."""
    return sanitized("thread", request.param, tmp_path_factory.mktemp("threads"))


def test_plugin_cut_off_at_any_byte_is_truncated(
    workbench: Workbench, addresses: Sanitized, tmp_path: Path
) -> None:
    plugin = workbench.stub(tmp_path / "p.so")
    done = run([str(addresses.program("fuzz_descriptor")), str(plugin)], {})
    assert done.returncode == 0, done.stderr


def test_damaged_plugins_are_read_without_a_fault(
    workbench: Workbench, addresses: Sanitized, tmp_path: Path
) -> None:
    plugin = workbench.stub(tmp_path / "p.so")
    done = run([str(addresses.program("fuzz_descriptor")), str(plugin), str(ROUNDS), "1"], {})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{ROUNDS} inputs;")
    for verdict in ("accepted", "malformed", "truncated", "not-elf", "no-descriptor"):
        assert f" {verdict} 0 " not in done.stdout, done.stdout


@pytest.mark.parametrize("name", ["cc90", "core"])
def test_damaged_packs_are_read_without_a_fault(
    workbench: Workbench, addresses: Sanitized, tmp_path: Path, name: str
) -> None:
    site = split_site(workbench, tmp_path)
    pack = site.add("cc90", "sm_90") if name == "cc90" else site.face / "core.pack"
    done = run([str(addresses.program("fuzz_pack")), str(pack), str(ROUNDS // 10), "1"], {})
    assert (done.returncode, done.stderr) == (0, "")
    _, accepted, _, refused = done.stdout.split()
    assert min(int(accepted), int(refused)) > ROUNDS // 200


def test_odd_settings_are_read_without_a_fault(addresses: Sanitized) -> None:
    done = run([str(addresses.program("fuzz_settings")), str(ROUNDS * 3), "1"], {})
    assert (done.returncode, done.stderr) == (0, "")


def race_to_plugins(workbench: Workbench, tool: Sanitized, folder: Path) -> None:
    workbench.plugin(folder, "sm_90")
    probe = tool.program("loader_probe")
    command = [probe, folder / "vecsort_plugins", "--open", 0, "--threads", 8]
    done = run(list(map(str, command)), workbench.environment("9.0"))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.count("opened, the answer is 42") == 16
    assert "all threads have the same plugin" in done.stdout


def race_to_split_libraries(workbench: Workbench, tool: Sanitized, folder: Path) -> None:
    cores = [split_site(workbench, folder / f"site{n}", loader=tool.loader) for n in range(2)]
    for core in cores:
        core.add("cc80", "sm_80")
        core.add("cc90", "sm_90")
    host = tool.program("pack_host")
    command = [str(host), "--race", *(str(core.library) for core in cores)]
    for gpus, letters in (("9.0", "hH"), ("8.0;9.0", "aA")):
        # What a core keeps for the life of its process is not a leak that matters.
        done = run(command, {**workbench.environment(gpus), "ASAN_OPTIONS": "detect_leaks=0"})
        assert (done.stdout, done.stderr) == (f"{letters}\n" * 2, "")


@pytest.mark.parametrize("race", [race_to_plugins, race_to_split_libraries])
def test_races_have_no_memory_faults(
    workbench: Workbench, addresses: Sanitized, tmp_path: Path, race: Race
) -> None:
    race(workbench, addresses, tmp_path)


@pytest.mark.parametrize("race", [race_to_plugins, race_to_split_libraries])
def test_races_have_no_data_races(
    workbench: Workbench, threads: Sanitized, tmp_path: Path, race: Race
) -> None:
    race(workbench, threads, tmp_path)


@pytest.mark.stress
def test_graft_beside_dlopen_has_no_data_race_and_ends(
    workbench: Workbench, threads: Sanitized, tmp_path: Path
) -> None:
    """Forty packs; the two threads once waited for each other in 3 of 12 runs."""
    core = split_site(workbench, tmp_path / "site", loader=threads.loader)
    for number in range(40):
        core.add(f"n{number}", "sm_90", descriptor=Stub(shape=2, cuda_version=13000 - number))
    words = ("--graft", core.face / "libarchsplit_loader.so", core.face, core.stub, "--race")
    command = [threads.program("pack_host"), *words, core.library]
    for _ in range(12):
        done = run(list(map(str, command)), workbench.environment("9.0"))
        assert (done.stdout, done.stderr) == ("hH\n", "")


VALGRIND = ("valgrind", "-q", "--error-exitcode=9", "--leak-check=full")


def test_valgrind_finds_nothing_in_the_probe(workbench: Workbench, tmp_path: Path) -> None:
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    objects = loader_objects(*STRICT, "-g")
    source = str(HERE / "loader_probe.c")
    probe = compile_c(tmp_path / "probe", "-g", source, *objects, "-ldl", "-lpthread")
    for target in ("sm_80", "sm_90"):
        workbench.plugin(tmp_path, target)
    workbench.plugin(tmp_path / "other", "sm_90", Stub(version=b"9"))
    folders = [str(each / "vecsort_plugins") for each in (tmp_path, tmp_path / "other")]
    for gpus in ("9.0", "8.0/2;9.0", None):
        command = [*VALGRIND, str(probe), *folders, "--open", "0"]
        done = run(command, workbench.environment(gpus))
        assert done.stderr == ""
        assert done.returncode == (0 if gpus else 3)


def test_valgrind_finds_nothing_in_a_graft(workbench: Workbench, tmp_path: Path) -> None:
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    core = split_site(workbench, tmp_path / "site")
    core.add("cc80", "sm_80")
    core.add("cc90", "sm_90")
    end = ("-ldl", "-lpthread")
    host = compile_c(tmp_path / "host", "-g", str(HERE / "pack_host.c"), *end)
    for gpus in ("9.0", "8.0;9.0"):
        done = run([*VALGRIND, str(host), str(core.library)], workbench.environment(gpus))
        assert (done.returncode, done.stderr) == (0, "")


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
