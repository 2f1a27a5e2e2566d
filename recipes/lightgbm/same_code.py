"""Compare the dynamic symbols and device code of two libraries: ``same_code.py ONE OTHER``.

Names of translation units are not compared: nvcc makes them from the process's number among
other things, and archsplit-nvcc has its own. Nor is debug information, which is full of them.
"""
# ruff: noqa: INP001 (a script, no part of a package)

from __future__ import annotations

import hashlib
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.devicecode.edits import decompress
from archsplit.formats.elf import ELF_MAGIC, Elf, SectionType
from archsplit.formats.elf_dynamic import Dynamic, section_symbols
from archsplit.formats.fatbin import host_containers
from archsplit.formats.reader import Window, open_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.formats.elf import Section

INTERNAL = re.compile(rb"(\d+)_INTERNAL_(?=[0-9a-f]{8}_\d+_)")
"""The beginning of a name that is one unit's own in C++, with the number of its letters."""
UNIT = re.compile(rb"_[0-9a-f]{8}_\d+_\w+?_cu_[0-9a-f]{8}(?:_\d+)?")
STRINGS = 3
"""SHT_STRTAB: names, which the symbols have, too."""
DEBUG = "debug"
"""Part of the names of all sections for debuggers, and of their symbols."""

Code = Counter[tuple[str, str]]


def main() -> int:
    """Return 0 if they are the same."""
    if len(sys.argv) != 3:  # noqa: PLR2004 (two files)
        sys.stderr.write(f"{__doc__}\n")
        return 2
    (symbols, code), (others, other_code) = (contents(Path(name)) for name in sys.argv[1:])
    findings = {f"only one exports {name}" for name in symbols ^ others}
    differing = (code - other_code) + (other_code - code)
    findings |= {f"different: {name}" for name, _ in differing}
    lines = [*sorted(findings), f"{len(symbols)} symbols, {code.total()} parts of device code"]
    lines.append("not the same" if findings else "the same symbols and the same device code")
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if findings else 0


def contents(path: Path) -> tuple[set[str], Code]:
    """Return the exports of a library, and the names and SHA-256 of its device code's parts."""
    elf = Elf(open_file(path))
    code: Code = Counter()
    for number, (section, container) in enumerate(host_containers(elf)):
        for entry in container.entries():
            image = decompress(entry, container.payload(entry))
            for name, part in parts(image):
                where = f"{section.name} {number} {entry.target} {name}"
                code[where, hashlib.sha256(part).hexdigest()] += 1
    return {text(symbol.name) for symbol in Dynamic(elf).exported_symbols()}, code


def parts(image: bytes) -> Iterator[tuple[str, bytes]]:
    """Return the sections of a cubin and its symbols; the whole content of other files."""
    if not image.startswith(ELF_MAGIC):
        yield "", neutral(image)
        return
    elf = Elf(Window(image, source="cubin"))
    for section in elf.sections():
        if section.type == SectionType.SYMBOLS:
            for one in section_symbols(elf, section):
                if DEBUG not in one.name:
                    yield text(one.name), f"{one.value} {one.size} {one.type}".encode()
        elif section.type != STRINGS and DEBUG not in section.name:
            yield text(section.name), neutral(in_file(elf, section))


def in_file(elf: Elf, section: Section) -> bytes:
    """Return the content of a section; shared memory has only a size."""
    if section.offset + section.size > len(elf.window):
        return str(section.size).encode()
    return elf.content(section).to_bytes()


def text(name: str) -> str:
    """Return a name without its unit's name."""
    return neutral(name.encode()).decode()


def neutral(content: bytes) -> bytes:
    """Return the content without names of units."""
    pieces, position = [], 0
    for match in INTERNAL.finditer(content):
        if match.start() >= position:
            pieces += [content[position : match.start()], b"(unit)"]
            position = match.end(1) + int(match[1])
    return UNIT.sub(b"(unit)", b"".join([*pieces, content[position:]]))


if __name__ == "__main__":
    sys.exit(main())
