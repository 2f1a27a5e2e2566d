from __future__ import annotations

import pytest

from archsplit.nvcc.cmdline import CommandLine, FallBackToNvccError


@pytest.mark.parametrize(
    "line", ["", "--version", "-V", "-h", "--list-gpu-code", "k.cu --dryrun", "-v -c k.cu"]
)
def test_queries_are_left_to_nvcc(line: str) -> None:
    with pytest.raises(FallBackToNvccError, match=r"^$"):
        CommandLine(line.split()).check_supported()


@pytest.mark.parametrize("line", ["-c k.cu", "-c k.cu -Xcompiler -v", "-c k.cu -o -v"])
def test_a_compilation_is_not(line: str) -> None:
    CommandLine(line.split()).check_supported()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("-x cu -c -", "standard input"),
        ("-c k.cu -o -", "has the value -"),
        ("-run k.cu", "starts the program"),
        ("-c k.cu --time=t.csv", "table of its own"),
        ("-c k.cu -objtemp --keep", "beside its output"),
        ("-c k.cu -Xptxas -run", None),
    ],
)
def test_the_reason_why_a_command_line_is_left_to_nvcc(line: str, reason: str | None) -> None:
    command = CommandLine(line.split())
    found = command.unsupported_reason
    assert (found is None) if reason is None else (found is not None and reason in found)
    if reason is not None:
        with pytest.raises(FallBackToNvccError, match=reason):
            command.check_supported()


def test_options_about_intermediate_files_are_removed() -> None:
    line = "-c k.cu -t 4 --keep -objtemp --threads=0 -t8 --keep-dir d -o k.o"
    found = CommandLine(line.split())
    assert found.dryrun_argv == ("-c", "k.cu", "-o", "k.o")
    assert found.keep_folder == "d"


@pytest.mark.parametrize("words", [["-t", "abc"], ["-tabc"], ["--threads=x"], ["-t", "-optf=o"]])
def test_invalid_number_of_threads_stays_for_nvcc(words: list[str]) -> None:
    assert CommandLine(["-c", "k.cu", *words]).dryrun_argv == ("-c", "k.cu", *words)


def test_keep_dir_without_keep_keeps_nothing() -> None:
    assert CommandLine(["--keep-dir", "d", "-c"]).keep_folder is None
    assert CommandLine(["-save-temps", "-c"]).keep_folder == "."


def test_options_of_other_tools_are_not_read() -> None:
    line = ["-Xcompiler", "-save-temps", "--compiler-options", "-t", "-D", "-keep", "-Xptxas=-t"]
    assert CommandLine(line).dryrun_argv == tuple(line)


def test_options_files_are_recognized() -> None:
    assert CommandLine(["-optf", "flags.txt"]).has_options_files
    assert not CommandLine(["-o", "-optf"]).has_options_files


@pytest.mark.parametrize(
    ("line", "threaded"),
    [
        ("-c k.cu", False),
        ("-t 1 -c k.cu", False),
        ("--threads=1", False),
        ("-t", False),
        ("-t2 -c k.cu", True),
        ("--threads 0", True),
        ("-t=4", True),
    ],
)
def test_threads_of_nvcc_are_recognized(line: str, threaded: bool) -> None:
    assert CommandLine(line.split()).is_threaded is threaded


@pytest.mark.parametrize(
    ("line", "nothing"),
    [
        ("-E k.cu", True),
        ("a.o b.a -lcudart -o prog", True),
        ("-Xlinker k.cu a.o", False),
        ("-c k.cu", False),
        ("-dlink a.o -o b.o", False),
        ("-dlto a.o", False),
        ("-gencode arch=compute_80,code=lto_80 a.o", False),
        ("-x cu k", False),
        ("-optf more", False),
    ],
)
def test_command_without_a_compile_has_no_plan(line: str, nothing: bool) -> None:
    assert CommandLine(line.split()).compiles_nothing == nothing


def test_options_in_files_are_recognized() -> None:
    assert CommandLine(("-c", "--options-file", "f")).has_options_files
    assert not CommandLine(("-o", "-optf")).has_options_files


def test_sources_are_told_from_values_of_options() -> None:
    line = "-o x.cu -MT y.c k.cu -DA m.cpp n.o -Xcompiler -z.c --cudart-options z.c -MF d"
    assert CommandLine(line.split()).sources == ("k.cu", "m.cpp")


def test_flags_of_variables_join_the_command_line() -> None:
    flags = {"NVCC_PREPEND_FLAGS": "-O3 -lineinfo", "NVCC_APPEND_FLAGS": "-v", "HOME": "/h"}
    words = ("-O3", "-lineinfo", "-c", "k.cu", "-v")
    command = CommandLine(("-c", "k.cu"))
    joined, rest = command.with_variables(flags)
    assert (joined.argv, rest) == (words, {"HOME": "/h"})
    quoted = {"NVCC_APPEND_FLAGS": "-DTEXT='a b'"}
    assert command.with_variables(quoted) == (command, quoted)


def test_files_of_options_are_read_as_nvcc_does() -> None:
    texts = {
        "a": '-O3 "-DA=x y" -optf b ',
        "b": r"-DB=\n\"c -DC=\\\"",
        "c": "'-DD=   1'\n",
        "d": "",
    }
    command = CommandLine(("-c", "k.cu", "-optf", "a,c,d"))
    assert command.with_options_files(texts.__getitem__).argv == (
        *("-c", "k.cu", "-O3", "-DA=x y"),
        *("-DB=nc", '-DC=\\"', "'-DD=", "1'"),
    )


@pytest.mark.parametrize(
    ("text", "fault"), [('-DA="x', "without its end"), ("-O3 -o", "without its value")]
)
def test_truncated_options_file_is_refused(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        CommandLine(("-optf", "a")).with_options_files(lambda _: text)


@pytest.mark.parametrize(
    ("keep", "prefix"), [("", ""), ("--keep", ""), ("--keep-dir=k --keep", "k/")]
)
def test_kept_files_lie_below_their_folder(keep: str, prefix: str) -> None:
    assert CommandLine(["-c", "k.cu", *keep.split()]).kept_prefix == prefix
