"""Which pointers a loader fills with an address of the same file, and from where.

Numbers of the relocation types: x86-64 psABI, AArch64 ELF ABI. DT_RELR: gABI, chapter 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING

from archsplit.formats.elf_dynamic import Tag
from archsplit.formats.elf_header import Machine

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from archsplit.formats.elf import Elf
    from archsplit.formats.elf_dynamic import Dynamic

__pure__ = True

RELA = Struct("<QQq")
_ADDRESS = Struct("<Q")
_RELATIVE: Mapping[int, int] = {Machine.X86_64: 8, Machine.AARCH64: 1027}
_POINTER_SIZE = 8
_BITS = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """A pointer that the loader fills.

    Attributes:
        address: where it is in memory.
        value: the address that it will point at, before the load base is added.
        record: file offset of the Elf64_Rela that says so; None where the pointer's own bytes do.
    """

    address: int
    value: int
    record: int | None


def pointers_between(elf: Elf, dynamic: Dynamic, low: int, high: int) -> Iterator[Pointer]:
    """The RELATIVE and RELR pointers at addresses from ``low`` up to, not including, ``high``.

    Raises:
        BinaryFormatError: the tables are damaged, or the machine is not one of `Machine`'s hosts.
    """
    yield from _relative(elf, dynamic, low, high)
    table = dynamic.table(Tag.RELR, Tag.RELRSZ, "DT_RELR")
    words = (word for (word,) in table.records(_ADDRESS, "DT_RELR"))
    for address in _relr_addresses(words):
        if low <= address < high:
            value = elf.at_address(address, _POINTER_SIZE, "pointer").u64(0, "pointer")
            yield Pointer(address=address, value=value, record=None)


def _relative(elf: Elf, dynamic: Dynamic, low: int, high: int) -> Iterator[Pointer]:
    relative = relocation_type(elf, _RELATIVE)
    table = dynamic.table(Tag.RELA, Tag.RELASZ, "DT_RELA")
    for index, (address, info, addend) in enumerate(table.records(RELA, "DT_RELA")):
        if low <= address < high and info == relative:
            record = table.start + index * RELA.size
            yield Pointer(address=address, value=addend, record=record)


def relocation_type(elf: Elf, numbers: Mapping[int, int]) -> int:
    """The number that the file's machine has for a relocation, out of the numbers by machine.

    Raises:
        BinaryFormatError: the machine is not there.
    """
    machine = elf.header.machine
    if machine not in numbers:
        raise elf.window.fault(18, "ELF machine", str(machine), " or ".join(map(str, numbers)))
    return numbers[machine]


def _relr_addresses(words: Iterator[int]) -> Iterator[int]:
    following = 0
    for word in words:
        if word & 1:
            bits = (bit for bit in range(_BITS) if word >> (bit + 1) & 1)
            yield from (following + _POINTER_SIZE * bit for bit in bits)
            following += _POINTER_SIZE * _BITS
        else:
            yield word
            following = word + _POINTER_SIZE
