"""Outputs of the compiler wrapper that are there and no regular files."""

from __future__ import annotations

import os
import shlex
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest

from source_roots import SOURCE_PATH
from warm_programs import run_archsplit_nvcc

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.nvcc.toolkit import Toolkit

pytestmark = pytest.mark.nvcc

GOOD = "__global__ void good(int* x) { *x = 1; }\n"


class Folder:
    """A folder with two sources, and a cache beside it."""

    def __init__(self, path: Path, toolkit: Toolkit, cache: str) -> None:
        self.path = path
        self.toolkit = toolkit
        self.cache = cache
        (path / "t.cu").write_text(GOOD)
        (path / "bad.cu").write_text("error\n")

    def run(
        self, line: str, *, options: str = "", **variables: str
    ) -> subprocess.CompletedProcess[bytes]:
        environment = {
            **variables,
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": SOURCE_PATH,
            "ARCHSPLIT_CACHE_DIR": str(self.path / "cache"),
            "ARCHSPLIT_CACHE": self.cache,
            "ARCHSPLIT_NVCC_OPTIONS": f"--nvcc '{self.toolkit.nvcc}' --reproducible {options}",
        }
        return run_archsplit_nvcc(
            ("-arch=sm_80", *shlex.split(line)), cwd=self.path, env=environment
        )

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()


@pytest.fixture(params=[pytest.param("off", marks=pytest.mark.stress), "on"])
def folder(tmp_path: Path, toolkit: Toolkit, request: pytest.FixtureRequest) -> Folder:
    return Folder(tmp_path, toolkit, request.param)


def test_device_as_output_stays_a_device(folder: Folder, null_device: Path) -> None:
    before, libraries = null_device.stat(), folder.toolkit.library_folder
    for line, code in (
        ("-c t.cu -o null", 0),
        ("-c t.cu -o null -MD -MF null", 0),
        ("-c bad.cu -o null", 2),
        ("-cubin t.cu -o null", 0),
        ("-ptx t.cu -o null -DNAME=null", 0),
        ("-ptx bad.cu -o null", 1),
        ("-lib t.cu -o null", 0),
        ("-E t.cu -o null", 0),
        ("-MM t.cu -o null", 0),
        (f"-shared -Xcompiler -fPIC {shlex.quote(f'-L{libraries}')} t.cu -o null", 0),
    ):
        done = folder.run(line)
        assert (line, done.returncode, os.path.samestat(before, null_device.stat())) == (
            line,
            code,
            True,
        )
        assert b"archsplit: " not in done.stderr
        assert code or done.stderr == b""


def test_a_hit_and_a_miss_leave_the_same(folder: Folder, null_device: Path) -> None:
    argv = "-c t.cu -MD"
    assert folder.run(f"{argv} -o t.o -MF t.d").returncode == 0
    (folder.path / "link.o").symlink_to("real.o")
    (folder.path / "real.o").write_text("old")
    os.mkfifo(folder.path / "rules")
    read: list[bytes] = []
    for name in ("link.o", null_device.name):
        reader = threading.Thread(target=lambda: read.append(folder.read("rules")), daemon=True)
        reader.start()
        done = folder.run(f"{argv} -o {name} -MT t.o -MF rules", options="--explain")
        reader.join(timeout=30)
        assert done.returncode == 0
        known = b"archsplit: cache hit" in done.stderr
        assert known == (folder.cache == "on")
    assert read == [folder.read("t.d")] * 2
    assert (folder.path / "link.o").is_symlink()
    assert folder.read("real.o") == folder.read("t.o")
    assert null_device.is_char_device()
    assert (folder.path / "rules").is_fifo()
    done = folder.run(f"{argv} -o /dev/stdout -MT t.o -MF t.d")
    assert (done.returncode, done.stdout) == (0, folder.read("t.o"))


@pytest.mark.parametrize("line", ["-c bad.cu -o t.o", "-cubin bad.cu -o t.o", "-c t.cu bad.cu"])
def test_failed_compilation_leaves_the_same_old_objects_as_nvcc(folder: Folder, line: str) -> None:
    left = []
    for program in ("archsplit-nvcc", str(folder.toolkit.nvcc)):
        for name in ("t.o", "bad.o"):
            (folder.path / name).write_text("old")
        own = () if program == "archsplit-nvcc" else ("-arch=sm_80",)
        done = (
            subprocess.run((program, *own, *line.split()), cwd=folder.path, check=False)
            if own
            else folder.run(line)
        )
        assert done.returncode
        left.append({name: folder.read(name) == b"old" for name in ("t.o", "bad.o")})
    assert left[0] == left[1]
    assert left[0]["bad.o"]


