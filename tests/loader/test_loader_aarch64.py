"""The shipped aarch64 loader, run by qemu: it reads a core, judges plugins and opens one."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from loader_stubs import HERE, Stub, Workbench, run

from loader_objects import LOADER

pytestmark = pytest.mark.stress

SYSROOT = Path("/usr/aarch64-linux-gnu")
LIBRARY = LOADER / "prebuilt" / "aarch64" / "libarchsplit_loader.so"


def zig() -> str:
    found = find_spec("ziglang")
    if found is None or found.origin is None:
        pytest.skip("the ziglang package is not installed")
    return str(Path(found.origin).with_name("zig"))


def compile_for_aarch64(output: Path, *arguments: object) -> Path:
    cache = {name: str(output.parent / "zig") for name in ("HOME", "ZIG_GLOBAL_CACHE_DIR")}
    cache["ZIG_LOCAL_CACHE_DIR"] = cache["HOME"]
    command = [zig(), "cc", "-target", "aarch64-linux-gnu.2.28", "-Os", *arguments, "-o", output]
    environment = {"PATH": os.environ["PATH"], **cache}
    done = subprocess.run(
        list(map(str, command)), env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return output


@pytest.fixture(scope="module")
def emulator() -> str:
    found = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if found is None:
        pytest.skip("qemu-user-static is not installed")
    if not (SYSROOT / "lib" / "ld-linux-aarch64.so.1").exists():
        pytest.skip("libc6-arm64-cross is not installed")
    return found


@pytest.fixture(scope="module")
def bench(emulator: str, tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    """The programs and libraries for aarch64; the loader is the one that cores get."""
    del emulator
    folder = tmp_path_factory.mktemp("aarch64")
    program = LOADER / "example" / "open_plugin.c"
    include = f"-I{LOADER / 'include'}"
    rpath = f"-Wl,-rpath,{LIBRARY.parent}"
    compile_for_aarch64(folder / "open_plugin", "-std=c11", include, program, LIBRARY, rpath)
    plugin = ("-shared", "-fPIC", "-s", HERE / "stub_plugin.c")
    template = compile_for_aarch64(folder / "stub.so", *plugin).read_bytes()
    return Workbench(folder=folder, template=template, library=LIBRARY)


def test_the_loader_opens_the_right_plugin_and_refuses_the_others(
    bench: Workbench, emulator: str, workbench: Workbench, tmp_path: Path
) -> None:
    bench.plugin(tmp_path, "sm_90")
    bench.plugin(tmp_path, "compute_120", Stub(targets=("compute_120",), version=b"9.9.9"))
    workbench.plugin(tmp_path, "sm_80")  # of x86-64
    face = bench.core(tmp_path)
    program = [emulator, "-L", str(SYSROOT), str(bench.folder / "open_plugin")]
    traced = run([*program, str(face), "stub_answer", "9.0"], {"ARCHSPLIT_TRACE": "1"})
    assert traced.stdout == "42\n", traced.stderr
    for text in (
        "/sm_90/libvecsort.so was opened",
        "/sm_80/libvecsort.so is built for another processor: its ELF machine is 62, expected 183",
        "/compute_120/libvecsort.so is a plugin for vecsort 9.9.9, expected one for 1.2.3",
    ):
        assert text in traced.stderr
    other = run([*program, str(face), "stub_answer", "8.0"], {})
    assert other.returncode == 1
    assert "no plugin of vecsort 1.2.3 serves capability 8.0" in other.stderr
    lost = run([*program, str(face.parent), "stub_answer", "9.0"], {})
    assert "no loader: can't be opened: No such file or directory" in lost.stderr
