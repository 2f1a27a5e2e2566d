"""Members of a wheel, and the names that they may have."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.errors import WheelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__pure__ = True

FILE_MODE = 0o644
PROGRAM_MODE = 0o755

MAX_COMPONENT_BYTES = 255
"""NAME_MAX of every file system that Linux commonly mounts."""

MAX_NAME_BYTES = 4095
"""PATH_MAX without its NUL; a zip could hold 65535."""

_FORBIDDEN = (
    (re.compile(r"[\x00-\x1f\x7f]"), "it has control characters"),
    (re.compile(r"\\"), "it has a backslash, which some systems take for a separator"),
    (re.compile(r"^(/|[A-Za-z]:)"), "it is absolute"),
    (re.compile(r"(^|/)\.{0,2}(/|$)"), "it has an empty, '.' or '..' component"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelMember:
    """A file of a wheel.

    Attributes:
        name: the path relative to site-packages, with "/".
        content: the bytes, or the file that has them; a file is streamed, never held whole.
        mode: permissions. A shared library needs no execute bit: ld.so asks for none, and a wheel
            that sets it on libraries in some builds and not in others can't be reproduced.
    """

    name: str
    content: bytes | Path = field(repr=False)
    mode: int = FILE_MODE

    def __post_init__(self) -> None:
        fault = member_fault(self.name)
        if fault is not None:
            # Refused when the plan is made, before anything is compressed.
            raise WheelError(f"{self.name!r} can't be a member of a wheel: {fault}")
        # Any other mode would be the umask of a build machine.
        if self.mode not in {FILE_MODE, PROGRAM_MODE}:
            raise WheelError(f"{self.name!r} has mode {self.mode:o}, neither 644 nor 755")


def member_fault(name: str) -> str | None:
    """Return the reason why no file of a wheel may have that name, or None.

    Some installer would write such a file outside of site-packages, or under another name than the
    one in RECORD.
    """
    for pattern, fault in _FORBIDDEN:
        if pattern.search(name):
            return fault
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    # In bytes, as file systems count: one character may be four.
    longest = max(map(len, encoded.split(b"/")))
    if longest > MAX_COMPONENT_BYTES or len(encoded) > MAX_NAME_BYTES:
        return "it is too long for a file system"
    return None


def duplicate_names(names: Iterable[str]) -> list[str]:
    """Return a finding for each name of two members, or a file and folder.

    The findings are sorted; there are none if all names can be files beside each other.
    """
    counts = Counter(names)
    # Installers that make folders first would fail at the file, others at the folder.
    folders = {folder for name in counts for folder in _parent_folders(name)}
    return [
        *(f"{name}: occurs {counts[name]} times" for name in sorted(counts) if counts[name] > 1),
        *(f"{name}: is a file, and a folder of others" for name in sorted(folders & set(counts))),
    ]


def _parent_folders(name: str) -> Iterator[str]:
    while "/" in name:
        name, _, _ = name.rpartition("/")
        yield name
