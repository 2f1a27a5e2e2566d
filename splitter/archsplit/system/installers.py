"""Installers of this machine, and refusals of what they can't install from.

pip is this Python's own, uv a program beside it or on PATH.
"""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

from archsplit.errors import IndexUnreachableError, InputError, ToolNotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping

_NO_CONNECTION = re.compile(
    r"connection broken by '|Max retries exceeded|Failed to fetch:|tcp connect error|dns error"
)


def has_pip() -> bool:
    """Return True if this Python has pip."""
    return find_spec("pip") is not None


def check_extra(extra: str, *modules: str) -> None:
    """Refuse a verb whose extra of archsplit is not installed, before the verb does anything.

    Raises:
        ToolNotFoundError: names the first module that is missing.
    """
    for name in modules:
        if find_spec(name) is None:
            raise ToolNotFoundError(
                f"{name} is not installed", hint=f"pip install 'archsplit[{extra}]'"
            )


def find_uv(environment: Mapping[str, str]) -> str | None:
    """Return the path of uv on PATH or beside this Python, or None."""
    return which("uv", path=environment.get("PATH")) or which(Path(sys.executable).with_name("uv"))


def pip_command(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command line of pip: this Python's own, or uv's copy of it.

    Raises:
        ToolNotFoundError: there is neither pip nor uv.
    """
    if has_pip():
        return (sys.executable, "-m", "pip", "--disable-pip-version-check")
    uv = find_uv(environment)
    if uv is None:
        raise ToolNotFoundError("neither pip nor uv is installed", hint="python -m ensurepip")
    # pip does not read the settings of uv.
    index = environment.get("UV_DEFAULT_INDEX") or environment.get("UV_INDEX_URL")
    index_option = ("--index-url", index) if index else ()
    # Otherwise uv takes the first Python on PATH, and pip the wheels for that one.
    tool = (uv, "tool", "run", "--quiet", f"--python={sys.executable}")
    return (*tool, "pip", "--disable-pip-version-check", *index_option)


def refuse_environment(folder: Path) -> None:
    """Refuse an environment's folder where the folder of its packages is meant.

    Raises:
        InputError: the hint names the folder inside.
    """
    for inside in sorted(folder.glob("lib/python*/site-packages")):
        raise InputError(
            f"{folder} is an environment, not its site-packages folder",
            hint=f"name the folder inside: --site-packages {inside}",
        )


def refuse_offline(output: str, *, subject: str) -> None:
    """Refuse output of pip or uv without a connection, whose last line blames the project.

    Args:
        subject: the project or file that pip or uv was asked for.

    Raises:
        IndexUnreachableError: pip or uv had no connection.
    """
    if _NO_CONNECTION.search(output):
        raise IndexUnreachableError(
            f"can't reach an index for {subject}: the server is down, or this machine is offline",
            hint="pip config list shows the index in use; wheels in a folder need no index:"
            " --find-links DIR",
        )
