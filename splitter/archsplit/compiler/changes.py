"""Say why nothing was known of a compilation: the nearest earlier one, and what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.cache.keys import KeyComponent, key_differences
from archsplit.compiler.sight import VARIABLE_PREFIX
from archsplit.compiler.versions import note_versions, version_of, version_text, with_versions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from archsplit.cache.cache import Cache
    from archsplit.cache.manifest import ManifestEntry
    from archsplit.compiler.request_key import CompileRequest
    from archsplit.compiler.sight import FileResolver
    from archsplit.compiler.tool_identity import ToolIdentities


def changed_lines(old: bytes, new: bytes) -> tuple[int, int]:
    """The first and the last line of the new text between which all differences lie.

    Where lines were only taken out, that is the line that now stands in their place.
    """
    before, after = old.splitlines(), new.splitlines()
    same = 0
    while same < min(len(before), len(after)) and before[same] == after[same]:
        same += 1
    tail = 0
    while tail < min(len(before), len(after)) - same and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    return same + 1, max(same + 1, len(after) - tail)


def miss_reasons(
    cache: Cache,
    request: CompileRequest,
    rows: Sequence[ManifestEntry],
    sight: FileResolver,
    tools: ToolIdentities,
) -> tuple[str, ...]:
    """What differs from the nearest earlier compilation, a line each."""
    if rows:
        nearest = min(([*sight.changes(row)] for row in rows), key=len)
        note_versions(cache, tools, (sight.place(_path(part)) for part in nearest))
        before = dict(pair for row in reversed(rows) for pair in (*row.files, *row.programs))
        return tuple(_change(cache, part, before.get(_path(part)), sight) for part in nearest)
    earlier = cache.notebook.earlier(request.subject)
    if not earlier:
        return ("nothing like it was compiled before",)
    now = with_versions(cache, request.parts)
    found = [with_versions(cache, (KeyComponent(*part) for part in parts)) for parts in earlier]
    return min((key_differences(parts, now) for parts in found), key=len)


def _path(part: KeyComponent) -> str:
    return part.name.partition(" ")[2]


def _change(cache: Cache, now: KeyComponent, was: str | None, sight: FileResolver) -> str:
    name = _path(now).removeprefix("./")
    if was is None:
        return f"{name}: {now.value}"
    if name.startswith(VARIABLE_PREFIX):
        return (
            f"environment {name.removeprefix(VARIABLE_PREFIX)}: "
            f"{now.value or 'not set'}, before {was}"
        )
    if not now.value:
        return f"{name} is gone"
    if now.name.startswith("program ") or version_of(cache, now.value):
        return (
            f"{name} is another one: {version_text(cache, now.value)}, before "
            f"{version_text(cache, was)}"
        )
    return f"{name} has changed{_where(cache.content(was), sight.place(name))}"


def _where(old: bytes | None, place: str) -> str:
    try:
        with open(place, "rb") as file:  # noqa: PTH123 - the place is text
            new = file.read()
    except OSError:
        return ""
    if old is None:
        return ""
    first, last = changed_lines(old, new)
    return f" in line {first}" if first == last else f" in lines {first} to {last}"
