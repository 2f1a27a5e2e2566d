"""Say why nothing was known of a compilation: the nearest earlier one, and what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from splitter.cache.parts import Part, differences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from splitter.cache.cache import Cache
    from splitter.cache.manifest import Row
    from splitter.reuse.requests import Request
    from splitter.reuse.sight import Sight


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


def explained(cache: Cache, request: Request, rows: Sequence[Row], sight: Sight) -> tuple[str, ...]:
    """What differs from the nearest earlier compilation, a line each."""
    if rows:
        nearest = min((list(sight.changes(row)) for row in rows), key=len)
        digests = {f"file {path}": digest for row in rows for path, digest in row.files}
        return tuple(_change(cache, part, digests.get(part.name), sight) for part in nearest)
    before = cache.notebook.earlier(request.subject)
    earlier = [tuple(Part(*part) for part in parts) for parts in before]
    if not earlier:
        return ("nothing like it was compiled before",)
    return min((differences(parts, request.parts) for parts in earlier), key=len)


def _change(cache: Cache, now: Part, was: str | None, sight: Sight) -> str:
    name = now.name.removeprefix("file ").removeprefix("./")
    if was is None:
        return f"{name}: {now.value}" if "file" in now.name else f"{now.name} is another one"
    if not now.value:
        return f"{name} is gone"
    old = cache.content(was)
    if old is None:
        return f"{name} has changed"
    try:
        with open(sight.place(name), "rb") as file:  # noqa: PTH123 - the place is text
            first, last = changed_lines(old, file.read())
    except OSError:
        return f"{name} has changed"
    where = f"line {first}" if first == last else f"lines {first} to {last}"
    return f"{name} has changed in {where}"
