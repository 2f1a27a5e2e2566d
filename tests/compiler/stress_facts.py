"""Facts of a file, in parts by which the files of two compilers are compared.

Three things differ between any two runs of nvcc itself and are made the same on both sides: names
of temporary files, the identity of a translation unit (its module id), and times. What follows from
them only by position, such as hash tables of symbol names and debug information, is left out.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import Section, SymbolTableSection

from archsplit.devicecode.decompression import decompress
from archsplit.errors import BinaryFormatError
from archsplit.formats.fatbin import EXECUTABLE, RELOCATABLE, read_containers
from archsplit.formats.libraries import AR_MAGIC, read_members
from archsplit.formats.reader import Window

if TYPE_CHECKING:
    from collections.abc import Iterator

_ELF_MAGIC = b"\x7fELF"
_FATBIN_MAGIC = b"\x50\xed\x55\xba"
_FOLLOWING = re.compile(
    r"\.(symtab|strtab|shstrtab|dynsym|dynstr|gnu\.hash|hash|debug_\w+|note\.gnu\.build-id)"
    r"|\.rela?\.(nv_)?debug_\w+|\.nv_debug_line_sass"
)
_TEMPORARY = re.compile(rb"tmpxft_[0-9a-f]{8}_[0-9a-f]{8}[-_]\d+_")
_TIME = re.compile(rb"\d+\.\d+( ,)? ms")
_NUMBERS = re.compile(rb'(?:0x[0-9a-f]+,\s*)+|(?:"\.quad [0-9a-fx,]+\\n"\s*)+|fatbinData\[\d+\]')
_REGISTERED = re.compile(rb"[\w.-]*\breg\.c")
_WORDS = re.compile(rb"[ -~]{4,}")
_WHERE = re.compile(rb'(?<=# 1 ")[^"]*/')
_HASHED = re.compile(r"(?<=\.nv_debug_ptx_txt\.)\d+")
_IDENTITY = re.compile(
    rb"(?P<length>\d+)(?P<before>_INTERNAL|_GLOBAL__N_|def_module_id_str|__cudaRegisterLinkedBinary)"
    rb"(?=_[0-9a-f]{8}_\d+_)"
    rb"|__nv_static_(?P<plain>\d+)_(?=_[0-9a-f]{8}_\d+_)"
    rb"|(?P<word>_[0-9a-f]{8}_\d+_\w+)"
)


def normal(text: bytes) -> bytes:
    """A text without what no two runs have in common."""
    return _TIME.sub(b"0 ms", _without_identities(_TEMPORARY.sub(b"", text)))


def _without_identities(text: bytes) -> bytes:
    """Remove the units' identities from mangled names, whose lengths show where they end."""
    parts = []
    at = 0
    while found := _IDENTITY.search(text, at):
        parts.append(text[at : found.start()])
        at = found.end()
        if found["length"]:
            at += int(found["length"]) - len(found["before"])
        elif found["plain"]:
            at += int(found["plain"])
        shown = found["word"] or text[found.end() : at]
        parts.append((found["before"] or b"") + _unit(shown))
    return b"".join((*parts, text[at:]))


def _unit(identity: bytes) -> bytes:
    """Of _<checksum>_<length of the file's name>_<file>_<anything> only the file."""
    _, _, length, rest = identity.split(b"_", 3)
    return b"_unit_" + rest[: int(length)]


def facts_of(name: str, content: bytes, *, temporary: bytes = b"") -> dict[str, bytes]:
    """Return the facts of a file by the name of each part.

    Args:
        name: of the file.
        content: all of it.
        temporary: pattern of the folders of intermediate files, which texts name.
    """
    facts: dict[str, bytes] = {}
    is_text = not content.startswith((AR_MAGIC, _ELF_MAGIC, _FATBIN_MAGIC))
    if temporary and is_text:
        content = re.sub(temporary, b"", content)
    for part, value in _parts(name, content):
        facts[f"{part} ({sum(each.startswith(part) for each in facts)})"] = value
    return facts


