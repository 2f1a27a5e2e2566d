"""Steps as actions: paths without a place, and the check of the tools."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import subprocess
from pathlib import Path, PurePosixPath

import pytest

from archsplit.remote.action import (
    OTHER_TOOLS_STATUS,
    STEPS_FILE,
    TOOLS_FILE,
    PathMap,
    ShippedFolders,
    ToolFile,
    action_spec,
    describe_tools,
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
    return dataclasses.replace(parts[0], writes=(), parts=parts)


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


@pytest.mark.parametrize("name", ["worker", "a [b] *c|d & .e\\f"])
def test_line_information_has_the_folder_of_this_machine(tmp_path: Path, name: str) -> None:
    folder, here = tmp_path / name, f"/home/{name}"
    folder.mkdir()
    cicc = tmp_path / "cicc"
    # As cicc writes names in its folder; others stay as they are.
    cicc.write_text(
        """#!/bin/sh
printf '\\t.file\\t1 "%s/k.cu"\\n\\t.file\\t2 "/usr/h.h"\\n' "$PWD" > "$3"
printf '%s\\n' "// \\"$PWD/k.cu\\"" >> "$3"
"""
    )
    cicc.chmod(0o755)
    digest = hashlib.sha256(cicc.read_bytes()).hexdigest()
    output = f"{PRIVATE}/0/k.ptx"
    one = step(str(cicc), "-generate-line-info", "-o", output, writes=output, PWD=here)
    for each in (one, group(shell("true"), one)):
        done = run_step(folder, each, ToolFile(path=str(cicc), sha256=digest))
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert (folder / ".archsplit/work/0/k.ptx").read_text() == (
            f'\t.file\t1 "{here}/k.cu"\n\t.file\t2 "/usr/h.h"\n// "{folder}/.archsplit/cwd/k.cu"\n'
        )
        shutil.rmtree(folder / ".archsplit")


def test_the_step_of_a_check_copies_a_file_that_no_farm_has(tmp_path: Path) -> None:
    steps = [probe_step(tmp_path / f"in {n}", tmp_path / f"out {n}") for n in range(2)]
    first, second = (one.reads[0].read_text() for one in steps)
    assert first != second
    assert steps[0].writes == (tmp_path / "out 0/copy",)


SHIPPED = ShippedFolders(
    paths=("/opt/cuda",), links={"/opt/cuda/targets/x/include": "../../include"}
)


def test_a_shipped_toolkit_is_below_one_folder_of_the_action() -> None:
    tools = [
        ToolFile(path=path, sha256="ab" * 32)
        for path in ("/usr/bin/g++", "/opt/cuda/targets/x/include/a.h", "/opt/cuda/bin/ptxas")
    ]
    compiles = step(
        "/usr/bin/g++",
        *("-E", "-ffile-prefix-map=/opt/cuda=/cuda", "-ffile-prefix-map=/home=/", "k.cu"),
        *("-I/opt/cuda/nvvm/../targets/x/include", "-isystem", "/opt/cuda-13/include"),
        *("-o", f"{PRIVATE}/0/k.ii"),
        writes=f"{PRIVATE}/0/k.ii",
        LIBRARIES="/opt/cuda",
    )
    spec = action_spec(compiles, PathMap(ROOT, PRIVATE, SHIPPED), tools)
    # The link leads to the folder; `nvvm/..` needs a folder of that name.
    top = PurePosixPath(".archsplit/toolkit/opt/cuda")
    assert {name: tool.path for name, tool in spec.tools.items()} == {
        top / "include/a.h": "/opt/cuda/targets/x/include/a.h",
        top / "bin/ptxas": "/opt/cuda/bin/ptxas",
    }
    assert spec.links == {top / "targets/x/include": "../../include"}
    assert spec.folders == (top / "nvvm",)
    assert spec.texts[TOOLS_FILE].decode() == f"{'ab' * 32}  /usr/bin/g++\n"
    assert dict(spec.environment)["LIBRARIES"] == str(top)
    assert spec.argv[4:] == ("/bin/sh", ".archsplit/steps")
    made, compiled, restored = spec.texts[STEPS_FILE].decode().splitlines()[1:]
    assert made == "mkdir -p .archsplit/work/0"
    assert compiled == (
        "part=0; /usr/bin/g++ -ffile-prefix-map=.archsplit/toolkit/=/ -E"
        f" -ffile-prefix-map=/opt/cuda=/cuda -ffile-prefix-map={top}=/cuda"
        f" -ffile-prefix-map=/home=/ k.cu -I{top}/nvvm/../targets/x/include"
        " -isystem /opt/cuda-13/include -o .archsplit/work/0/k.ii || fail $?"
    )
    assert restored.startswith("sed -i ")
    alone = action_spec(step("ptxas", "k.ptx"), PathMap(ROOT, PRIVATE, SHIPPED), tools[2:])
    assert alone.argv[4:] == (f"{top}/bin/ptxas", "k.ptx")
    # All tools are shipped, and none is compared.
    assert alone.texts == {TOOLS_FILE: b""}
    assert not alone.links
    named = step("/usr/bin/g++", "-c", "k.c", "-ffile-prefix-map=/opt/cuda=/cuda")
    assert action_spec(named, PATHS, tools).argv[4:] == named.command.argv
    assert describe_tools(tools, SHIPPED) == (
        "2 files of the toolkit are shipped, 1 files of the tools are the same on"
    )
