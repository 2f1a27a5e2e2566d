"""The files that a step makes, between its folder and the cache."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from archsplit.compiler.sight import INCLUDE
from archsplit.compiler.texts import from_placeholder, to_placeholder
from archsplit.system.fs import write_over

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.cache.entry import CacheEntry
    from archsplit.compiler.sight import FileResolver
    from archsplit.compiler.step_key import StepKey
    from archsplit.scheduler.graph import Step

_TEXTS = {".s", ".c", ".cpp", ".ptx", ".gpu"}
_FILE = "file "


def searched(path: str, includes: tuple[str, ...]) -> str:
    """How a file is found: by its name in the folders for includes, if it lies in one of them."""
    for folder in includes:
        inside = f"{os.path.normpath(folder)}/"
        if path.startswith(inside):
            return INCLUDE + path.removeprefix(inside)
    return path


def contents(step: Step, known: StepKey) -> dict[str, bytes] | None:
    """What a step has written; None if a program's bytes tell the private folder's name.

    Debug information tells it, and may: in its place stands a mark of the same length.
    """
    if not _are_told_apart(step, known):
        return None
    files = {}
    for path in step.writes:
        content = path.read_bytes()
        if path.suffix in _TEXTS:
            content = to_placeholder(content, str(known.folder))
        elif known.mark:
            content = content.replace(str(known.private).encode(), known.mark)
        elif str(known.private).encode() in content:
            return None
        files[_name(path, known)] = content
    return files


def put(entry: CacheEntry, step: Step, known: StepKey, sight: FileResolver | None) -> bool:
    """Write a step's files; False if the entry hasn't all of them, or they can't be written."""
    if not _are_told_apart(step, known):
        return False
    made = {path: entry.files.get(_name(path, known)) for path in step.writes}
    try:
        for path, content in made.items():
            if content is None:
                return False
            write_over(path, _named(path, content, known))
        if sight is not None and known.listing is not None:
            known.listing.write_text(_rule(entry, sight), errors="surrogateescape")
    except OSError:
        return False
    return True


def _named(path: Path, content: bytes, known: StepKey) -> bytes:
    if path.suffix in _TEXTS:
        return from_placeholder(content, str(known.folder))
    return content.replace(known.mark, str(known.private).encode()) if known.mark else content


def _rule(entry: CacheEntry, sight: FileResolver) -> str:
    """The rule for make that lists what a known result was made from."""
    names = (part.name.removeprefix(_FILE) for part in entry.parts if part.name.startswith(_FILE))
    places = (sight.place(name).replace(" ", r"\ ") for name in names)
    return f"listing: {' '.join(places)}\n"


def _are_told_apart(step: Step, known: StepKey) -> bool:
    return len({_name(path, known) for path in step.writes}) == len(step.writes)


def _name(path: Path, known: StepKey) -> str:
    return path.name if path.is_relative_to(known.private) else "<output>"
