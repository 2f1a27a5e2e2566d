"""Plans of files as bytes, for another process that has the same files.

In: a `FilePlan`; out: bytes, and from them an equal plan. The one idea: a window is sent as its
place in the file, so that nothing of the file itself is copied. The process that gets the plan maps
the file once, and every window of the plan is a part of that mapping.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import replace
from typing import TYPE_CHECKING

from archsplit.devicecode.file_plan import is_stub
from archsplit.formats.reader import Window

if TYPE_CHECKING:
    from archsplit.devicecode.file_plan import FilePlan


class _PlanPickler(pickle.Pickler):
    def persistent_id(self, obj: object) -> tuple[str, int, int] | None:
        return (obj.source, obj.start, len(obj)) if isinstance(obj, Window) else None


class _PlanUnpickler(pickle.Unpickler):
    """Reads a plan whose windows are parts of one file."""

    def __init__(self, stream: io.BytesIO, file: Window) -> None:
        super().__init__(stream)
        self._file = file

    def persistent_load(self, pid: tuple[str, int, int]) -> Window:
        source, start, size = pid
        part = self._file.at(start, size, "part of a plan")
        # Parts of static libraries are named by their member in messages.
        return Window(part.data, source=source, start=start)


def encode_plan(plan: FilePlan) -> bytes:
    """Return a plan as bytes for `decode_plan`, without any byte of its file."""
    # Here, and not where all plans come together: stubs are decompressed.
    containers = tuple(
        replace(one, is_stub=is_stub(one)) if len(one.kept) < len(one.entries) else one
        for one in plan.containers
    )
    plan = replace(plan, containers=containers)
    stream = io.BytesIO()
    _PlanPickler(stream, pickle.HIGHEST_PROTOCOL).dump(plan)
    return stream.getvalue()


def decode_plan(content: bytes | memoryview, file: Window) -> FilePlan:
    """Return the plan in bytes of `encode_plan`.

    Args:
        content: from a process of our own: pickled data of others can run code.
        file: the file of the plan.

    Raises:
        BinaryFormatError: the file is shorter than it was.
    """
    plan: FilePlan = _PlanUnpickler(io.BytesIO(content), file).load()
    return replace(plan, window=file)
