"""What programs say of their versions, so that a change of one can be told to a person."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from archsplit.cache.keys import KeyComponent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from archsplit.cache.cache import Cache
    from archsplit.compiler.tool_identity import ToolIdentities

_PROGRAM = re.compile(
    r"(?:.*/)?(?:nvcc|cudafe\+\+|ptxas|fatbinary|nvlink"
    r"|(?:.*-)?(?:gcc|g\+\+|clang|clang\+\+|c\+\+|cc|as)(?:-[\d.]+)?)"
)
"""Programs that answer ``--version``; cicc and cc1plus don't."""


def note_versions(cache: Cache, tools: ToolIdentities, paths: Iterable[str]) -> None:
    """Write down the versions of programs that weren't met before."""
    for path in filter(_PROGRAM.fullmatch, paths):
        digest = cache.digests.of(path, group="programs")
        if digest is not None and not version_of(cache, digest):
            cache.notebook.tell(_subject(digest), (("", tools.version(path)),))


def version_of(cache: Cache, digest: str) -> str:
    """The version of the program with a digest; "" if it isn't written down."""
    return next((line for _, line in cache.notebook.told(_subject(digest))), "")


def with_versions(cache: Cache, parts: Iterable[KeyComponent]) -> tuple[KeyComponent, ...]:
    """The parts with programs' versions beside their digests, for people."""
    return tuple(
        KeyComponent(part.name, version_text(cache, part.value))
        if part.name.startswith("program ")
        else part
        for part in parts
    )


def version_text(cache: Cache, digest: str) -> str:
    """A program for people: its version, if that is known, and its digest's beginning."""
    version = version_of(cache, digest)
    return f"{version} ({digest[:12]})" if version else digest[:12]


def _subject(digest: str) -> str:
    return f"version of {digest}"
