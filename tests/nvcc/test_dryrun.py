from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest

from archsplit.arch.target import Target
from archsplit.errors import TranscriptError
from archsplit.nvcc.dryrun import StepKind, Transcript, parse_dryrun
from archsplit.nvcc.per_target import per_target_steps, source_module_id
from archsplit.nvcc.recipe_commands import CompileOptions, device_link_command, dryrun_command
from archsplit.system.env import clean_environment
from archsplit.system.process import Command, SubprocessRunner, run_checked

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import HostTools, Toolkit

KERNEL = """
static __global__ void fill(float* x) { x[threadIdx.x] = 1.0f; }
extern "C" int run(float* x) { fill<<<1, 32>>>(x); return cudaGetLastError(); }
"""
OBJCOPY = Path("/usr/bin/objcopy")

pytestmark = pytest.mark.nvcc


class Nvcc:
    """Dry runs of the real nvcc in a folder of the test."""

    def __init__(self, folder: Path, toolkit: Toolkit, host: HostTools) -> None:
        self.folder = folder / "private folder"
        self.folder.mkdir()
        self._root, self._toolkit, self._host = folder, toolkit, host

    def transcript(
        self,
        *targets: str,
        flags: tuple[str, ...] = (),
        defines: tuple[str, ...] = (),
        name: str = "k.cu",
    ) -> Transcript:
        (self._root / name).write_text(KERNEL if name.endswith(".cu") else "int x;\n")
        options = CompileOptions(
            include=(),
            defines=defines,
            standard="c++17",
            nvcc_flags=flags,
            host_flags=(),
            host_compiler=self._host.compiler,
        )
        argv = dryrun_command(
            self._toolkit,
            options,
            source=PurePosixPath(name),
            targets=[Target.parse(target) for target in targets],
            folder=self.folder,
        )
        environment = clean_environment(os.environ, temporary=self.folder, epoch=0)
        command = Command(argv=argv, cwd=self._root, env=environment)
        text = run_checked(SubprocessRunner(), command, what="nvcc").stderr
        return parse_dryrun(text, folder=self.folder, cwd=self._root)


@pytest.fixture
def nvcc(tmp_path: Path, toolkit: Toolkit, host: HostTools) -> Nvcc:
    return Nvcc(tmp_path, toolkit, host)


def kinds(transcript: Transcript) -> list[str]:
    return [step.kind.value for step in transcript.steps]


def test_a_fat_compilation_becomes_typed_steps(nvcc: Nvcc) -> None:
    transcript = nvcc.transcript("sm_80", "sm_90a", "sm_120f", "compute_120")
    assert kinds(transcript) == [
        "preprocess",
        "cudafe++",
        *("preprocess", "cicc", "ptxas") * 3,
        *("preprocess", "cicc", "ptxas"),
        "fatbinary",
        "host compile",
    ]
    assert {str(target): path.name for target, path in transcript.images.items()} == {
        "sm_80": "k.compute_80.cubin",
        "sm_90a": "k.compute_90a.cubin",
        "sm_120f": "k.compute_120f.cubin",
        "compute_120": "k.compute_120.ptx",
    }
    assert transcript.module_id_file == nvcc.folder / "k.module_id"
    assert transcript.diagnostics == ()


def test_host_compile_reads_its_includes(nvcc: Nvcc) -> None:
    *_, host_compile = nvcc.transcript("sm_80", "sm_90").steps
    assert {path.name for path in host_compile.reads} == {
        "k.compute_90.cudafe1.cpp",
        "k.compute_90.cudafe1.stub.c",
        "k.fatbin.c",
    }


def test_sass_and_ptx_of_one_architecture_share_a_cicc_step(nvcc: Nvcc) -> None:
    transcript = nvcc.transcript("sm_120", "compute_120")
    assert kinds(transcript).count("cicc") == 1
    assert set(map(str, transcript.images)) == {"sm_120", "compute_120"}


def test_a_host_only_source_is_one_step(nvcc: Nvcc) -> None:
    transcript = nvcc.transcript("sm_80", "sm_90", name="k.cpp")
    assert kinds(transcript) == ["host compile"]
    assert transcript.module_id_file is None


@pytest.mark.parametrize(
    "flags",
    [
        ("-G",),
        ("-lineinfo",),
        ("--use_fast_math", "-O3", "--extended-lambda"),
        ("-Xptxas", "-O3,-v"),
        ("-Xfatbin", "-compress-all"),
        ("--expt-relaxed-constexpr", "-maxrregcount=32"),
        ("-Xcompiler", "-Wall,-Wextra"),
    ],
)
def test_flags_of_users_are_recognized(nvcc: Nvcc, flags: tuple[str, ...]) -> None:
    transcript = nvcc.transcript("sm_80", "sm_90", "compute_90", flags=flags)
    assert len(transcript.images) == 3


