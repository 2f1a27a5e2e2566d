"""The stand-in beside the real nvcc, on small sources."""

from __future__ import annotations

import contextlib
import csv
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from archsplit.compiler.wrapper import _parts
from source_roots import SOURCE_PATH
from warm_programs import decoded, run_archsplit_nvcc

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit

pytestmark = pytest.mark.nvcc

TWO = ("-gencode", "arch=compute_80,code=sm_80", "-gencode", "arch=compute_90,code=sm_90")
SOURCES = {
    "k.cu": '#include "k.h"\n__global__ void fill(float* x) { *x = ONE; }\n',
    "k.h": "#define ONE 1.0f\n",
    "hidden.cu": "static __device__ int count;\n"
    "static __global__ void hidden(int* x) { *x = ++count; }\n"
    'extern "C" void start(int* x) { hidden<<<1, 1>>>(x); }\n',
    "broken.cu": "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900\n#error not for 9.0\n#endif\n"
    "#warning seen\n__global__ void k() {}\n",
    "late.cu": '__global__ void k() { asm("no such thing;"); }\n',
    "p.cpp": "int p() { return 1; }\n",
    "b/k.cu": "__global__ void other(float* x) { *x = 2.0f; }\n",
}
LAUNCH = (sys.executable, "-c", "from archsplit.cli.nvcc import launcher; launcher()")


