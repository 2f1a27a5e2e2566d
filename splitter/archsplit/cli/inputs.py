"""Checks of inputs that come before all other work: a path is there, and of the right kind.

A message about a missing file has the next step: the project's wheel can be downloaded, the
installed project can be inspected, the folder has the wheel.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

_PROJECT = re.compile(r"[A-Za-z0-9][\w.-]*(==[\w.!+*-]+)?")
_ENDINGS = (".whl", ".so", ".a", ".o", ".fatbin", ".cubin", ".pack", ".toml")


def check_file(path: Path) -> None:
    """Refuse what is not a file.

    Raises:
        InputError: the path does not exist, or is a folder.
    """
    if path.is_dir():
        wheels = sorted(each.name for each in path.glob("*.whl"))
        first = f", such as {path / wheels[0]}" if wheels else ""
        raise InputError(f"{path} is a folder, not a file", hint=f"name a file in it{first}")
    if not path.exists():
        message, hint = _missing_input(str(path), sys.path)
        raise InputError(message, hint=hint)


def check_folder(path: Path) -> None:
    """Refuse what is not a folder.

    Raises:
        InputError: the path does not exist, or is a file.
    """
    if path.is_file():
        raise InputError(f"{path} is not a folder", hint=f"name the folder: {path.parent}")
    if not path.is_dir():
        raise InputError(f"{path} is not a folder: it does not exist", hint=_near(path))


def check_subject(text: str, site_folders: Iterable[Path]) -> None:
    """Refuse a subject that is neither a path nor an installed package.

    Raises:
        InputError: it is neither.
    """
    from importlib.metadata import distributions

    folders = [str(folder) for folder in site_folders]
    if not Path(text).exists() and not any(distributions(name=text, path=folders)):
        message, hint = _missing_input(text, folders)
        raise InputError(message, hint=hint)


def _missing_input(text: str, folders: list[str]) -> tuple[str, str | None]:
    """Return the message about a path that does not exist, and its hint."""
    # pathlib makes one slash of two.
    if re.match(r"https?:/", text):
        url = re.sub(r":/+", "://", text)
        return f"{url} is a URL, not a path", f"download it first: pip download --no-deps {url}"
    if not _PROJECT.fullmatch(text) or text.endswith(_ENDINGS):
        return f"{text} does not exist", _near(Path(text))
    name, _, version = text.partition("==")
    download = f"pip download --no-deps {text}"
    if installed := _installed_version(name, folders):
        pinned = f"pip download --no-deps {name}=={version or installed}"
        return (
            f"{name} is not a path; version {installed} is installed",
            f"archsplit inspect {name} shows its device code; {pinned} gets its wheel",
        )
    return f"{text} is neither a path nor an installed package", f"for its wheel: {download}"


def _near(path: Path) -> str | None:
    """Return a hint with the most similar name in the same folder."""
    import difflib

    if not path.parent.is_dir():
        return None
    names = [each.name for each in path.parent.iterdir()]
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean {path.parent / near[0]}?" if near else None


def _installed_version(name: str, folders: list[str]) -> str | None:
    from importlib.metadata import distributions

    return next((each.version for each in distributions(name=name, path=folders)), None)