def _parts(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    window = Window(content, source=name)
    if content.startswith(AR_MAGIC):
        for member in read_members(window):
            inside = normal(member.name.encode()).decode()
            for part, value in _parts(inside, member.content.to_bytes()):
                yield f"{inside}: {part}", value
    elif content.startswith(_ELF_MAGIC):
        yield from _elf_parts(content)
    elif content.startswith(_FATBIN_MAGIC):
        yield from _fatbin_parts(name, content)
    elif name.endswith((".ltoir", ".optixir")) or "LTO IR" in name:
        yield "text", b""  # Compressed bitcode, in which names can't be made the same.
    elif name.endswith(".stub.c"):  # It says in its first line where it was written.
        yield "text", normal(_WHERE.sub(b"", content))
    elif name.endswith((".fatbin.c", ".cudafe1.cpp", ".cpp.ii", "pipe")):
        yield "text", normal(_NUMBERS.sub(b"", content))
    else:
        yield "text", normal(content)


def _elf_parts(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Of what a linker made, no addresses: they follow the order of names in hash tables."""
    elf = ELFFile(io.BytesIO(content))
    yield "header", repr((elf.header.e_type, elf.header.e_machine, elf.header.e_flags)).encode()
    is_input = elf.header.e_type == "ET_REL" or elf.header.e_machine == "EM_CUDA"
    for section in elf.iter_sections():
        name = _named(section.name)
        if isinstance(section, SymbolTableSection):
            yield f"symbols of {name}", _symbols(elf, section)
        elif isinstance(section, RelocationSection):
            if is_input and not _FOLLOWING.fullmatch(name):
                yield f"relocations {name}", _relocations(elf, section)
        elif name in {EXECUTABLE, RELOCATABLE} and section.data_size:
            yield from _fatbin_parts(name, section.data())
        elif not _FOLLOWING.fullmatch(name):
            yield f"section {name}", _content(section) if is_input else b""


def _content(section: Section) -> bytes:
    if section.header.sh_type == "SHT_NOBITS" or section.name.startswith(".nv.shared"):
        return str(section.header.sh_size).encode()
    content: bytes = section.data()
    if section.name == ".note.nv.tkinfo":  # The command line, after its size.
        content = _REGISTERED.sub(b"reg.c", b"\n".join(_WORDS.findall(content)))
    return normal(content)


def _symbols(elf: ELFFile, table: SymbolTableSection) -> bytes:
    """Names and what they name; not where in a section, which .text and relocations tell.

    The file that a compiler read is temporary, and with -objtemp nvcc still gives all names.
    """
    rows = set()
    for symbol in table.iter_symbols():
        info = symbol.entry.st_info
        if info.type == "STT_FILE":
            continue
        name, place = _named(symbol.name), _place(elf, symbol.entry.st_shndx)
        rows.add(f"{name} {info.type} {info.bind} {place}")
    return "\n".join(sorted(rows)).encode()


def _place(elf: ELFFile, index: int | str) -> str:
    if isinstance(index, str):
        return index
    return _named(elf.get_section(index).name)


def _named(text: str) -> str:
    return _HASHED.sub("", normal(text.encode()).decode())


def _relocations(elf: ELFFile, section: RelocationSection) -> bytes:
    table = elf.get_section(section.header.sh_link)
    rows = []
    for each in section.iter_relocations():
        entry = each.entry
        to = ""
        if isinstance(table, SymbolTableSection):
            symbol = table.get_symbol(entry.r_info_sym)
            to = symbol.name or _place(elf, symbol.entry.st_shndx)
        rows.append(
            f"{entry.r_offset:x} {entry.r_info_type} {_named(to)} {entry.get('r_addend', 0):x}"
        )
    return "\n".join(sorted(rows)).encode()


def _fatbin_parts(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    for container in read_containers(Window(content, source=name)):
        for entry in container.entries():
            title = f"{name}: {entry.kind_name} {entry.arch}{entry.suffix}"
            yield f"{title} flags", repr((entry.flags, entry.version)).encode()
            try:
                image = decompress(entry, container.payload(entry))
            except BinaryFormatError:  # LTO IR is packed in a way that isn't known.
                yield f"{title} unreadable", b""
                continue
            image = image if image.startswith(_ELF_MAGIC) else image.rstrip(b"\0")
            for part, value in _parts(title, image):
                yield f"{title}: {part}", value