@pytest.mark.parametrize(
    "define",
    [
        'TEXT="it\'s a, b"',
        "BOX=std::map<int,float>",
        r'TEXT="a\n\\b, \"c\""',
        r"CHAR='\''",
        "ALL=( a|b;c&d )",
    ],
)
def test_a_define_keeps_its_text(nvcc: Nvcc, define: str) -> None:
    steps = nvcc.transcript("sm_80", defines=(define, "LAST")).steps
    for step in (steps[0], nvcc.transcript("sm_80", defines=(define,), name="k.cpp").steps[0]):
        assert define in step.argv or f"-D{define}" in step.argv


@pytest.mark.parametrize("name", ["a;b.cu", "a&b.cu", "a b.cu", "(a|b) <c>.cu", "it's.cu"])
def test_unusual_file_names_are_recognized(nvcc: Nvcc, name: str) -> None:
    transcript = nvcc.transcript("sm_80", name=name)
    assert name in transcript.host_step.argv
    assert [path.name for path in transcript.images.values()] == [f"{name[:-3]}.cubin"]


def test_shell_syntax_is_refused_with_its_line(nvcc: Nvcc) -> None:
    with pytest.raises(TranscriptError, match=r"shell syntax '\$'") as caught:
        nvcc.transcript("sm_80", defines=("X=$HOME",))
    assert "-E -x c++" in str(caught.value)
    assert caught.value.exit_code == 12


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("frobnicate --fast", "the program frobnicate"),
        ("ptxas -arch=sm_80 /w/never.ptx -o /w/k.cubin", "the file never.ptx"),
        ("fatbinary -64", "what it writes"),
        ("g++ -D__CUDA_ARCH__=800 'k.cu -o /w/x", "its quotes"),
        ("fatbinary --create=/w/k.fatbin --image3=kind=new,sm=80,file=/w/k", "the image"),
        ("rm -f /w/x; true", "the shell syntax ';'"),
    ],
)
def test_an_unknown_line_is_shown(line: str, complaint: str) -> None:
    with pytest.raises(TranscriptError) as caught:
        parse_dryrun(f"#$ {line}\n", folder=Path("/w"), cwd=Path("/c"))
    assert complaint in str(caught.value)
    assert line in str(caught.value)


@pytest.mark.parametrize("name", ["/c/notes.txt", "notes.txt"])
def test_a_removed_file_must_be_written_again(name: str) -> None:
    with pytest.raises(TranscriptError, match=r"why notes\.txt is removed"):
        parse_dryrun(f"#$ rm {name}\n", folder=Path("/w"), cwd=Path("/c"))


def test_a_private_file_may_be_removed() -> None:
    assert parse_dryrun("#$ rm /w/a b.fatbin \n", folder=Path("/w"), cwd=Path("/c")).steps == ()


def test_unwritten_stub_is_refused() -> None:
    text = (
        '#$ g++ -D__CUDA_ARCH_LIST__=800 -E k.cu -o "/w/k.ii"\n'
        '#$ cudafe++ --gen_c_file_name "/w/k.cpp" --stub_file_name "k.stub.c" "/w/k.ii"\n'
        '#$ g++ -D__CUDA_ARCH_LIST__=800 -c "/w/k.cpp" -o k.o\n'
    )
    with pytest.raises(TranscriptError, match="the file that --stub_file_name names"):
        parse_dryrun(text, folder=Path("/w"), cwd=Path("/c"))


def test_other_lines_are_passed_on() -> None:
    text = "nvcc warning : something\n\n#$ PATH=/a:/b \n#$ LD_LIBRARY_PATH=/lib:\n"
    transcript = parse_dryrun(text, folder=Path("/w"), cwd=Path("/c"))
    assert transcript.diagnostics == ("nvcc warning : something",)
    assert transcript.environment == {"PATH": "/a:/b", "LD_LIBRARY_PATH": "/lib"}


def test_each_target_gets_an_object_and_the_host_pass_is_done_once(nvcc: Nvcc) -> None:
    targets = [Target.parse(name) for name in ("sm_80", "sm_90", "compute_90")]
    transcript = nvcc.transcript(*map(str, targets))
    shards = per_target_steps(transcript, targets, folder=nvcc.folder, objcopy=OBJCOPY)
    done = [step.kind for step in shards.steps]
    assert done.count(StepKind.HOST_COMPILE) == 1
    assert done.count(StepKind.CUDAFE) == 1
    assert done.count(StepKind.CICC) == 2
    assert done.count(StepKind.EXCHANGE) == 3
    assert [path.name for path in shards.objects.values()] == ["sm_80.o", "sm_90.o", "compute_90.o"]
    assert not any("--gen_module_id_file" in step.argv for step in shards.steps)


