"""The wheels, projects and sets of a static index; pure.

A core pins its plugins and a plugin its core, each with ``==``. Releases that pin each other form
a set and are pruned together: a core without its plugins would install, and run on no GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from archsplit.errors import InputError
from archsplit.system.fs import is_sha256
from archsplit.wheels.filename import ALL_EXTRA, WheelName

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from packaging.utils import NormalizedName

__pure__ = True


METADATA_SUFFIX = ".metadata"
"""Suffix of the file with a wheel's METADATA (PEP 658)."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class IndexRelease:
    """A version of a project."""

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
        uploaded: time, in seconds since 1970.
        requires_python: such as ``>=3.10``; "" for any.
        yanked: the reason, or None.
        pins: the releases that it requires with ``==``, also by an extra.
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
        parse_file_name(self.file)
        # Pages are the database, so a damaged page must be found before it is used.
        for digest in (self.sha256, self.metadata_sha256):
            if not is_sha256(digest):
                raise InputError(f"{self.file}: {digest!r} is not a SHA-256 in hexadecimal digits")
        if self.size < 0 or self.uploaded < 0:
            raise InputError(f"{self.file}: neither a size nor a time can be negative")

    @property
    def name(self) -> WheelName:
        """Parts of the file name."""
        return parse_file_name(self.file)

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 of each file of the distribution, by its name."""
        return {self.file: self.sha256, f"{self.file}{METADATA_SUFFIX}": self.metadata_sha256}

    @property
    def release(self) -> IndexRelease:
        """Release of the wheel."""
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
        """Return the project with these wheels; their order doesn't matter."""
        ordered = sorted(entries, key=lambda one: (index_order(one.name.version), one.file))
        return cls(name=name, entries=tuple(ordered))

    @property
    def versions(self) -> tuple[str, ...]:
        """Releases, each once, the oldest first."""
        return tuple(dict.fromkeys(one.name.version for one in self.entries))

    def with_entries(self, entries: Iterable[IndexEntry]) -> IndexProject:
        """Return the project with more wheels."""
        merged = {one.file: one for one in (*self.entries, *entries)}
        return IndexProject.of(self.name, merged.values())

    def without(self, files: frozenset[str]) -> IndexProject:
        """Return the project without some wheels."""
        return replace(self, entries=tuple(one for one in self.entries if one.file not in files))


@lru_cache(maxsize=1 << 16)
def index_order(version: str) -> Version:
    """Return the sort key of a version."""
    return Version(version)


@lru_cache(maxsize=1 << 16)
def parse_file_name(file: str) -> WheelName:
    """Return the parsed name of a file; cached, because thousands repeat."""
    return WheelName.parse(file)


def exact_pins(requirements: Iterable[str]) -> tuple[IndexRelease, ...]:
    """Return the releases that requirements pin with ``==``, sorted; skip invalid requirements.

    A pack of a dropped extra, which only earlier versions have, is left out: the extra ``all``
    brings every other pack.
    """
    by_marker: dict[str, set[IndexRelease]] = {}
    for text in requirements:
        try:
            requirement = Requirement(text)
        # Upstream's METADATA may have old forms that installers accept.
        except InvalidRequirement:
            continue
        for one in requirement.specifier:
            # `==1.*` doesn't pin: it allows versions without a plugin.
            if one.operator == "==" and not one.version.endswith(".*"):
                project = canonicalize_name(requirement.name)
                pin = IndexRelease(project=project, version=str(index_order(one.version)))
                by_marker.setdefault(str(requirement.marker), set()).add(pin)
    found = set[IndexRelease]().union(*by_marker.values())
    whole = by_marker.get(f'extra == "{ALL_EXTRA}"', found)
    for pin in found - whole:
        if pin in by_marker.get(f'extra == "{pin.project.rpartition("-")[2]}"', ()):
            found.remove(pin)
    return tuple(sorted(found))


def requirements_first(projects: Iterable[NormalizedName]) -> list[NormalizedName]:
    """Sort projects for new wheels: plugins before their core.

    Plugins pin their core, and the core pins them, so only the names show the order.
    """
    known = frozenset(projects)
    # A plugin has the name of its core as a prefix: foo-cc90 is owned by foo, and comes first.
    owners = {name: sum(owner in known for owner in _owner_names(name)) for name in known}
    return sorted(known, key=lambda name: (-owners[name], name))


def family(
    names: Iterable[NormalizedName], known: Iterable[NormalizedName]
) -> frozenset[NormalizedName]:
    """Return the projects that can be of one set with some projects: cores and their plugins.

    Args:
        names: the projects, on the index or not.
        known: all projects on the index.
    """
    existing, requested = frozenset(known), frozenset(names)
    # The shortest owner of a name is a prefix of its other owners, and of all their plugins.
    cores = {
        min([name, *(each for each in _owner_names(name) if each in existing)], key=len)
        for name in requested
    }
    relatives = (
        name for name in existing if name in cores or not cores.isdisjoint(_owner_names(name))
    )
    return requested.union(relatives)


