"""The files that a step makes, between its folder and the cache."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from splitter.reuse.sight import INCLUDE
from splitter.reuse.texts import anonymous, named

if TYPE_CHECKING:
    from pathlib import Path

    from splitter.cache.entry import Entry
    from splitter.engine.graph import Step
    from splitter.reuse.commands import Known
    from splitter.reuse.sight import Sight

_TEXTS = {".s", ".c", ".cpp", ".ptx", ".gpu"}
_FILE = "file "


def searched(path: str, includes: tuple[str, ...]) -> str:
    """How a file is found: by its name in the folders for includes, if it lies in one of them."""
    for folder in includes:
        inside = f"{os.path.normpath(folder)}/"
        if path.startswith(inside):
            return INCLUDE + path.removeprefix(inside)
    return path


def contents(step: Step, folder: Path) -> dict[str, bytes] | None:
    """What a step has written; None if a program's bytes tell the private folder's name."""
    files = {}
    for path in step.writes:
        content = path.read_bytes()
        if path.suffix in _TEXTS:
            content = anonymous(content, str(folder))
        elif str(folder).encode() in content:
            return None
        files[_name(path, folder)] = content
    return files


def put(entry: Entry, step: Step, known: Known, sight: Sight | None) -> bool:
    """Write a step's files; False if the entry hasn't all of them, or they can't be written."""
    folder = known.folder
    made = {path: entry.files.get(_name(path, folder)) for path in step.writes}
    try:
        for path, content in made.items():
            if content is None:
                return False
            write_over(path, named(content, str(folder)) if path.suffix in _TEXTS else content)
        if sight is not None and known.listing is not None:
            known.listing.write_text(_rule(entry, sight), errors="surrogateescape")
    except OSError:
        return False
    return True


def write_over(path: Path, content: bytes) -> None:
    """Write a file as compilers do: another name of the old one keeps the old content."""
    if path.is_file():
        path.unlink()
    path.write_bytes(content)


def _rule(entry: Entry, sight: Sight) -> str:
    """The rule for make that lists what a known result was made from."""
    names = (part.name.removeprefix(_FILE) for part in entry.parts if part.name.startswith(_FILE))
    places = (sight.place(name).replace(" ", r"\ ") for name in names)
    return f"listing: {' '.join(places)}\n"


def _name(path: Path, folder: Path) -> str:
    return path.name if path.is_relative_to(folder) else "<output>"
