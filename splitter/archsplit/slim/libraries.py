"""Find the members of a wheel that hold device code, and plan each of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.devicecode.apply import plan_file
from archsplit.devicecode.effects import check_listed, check_something
from archsplit.devicecode.read import HEAD_SIZE, Form, form_of
from archsplit.system.units import BLOCK
from archsplit.wheels.offsets import head_of
from archsplit.wheels.record import RecordRow
from archsplit.wheels.unpacking import unpack

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.devicecode.file_plan import FilePlan
    from archsplit.slim.request import SlimRequest
    from archsplit.wheels.reader import Wheel

FORMS = {Form.ELF, Form.STATIC_LIBRARY, Form.FATBIN}
"""What containers can be taken out of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimmedLibrary:
    """A member with device code: its plan, and what was unpacked for it."""

    name: str
    path: Path
    plan: FilePlan = field(repr=False)


def libraries_of(wheel: Wheel, request: SlimRequest, folder: Path) -> tuple[SlimmedLibrary, ...]:
    """Read all members to their end, which checks RECORD; plan those with device code.

    Raises:
        WheelError: a member is damaged, or not what RECORD promises.
        BinaryFormatError: a library is damaged.
        TargetError: the choice leaves a GPU without code that it is meant for.
    """
    libraries = []
    for number, name in enumerate(wheel.names):
        path = folder / f"{number}.old"
        if not _unpacked(wheel, name, path, believe_record=request.believe_record):
            continue
        plan = plan_file(path, request.order)
        if plan.containers:
            check_listed(request.selection, plan.containers, of=name)
            libraries.append(SlimmedLibrary(name=name, path=path, plan=plan))
        else:
            path.unlink()
    containers = [one for library in libraries for one in library.plan.containers]
    check_something(request.selection, containers, of=str(wheel.path))
    return tuple(libraries)


def _unpacked(wheel: Wheel, name: str, path: Path, *, believe_record: bool) -> bool:
    """Unpack a member if it can hold device code; read it to its end in any case."""
    entry = wheel.record.get(name, RecordRow(path=name)) if believe_record else RecordRow(path=name)
    head = head_of(wheel.archive, wheel.archive.members[name], HEAD_SIZE)
    if form_of(head) in FORMS:
        unpack(wheel.archive, entry, path)
        return True
    with wheel.archive.open(entry) as stream:
        while stream.read(BLOCK):
            pass
    return False
