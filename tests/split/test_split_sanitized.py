"""The C that serves split libraries, under sanitizers, and with damaged packs."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from split_samples import Sample, compile_c, environment

from loader_objects import LOADER, loader_objects

FUZZER = Path(__file__).parents[1] / "loader" / "fuzz_pack.c"
HOST = Path(__file__).parent / "host.c"
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror")
SANITIZERS = {
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread",),
}
ROUNDS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """All of the loader as objects, and the flags that they were compiled with."""

    objects: tuple[str, ...]
    flags: tuple[str, ...]

    @classmethod
    def under(cls, sanitizer: str) -> Built:
        flags = (*STRICT, "-g", "-O1", *SANITIZERS[sanitizer])
        return cls(objects=tuple(loader_objects(*flags)), flags=flags)

    def linked(self, output: Path, *words: str) -> Path:
        return compile_c(output, *self.flags, *words, *self.objects, "-ldl")


@pytest.fixture(scope="module", params=SANITIZERS)
def built(request: pytest.FixtureRequest) -> Built:
    return Built.under(request.param)


@pytest.mark.parametrize("gpus", ["9.0", "8.0;9.0"])
def test_libraries_loaded_by_racing_threads_are_served(
    sample: Sample, tmp_path: Path, built: Built, gpus: str
) -> None:
    site = sample.site(tmp_path, "cc80", "cc90")
    loader = site / "toyfat/_archsplit/libarchsplit_loader.so"
    built.linked(loader, "-shared", "-lpthread")
    host = compile_c(tmp_path / "host", *built.flags, str(HOST), "-ldl", "-lpthread")
    libraries = [str(site / f"toyfat/lib/{name}.so") for name in ("liba", "libb")]
    # What a core keeps for the life of its process is not a leak that matters.
    more = {"ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(
        [host, *libraries],
        env=environment(sample.folder, gpus, **more),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count(": 8256 bytes") == (2 if gpus == "9.0" else 0)
    assert ": 0 bytes" not in done.stdout


@pytest.mark.parametrize("built", ["address"], indirect=True)
@pytest.mark.parametrize("pack", ["core", "cc90"])
def test_damaged_packs_are_read_without_a_fault(
    sample: Sample, tmp_path: Path, built: Built, pack: str
) -> None:
    fuzzer = built.linked(tmp_path / "fuzz", f"-I{LOADER / 'include'}", str(FUZZER))
    site = sample.site(tmp_path / "site", "cc90")
    places = {
        "core": site / "toyfat/_archsplit/core.pack",
        "cc90": site / "toyfat_plugins/cuda/cc90/device.pack",
    }
    done = subprocess.run(
        [fuzzer, places[pack], str(ROUNDS), "1"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    _, accepted, _, refused = done.stdout.split()
    assert int(accepted) > ROUNDS // 20
    assert int(refused) > ROUNDS // 20


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_stub_compiles_without_a_warning(tmp_path: Path, compiler: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    stub = str(LOADER / "stub" / "stub.c")
    command = [compiler, *STRICT, "-fPIC", "-c", stub, "-o", str(tmp_path / "stub.o")]
    done = subprocess.run(
        command, env=dict(os.environ), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