class Folder:
    """A folder with the sources, where nvcc and its stand-in are run."""

    def __init__(self, path: Path, toolkit: Toolkit) -> None:
        self.path = path
        self.toolkit = toolkit
        self.temporary = path / "temporary folder"
        self.temporary.mkdir(parents=True)
        for name, text in SOURCES.items():
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_text(text)

    def nvcc(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return self.run((str(self.toolkit.nvcc), *argv))

    def ours(self, *argv: str, options: str = "") -> subprocess.CompletedProcess[str]:
        named = f"--nvcc {shlex.quote(str(self.toolkit.nvcc))} {options}"
        return self.wrap(*argv, ARCHSPLIT_NVCC_OPTIONS=named)

    def wrap(self, *argv: str, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {**self.environment(), **more}
        return decoded(run_archsplit_nvcc(argv, cwd=self.path, env=environment))

    def run(self, argv: tuple[str, ...], **more: str) -> subprocess.CompletedProcess[str]:
        environment = {**self.environment(), **more}
        return subprocess.run(
            argv, cwd=self.path, env=environment, capture_output=True, text=True, check=False
        )

    def environment(self) -> dict[str, str]:
        return {
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": SOURCE_PATH,
            "TMPDIR": str(self.temporary),
            "ARCHSPLIT_CACHE_DIR": str(self.path.parent / "cache"),
            "ARCHSPLIT_CACHE": "off",
        }

    def left(self) -> list[str]:
        return sorted(os.listdir(self.temporary))

    def clean(self) -> None:
        """Remove everything but the sources."""
        for name in self.files().keys() - SOURCES:
            (self.path / name).unlink()

    def files(self) -> dict[str, bytes]:
        paths = (path for path in self.path.rglob("*") if path.is_file())
        return {str(path.relative_to(self.path)): path.read_bytes() for path in paths}


@pytest.fixture
def folder(tmp_path: Path, toolkit: Toolkit) -> Folder:
    return Folder(tmp_path / "work", toolkit)


def test_an_object_has_the_bytes_of_nvccs(tmp_path: Path, whole_toolkit: Toolkit) -> None:
    folder = Folder(tmp_path / "work", whole_toolkit)
    argv = ("-c", "k.cu", "-o", "k.o", "-MMD", "-Xcompiler", "-fPIC", *TWO)
    # The name of nvcc's temporary file gets into the object's symbols, unless it is kept.
    assert folder.nvcc(*argv, "--keep", "--keep-dir", "temporary folder").returncode == 0
    theirs = {name: (folder.path / name).read_bytes() for name in ("k.o", "k.d")}
    made = [*theirs, *(f"temporary folder/{each}" for each in folder.left())]
    for options in ("--reproducible", "--jobs 1"):
        for name in made:
            (folder.path / name).unlink()
        done = folder.ours(*argv, options=options)
        assert (options, done.returncode, done.stdout, done.stderr) == (options, 0, "", "")
        assert {name: (folder.path / name).read_bytes() for name in theirs} == theirs, options
        assert folder.left() == []
        made = [*theirs]


@pytest.mark.parametrize(
    "flags",
    [
        "-g",
        pytest.param("-Xcompiler=-fsanitize=address", marks=pytest.mark.stress),
        pytest.param("--keep-dir=. --keep -g", marks=pytest.mark.stress),
    ],
)
def test_debug_information_is_reproducible(folder: Folder, toolkit: Toolkit, flags: str) -> None:
    other = Folder(folder.path.parent / "other", toolkit)
    other.temporary = folder.temporary
    made = []
    for each in (folder, folder, other):
        words = (*flags.split(), f"-Xcompiler=-ffile-prefix-map={each.path}=/src")
        done = each.ours("-c", "k.cu", "-o", "k.o", *words, options="--reproducible")
        assert (done.returncode, done.stderr) == (0, "")
        made.append((each.path / "k.o").read_bytes())
    # Debug information has no name of the private folder; a sanitizer's reports do.
    assert (b".archsplit-" in made[0]) == ("sanitize" in flags)
    assert made[1] == made[0]
    folder.temporary = folder.path.parent / "another place for temporary files"
    folder.temporary.mkdir()
    words = (*flags.split(), f"-Xcompiler=-ffile-prefix-map={folder.path}=/src")
    assert folder.ours("-c", "k.cu", "-o", "k.o", *words, options="--reproducible").returncode == 0
    assert ((folder.path / "k.o").read_bytes() == made[0]) == ("sanitize" not in flags)
    # Nor does the checkout's path get into it, where the user maps that.
    assert made[2] == made[0]
    assert folder.left() == []


@pytest.mark.parametrize(
    "line",
    [
        "-c hidden.cu -o h.o",
        "-fatbin hidden.cu",
        "-c k.cu -o k.o -g -G",
        pytest.param("-rdc=true -lib hidden.cu p.cpp -o l.a", marks=pytest.mark.stress),
        pytest.param("-shared -Xcompiler -fPIC k.cu b/k.cu -o l.so", marks=pytest.mark.stress),
    ],
)
def test_verify_finds_equal_outputs(folder: Folder, line: str) -> None:
    link = f"-L{folder.toolkit.library_folder}"
    done = folder.ours(*line.split(), *TWO, link, options="--verify")
    assert (done.returncode, done.stderr) == (0, "")


def differing_nvcc(folder: Folder) -> Path:
    """Make an nvcc whose objects differ from the ones of the steps of its dry run."""
    other = folder.path / "nvcc"
    other.write_text(
        f'#!/bin/sh\ncase "$*" in *--dryrun*) ;; *) set -- "$@" -DONE=2.0f ;; esac\n'
        f'exec "{folder.toolkit.nvcc}" "$@"\n'
    )
    other.chmod(0o755)
    (folder.path / "k.h").write_text("#ifndef ONE\n#define ONE 1.0f\n#endif\n")
    return other


def test_a_difference_is_found(folder: Folder) -> None:
    other = differing_nvcc(folder)
    done = folder.ours("-c", "k.cu", *TWO, options=f"--verify --nvcc {other}")
    assert done.returncode == 9
    assert "k.compute_80.ptx" in done.stderr
    assert "k.o" in done.stderr


def test_kept_files_and_comparisons_come_from_no_hit(folder: Folder) -> None:
    other = differing_nvcc(folder)
    (folder.path / "kept").mkdir()

    def compile_cached(*more: str, options: str = "") -> subprocess.CompletedProcess[str]:
        variables = {"ARCHSPLIT_CACHE": "on", "ARCHSPLIT_CACHE_MIN_SECONDS": "0"}
        variables["ARCHSPLIT_NVCC_OPTIONS"] = f"--nvcc {other} --reproducible {options}"
        argv = ("-c", "k.cu", "-o", "k.o", "-arch=sm_80", *more)
        return folder.wrap(*argv, **variables)

    assert compile_cached().returncode == 0
    assert "archsplit: cache hit (local)" in compile_cached(options="--explain").stderr
    assert compile_cached("--keep", "--keep-dir", "kept").returncode == 0
    assert list((folder.path / "kept").glob("*.ptx"))
    assert compile_cached(options="--verify").returncode == 9


def test_members_of_an_archive_are_compared_without_their_times(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\n")
    for name, seconds in (("one.a", 1000), ("two.a", 2000)):
        os.utime(tmp_path / "a.txt", (seconds, seconds))
        subprocess.run(["ar", "rcU", name, "a.txt"], cwd=tmp_path, check=True)
    archives = [(tmp_path / name).read_bytes() for name in ("one.a", "two.a")]
    assert archives[0] != archives[1]
    assert [list(_parts(each, "l.a")) for each in archives] == [[("a.txt", b"one\n")]] * 2


@pytest.mark.parametrize("source", ["broken.cu", "late.cu", "missing.cu"])
def test_a_failure_is_nvccs(folder: Folder, source: str) -> None:
    argv = ("-c", source, "-o", "x.o", *TWO)
    theirs = folder.nvcc(*argv)
    ours = folder.ours(*argv)
    assert theirs.returncode != 0
    assert ours.returncode == theirs.returncode
    assert without_names(ours.stderr) == without_names(theirs.stderr)
    assert not (folder.path / "x.o").exists()
    assert folder.left() == []


def test_failure_with_threads_has_nvccs_exit_code(folder: Folder) -> None:
    assert folder.ours("-t", "2", "-c", "broken.cu", *TWO).returncode == 255
    # nvcc's own threads can't have a space in the temporary folder's name.
    named = (str(folder.toolkit.nvcc), "-t", "2", "-c", "broken.cu", *TWO)
    assert folder.run(named, TMPDIR="/tmp").returncode == 255


def without_names(text: str) -> list[str]:
    """Lines without those that have the name of a temporary file in them."""
    return [line for line in text.splitlines() if "tmpxft" not in line and "archsplit" not in line]


def test_unknown_step_falls_back_to_nvcc(folder: Folder) -> None:
    done = folder.ours("-c", "k.cu", "-o", "k.o", "-DNAME=`uname`")
    assert done.returncode == 0
    assert done.stderr.startswith("archsplit: running nvcc itself: nvcc --dryrun printed a step")
    assert done.stderr.count("\n") == 1
    assert (folder.path / "k.o").is_file()


def test_step_without_output_falls_back_to_nvcc(folder: Folder) -> None:
    compiler = folder.path / "bin" / "g++"
    compiler.parent.mkdir()
    compiler.write_text('#!/bin/sh\ncase " $* " in *" -S "*) exit 0 ;; esac\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    done = folder.ours("-c", "k.cu", "-o", "k.o", "-ccbin", str(compiler))
    assert done.returncode == 0
    assert "running nvcc itself" in done.stderr
    assert "left no k.cudafe1.s" in done.stderr
    assert (folder.path / "k.o").is_file()


def test_questions_are_answered_by_nvcc(folder: Folder) -> None:
    assert folder.ours("--version").stdout == folder.nvcc("--version").stdout
    refused = folder.ours("-c", "k.cu", "--no-such-option")
    assert refused.returncode == 1
    assert refused.stderr == folder.nvcc("-c", "k.cu", "--no-such-option").stderr


def test_intermediate_files_can_be_kept(folder: Folder) -> None:
    (folder.path / "kept").mkdir()
    # nvcc's own name for a unit that shows no symbol changes from run to run.
    argv = ("-c", "k.cu", "-o", "k.o", "--keep", "--keep-dir", "kept", *TWO)
    assert folder.nvcc(*argv).returncode == 0
    theirs = folder.files()
    for name in theirs:
        if name.startswith("kept/"):
            (folder.path / name).unlink()
    assert folder.ours(*argv, options="--reproducible").returncode == 0
    ours = folder.files()
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []


@pytest.mark.parametrize("line", ["-c k.cu -g --keep", "-c k.cu -o k.o -g --keep --keep-dir b"])
def test_kept_files_do_not_name_the_private_folder(folder: Folder, line: str) -> None:
    assert folder.nvcc(*line.split()).returncode == 0
    theirs = folder.files()
    folder.clean()
    done = folder.ours(*line.split(), options="--reproducible")
    assert (done.returncode, done.stderr) == (0, "")
    ours = folder.files()
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if b"/.archsplit-" in ours[name]] == []
    assert [name for name in ours if name.endswith(".c") and ours[name] != theirs[name]] == []


@pytest.mark.parametrize(
    ("line", "variables"),
    [
        ("-c k.cu -o b/k.x.o -Xcompiler -fstack-usage,-fcallgraph-info", {}),
        ("-c k.cu", {"NVCC_APPEND_FLAGS": "--keep -DMORE=1", "NVCC_PREPEND_FLAGS": "-MD"}),
        ("-c k.cu -o k.o", {"NVCC_APPEND_FLAGS": "-MMD -MF=k.d -MT all"}),
        ("-c k.cu", {"NVCC_APPEND_FLAGS": "--dryrun"}),
    ],
)
def test_remaining_files_equal_nvccs(folder: Folder, line: str, variables: dict[str, str]) -> None:
    named = {"ARCHSPLIT_NVCC_OPTIONS": f"--nvcc '{folder.toolkit.nvcc}'"}
    assert folder.run((str(folder.toolkit.nvcc), *line.split()), **variables).returncode == 0
    theirs = folder.files()
    folder.clean()
    done = folder.wrap(*line.split(), **named, **variables)
    assert done.returncode == 0
    assert [line for line in done.stderr.splitlines() if line.startswith("archsplit")] == []
    ours = folder.files()
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if name.endswith(".d") and ours[name] != theirs[name]] == []


def test_two_sources_of_one_name_in_one_call_are_both_compiled(folder: Folder) -> None:
    done = folder.ours("-lib", "k.cu", "b/k.cu", "-o", "l.a")
    assert (done.returncode, done.stderr) == (0, "")
    names = subprocess.check_output(("nm", "-C", "l.a"), cwd=folder.path, text=True)
    assert "T fill(float*)" in names
    assert "T other(float*)" in names


def test_a_launcher_gets_the_compiler_as_its_first_argument(folder: Folder) -> None:
    nvcc = str(folder.toolkit.nvcc)
    done = folder.wrap(nvcc, "-c", "k.cu", "-o", "k.o")
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder.path / "k.o").is_file()


def test_the_verb_takes_its_options_before_two_dashes(folder: Folder) -> None:
    verb = (sys.executable, "-c", "from archsplit.cli.main import entry_point; entry_point()")
    nvcc = ("--nvcc", str(folder.toolkit.nvcc), "--table", "t.csv")
    done = folder.run((*verb, "nvcc", *nvcc, "--", "-c", "k.cu", "-o", "k.o"))
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder.path / "t.csv").is_file()


