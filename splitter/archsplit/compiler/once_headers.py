"""Equal headers that are read once, which gcc tells apart by their times.

For gcc a header with ``#pragma once`` has been read if another one with the same time, size and
content has. The one that is left out is listed nowhere, and a ``touch`` brings it back.
"""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from archsplit.compiler.file_resolver import FileResolver

_ONCE = re.compile(
    rb'^[ \t]*#[ \t]*(?:pragma[ \t]+once|import)\b|_Pragma\s*\(\s*"\s*once', re.MULTILINE
)
_NAMED = re.compile(
    rb'^[ \t]*#[ \t]*(?:in\w+|im\w+|define[ \t]+\w+)[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.MULTILINE
)
"""Directives that include a header, or define a macro that may name one."""


def has_equal_headers(
    read: Mapping[str, bytes], resolver: FileResolver, *, foreign: tuple[str, ...]
) -> bool:
    """Tell if a header that is read once has an equal one beside it.

    Args:
        read: contents of the files that were read, by their names.
        foreign: folders whose headers nobody changes.
    """
    own = {
        resolver.resolve(name): content
        for name, content in read.items()
        if not resolver.normalize(name).startswith(foreign)
    }
    once = {content for content in own.values() if _ONCE.search(content)}
    # Guards by macros don't depend on times.
    if not once:
        return False
    files = {_identity(place): content for place, content in own.items()}
    if len([content for content in files.values() if content in once]) > len(once):
        return True
    sizes = {len(content) for content in once}
    # Headers of the system and the toolkit are never touched.
    searched = [
        path for path in map(resolver.normalize, resolver.includes) if not _is_in(path, foreign)
    ]
    places = dict.fromkeys(_places(own, searched))
    return any(_content(place, sizes, files) in once for place in places)


def _content(place: str, sizes: Container[int], but: Container[tuple[int, int]]) -> bytes | None:
    """Return the content of another file of one of these sizes."""
    try:
        status = os.stat(place)  # noqa: PTH116 - thousands: a Path each would cost more
        if status.st_size not in sizes or (status.st_dev, status.st_ino) in but:
            return None
        return Path(place).read_bytes()
    except OSError:
        return None


def _identity(place: str) -> tuple[int, int]:
    try:
        status = os.stat(place)  # noqa: PTH116 - as above
    except OSError:
        return (0, 0)
    return (status.st_dev, status.st_ino)


def _places(read: Mapping[str, bytes], searched: Sequence[str]) -> Iterator[str]:
    """List the places of the project's headers that texts name."""
    for including, content in read.items():
        folder = including.rpartition("/")[0]
        for quoted, bracketed in _NAMED.findall(content):
            name = os.fsdecode(quoted or bracketed)
            folders = (*([folder] if quoted else []), *searched)
            places = (os.path.join(each, name) for each in folders)  # noqa: PTH118
            # The same header further behind, as in a build folder, is never looked at.
            yield from itertools.islice(filter(os.path.exists, places), 1)


def _is_in(path: str, folders: Iterable[str]) -> bool:
    return f"{path}/".startswith(tuple(folders))
