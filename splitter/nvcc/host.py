"""Find the host's own tools that nvcc and the splitting need: the C++ compiler and objcopy."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from splitter.errors import ToolNotFoundError
from splitter.system.run import Command, check

if TYPE_CHECKING:
    from collections.abc import Mapping

    from splitter.system.run import Runner

_PROBE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTools:
    """The host's tools, as absolute paths, and the first lines of what they say of themselves."""

    compiler: Path
    objcopy: Path
    versions: tuple[str, ...]


def find_host_tools(environment: Mapping[str, str], runner: Runner) -> HostTools:
    """Look for a C++ compiler (``NVCC_CCBIN``, ``CXX``, then g++) and binutils' objcopy.

    Raises:
        ToolNotFoundError: one is missing; says where was looked and how it is installed.
        ToolFailedError: one can't even say its version.
    """
    compiler = _find(
        ("NVCC_CCBIN", "CXX"), "g++", environment, hint="apt-get install g++, or set CXX"
    )
    objcopy = _find(("OBJCOPY",), "objcopy", environment, hint="apt-get install binutils")
    versions = tuple(_first_line(tool, environment, runner) for tool in (compiler, objcopy))
    return HostTools(compiler=compiler, objcopy=objcopy, versions=versions)


def _find(
    variables: tuple[str, ...], default: str, environment: Mapping[str, str], *, hint: str
) -> Path:
    path = environment.get("PATH", "")
    tried = []
    for variable, name in [(name, environment.get(name)) for name in variables] + [("", default)]:
        if not name:
            continue
        found = shutil.which(name, path=path)
        if found is not None:
            return Path(found).absolute()
        tried.append(f"{name} ({variable})" if variable else name)
    raise ToolNotFoundError(f"not found on PATH={path}: {', '.join(tried)}", hint=hint)


def _first_line(tool: Path, environment: Mapping[str, str], runner: Runner) -> str:
    path = environment.get("PATH", "")
    command = Command(
        argv=(str(tool), "--version"),
        cwd=Path("/"),
        env={"PATH": path, "LC_ALL": "C"},
        timeout=_PROBE_SECONDS,
    )
    return check(runner, command, what=tool.name).stdout.partition("\n")[0]