def test_output_after_an_earlier_failure_stays_old(folder: Folder) -> None:
    (folder.path / "slow.cpp").write_text("#include <regex>\nint f() { return undeclared; }\n")
    (folder.path / "fast.cpp").write_text("int g() { return 1; }\n")
    left = []
    for program in ((), (str(folder.toolkit.nvcc),)):
        for name in ("slow.o", "fast.o"):
            (folder.path / name).write_text("old")
        line = "-c slow.cpp fast.cpp"
        done = (
            subprocess.run((*program, *line.split()), cwd=folder.path, check=False)
            if program
            else folder.run(line)
        )
        assert done.returncode == 1
        left.append([folder.read(name) for name in ("slow.o", "fast.o")])
    assert left == [[b"old", b"old"]] * 2
    assert folder.run("-c fast.cpp slow.cpp").returncode == 1
    assert folder.read("fast.o").startswith(b"\x7fELF")


def test_host_source_with_rules_is_a_hit(folder: Folder) -> None:
    (folder.path / "h.cpp").write_text("#include <string>\nint g() { return 1; }\n")
    line = "-c h.cpp -o h.o -MD -MF h.d"
    first = folder.run(line, options="--explain")
    made = folder.read("h.o"), folder.read("h.d")
    again = folder.run(line, options="--explain")
    assert (b"archsplit: cache hit" in again.stderr) == (folder.cache == "on")
    assert b"archsplit: cache hit" not in first.stderr
    assert made == (folder.read("h.o"), folder.read("h.d"))


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("-c t.cu -o place", 1, b"can't create place: Is a directory"),
        ("-ptx t.cu -o place", 0, b"IO error: Is a directory"),
        ("-cubin t.cu -o place", 255, b"Output file 'place' could not be opened"),
        ("-lib t.cu -o place", 1, b"ar: place: file format not recognized"),
        ("-c t.cu -o t.o -MD -MF place", 1, b"place"),
    ],
)
def test_folder_in_the_place_of_an_output_ends_as_with_nvcc(
    tmp_path: Path, toolkit: Toolkit, line: str, code: int, message: bytes
) -> None:
    folder = Folder(tmp_path, toolkit, "on")
    (tmp_path / "place").mkdir()
    done = folder.run(line)
    assert (done.returncode, message in done.stderr) == (code, True)
    assert b"archsplit: " not in done.stderr
    assert list((tmp_path / "place").iterdir()) == []


def test_too_long_name_ends_as_with_nvcc(folder: Folder) -> None:
    done = folder.run(f"-c t.cu -o {'x' * 256}")
    assert (done.returncode, b"File name too long" in done.stderr) == (1, True)
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES"])
def test_variable_for_rules_gets_the_headers_of_the_source(
    tmp_path: Path, toolkit: Toolkit, name: str
) -> None:
    folder = Folder(tmp_path, toolkit, "on")
    (tmp_path / "t.h").write_text("\n")
    (tmp_path / "t.cu").write_text(f'#include "t.h"\n{GOOD}')
    done = folder.run("-c t.cu -o t.o", **{name: "rules t.o"})
    assert done.returncode == 0
    assert done.stderr.startswith(f"archsplit: running nvcc itself: {name} asks".encode())
    rules = folder.read("rules").split()
    assert {b"t.o:", b"t.h"} <= {*rules}
    assert b"/dev/null" not in rules


def test_dollar_in_a_path_is_expanded_as_by_a_shell(tmp_path: Path, toolkit: Toolkit) -> None:
    (tmp_path / "a$b").mkdir()
    folder = Folder(tmp_path / "a$b", toolkit, "on")
    (folder.path / "t.h").write_text("\n")
    (folder.path / "s").mkdir()
    (folder.path / "s/t.cu").write_text(f"#include <t.h>\n{GOOD}")
    # nvcc protects the folder of an include from its shell, and not the name of an output.
    line = "-c s/t.cu -o t$b.o -I../a$b"
    assert folder.run(line, b="1").returncode == 0
    assert (folder.path / "t1.o").is_file()
    (folder.path / "t1.o").unlink()
    done = folder.run(line, options="--explain", b="1")
    assert (done.returncode, done.stderr) == (0, b"archsplit: cache hit (local)\n")
    assert (folder.path / "t1.o").is_file()
    assert folder.run(line, b="2").returncode == 0
    assert folder.read("t2.o") == folder.read("t1.o")
    assert not (folder.path / "t$b.o").exists()


def test_reports_are_written_to_a_device(folder: Folder, null_device: Path) -> None:
    before = null_device.stat()
    wanted = ("--graph", "--table", "--verbose")
    done = folder.run("-c t.cu -o t.o", options=" ".join(f"{word} null" for word in wanted))
    assert (done.returncode, done.stderr) == (0, b"")
    assert os.path.samestat(before, null_device.stat())
    (folder.path / "saved").mkdir()
    assert folder.run("-c t.cu -o t.o", options="--save saved").returncode == 0
    first = sorted(os.listdir(folder.path / "saved"))[0]
    (folder.path / "saved" / first).unlink()
    os.link(null_device, folder.path / "saved" / first)
    assert folder.run("-c t.cu -o t.o", options="--save saved").returncode == 0
    assert os.path.samestat(before, (folder.path / "saved" / first).stat())
