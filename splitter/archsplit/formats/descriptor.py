"""The descriptor of a plugin: an ELF note that ties the plugin to its core.

In: bytes of a note, or a `Descriptor`; out: the other one. The layout is version 1.0 of the
contract, whose C side is ``plugin_loader/include/archsplit/plugin.h``: a fixed part, rows of
targets, then text, each found through an offset, so that a later minor version may make every part
longer.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING

from archsplit.arch.target import Capability, CodeKind, Target
from archsplit.formats.elf import read_notes
from archsplit.formats.reader import Window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.arch.target import Suffix
    from archsplit.formats.elf import Elf

__pure__ = True

NOTE_SECTION = ".note.archsplit"
OWNER = "archsplit"
NOTE_TYPE = 1
CONTRACT = (1, 0)

_NOTE = Struct("<III12s")
# The integers of `archsplit_descriptor` in plugin.h; its two digests follow them.
_FIXED = Struct("<IIHHIIIIIIIHHI")
_ROW = Struct("<HHHH")
TARGET_KINDS = {1: CodeKind.SASS, 2: CodeKind.PTX}
TARGET_SUFFIXES: dict[int, Suffix] = {0: "", ord("a"): "a", ord("f"): "f"}
KIND_NUMBERS = {kind: number for number, kind in TARGET_KINDS.items()}
_DIGEST_SIZE = 32
_ALIGNMENT = 4
_BUILD_ID_AT, _INTERFACE_HASH_AT, _FIXED_SIZE = 48, 80, 112
# The limits of plugin.h: the loader reads no more than this of a file that it doesn't trust yet.
_MAX_BYTES, _MAX_TEXT, _MAX_TARGETS = 8192, 255, 64
_PACKAGE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_VERSION = re.compile(r"[!-~]+")


class Shape(enum.IntEnum):
    """Two forms of plugins: a whole library, or only device code."""

    LIBRARY = 1
    DEVICE = 2


_SHAPES = frozenset(Shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """Core that a plugin belongs to, and the plugin's targets.

    Attributes:
        package: the normalized name of the core's project (PEP 503).
        version: the exact version of the core.
        build_id: SHA-256 of all inputs of the build; of packs, as rule 24 of plugin.h defines.
        interface_hash: SHA-256 of the public header and the exported symbols.
        cuda_version: as in CUDART_VERSION, 13000 for 13.0.
        shape: a whole library, or only device code.
        targets: at least one and at most 64, each once.
    """

    package: str
    version: str
    build_id: bytes
    interface_hash: bytes
    cuda_version: int
    shape: Shape
    targets: tuple[Target, ...]

    def __post_init__(self) -> None:
        # Rule 8 of plugin.h: the loader compares the name with the core's, character by character.
        if not _PACKAGE.fullmatch(self.package):
            raise ValueError(f"package {self.package!r} is not a normalized project name")
        if not _VERSION.fullmatch(self.version):
            raise ValueError(f"version {self.version!r} is not one word of printable ASCII")
        if len(self.build_id) != _DIGEST_SIZE or len(self.interface_hash) != _DIGEST_SIZE:
            raise ValueError("build_id and interface_hash must be SHA-256 digests of 32 bytes")
        if max(len(self.package), len(self.version)) > _MAX_TEXT:
            raise ValueError(f"package and version may have no more than {_MAX_TEXT} bytes")
        if not 1 <= len(self.targets) <= _MAX_TARGETS:
            raise ValueError(f"{len(self.targets)} targets, not 1 to {_MAX_TARGETS}")
        if len(set(self.targets)) < len(self.targets):
            raise ValueError("a target is listed twice")
        if self.cuda_version <= 0:
            raise ValueError(f"CUDA version {self.cuda_version} is not positive")

    def encode(self) -> bytes:
        """Return the descriptor's bytes, the content of the note."""
        rows = b"".join(_encode_target(target) for target in self.targets)
        package, version = self.package.encode(), self.version.encode()
        package_at = _FIXED_SIZE + len(rows)
        version_at = package_at + len(package)
        padding = bytes(-(version_at + len(version)) % _ALIGNMENT)
        fixed = _FIXED.pack(
            _FIXED_SIZE,
            version_at + len(version) + len(padding),
            CONTRACT[0],
            CONTRACT[1],
            self.shape,
            self.cuda_version,
            package_at,
            len(package),
            version_at,
            len(version),
            _FIXED_SIZE,
            _ROW.size,
            len(self.targets),
            0,
        )
        # The digests follow the integers, so that these keep their alignment.
        digests = self.build_id + self.interface_hash
        return fixed + digests + rows + package + version + padding


def encode_note(descriptor: Descriptor) -> bytes:
    """Return the whole note with header and owner: the content of `NOTE_SECTION`."""
    content = descriptor.encode()
    # The gABI counts the NUL in the owner's size.
    owner = OWNER.encode() + b"\0"
    return _NOTE.pack(len(owner), len(content), NOTE_TYPE, owner) + content


