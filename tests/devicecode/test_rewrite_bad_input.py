"""Damaged files of all forms: a plan, a note or an error of this project, and nothing else."""

from __future__ import annotations

import random
import struct
from typing import TYPE_CHECKING

import pytest

from archsplit.devicecode.apply import check_plan
from archsplit.devicecode.file_plan import FileEdit, plan_rewrite
from archsplit.errors import ArchsplitError
from archsplit.formats.elf import Elf
from archsplit.formats.reader import Window
from handmade_samples import THREE, Maker, content_of, for_devices

if TYPE_CHECKING:
    from collections.abc import Callable

ORDER = FileEdit(selection=for_devices("9.0"))
ROUNDS = 500
VALUES = (b"\0", b"\xff", b"\xff" * 4, b"\xff" * 8, bytes(8), struct.pack("<q", 2**63 - 1))
TABLES = (".rela.dyn", ".dynamic", ".nvFatBinSegment", ".dynsym", ".symtab", ".nv_fatbin")


def makers() -> dict[str, Callable[[Maker], bytes]]:
    return {
        "library": lambda maker: maker.library().read_bytes(),
        "fatbin": lambda _: b"".join(THREE),
    }


def places(content: bytes) -> list[range]:
    """Return the ranges in which a change is likely to matter."""
    found = [range(min(400, len(content))), range(len(content) - 1800, len(content))]
    if content.startswith(b"\x7fELF"):
        found += [
            range(section.offset, section.offset + min(section.size, 200))
            for section in Elf(Window(content, source="sample")).sections()
            if section.name in TABLES
        ]
    return found


def damaged(content: bytes, where: list[range], source: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(source.choice([1, 1, 2, 4])):
        at = source.choice(source.choice(where))
        at -= at % source.choice([1, 2, 4, 8])
        inside = struct.pack("<Q", source.randrange(len(content)))
        value = source.choice([*VALUES, inside, source.randbytes(8)])
        changed[at : at + len(value)] = value
    if source.random() < 0.1:
        del changed[source.randrange(len(changed)) :]
    return bytes(changed)


@pytest.mark.parametrize("make", makers().values(), ids=makers())
def test_damage_is_never_more_than_one_of_our_errors(
    make: Callable[[Maker], bytes], maker: Maker
) -> None:
    content = make(maker)
    where, source = places(content), random.Random(5)
    slimmed = 0
    for _ in range(ROUNDS):
        changed = damaged(content, where, source)
        try:
            plan = plan_rewrite(Window(changed, source="damaged"), ORDER)
            if plan.is_changed:
                check_plan(plan, Window(content_of(plan, changed), source="slimmed"))
                slimmed += 1
        except ArchsplitError:
            continue
    assert 0 < slimmed < ROUNDS
