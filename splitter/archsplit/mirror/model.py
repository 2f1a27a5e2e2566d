"""Records of a mirror: the request, the wheels of a resolution, and the state in the folder.

The state is one JSON file at the root of the index. It names for each wheel the original, the edit
and the outputs, so that a second run repeats nothing, and anyone can do the same edits again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Literal

from archsplit.errors import InputError, TargetError
from archsplit.release.report import read_listing

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from archsplit.arch.target import Capability
    from archsplit.devicecode.select import PtxPolicy

MIRROR_SCHEMA = 1
STATE_FILE = "archsplit-mirror.json"
"""State of a mirror, beside the pages of the index."""

FileRole = Literal["wheel", "core", "plugin"]
Unregistered = Literal["", "keep", "zero"]
"""Treatment of code that only a library finds; "" for zeros only in proven files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedWheel:
    """A wheel that a resolver chose.

    Attributes:
        name: the project, normalized.
        url: ``https:`` or ``file:``, without a fragment.
        sha256: 64 hexadecimal digits; "" if the index has none.
    """

    name: str
    version: str
    file: str
    url: str = field(repr=False)
    sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorRequest:
    """Settings of a mirror.

    Attributes:
        inputs: requirement files, ``pylock.toml`` or ``uv.lock`` files.
        out: the folder of the index.
        devices: the GPUs of all machines that install from the mirror.
        split: make a core and a pack for each GPU, in place of one wheel for all GPUs.
        keeps_proprietary: leave wheels as they are whose licence forbids changes.
        lock_name: the name of the lock among several in one mirror; "" for ``pylock.toml``.
        url: the address at which the index is served, for the lock; "" for relative paths.
        downloads: a folder that keeps the originals; None to remove them after use.
        extras, groups: of a lock, to install.
        unregistered: code that only a library finds: ``keep``, ``zero``, or "" for zeros only in
            proven files.
        recompress: the level of zstd frames for images; None keeps the vendor's bytes.
        now: seconds since 1970, for the pages.
    """

    inputs: tuple[Path, ...]
    out: Path
    devices: tuple[Capability, ...]
    ptx: PtxPolicy
    split: bool = False
    keeps_proprietary: bool = False
    lock_name: str = ""
    url: str = ""
    downloads: Path | None = None
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    unregistered: Unregistered = ""
    recompress: int | None = None
    now: int = 0

    def __post_init__(self) -> None:
        if not self.devices:
            raise TargetError("a mirror needs a GPU", hint="--device 9.0, or --device native")

    @property
    def edit(self) -> MirrorEdit:
        """Edit of each wheel with device code."""
        return MirrorEdit(
            kind="split" if self.split else "slim",
            # Sorted: the same GPUs in another order are the same edit.
            devices=tuple(sorted(map(str, self.devices))),
            # A split has no such choice: a value here would make equal edits differ.
            ptx="" if self.split else self.ptx.value,
            unregistered="" if self.split else self.unregistered,
            recompress=self.recompress,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorEdit:
    """An edit of a wheel, complete enough to do it again.

    Attributes:
        kind: ``keep`` for a wheel that is not to be edited.
        devices: capabilities, sorted; empty for ``keep``.
        ptx: the PTX that stays in a slimmed wheel.
        unregistered, recompress: as in `MirrorRequest`.
    """

    kind: Literal["slim", "split", "keep"]
    devices: tuple[str, ...] = ()
    ptx: str = ""
    unregistered: Unregistered = ""
    recompress: int | None = None

    def __str__(self) -> str:
        words = [self.kind, *(f"--device {device}" for device in self.devices)]
        words += [f"--keep-ptx {self.ptx}"] if self.ptx else []
        words += [f"--unregistered {self.unregistered}"] if self.unregistered else []
        words += [f"--recompress {self.recompress}"] if self.recompress else []
        return " ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginalWheel:
    """Wheel that a mirrored wheel was made from.

    Attributes:
        url: the source, without credentials.
        license: a licence that forbids changes, in the words of METADATA; "" for others.
    """

    file: str
    url: str
    sha256: str
    size: int
    license: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredFile:
    """A wheel in the index.

    Attributes:
        role: of a split, else ``wheel``.
        devices: the GPUs that need a plugin; empty for other wheels, which all machines need.
    """

    name: str
    version: str
    file: str
    sha256: str
    size: int
    role: FileRole = "wheel"
    devices: tuple[str, ...] = ()

    def serves(self, device: str) -> bool:
        """Return True if a machine with that GPU installs the file."""
        return self.role != "plugin" or device in self.devices


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredWheel:
    """A wheel of a resolution, and the wheels that were made of it.

    Attributes:
        edit: as requested.
        unchanged: the reason why the only output is the original; "" if it was edited.
        tool: the version of archsplit that did the edit.
    """

    name: str
    version: str
    original: OriginalWheel
    edit: MirrorEdit
    files: tuple[MirroredFile, ...]
    unchanged: str = ""
    tool: str = ""

    def size_for(self, device: str) -> int:
        """Return the bytes that a machine with that GPU downloads."""
        return sum(file.size for file in self.files if file.serves(device))


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorLock:
    """A resolution in a mirror, with the names of its locks.

    Attributes:
        name: as in `MirrorRequest.lock_name`.
        inputs: file names.
        files: file names of the originals; sorted.
        locks: the lock files beside the state; by GPU if the wheels are split.
    """

    name: str
    inputs: tuple[str, ...]
    edit: MirrorEdit
    files: tuple[str, ...]
    locks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorState:
    """Content of the state file: all wheels and all locks of a mirror."""

    wheels: tuple[MirroredWheel, ...] = ()
    locks: tuple[MirrorLock, ...] = ()

    def find(self, wheel: ResolvedWheel, edits: Iterable[MirrorEdit]) -> MirroredWheel | None:
        """Return the earlier result for a wheel and one of some edits, or None."""
        wanted = tuple(edits)
        for each in self.wheels:
            same = each.original.file == wheel.file and each.edit in wanted
            # Without a digest only the address identifies a wheel of an index.
            identity = (
                each.original.sha256 == wheel.sha256
                if wheel.sha256
                else each.original.url == wheel.url
            )
            if same and identity:
                return each
        return None

    def with_wheel(self, wheel: MirroredWheel) -> MirrorState:
        """Return the state with one more wheel, or another result for the same original."""
        others = [
            each
            for each in self.wheels
            if (each.original.file, each.edit) != (wheel.original.file, wheel.edit)
        ]
        return MirrorState(wheels=(*others, wheel), locks=self.locks)

    def with_lock(self, lock: MirrorLock, wheels: Iterable[MirroredWheel]) -> MirrorState:
        """Return the state with a new lock, and without the wheels that no lock needs."""
        locks = (*(each for each in self.locks if each.name != lock.name), lock)
        own = {(each.original.file, each.edit) for each in wheels}
        # A wheel belongs to the other locks if one of them has its original with its edit.
        kept = [
            each
            for each in self.wheels
            if (each.original.file, each.edit) in own
            or any(
                each.original.file in one.files and each.edit in (one.edit, KEEP)
                for one in locks
                if one.name != lock.name
            )
        ]
        return MirrorState(wheels=tuple(kept), locks=tuple(sorted(locks, key=lambda one: one.name)))

    def as_json(self) -> str:
        """Return the text of the state file: sorted, one final newline."""
        ordered = sorted(self.wheels, key=lambda each: (each.original.file, str(each.edit)))
        content = {
            "schema": MIRROR_SCHEMA,
            "locks": [asdict(lock) for lock in self.locks],
            "wheels": [asdict(wheel) for wheel in ordered],
        }
        return json.dumps(content, indent=1, sort_keys=True) + "\n"


KEEP = MirrorEdit(kind="keep")
"""Edit of a wheel that stays as it is on request."""


def read_state(folder: Path) -> MirrorState:
    """Read the state of a mirror; an empty one for a folder without.

    Raises:
        InputError: the file can't be read, or is not a mirror's.
    """
    path = folder / STATE_FILE
    if not path.exists():
        return MirrorState()
    try:
        return read_listing(path, MirrorState, schema=MIRROR_SCHEMA, what="the state of a mirror")
    except InputError as error:
        hint = "delete the file, and mirror each lock again: the wheels and the pages are not lost"
        raise InputError(error.message, hint=hint) from None
