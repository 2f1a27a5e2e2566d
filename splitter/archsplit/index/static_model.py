"""Which releases belong together, and which sets of them go when an index gets too old or too big.

A core names its plugins and a plugin its core, each with ``==``. What is tied so stays or goes as
one: a core whose plugins are gone installs, and runs on no GPU. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.index.entries import index_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from packaging.version import Version

    from archsplit.index.entries import IndexEntry, IndexRelease

__pure__ = True


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
        """When the newest of its wheels came."""
        return max(entry.uploaded for entry in self.entries)

    @property
    def size(self) -> int:
        """Bytes of all its wheels."""
        return sum(entry.size for entry in self.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLimits:
    """How much an index may keep.

    Attributes:
        seconds: the age up to which a set stays; None for any.
        size: bytes of all wheels; None for any.
    """

    seconds: int | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """What goes.

    Attributes:
        gone: the sets, the oldest first.
        left: bytes of what stays.
    """

    gone: tuple[ReleaseSet, ...]
    left: int


def release_sets(entries: Iterable[IndexEntry]) -> tuple[ReleaseSet, ...]:
    """Take all wheels apart into sets, the oldest first."""
    wheels: dict[IndexRelease, list[IndexEntry]] = {}
    for entry in entries:
        wheels.setdefault(entry.release, []).append(entry)
    heads = _joined(wheels)
    members: dict[IndexRelease, list[IndexRelease]] = {}
    for release in sorted(wheels):
        members.setdefault(_head(heads, release), []).append(release)
    sets = [
        ReleaseSet(
            releases=tuple(releases),
            entries=tuple(entry for release in releases for entry in wheels[release]),
        )
        for releases in members.values()
    ]
    return tuple(sorted(sets, key=lambda one: (one.uploaded, one.releases)))


def prune(entries: Iterable[IndexEntry], limits: RetentionLimits, *, now: int) -> Pruning:
    """Choose what goes: first what is too old, then the oldest of what is too much.

    The newest wheel of each project stays, for each of its tags, and with it all of its set. What
    is yanked is the newest only where all is.
    """
    sets = release_sets(entries)
    newest = {entry.file for entry in _newest(entry for one in sets for entry in one.entries)}
    free = [one for one in sets if not any(entry.file in newest for entry in one.entries)]
    total = sum(one.size for one in sets)
    gone = []
    for one in free:
        too_old = limits.seconds is not None and now - one.uploaded > limits.seconds
        too_much = limits.size is not None and total > limits.size
        if too_old or too_much:
            gone.append(one)
            total -= one.size
    return Pruning(gone=tuple(gone), left=total)


def missing_plugins(entries: Iterable[IndexEntry]) -> tuple[str, ...]:
    """What cores promise that is not there, one line each, sorted."""
    known = list(entries)
    there = {entry.release for entry in known}
    return tuple(
        sorted(
            f"{entry.file} names {pin}, which is not there"
            for entry in known
            for pin in entry.pins
            if pin.project.startswith(f"{entry.release.project}-")
            and pin.version == entry.release.version
            and pin not in there
        )
    )


def _newest(entries: Iterable[IndexEntry]) -> Iterator[IndexEntry]:
    best: dict[object, IndexEntry] = {}
    for entry in entries:
        name = entry.name
        kind = (name.project, name.pythons, name.abis, name.platforms)
        if kind not in best or _rank(entry) > _rank(best[kind]):
            best[kind] = entry
    yield from best.values()


def _rank(entry: IndexEntry) -> tuple[bool, Version, str]:
    return entry.yanked is None, index_order(entry.name.version), entry.name.build


def _joined(wheels: Mapping[IndexRelease, list[IndexEntry]]) -> dict[IndexRelease, IndexRelease]:
    """For each release another one of its set, which leads to the set's head."""
    heads = {release: release for release in wheels}
    for release, entries in wheels.items():
        for pin in (pin for entry in entries for pin in entry.pins):
            if pin in heads and _is_family(pin, release):
                heads[_head(heads, pin)] = _head(heads, release)
    return heads


def _is_family(one: IndexRelease, other: IndexRelease) -> bool:
    """Whether one is a part of the other; what many projects pin ties none of them together."""
    short, long = sorted((one.project, other.project), key=len)
    return one.version == other.version and long.startswith(f"{short}-")


def _head(heads: dict[IndexRelease, IndexRelease], release: IndexRelease) -> IndexRelease:
    while heads[release] != release:
        release = heads[release]
    return release
