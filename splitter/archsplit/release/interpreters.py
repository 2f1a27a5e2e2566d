"""Python interpreters of this machine that can install the cores of a release.

In: the names of the cores, and the interpreters that the caller names. Out: interpreters, each
with the tags that its installers take. uv finds them: on the PATH, and those that it manages; it
downloads none here.
"""

from __future__ import annotations

import json
import platform
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.tags import compatible_tags, cpython_tags, platform_tags

from archsplit.errors import ToolNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from archsplit.system.process import CompletedProcess
    from archsplit.wheels.filename import WheelName

    Run = Callable[[tuple[str, ...]], CompletedProcess]

_VERSIONED = re.compile(r"cp3(\d+)")
_PROBE = (
    "import json, platform, sys, sysconfig\n"
    "print(json.dumps([sys.implementation.name, sys.version_info[0], sys.version_info[1],\n"
    "    bool(sysconfig.get_config_var('Py_GIL_DISABLED')), platform.machine()]))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python interpreter.

    Attributes:
        program: its path.
        version: as in ``3.12``.
        tags: the tags of the wheels that it takes.
    """

    program: str
    version: str
    tags: frozenset[str] = field(repr=False)

    def fits(self, name: WheelName) -> bool:
        """Return True if an installer of this interpreter takes a wheel."""
        return not self.tags.isdisjoint(name.tags)

    @property
    def markers(self) -> Mapping[str, str]:
        """The variables of environment markers that differ from this process."""
        return {"python_version": self.version, "python_full_version": f"{self.version}.0"}


def find_interpreters(
    names: Sequence[WheelName], *, own: str, asked: Iterable[str], uv: tuple[str, ...], run: Run
) -> tuple[Interpreter, ...]:
    """Return interpreters for as many cores as this machine has them for.

    Args:
        own: the interpreter of this process, which is preferred.
        asked: the paths or versions that the caller names.
        uv: the command line of uv.
        run: runs a program.

    Raises:
        ToolNotFoundError: an interpreter that was named is not here.
    """
    found = list(_probe([own], run))
    for each in asked:
        program = _locate(each, uv, run)
        probed = list(_probe([program] if program else [], run))
        if not probed:
            raise ToolNotFoundError(
                f"there is no Python {each} here",
                hint="name another with --python, or leave it out; `uv python list` shows them",
            )
        found += probed
    for name in names:
        if any(one.fits(name) for one in found):
            continue
        for tag in name.pythons:
            version = _VERSIONED.fullmatch(tag)
            # Other tags, such as pp310 of PyPy, have to be asked for.
            if version and (program := _locate(f"3.{version[1]}", uv, run)):
                found += _probe([program], run)
    return tuple(found)


def _locate(asked: str, uv: tuple[str, ...], run: Run) -> str:
    """Return the path of an interpreter by its path or version; "" for none."""
    # A virtual environment that is active by accident is no Python of the machine.
    done = run((*uv, "python", "find", "--system", "--no-python-downloads", asked))
    return done.stdout.strip() if done.returncode == 0 else ""


def _probe(programs: Iterable[str], run: Run) -> Iterator[Interpreter]:
    for program in programs:
        done = run((program, "-I", "-c", _PROBE))
        if done.returncode == 0:
            yield _describe(program, *json.loads(done.stdout))


def _describe(
    program: str, implementation: str, major: int, minor: int, free_threaded: bool, machine: str
) -> Interpreter:
    version = (major, minor)
    # An emulated interpreter of another machine can't be judged by this one's glibc.
    platforms = list(platform_tags()) if machine == platform.machine() else []
    name = f"cp{major}{minor}"
    tags = {str(tag) for tag in compatible_tags(version, None, platforms)}
    if implementation == "cpython":
        abi = f"{name}t" if free_threaded else name
        tags |= {str(tag) for tag in cpython_tags(version, [abi], platforms)}
        tags |= {str(tag) for tag in compatible_tags(version, name, platforms)}
    return Interpreter(program=program, version=f"{major}.{minor}", tags=frozenset(tags))