def test_options_write_the_graph_table_and_commands(folder: Folder) -> None:
    options = "--graph g.dot --table t.csv --verbose v.txt --save saved"
    done = folder.ours("-c", "k.cu", *TWO, options=options)
    assert done.returncode == 0
    assert (folder.path / "g.dot").read_text().startswith("digraph")
    rows = list(csv.DictReader((folder.path / "t.csv").read_text().splitlines()))
    assert [row["step"].partition(" ")[2] for row in rows] == [
        *("preprocess", "cudafe++"),
        *("preprocess", "cicc compute_80", "ptxas sm_80"),
        *("preprocess", "cicc compute_90", "ptxas sm_90"),
        *("fatbinary", "host compile to assembly", "assemble"),
    ]
    assert all(float(row["cpu seconds"]) > 0 for row in rows if "cicc" in row["step"])
    commands = (folder.path / "v.txt").read_text()
    assert "\n    -arch\n    compute_90\n" in commands
    saved = {name.partition("-")[2] for name in os.listdir(folder.path / "saved")}
    assert {"k.compute_80.ptx", "k.compute_90.cubin", "k.fatbin", "k.o"} <= saved


def test_a_signal_ends_it_and_leaves_nothing(folder: Folder) -> None:
    heavy = "#include <vector>\n#include <algorithm>\n" * 2 + SOURCES["k.cu"]
    (folder.path / "k.cu").write_text(heavy)
    named = f"--nvcc {shlex.quote(str(folder.toolkit.nvcc))}"
    process = subprocess.Popen(
        (*LAUNCH, "-c", "k.cu", "-o", "k.o", *TWO),
        cwd=folder.path,
        env={**folder.environment(), "ARCHSPLIT_NVCC_OPTIONS": named},
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 200
    while not list(folder.temporary.glob("*/*.ii")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=200)
    assert process.returncode == -signal.SIGTERM
    assert said == b""
    assert folder.left() == []
    assert not (folder.path / "k.o").exists()
    assert running_in(folder.temporary) == []


def running_in(folder: Path) -> list[bytes]:
    """The commands of compilers that work in a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command, status = path.read_bytes(), path.with_name("status").read_text()
            pending = re.findall(r"^(?:Sig|Shd)Pnd:\s(\w+)$", status, re.MULTILINE)
            # On a busy machine, what has been killed dies a moment later.
            if any(int(mask, 16) >> (signal.SIGKILL - 1) & 1 for mask in pending):
                continue
            if str(folder).encode() in command and b"/.archsplit-" in command:
                found.append(command)
    return found
