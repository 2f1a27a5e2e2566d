"""The device code of a release: the containers of all its cores, and the files that they go into.

In: the stripped libraries of each core. Containers with the same images are one, whichever core,
library or place they are from. Out: packs over all containers, divided into files, and the hashes
that tie packs and cores together.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.devicecode.pack_files import ReleaseCores, divide_packs
from archsplit.devicecode.partition import plan_packs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from archsplit.devicecode.pack_files import PackFile
    from archsplit.devicecode.partition import PackPlan
    from archsplit.devicecode.registered import RegisteredContainer
    from archsplit.formats.device_pack import PackContainer
    from archsplit.split.model import SplitRequest
    from archsplit.split.take_apart import StrippedLibrary
    from archsplit.wheels.filename import WheelName

_ABI = re.compile(r"\.(cpython-\d+[a-z]*(-[\w-]+)?|abi3|cp\d+[\w-]*)(?=\.so)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedContainer:
    """A container of one or several cores.

    Attributes:
        library: the name of the first library that has it, without the tag of a Python.
        part: that library.
        place: the container there.
        row: its row in the table of that library's core.
    """

    library: str
    part: StrippedLibrary = field(repr=False)
    place: RegisteredContainer = field(repr=False)
    row: PackContainer = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseContents:
    """The device code of all cores of a release.

    Attributes:
        containers: each once, in the order of the cores.
        plan: the packs; `PackContents.offsets` follow the order of the containers.
        files: the files of the packs.
        interface_hash: a hash over the keys of all containers, 64 hexadecimal digits.
    """

    containers: tuple[SharedContainer, ...] = field(repr=False)
    plan: PackPlan
    files: tuple[PackFile, ...]
    interface_hash: str


def plan_contents(
    cores: Sequence[tuple[str, tuple[StrippedLibrary, ...]]], request: SplitRequest
) -> ReleaseContents:
    """Divide the device code of all cores into packs and files.

    Args:
        cores: the machine and the stripped libraries of each.

    Raises:
        InputError: no image is for one of the request's targets.
    """
    by_key: dict[bytes, SharedContainer] = {}
    holders: dict[bytes, set[int]] = {}
    for number, (_, parts) in enumerate(cores):
        for part in parts:
            for place, row in zip(part.moved, part.table.containers, strict=True):
                library = library_name(part.table.name)
                one = SharedContainer(library=library, part=part, place=place, row=row)
                by_key.setdefault(row.key, one)
                holders.setdefault(row.key, set()).add(number)
    entries = [one.place.entries for one in by_key.values()]
    plan, files = divide_packs(
        plan_packs(entries, request.by, request.targets),
        ReleaseCores(
            machines=tuple(machine for machine, _ in cores),
            holders=tuple(map(frozenset, holders.values())),
        ),
        [{entry.offset: entry.size for entry in each} for each in entries],
    )
    return ReleaseContents(
        containers=tuple(by_key.values()),
        plan=plan,
        files=files,
        interface_hash=hashlib.sha256(b"".join(sorted(by_key))).hexdigest(),
    )


def contents_build_id(contents: ReleaseContents, request: SplitRequest, name: WheelName) -> str:
    """Return the build id of a release: a hash over its images, its name and the options."""
    targets = None if request.targets is None else sorted(map(str, request.targets))
    facts = [name.project, name.version, name.build, request.by.value, targets]
    return hashlib.sha256(json.dumps([*facts, contents.interface_hash]).encode()).hexdigest()


def library_name(place: str) -> str:
    """Return the path of a library without the tag of a Python.

    >>> library_name("foo/_core.cpython-311-x86_64-linux-gnu.so")
    'foo/_core.so'
    """
    return _ABI.sub("", place)
