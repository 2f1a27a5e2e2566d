"""Checks of inputs that come before all other work: a path is there, and of the right kind.

A wheel of the index is downloaded. A message about a missing file has the next step: the project's
wheel can be downloaded, the installed project can be inspected, the folder has the wheel.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.errors import InputError
from archsplit.system.fs import input_errors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

_PROJECT = re.compile(r"[A-Za-z0-9][\w.-]*")
_ENDINGS = (".whl", ".so", ".a", ".o", ".fatbin", ".cubin", ".pack", ".toml")


def find_file(path: Path, console: Console) -> Path:
    """Return the path of an input file; a wheel of the index is fetched.

    Raises:
        InputError: the path does not exist, is a folder, or can't be read.
        ArchsplitError: see `fetch_wheel`.
    """
    from archsplit.cli.fetch import fetch_wheel, is_on_index

    if is_on_index(str(path)):
        return fetch_wheel(str(path), console)
    mode = _readable_mode(path)
    if stat.S_ISDIR(mode):
        wheels = sorted(each.name for each in path.glob("*.whl"))
        first = f", such as {path / wheels[0]}" if wheels else ""
        raise InputError(f"{path} is a folder, not a file", hint=f"name a file in it{first}")
    if not mode:
        message, hint = _missing_input(str(path), sys.path)
        raise InputError(message, hint=hint)
    return path


def check_path(path: Path) -> None:
    """Refuse a path that does not exist.

    Raises:
        InputError: it does not exist, or can't be read.
    """
    if not _readable_mode(path):
        raise InputError(f"{path} does not exist", hint=_near(path))


def check_folder(path: Path) -> None:
    """Refuse what is not a folder.

    Raises:
        InputError: the path does not exist, is a file, or can't be read.
    """
    mode = _readable_mode(path)
    if not mode:
        raise InputError(f"{path} is not a folder: it does not exist", hint=_near(path))
    if not stat.S_ISDIR(mode):
        raise InputError(f"{path} is not a folder", hint=f"name the folder: {path.parent}")


def _readable_mode(path: Path) -> int:
    """Return the type and permissions of a path; 0 if it does not exist.

    A folder is listed, because a search in one without permission finds nothing, and says nothing.

    Raises:
        InputError: the path or a folder above it can't be read.
    """
    with input_errors(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            os.scandir(path).close()
        return mode
    return 0


def find_subject(text: str, site_folders: Iterable[Path], console: Console) -> str:
    """Return a path or the name of an installed package; a wheel of the index is fetched.

    Raises:
        InputError: it is neither, or can't be read.
        ArchsplitError: see `fetch_wheel`.
    """
    from importlib.metadata import distributions

    from archsplit.cli.fetch import fetch_wheel, is_on_index

    if is_on_index(text):
        return str(fetch_wheel(text, console))
    folders = [str(folder) for folder in site_folders]
    if not _readable_mode(Path(text)) and not any(distributions(name=text, path=folders)):
        message, hint = _missing_input(text, folders)
        # Often the package is in an environment that is not archsplit's own.
        if _PROJECT.fullmatch(text) and not text.endswith(_ENDINGS):
            hint = f"if it is installed elsewhere, add --site-packages DIR; {hint}"
        raise InputError(message, hint=hint)
    return text


def _missing_input(text: str, folders: list[str]) -> tuple[str, str | None]:
    """Return the message about a path that does not exist, and its hint."""
    # A path with a folder or an ending is no project's name: look for a similar file instead.
    if not _PROJECT.fullmatch(text) or text.endswith(_ENDINGS):
        return f"{text} does not exist", _near(Path(text))
    if installed := _installed_version(text, folders):
        return (
            f"{text} is not a path; version {installed} is installed",
            f"archsplit inspect {text} shows its device code; for its wheel, name"
            f" {text}=={installed}",
        )
    return (
        f"{text} is neither a path nor an installed package",
        f"for its wheel, name {text}==VERSION, or: pip download --no-deps {text}",
    )


def _near(path: Path) -> str | None:
    """Return a hint with the most similar name in the same folder."""
    import difflib

    # The folder itself is missing, so no name in it can be similar.
    if not path.parent.is_dir():
        return None
    names = [each.name for each in path.parent.iterdir()]
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean {path.parent / near[0]}?" if near else None


def _installed_version(name: str, folders: list[str]) -> str | None:
    from importlib.metadata import distributions

    return next((each.version for each in distributions(name=name, path=folders)), None)
