from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from archsplit.errors import ToolNotFoundError
from archsplit.nvcc.toolkit import HostTools, find_host_tools
from archsplit.system.process import SubprocessRunner

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = {"PATH": os.environ["PATH"]}


def find(**variables: str) -> HostTools:
    return find_host_tools({**PLAIN, **variables}, SubprocessRunner())


def refusal(**variables: str) -> ToolNotFoundError:
    with pytest.raises(ToolNotFoundError) as caught:
        find(**variables)
    assert caught.value.exit_code == 4
    return caught.value


def test_the_tools_are_found_with_their_versions() -> None:
    host = find()
    assert host.compiler.is_absolute()
    assert host.compiler.name == "g++"
    names = ("g++", "objcopy", "assembler", "ld")
    assert all(name in line for name, line in zip(names, host.versions, strict=True))


def test_the_nearer_variable_wins(tmp_path: Path) -> None:
    compiler = tmp_path / "my tools" / "g++"
    compiler.parent.mkdir()
    compiler.symlink_to(shutil.which("g++") or "g++")
    assert find(NVCC_CCBIN=str(compiler), CXX="no-such").compiler == compiler


def test_missing_host_compiler_is_refused_with_a_hint() -> None:
    error = refusal(PATH="/nowhere")
    assert error.args == ("not found on PATH=/nowhere: g++",)
    assert error.hint == "apt-get install g++, or set CXX to a C++ compiler"


@pytest.mark.parametrize("variable", ["NVCC_CCBIN", "CXX", "OBJCOPY"])
def test_a_program_named_by_a_variable_is_never_replaced(variable: str) -> None:
    error = refusal(**{variable: "no-such-program"})
    assert f": no-such-program ({variable})" in str(error)
    assert error.hint == f"correct {variable}, or unset it"


def test_a_variable_names_one_program() -> None:
    error = refusal(CXX="ccache g++")
    assert "CXX is 'ccache g++', which is more than the name of one program" in str(error)
    assert error.hint == "set CXX to the compiler only, and write flags in compile.host-flags"


def test_variable_with_bad_shell_quoting_is_refused() -> None:
    assert "it's (CXX)" in str(refusal(CXX="it's"))


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("gcc", "g++"),
        ("gcc-12", "g++-12"),
        ("clang", "clang++"),
        ("clang-18", "clang++-18"),
        ("x86_64-linux-gnu-gcc", "x86_64-linux-gnu-g++"),
        ("cc", "c++"),
    ],
)
def test_a_c_compiler_is_refused(tmp_path: Path, name: str, better: str) -> None:
    (tmp_path / name).symlink_to(shutil.which("gcc") or "gcc")
    error = refusal(CXX=str(tmp_path / name))
    assert "is a C compiler: what it links has no C++ library" in str(error)
    assert error.hint == f"set NVCC_CCBIN or CXX to {better}"
