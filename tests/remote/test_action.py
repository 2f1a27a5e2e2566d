"""Steps as actions: paths without a place, and the check of the tools."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path, PurePosixPath

import pytest

from archsplit.remote.action import (
    OTHER_TOOLS_STATUS,
    TOOLS_FILE,
    PathMap,
    ToolFile,
    action_spec,
    failed_part,
    other_tools_error,
    probe_step,
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
    assert spec.texts[TOOLS_FILE].decode() == f"{'ab' * 32}  /usr/bin/g++\n"


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("/src/k.cu", "k.cu"),
        ("-I/src/include", "-Iinclude"),
        ("-isystem/src/include", "-isysteminclude"),
        ("--options-file=/src/a,/src/b", "--options-file=a,b"),
        ("-ffile-prefix-map=/src/=/x", "-ffile-prefix-map==/x"),
        ("/src/lib:/usr/lib:/src/more", "lib:/usr/lib:more"),
        ('-DFILE=\\"/src/k.cu\\"', '-DFILE=\\"k.cu\\"'),
        ("cat /src/a > /src/b", "cat a > b"),
        ("@/src/arguments", "@arguments"),
        ("/src/src/k.cu", "src/k.cu"),
        *((same, same) for same in ("lib/src/k.cu", "/usr/src/k.h", "-I/usr/src", "-I../src/a")),
        *((same, same) for same in ("-Ilib/src/a", "/srcs/k.cu", "-Wl,-rpath,/opt/src/lib")),
    ],
)
def test_only_whole_paths_lose_the_root(word: str, found: str) -> None:
    assert PathMap(Path("/src"), PRIVATE).text(word) == found


def test_a_file_in_neither_folder_has_no_name() -> None:
    with pytest.raises(ValueError, match="/etc/passwd"):
        action_spec(step("true", reads="/etc/passwd"), PATHS, [])


def run(folder: Path, tool: Path, digest: str) -> subprocess.CompletedProcess[str]:
    one = step("/bin/sh", "-c", 'echo "$TMPDIR"; test -d "$TMPDIR"')
    return run_step(folder, one, ToolFile(path=str(tool), sha256=digest))


def run_step(folder: Path, one: Step, *tools: ToolFile) -> subprocess.CompletedProcess[str]:
    spec = action_spec(one, PATHS, tools)
    (folder / ".archsplit").mkdir()
    for name, text in spec.texts.items():
        (folder / name).write_bytes(text)
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


@pytest.mark.parametrize("grouped", [False, True])
def test_a_program_without_a_folder_is_the_compared_one(tmp_path: Path, grouped: bool) -> None:
    tool = tmp_path / "archsplit-test-ptxas"
    tool.write_text('#!/bin/sh\necho "$1"\n')
    tool.chmod(0o755)
    digest = hashlib.sha256(tool.read_bytes()).hexdigest()
    one = step(tool.name, f"{PRIVATE}/0/a", writes=f"{PRIVATE}/0/a")
    one = group(one, one) if grouped else one
    done = run_step(tmp_path, one, ToolFile(path=str(tool), sha256=digest))
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.split()) == {".archsplit/work/0/a"}


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


def shell(script: str, **environment: str) -> Step:
    return step("/bin/sh", "-c", script, writes=f"{PRIVATE}/0/a", **environment)


def shell_tool() -> ToolFile:
    return ToolFile(path="/bin/sh", sha256=hashlib.sha256(Path("/bin/sh").read_bytes()).hexdigest())


def group(*parts: Step) -> Step:
    return parts[0]._replace(writes=(), parts=parts)


def test_the_steps_of_a_group_run_in_turn_with_variables_of_their_own(tmp_path: Path) -> None:
    first = shell(f"echo 'a  b' > {PRIVATE}/0/a; echo \"$ONE-$BOTH-$MORE\"", ONE="it's", BOTH="2")
    second = shell(f'cat {PRIVATE}/0/a; echo "$ONE-$BOTH-$MORE"', MORE="x y", BOTH="2")
    done = run_step(tmp_path, group(first, second), shell_tool())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "it's-2-\na  b\n-2-x y\n"


def test_the_failed_step_of_a_group_is_known(tmp_path: Path) -> None:
    parts = (shell("true"), shell("printf no >&2; exit 3"), shell("echo never"))
    done = run_step(tmp_path, group(*parts), shell_tool())
    assert (done.returncode, done.stdout) == (3, "")
    assert failed_part(done.stderr) == (1, "no")
    assert failed_part("error\n") == (0, "error\n")


def test_check_step_copies_a_unique_file(tmp_path: Path) -> None:
    steps = [probe_step(tmp_path / f"in {n}", tmp_path / f"out {n}") for n in range(2)]
    first, second = (one.reads[0].read_text() for one in steps)
    assert first != second
    assert steps[0].writes == (tmp_path / "out 0/copy",)
