"""Host tools for nvcc and splitting: the C++ compiler and binutils, and their cross forms."""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.errors import ToolNotFoundError
from archsplit.nvcc.toolkit import PROBE_SECONDS
from archsplit.system.process import Command, run_checked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archsplit.system.process import Runner

_BINUTILS_HINT = "apt-get install binutils"
_C_DRIVER = re.compile(r"(.*-)?(gcc|clang|cc)((?:-[\d.]+)?)")
_CXX_DRIVERS = {"gcc": "g++", "clang": "clang++", "cc": "c++"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTools:
    """The host's tools.

    Attributes:
        compiler: the C++ compiler, absolute.
        objcopy: GNU binutils' program, absolute.
        versions: the first lines of ``--version`` of compiler, objcopy, assembler and linker.
    """

    compiler: Path
    objcopy: Path
    versions: tuple[str, ...]


def find_host_tools(
    environment: Mapping[str, str], runner: Runner, *, cross: str = ""
) -> HostTools:
    """Find a C++ compiler (``NVCC_CCBIN``, ``CXX``, then g++), its tools, and objcopy.

    A program named by a variable is used or refused, never replaced by another one.

    Args:
        cross: another machine to compile for, such as ``aarch64``: its GNU cross tools are taken,
            and no variable is read, because variables name the tools for this machine.

    Raises:
        ToolNotFoundError: a tool is missing, or a variable names an unusable one.
        ToolFailedError: a tool can't print its version.
    """
    probe = _Probe(environment, runner)
    if cross:
        prefix = f"{cross}-linux-gnu-"
        hint = f"apt-get install g++-{cross.replace('_', '-')}-linux-gnu"
        compiler = probe.find((), f"{prefix}g++", hint=hint)
        objcopy = probe.find((), f"{prefix}objcopy", hint=hint)
    else:
        hint = "apt-get install g++, or set CXX to a C++ compiler"
        compiler = probe.find(("NVCC_CCBIN", "CXX"), "g++", hint=hint)
        _refuse_c_driver(compiler)
        objcopy = probe.find(("OBJCOPY",), "objcopy", hint=_BINUTILS_HINT)
    tools = (compiler, objcopy, *(probe.compiler_tool(compiler, name) for name in ("as", "ld")))
    versions = tuple(probe.first_line(tool, "--version") for tool in tools)
    return HostTools(compiler=compiler, objcopy=objcopy, versions=versions)


class _Probe:
    """A search for programs in an environment, and queries to them."""

    def __init__(self, environment: Mapping[str, str], runner: Runner) -> None:
        self._environment = environment
        self._path = environment.get("PATH", "")
        self._runner = runner

    def find(self, variables: tuple[str, ...], default: str, *, hint: str) -> Path:
        named = next((name for name in variables if self._environment.get(name)), None)
        if named is None:
            return self._on_path(default, default, hint)
        value = self._environment[named]
        if shutil.which(value, path=self._path) is None:
            _refuse_flags(named, value)
        return self._on_path(value, f"{value} ({named})", f"correct {named}, or unset it")

    def compiler_tool(self, compiler: Path, name: str) -> Path:
        """Return the assembler or linker that a compiler runs."""
        # The compiler prints a path, or a name to search on the PATH.
        tool = self.first_line(compiler, f"-print-prog-name={name}")
        return self._on_path(tool, f"{tool} (of {compiler})", _BINUTILS_HINT)

    def first_line(self, tool: Path, argument: str) -> str:
        command = Command(
            argv=(str(tool), argument),
            cwd=Path("/"),
            env={"PATH": self._path, "LC_ALL": "C"},
            timeout=PROBE_SECONDS,
        )
        return run_checked(self._runner, command, what=tool.name).stdout.partition("\n")[0]

    def _on_path(self, program: str, what: str, hint: str) -> Path:
        path = shutil.which(program, path=self._path)
        if path is None:
            raise ToolNotFoundError(f"not found on PATH={self._path}: {what}", hint=hint)
        return Path(path).absolute()


def _refuse_flags(variable: str, value: str) -> None:
    try:
        words = shlex.split(value)
    except ValueError:
        words = [value]
    if len(words) > 1:
        raise ToolNotFoundError(
            f"{variable} is {value!r}, which is more than the name of one program",
            hint=f"set {variable} to the compiler alone, and write flags in compile.host-flags",
        )


def _refuse_c_driver(compiler: Path) -> None:
    # gcc compiles C++ by the file's name, but links without the C++ library.
    if match := _C_DRIVER.fullmatch(compiler.name):
        prefix, driver, release = match.groups()
        raise ToolNotFoundError(
            f"{compiler} is a C compiler: what it links has no C++ library",
            hint=f"set NVCC_CCBIN or CXX to {prefix or ''}{_CXX_DRIVERS[driver]}{release}",
        )
