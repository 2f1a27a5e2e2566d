"""Which kernels a GPU finds, and which of them it lacks that others have."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from archsplit.arch.target import CodeKind
from archsplit.devicecode.decompress import decompress
from archsplit.devicecode.names import demangler, readable_name, stable_name
from archsplit.errors import BinaryFormatError
from archsplit.formats.cubin import Cubin
from archsplit.formats.entry import read_entry
from archsplit.formats.reader import Window
from archsplit.release.findings import ReleaseKind, finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from archsplit.errors import Finding
    from archsplit.formats.entry import FatbinEntry

__pure__ = True

Names = frozenset[str]

_PTX_ENTRY = re.compile(rb"\.entry\s+([A-Za-z_$%][\w$]*)")
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCoverage:
    """Who finds which kernels.

    Attributes:
        found: by who looks for them: a wheel, or the GPUs of a capability.
        unread: why some images could not be read, one line each.
    """

    found: Mapping[str, Names] = field(repr=False)
    unread: tuple[str, ...] = ()


def kernels_of_entry(window: Window, entry: FatbinEntry) -> Names:
    """The kernels of one image, machine code or PTX; none where it is neither.

    The names are without what differs between two compilations of one source.

    Args:
        window: the file that has the entry.
        entry: its header.

    Raises:
        BinaryFormatError: the image can't be unpacked, or is damaged.
    """
    if entry.target is None:
        return frozenset()
    payload = window.at(entry.payload_offset, entry.payload_size, "payload")
    content = decompress(entry, payload)
    if entry.target.kind is CodeKind.PTX:
        names = {match[1].decode() for match in _PTX_ENTRY.finditer(content)}
    else:
        cubin = Cubin(Window(content, source=f"{window.source}, image at {entry.offset:#x}"))
        names = {kernel.name for kernel in cubin.kernels()}
    return frozenset(map(stable_name, names))


class Reader:
    """Reads images, each content once, and keeps what can't be read."""

    def __init__(self) -> None:
        self.unread: list[str] = []
        self._known: dict[bytes, Names] = {}

    def image(self, window: Window, digest: bytes) -> Names:
        """The kernels of the one image that a window has."""
        if digest not in self._known:
            self._known[digest] = self.entry(window, read_entry(window, 0))
        return self._known[digest]

    def entry(self, window: Window, entry: FatbinEntry) -> Names:
        """The kernels of an entry; none, and a line in `unread`, where it can't be read."""
        try:
            return kernels_of_entry(window, entry)
        except BinaryFormatError as error:
            self.unread.append(str(error))
            return frozenset()


def gaps(
    found: Mapping[str, Names], allowed: tuple[str, ...], kind: ReleaseKind = ReleaseKind.BUILT
) -> Iterator[Finding]:
    """Find wheels that lack kernels of others; pure.

    Args:
        found: see `KernelCoverage`.
        allowed: patterns of kernels, mangled or readable, that needn't be everywhere.
    """
    everything = frozenset().union(*found.values())
    demangle = demangler()
    shown = {name: readable_name(name, demangle) for name in everything}
    counted = {name for name in everything if not _allowed((name, shown[name]), allowed)}
    lacking: dict[Names, list[str]] = defaultdict(list)
    for who, names in found.items():
        lacking[frozenset(counted - names)].append(who)
    for missing, people in sorted(lacking.items(), key=lambda pair: pair[1]):
        if not missing:
            continue
        others = [who for who, names in found.items() if missing & names]
        first = ", ".join(sorted(shown[name] for name in missing)[:_SHOWN])
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        text = f"no {first}{more}, which {_some(others)} has"
        yield finding(kind, "missing-kernel", ", ".join(people), text)


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} others)"


def _allowed(spellings: tuple[str, str], patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for name in spellings for pattern in patterns)