def test_the_host_compile_waits_for_no_ptxas(nvcc: Nvcc) -> None:
    transcript = nvcc.transcript("sm_80")
    shards = per_target_steps(
        transcript, [Target.parse("sm_80")], folder=nvcc.folder, objcopy=OBJCOPY
    )
    made_by = {path: step for step in shards.steps for path in step.writes}
    waiting = [step for step in shards.steps if step.kind is StepKind.HOST_COMPILE]
    seen = set()
    while waiting:
        step = waiting.pop()
        seen.add(step.kind)
        waiting += [made_by[path] for path in step.reads if path in made_by]
    assert StepKind.PTXAS not in seen


def test_no_cicc_waits_for_cudafe(nvcc: Nvcc) -> None:
    targets = [Target.parse(name) for name in ("sm_80", "sm_90")]
    transcript = nvcc.transcript(*map(str, targets))
    shards = per_target_steps(transcript, targets, folder=nvcc.folder, objcopy=OBJCOPY)
    made_by = {path: step.kind for step in shards.steps for path in step.writes}
    waits = {
        made_by[path]
        for step in shards.steps
        if step.kind is StepKind.CICC
        for path in step.reads
        if path in made_by
    }
    assert waits == {StepKind.PREPROCESS}
    assert transcript.module_id_file not in made_by


def test_unbuilt_targets_cost_only_the_stub(nvcc: Nvcc) -> None:
    transcript = nvcc.transcript("sm_80", "sm_90", "sm_120")
    shards = per_target_steps(
        transcript, [Target.parse("sm_80")], folder=nvcc.folder, objcopy=OBJCOPY
    )
    compiled = {str(step.target) for step in shards.steps if step.kind is StepKind.CICC}
    assembled = {str(step.target) for step in shards.steps if step.kind is StepKind.PTXAS}
    # nvcc's host compile includes the stub that the last target's cicc writes.
    assert compiled == {"compute_80", "compute_120"}
    assert assembled == {"sm_80"}


def test_two_sources_in_one_transcript_are_an_error(nvcc: Nvcc) -> None:
    transcript = nvcc.transcript("sm_80")
    twice = transcript._replace(steps=transcript.steps * 2)
    with pytest.raises(TranscriptError, match="2 steps of the kind host compile, expected one"):
        per_target_steps(twice, [Target.parse("sm_80")], folder=nvcc.folder, objcopy=OBJCOPY)


def test_a_target_without_an_image_is_an_error(nvcc: Nvcc) -> None:
    transcript = nvcc.transcript("sm_80")
    with pytest.raises(TranscriptError, match="no image for sm_90"):
        per_target_steps(transcript, [Target.parse("sm_90")], folder=nvcc.folder, objcopy=OBJCOPY)


def test_a_module_id_is_unique_per_source_and_an_identifier() -> None:
    one = source_module_id(package="p", source="a/k.cu")
    two = source_module_id(package="p", source="b/k.cu")
    assert one != two
    assert f"x{one}".isidentifier()
    assert source_module_id(package="q", source="a/k.cu") != one


def test_no_folder_of_this_machine_gets_into_a_text(nvcc: Nvcc, toolkit: Toolkit) -> None:
    (nvcc.folder.parent / "asking.cu").write_text("")
    flags = nvcc.transcript("sm_80", name="asking.cu").steps[0].argv
    source = nvcc.folder / "probe.cpp"
    source.write_text("#include <cuda/std/cassert>\n#include <cub/thread/thread_reduce.cuh>\n")
    command = [word for word in flags if word not in {"-o", "asking.cu"}][:-1]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=True)
    texts = re.findall(r'"(/[^"]*\.(?:h|cuh))"', "\n".join(without_markers(done.stdout)))
    # Since glibc 2.41 the preprocessor leaves the name to the compiler, which maps it too.
    if "__builtin_FILE" not in done.stdout:
        assert any(text.startswith("/cuda/") for text in texts)
    assert not any(str(toolkit.root) in text for text in texts)
    assert any(word.startswith(f"-ffile-prefix-map={toolkit.root}") for word in command)


def without_markers(preprocessed: str) -> list[str]:
    return [line for line in preprocessed.splitlines() if not line.startswith("#")]


@pytest.mark.parametrize(("target", "has_runtime"), [("sm_90", True), ("compute_90", False)])
def test_a_device_link_of_ptx_leaves_the_device_runtime_out(
    toolkit: Toolkit, host: HostTools, tmp_path: Path, target: str, has_runtime: bool
) -> None:
    options = CompileOptions(
        include=(),
        defines=(),
        standard="c++17",
        nvcc_flags=(),
        host_flags=(),
        host_compiler=host.compiler,
    )
    argv = device_link_command(
        toolkit,
        options,
        objects=[tmp_path / "a.o"],
        libraries=["-lx"],
        target=Target.parse(target),
        folder=tmp_path,
    )
    assert argv[0] == str(toolkit.nvcc)
    assert argv[-4:-2] == ("-lx", f"-L{toolkit.library_folder}")
    assert ("-cudadevrt=none" not in argv) is has_runtime
