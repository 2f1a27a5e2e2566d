"""Steps as actions: paths without a place, and the check of the tools."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path, PurePosixPath

import pytest

from archsplit.remote.action import (
    OTHER_TOOLS_STATUS,
    PathMap,
    ToolFile,
    action_spec,
    other_tools_error,
)
from archsplit.scheduler.graph import Step
from archsplit.system.process import Command

ROOT, PRIVATE = Path("/home/me/recipe"), Path("/tmp/.archsplit-x")
PATHS = PathMap(ROOT, PRIVATE)


def step(*argv: str, reads: str = "", writes: str = "", **environment: str) -> Step:
    return Step(
        name="step",
        command=Command(argv=argv, cwd=ROOT, env=environment),
        reads=tuple(map(Path, reads.split())),
        writes=tuple(map(Path, writes.split())),
    )


def test_an_action_names_no_folder_of_this_machine() -> None:
    spec = action_spec(
        step(
            "/usr/bin/g++",
            f'-DFATBINFILE="{PRIVATE}/0/k.fatbin.c"',
            f"-I{ROOT}/include",
            "-o",
            f"{PRIVATE}/0/k.o",
            reads=f"{ROOT}/src/k.cu {PRIVATE}/0/k.ii",
            writes=f"{PRIVATE}/0/k.o",
            HOME="/home/me",
            PATH="/home/me/bin:/usr/bin",
            TMPDIR=str(PRIVATE),
            LC_ALL="C",
        ),
        PATHS,
        [ToolFile(path="/usr/bin/g++", sha256="ab" * 32)] * 2,
    )
    assert spec.argv[4:] == (
        "/usr/bin/g++",
        '-DFATBINFILE=".archsplit/work/0/k.fatbin.c"',
        "-Iinclude",
        "-o",
        ".archsplit/work/0/k.o",
    )
    assert spec.environment == (("LC_ALL", "C"), ("PATH", "/usr/local/bin:/usr/bin:/bin"))
    assert dict(spec.inputs) == {
        PurePosixPath("src/k.cu"): ROOT / "src/k.cu",
        PurePosixPath(".archsplit/work/0/k.ii"): PRIVATE / "0/k.ii",
    }
    assert dict(spec.outputs) == {PurePosixPath(".archsplit/work/0/k.o"): PRIVATE / "0/k.o"}
    assert spec.tools.decode() == f"{'ab' * 32}  /usr/bin/g++\n"


def test_a_file_in_neither_folder_has_no_name() -> None:
    with pytest.raises(ValueError, match="/etc/passwd"):
        action_spec(step("true", reads="/etc/passwd"), PATHS, [])


def run(folder: Path, tool: Path, digest: str) -> subprocess.CompletedProcess[str]:
    spec = action_spec(
        step("/bin/sh", "-c", 'echo "$TMPDIR"; test -d "$TMPDIR"'),
        PATHS,
        [ToolFile(path=str(tool), sha256=digest)],
    )
    (folder / ".archsplit").mkdir()
    (folder / ".archsplit/tools").write_bytes(spec.tools)
    environment = {**dict(spec.environment), "PATH": os.environ["PATH"]}
    return subprocess.run(
        spec.argv, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_the_right_tools_run_with_a_folder_for_temporary_files(tmp_path: Path) -> None:
    tool = tmp_path / "a tool"
    tool.write_bytes(b"tool")
    done = run(tmp_path, tool, hashlib.sha256(b"tool").hexdigest())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == f"{tmp_path}/.archsplit/tmp"


def test_other_tools_run_nothing_and_are_named(tmp_path: Path) -> None:
    tool = tmp_path / "ptxas"
    tool.write_bytes(b"another")
    done = run(tmp_path, tool, hashlib.sha256(b"tool").hexdigest())
    assert done.returncode == OTHER_TOOLS_STATUS
    assert f"{tool}: FAILED" in done.stdout
    assert ".archsplit/tmp" not in done.stdout
    error = other_tools_error("000-add/04 ptxas", done.stdout, "grpcs://farm:443")
    assert error.exit_code == 25
    assert error.message == (
        "a worker of grpcs://farm:443 has other tools than this machine for 000-add/04 ptxas:"
        f" {tool}"
    )