def decode_note(
    content: bytes | memoryview, *, source: str = "descriptor", start: int = 0
) -> Descriptor:
    """Read a descriptor from the content of its note.

    The fixed part and the rows of a later minor version may be longer; their ends are left unread.

    Args:
        content: exactly the descriptor's bytes.
        source: the file of the bytes, for messages.
        start: offset in that file, for messages.

    Raises:
        BinaryFormatError: another major version of the contract, or a damaged descriptor.
    """
    window = Window(content, source=source, start=start)
    row = window.unpack(_FIXED, 0, "descriptor")
    fixed_size, total_size, major, _, shape = row[:5]
    # The major version comes first: in another one, the other fields may mean something else.
    _expect(window, 8, "contract version", major, major == CONTRACT[0], f"{CONTRACT[0]}")
    _expect(window, 4, "total size", total_size, total_size == len(window), f"{len(window)}")
    _expect(window, 4, "total size", total_size, total_size <= _MAX_BYTES, f"{_MAX_BYTES} or less")
    fits = _FIXED_SIZE <= fixed_size <= total_size
    # A larger fixed part is a later minor version: its additional fields are skipped.
    _expect(window, 0, "fixed size", fixed_size, fits, f"{_FIXED_SIZE} to {total_size}")
    _expect(window, 12, "shape", shape, shape in _SHAPES, "1 or 2")
    # Nothing may overlap the fixed part.
    for what, at in (("package", 20), ("version", 28), ("targets", 36)):
        offset = window.u32(at, what)
        expected = f"{fixed_size} or more"
        _expect(window, at, f"offset of the {what}", offset, offset >= fixed_size, expected)
    try:
        return Descriptor(
            package=_decode_text(window, row[6], row[7], "package"),
            version=_decode_text(window, row[8], row[9], "version"),
            build_id=_read_digest(window, _BUILD_ID_AT),
            interface_hash=_read_digest(window, _INTERFACE_HASH_AT),
            cuda_version=row[5],
            shape=Shape(shape),
            targets=tuple(_decode_targets(window, *row[10:13])),
        )
    # The record checks its own values: names, digests, repeated targets, numbers that no GPU has.
    except ValueError as error:
        raise window.fault(0, "descriptor", str(error), "what the contract allows") from error


def read_descriptor(elf: Elf) -> Descriptor | None:
    """Return the descriptor in a library's notes, or None if there is none.

    Raises:
        BinaryFormatError: the descriptor or a note is damaged, or there are two descriptors.
    """
    notes = [
        note.content for note in read_notes(elf) if note.owner == OWNER and note.type == NOTE_TYPE
    ]
    if not notes:
        return None
    # The loader takes one note; with two it is unclear which one.
    if len(notes) > 1:
        raise notes[1].fault(0, "archsplit notes", f"{len(notes)}", "one")
    return decode_note(notes[0].data, source=notes[0].source, start=notes[0].start)


def _encode_target(target: Target) -> bytes:
    capability, suffix = target.capability, target.suffix
    number = ord(suffix) if suffix else 0
    return _ROW.pack(KIND_NUMBERS[target.kind], capability.major, capability.minor, number)


def _decode_targets(window: Window, offset: int, size: int, count: int) -> Iterator[Target]:
    is_valid = size >= _ROW.size and size % _ALIGNMENT == 0
    _expect(window, 40, "size of a target", size, is_valid, f"{_ROW.size} or more, in fours")
    _expect(window, 36, "offset of the targets", offset, offset % _ALIGNMENT == 0, "one in fours")
    table = window.part(offset, size * count, "targets")
    for at in range(0, len(table), size):
        kind, major, minor, suffix = table.unpack(_ROW, at, "target")
        _expect(table, at, "kind of a target", kind, kind in TARGET_KINDS, "1 or 2")
        _expect(
            table, at + 6, "suffix of a target", suffix, suffix in TARGET_SUFFIXES, "0, 'a' or 'f'"
        )
        capability = Capability(major, minor)
        yield Target(kind=TARGET_KINDS[kind], capability=capability, suffix=TARGET_SUFFIXES[suffix])


def _decode_text(window: Window, offset: int, size: int, what: str) -> str:
    # Text that is not UTF-8 raises UnicodeDecodeError, a ValueError.
    return window.part(offset, size, what).to_bytes().decode()


def _read_digest(window: Window, offset: int) -> bytes:
    return window.part(offset, _DIGEST_SIZE, "digest").to_bytes()


def _expect(window: Window, at: int, what: str, found: int, is_valid: bool, expected: str) -> None:
    if not is_valid:
        raise window.fault(at, what, str(found), expected)
