"""Files of options: read as nvcc reads them, and followed as the command line is."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from archsplit.compiler.invocation import expand_options
from archsplit.nvcc.cmdline import CommandLine, FallBackToNvccError

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.nvcc.toolkit import Toolkit

TEXTS = (
    *('-DA="x y"', "-DB=a\\ b", '"-DD=p q"', '-DE=\\"q\\"', '-DF="r\\"s"', '-DG=a"b c"d'),
    *('-DV=""', "-DI=\\\\z", "-DI2=\\z", "-DJ=a,b", "-DN='it'", '-DO="a\nb"', "-DP=1\\\n-DQ=2"),
    *('-DX="a\'b"', "-DY=`x`", "-DAA=a;b", "-Ia\\\\b", '-DAB="x\\\\y"', '-DAC="x\\y"'),
    *('-DS="\\"str\\""', '-MD -MT "a b"', "-MD -MT a\\ b", '-Xcompiler "-O2,-g"'),
    *('-Xcompiler -DQ=\\"x\\"', "-D\r\nU=1", '-DE=\\\\\\"q\\\\\\"', "-DM='\\\"s\\\"'"),
    *("-DA\n\n  -DB\t-DC ", "--options-file=second -DB", "-optf second,third -DB", "-optf empty"),
    "-MMD -MP -MF 'x.d",
)
LAST = ("-optf", "last", "-O2")


def expanded(*words: str, folder: Path) -> tuple[str, ...]:
    return expand_options(CommandLine(words), folder)[0].argv


@pytest.mark.nvcc
def test_words_are_those_of_nvcc(tmp_path: Path, toolkit: Toolkit) -> None:
    (tmp_path / "t.cu").write_text("int x;\n")
    (tmp_path / "second").write_text("-DSECOND --options-file third -DTHEN\n")
    (tmp_path / "third").write_text("-DTHIRD\n")
    (tmp_path / "empty").write_text("")

    def plan(*words: str) -> list[str]:
        argv = (str(toolkit.nvcc), "--dryrun", "-c", "t.cu", *words)
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True)
        return re.sub(r"tmpxft_\w+-\w+", "tmp", done.stderr).splitlines()

    for text in TEXTS:
        (tmp_path / "first").write_text(text)
        argv = ("--options-file", "first", "-DLAST")
        command, files = expand_options(CommandLine(argv), tmp_path)
        assert "first" not in command.argv
        assert files[0] == str(tmp_path / "first")
        assert (text, plan(*command.argv)) == (text, plan(*argv))


def test_refused_option_file_is_not_expanded(tmp_path: Path) -> None:
    (tmp_path / "stray").write_text('-DA="b')
    (tmp_path / "good").write_text("-DA")
    (tmp_path / "last").write_text("-DA -Xptxas")
    for argv in (("-optf", "stray"), ("-optf", "missing"), ("-optf=good,missing", "x"), LAST):
        assert expanded(*argv, folder=tmp_path) == argv
    for option in ("-o", "-gencode", "--cudart", "-rdc", "-I", "-Xptxas", "--gpu-code"):
        argv = (option, "-optf", "good")
        assert expanded(*argv, folder=tmp_path) == argv
    assert expanded("-rdc=true", "-optf", "good", folder=tmp_path) == ("-rdc=true", "-DA")


def test_option_file_without_an_end_falls_back_to_nvcc(tmp_path: Path) -> None:
    (tmp_path / "self").write_text("-DA -optf self")
    with pytest.raises(FallBackToNvccError, match="too many option files"):
        expanded("-optf", "self", folder=tmp_path)
    with pytest.raises(FallBackToNvccError, match="not a regular file"):
        expanded("-optf", "/dev/null", folder=tmp_path)
    (tmp_path / "long").write_text("-DABCDEFGH " * 150_000)
    with pytest.raises(FallBackToNvccError, match="too many options"):
        expanded("-optf", "long", folder=tmp_path)