def _owner_names(name: str) -> Iterator[NormalizedName]:
    """Yield the names that the core of a plugin may have: foo and foo-bar for foo-bar-cc90."""
    for index, letter in enumerate(name):
        if letter == "-":
            yield canonicalize_name(name[:index])


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseSet:
    """Releases that pin each other, and their wheels.

    Attributes:
        releases: sorted.
    """

    releases: tuple[IndexRelease, ...]
    entries: tuple[IndexEntry, ...] = field(repr=False)

    @property
    def uploaded(self) -> int:
        """Time at which the newest wheel was added."""
        return max(entry.uploaded for entry in self.entries)

    @property
    def size(self) -> int:
        """Bytes of all its wheels."""
        return sum(entry.size for entry in self.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLimits:
    """Limits on the age and size of an index.

    Attributes:
        seconds: oldest age of a set; None for no limit.
        size: bytes of all wheels; None for no limit.
    """

    seconds: int | None = None
    size: int | None = None


def release_sets(entries: Iterable[IndexEntry]) -> tuple[ReleaseSet, ...]:
    """Group all wheels into sets, the oldest first."""
    wheels: dict[IndexRelease, list[IndexEntry]] = {}
    for entry in entries:
        wheels.setdefault(entry.release, []).append(entry)
    parents = _link_releases(wheels)
    members: dict[IndexRelease, list[IndexRelease]] = {}
    for release in sorted(wheels):
        members.setdefault(_root_release(parents, release), []).append(release)
    sets = [
        ReleaseSet(
            releases=tuple(releases),
            entries=tuple(entry for release in releases for entry in wheels[release]),
        )
        for releases in members.values()
    ]
    return tuple(sorted(sets, key=lambda one: (one.uploaded, one.releases)))


def prune(
    entries: Iterable[IndexEntry], limits: RetentionLimits, *, now: int
) -> tuple[ReleaseSet, ...]:
    """Return the sets to prune: those that are too old, then the oldest over the size limit.

    The newest wheel of each project and tag stays, with all of its set. A yanked wheel counts as
    the newest only if all wheels are yanked.
    """
    sets = release_sets(entries)
    newest = {entry.file for entry in _newest(entry for one in sets for entry in one.entries)}
    # A set with any newest wheel stays as a whole, because its releases need each other.
    free = [one for one in sets if not any(entry.file in newest for entry in one.entries)]
    total = sum(one.size for one in sets)
    gone = []
    for one in free:
        too_old = limits.seconds is not None and now - one.uploaded > limits.seconds
        over_size = limits.size is not None and total > limits.size
        # Sets are sorted by age, so the size limit removes the oldest first.
        if too_old or over_size:
            gone.append(one)
            total -= one.size
    return tuple(gone)


def missing_plugins(entries: Iterable[IndexEntry]) -> tuple[str, ...]:
    """Return the missing requirements of cores, one line each, sorted."""
    known = list(entries)
    existing = {entry.release for entry in known}
    return tuple(
        sorted(
            f"{entry.file} names {pin}, which is not there"
            for entry in known
            for pin in entry.pins
            # Dependencies from other indexes are not expected here.
            if pin.project.startswith(f"{entry.release.project}-")
            and pin.version == entry.release.version
            and pin not in existing
        )
    )


def _newest(entries: Iterable[IndexEntry]) -> Iterator[IndexEntry]:
    best: dict[object, IndexEntry] = {}
    for entry in entries:
        name = entry.name
        # Each kind has its own newest file: a platform must not lose its only wheel.
        kind = (name.project, name.pythons, name.abis, name.platforms)
        if kind not in best or _rank(entry) > _rank(best[kind]):
            best[kind] = entry
    yield from best.values()


def _rank(entry: IndexEntry) -> tuple[bool, Version, str]:
    return entry.yanked is None, index_order(entry.name.version), entry.name.build


def _link_releases(
    wheels: Mapping[IndexRelease, list[IndexEntry]],
) -> dict[IndexRelease, IndexRelease]:
    """Return a union-find forest: for each release its parent in its set."""
    parents = {release: release for release in wheels}
    for release, entries in wheels.items():
        for pin in (pin for entry in entries for pin in entry.pins):
            # A pin of a release that is not in this index connects nothing.
            if pin in parents and _is_family(pin, release):
                parents[_root_release(parents, pin)] = _root_release(parents, release)
    return parents


def _is_family(one: IndexRelease, other: IndexRelease) -> bool:
    """Return True if two releases are one core and its plugin, not a shared dependency."""
    short, long = sorted((one.project, other.project), key=len)
    return one.version == other.version and long.startswith(f"{short}-")


def _root_release(parents: dict[IndexRelease, IndexRelease], release: IndexRelease) -> IndexRelease:
    while parents[release] != release:
        release = parents[release]
    return release
