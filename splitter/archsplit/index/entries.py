"""What an index knows of its wheels; pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from archsplit.errors import InputError
from archsplit.wheels.filename import WheelName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from packaging.utils import NormalizedName

__pure__ = True

_SHA256 = re.compile(r"[0-9a-f]{64}")

METADATA_SUFFIX = ".metadata"
"""What is added to a wheel's name for the file with its METADATA (PEP 658)."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class IndexRelease:
    """One version of one project."""

    project: NormalizedName
    version: str

    def __str__(self) -> str:
        return f"{self.project}=={self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """A wheel in an index.

    Attributes:
        file: its name.
        sha256: of the file, 64 hexadecimal digits.
        metadata_sha256: of its METADATA.
        size: bytes.
        uploaded: seconds since 1970.
        requires_python: such as ``>=3.10``; "" for any.
        yanked: why no installer should choose it, or None.
        pins: the releases that it requires, and no others of theirs; always or by an extra.
    """

    file: str
    sha256: str
    metadata_sha256: str
    size: int
    uploaded: int
    requires_python: str = ""
    yanked: str | None = None
    pins: tuple[IndexRelease, ...] = ()

    def __post_init__(self) -> None:
        _parsed(self.file)
        for digest in (self.sha256, self.metadata_sha256):
            if not _SHA256.fullmatch(digest):
                raise InputError(f"{self.file}: {digest!r} is not a SHA-256 in hexadecimal digits")
        if self.size < 0 or self.uploaded < 0:
            raise InputError(f"{self.file}: neither a size nor a time can be negative")

    @property
    def name(self) -> WheelName:
        """What the file's name says."""
        return _parsed(self.file)

    @property
    def release(self) -> IndexRelease:
        """What it belongs to."""
        name = self.name
        return IndexRelease(project=name.project, version=name.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexProject:
    """All wheels of one name.

    Attributes:
        entries: sorted by version, then by file name.
    """

    name: NormalizedName
    entries: tuple[IndexEntry, ...]

    @classmethod
    def of(cls, name: NormalizedName, entries: Iterable[IndexEntry]) -> IndexProject:
        """The project with these wheels, in whatever order they come."""
        ordered = sorted(entries, key=lambda one: (index_order(one.name.version), one.file))
        return cls(name=name, entries=tuple(ordered))

    @property
    def versions(self) -> tuple[str, ...]:
        """Each once, the oldest first."""
        return tuple(dict.fromkeys(one.name.version for one in self.entries))

    def with_entries(self, entries: Iterable[IndexEntry]) -> IndexProject:
        """And these wheels, too."""
        merged = {one.file: one for one in (*self.entries, *entries)}
        return IndexProject.of(self.name, merged.values())

    def without(self, files: frozenset[str]) -> IndexProject:
        """Without these wheels."""
        return replace(self, entries=tuple(one for one in self.entries if one.file not in files))


@lru_cache(maxsize=1 << 16)
def index_order(version: str) -> Version:
    """What versions are sorted by; they aren't texts."""
    return Version(version)


@lru_cache(maxsize=1 << 16)
def _parsed(file: str) -> WheelName:
    """Thousands of names are asked for again and again."""
    return WheelName.parse(file)


def exact_pins(requirements: Iterable[str]) -> tuple[IndexRelease, ...]:
    """The releases that requirements pin with ``==``, sorted; what can't be read pins nothing."""
    found = set()
    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        for one in requirement.specifier:
            if one.operator == "==" and not one.version.endswith(".*"):
                project = canonicalize_name(requirement.name)
                found.add(IndexRelease(project=project, version=str(index_order(one.version))))
    return tuple(sorted(found))


def requirements_first(projects: Iterable[NormalizedName]) -> list[NormalizedName]:
    """The order in which pages may get new wheels: what belongs to another project before it.

    Plugins pin their core, and the core pins them: the names tell which is which.
    """
    names = sorted(projects)
    owners = {name: sum(name.startswith(f"{other}-") for other in names) for name in names}
    return sorted(names, key=lambda name: (-owners[name], name))
