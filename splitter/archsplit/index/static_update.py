"""Changes to a static index: wheels that are added, yanked and pruned.

First new wheels are copied, then the pages that list them, plugins before their core; then pages
without the pruned releases, the core before its plugins; at last the files that no page lists are
deleted. So every page that a reader has is complete, and a kill at any point leaves a sound index;
the next run completes the change.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from packaging.metadata import parse_email

from archsplit.errors import ConflictError, InputError, VerifyError
from archsplit.index.static_model import (
    METADATA_SUFFIX,
    IndexEntry,
    IndexProject,
    exact_pins,
    family,
    index_order,
    missing_plugins,
    parse_file_name,
    prune,
    release_sets,
    requirements_first,
)
from archsplit.release.report import find_report
from archsplit.release.wheel_set import wheels_in
from archsplit.system.fs import atomic_replace, hash_blocks, hex_digest, read_blocks, write_file
from archsplit.wheels.filename import WheelName
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from packaging.utils import NormalizedName
    from packaging.version import Version

    from archsplit.index.static_folder import IndexFolder
    from archsplit.index.static_model import IndexRelease, ReleaseSet, RetentionLimits

    Projects = dict[NormalizedName, IndexProject]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWheel:
    """A wheel to add to the index.

    Attributes:
        path: of the file, outside the index.
        metadata: its METADATA.
    """

    path: Path
    metadata: bytes = field(repr=False)
    entry: IndexEntry


def new_wheels(sources: Iterable[Path]) -> list[tuple[Path, str | None]]:
    """Return the wheels in sources, each with its SHA-256 from a report, or None.

    Args:
        sources: wheels, folders of a build or a split (only the files of the report), and folders
            of wheels.

    Raises:
        InputError: a source is missing, a folder has no wheel, or a report can't be read.
        WheelError: a report names a file that can't be a wheel in its folder.
    """
    found: list[tuple[Path, str | None]] = []
    for source in sources:
        if not source.exists():
            raise InputError(f"no such file or folder: {source}", hint="name a wheel")
        if not source.is_dir():
            found.append((source, None))
        # A folder of a build may have wheels of earlier builds, so only the report counts.
        elif (report := find_report(source)) is not None:
            found += [(source / _checked_name(row.file), row.sha256) for row in report.published]
        elif paths := wheels_in(source):
            found += [(path, None) for path in paths]
        else:
            raise InputError(f"no wheel in {source}")
    return found


def _checked_name(file: str) -> str:
    """Return a file name of a report, which is only a wheel's name: no path leads elsewhere."""
    WheelName.parse(file)
    return file


def read_new_wheel(path: Path, expected: str | None, *, now: int) -> NewWheel:
    """Read a wheel's metadata, and hash the whole file.

    Raises:
        InputError: the file can't be read.
        WheelError: the file is not a valid wheel.
        VerifyError: the file differs from the report of its build.
    """
    # The index doesn't judge other people's wheels: what installs may be served.
    with open_wheel(path, same_tags=False, full_record=False) as wheel:
        metadata = wheel.read(f"{wheel.dist_info}/METADATA")
    hashed, size = hash_blocks(read_blocks(path))
    digest = hashed.hex()
    if expected not in {None, digest}:
        raise VerifyError(f"{path} is not the file that the report beside it names")
    raw, _ = parse_email(metadata)
    entry = IndexEntry(
        file=path.name,
        sha256=digest,
        metadata_sha256=hex_digest([metadata]),
        size=size,
        uploaded=now,
        requires_python=raw.get("requires_python", ""),
        pins=exact_pins(raw.get("requires_dist", [])),
    )
    return NewWheel(path=path, metadata=metadata, entry=entry)


def copy_in(one: NewWheel, folder: IndexFolder) -> None:
    """Copy a wheel and its METADATA into the index; each file appears complete.

    Raises:
        OutputError: a file can't be written.
        InputError: the wheel changed after it was hashed.
    """
    project, name = one.entry.release.project, one.entry.file
    folder.make_folder(project)
    page, private = folder.place(project, f"{name}{METADATA_SUFFIX}"), folder.scratch
    write_file(page, one.metadata, private=private)
    folder.written.append(f"{project}/{name}{METADATA_SUFFIX}")
    path = folder.place(project, name)
    with atomic_replace(path, private=private) as temporary, temporary.open("wb") as file:
        digest, _ = hash_blocks(read_blocks(one.path), copy_to=file)
        # The page lists the digest from before, so a file that changed since then is refused.
        if digest.hex() != one.entry.sha256:
            raise InputError(f"{one.path} changed while it was copied")
    folder.written.append(f"{project}/{name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexChange:
    """A change to an index.

    Attributes:
        add: wheels, folders of wheels, and folders that builds wrote to.
        yank: releases, each with the reason.
        unyank: releases.
        remove: names of wheels to take off the pages.
        limits: beyond which sets of releases go.
        grace: seconds for which a wheel stays after it has left all pages, for readers that have a
            page of before.
        now: seconds since 1970.
    """

    add: tuple[Path, ...] = ()
    yank: Mapping[IndexRelease, str]
    unyank: tuple[IndexRelease, ...] = ()
    remove: frozenset[str] = frozenset()
    limits: RetentionLimits | None = None
    grace: int
    now: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexUpdate:
    """Result of a change to an index.

    Attributes:
        added: names of wheels.
        unchanged: wheels that were on their page already, with the same bytes.
        restored: unchanged wheels whose files were lost or damaged, and were copied again.
        pruned: the release sets that were removed.
        waiting: wheels that no page lists, which stay for the grace time.
        size: bytes of all listed wheels; None if not all pages were read.
        wheels: number of listed wheels; None likewise.
    """

    added: tuple[str, ...]
    unchanged: tuple[str, ...]
    restored: tuple[str, ...]
    pruned: tuple[ReleaseSet, ...]
    waiting: tuple[str, ...]
    size: int | None
    wheels: int | None


def update_index(folder: IndexFolder, change: IndexChange) -> IndexUpdate:
    """Carry out a change to an index.

    Raises:
        ConflictError: the index has a wheel of that name with other bytes; nothing was changed.
        VerifyError: a core would have no plugins in the index; nothing was changed.
        InputError: a wheel can't be read, or the index has no such release to yank.
        WheelError: a wheel is not valid.
        OutputError: the index can't be written; it is as complete as before.
    """
    coming = [read_new_wheel(*each, now=change.now) for each in new_wheels(change.add)]
    # A change costs what it changes: other pages are neither read nor written.
    names = None if _needs_all(change) else _touched(folder, coming, change)
    projects = folder.projects(names)
    new, unchanged = _split_by_state(coming, projects)
    restored = [one for one in unchanged if not folder.has(one.entry)]
    grown = _add_entries(projects, [one.entry for one in new])
    # Checked before the first write: a refused change leaves the index as it was.
    _check_cores(projects, grown)
    grown = _apply_yanks(grown, change)
    _copy_all(new, folder)
    for one in restored:
        copy_in(one, folder)
    pruned: tuple[ReleaseSet, ...] = ()
    if change.limits is not None:
        pruned = prune(_entries(grown), change.limits, now=change.now)
    left = frozenset(entry.file for one in pruned for entry in one.entries) | change.remove
    final = {name: project.without(left) for name, project in grown.items()}
    _write_pages(folder, grown, final)
    return IndexUpdate(
        added=_files(new),
        unchanged=_files(unchanged),
        restored=_files(restored),
        pruned=pruned,
        waiting=_delete_orphans(folder, final, change, names),
        size=None if names is not None else sum(entry.size for entry in _entries(final)),
        wheels=None if names is not None else sum(1 for _ in _entries(final)),
    )


def _needs_all(change: IndexChange) -> bool:
    """Return True for a change that depends on all projects: limits, or none.

    A change of nothing writes the pages again that were lost.
    """
    named = (change.add, change.yank, change.unyank, change.remove)
    return change.limits is not None or not any(named)


def _touched(
    folder: IndexFolder, coming: Iterable[NewWheel], change: IndexChange
) -> frozenset[NormalizedName]:
    """Return the projects that a change can touch: cores go with their plugins."""
    named = {
        *(one.entry.release.project for one in coming),
        *(release.project for release in (*change.yank, *change.unyank)),
        *(parse_file_name(file).project for file in change.remove),
    }
    return family(named, folder.names())


def _files(wheels: Iterable[NewWheel]) -> tuple[str, ...]:
    return tuple(one.entry.file for one in wheels)


def _write_pages(folder: IndexFolder, grown: Projects, final: Projects) -> None:
    """Write the pages with all that is added, then those without all that is removed.

    The order lets a reader of both kinds of pages find the plugins of each core.
    """
    order = requirements_first(grown)
    for name in order:
        folder.write_project(grown[name])
    folder.write_root({*order, *folder.names()})
    for name in reversed(order):
        folder.write_project(final[name])


def _split_by_state(
    coming: Iterable[NewWheel], projects: Projects
) -> tuple[list[NewWheel], list[NewWheel]]:
    existing = {entry.file: entry for entry in _entries(projects)}
    new: dict[str, NewWheel] = {}
    unchanged: dict[str, NewWheel] = {}
    conflicts = []
    for one in coming:
        name = one.entry.file
        before = existing.get(name) or (new[name].entry if name in new else None)
        if before is None:
            new[name] = one
        elif before.sha256 == one.entry.sha256:
            unchanged |= {name: one} if name in existing else {}
        else:
            conflicts.append(f"{name}: {before.sha256} on the index, {one.entry.sha256} here")
    # Installers have cached the old bytes and their digest, so a name is never reused.
    if conflicts:
        raise ConflictError(
            "\n  ".join(["the index has different wheels of these names:", *sorted(conflicts)]),
            hint="installers may have seen the old ones: use another version, or another folder",
        )
    return list(new.values()), list(unchanged.values())


def _add_entries(projects: Projects, entries: Iterable[IndexEntry]) -> Projects:
    new: dict[NormalizedName, list[IndexEntry]] = {}
    grown = dict(projects)
    for entry in entries:
        new.setdefault(entry.release.project, []).append(entry)
    for name, ones in new.items():
        grown[name] = grown.get(name, IndexProject(name=name, entries=())).with_entries(ones)
    return grown


def _check_cores(before: Projects, after: Projects) -> None:
    # Only new gaps: an index that lacks a plugin already can still be repaired step by step.
    missing = set(missing_plugins(_entries(after))) - set(missing_plugins(_entries(before)))
    if missing:
        raise VerifyError(
            "\n  ".join(["users would get a core whose plugins are missing:", *sorted(missing)]),
            hint="add the plugins before it, or with it",
        )


def _apply_yanks(projects: Projects, change: IndexChange) -> Projects:
    given: dict[IndexRelease, str | None] = {**change.yank, **dict.fromkeys(change.unyank)}
    # 1.0 and 1.0.0 are one version, to installers as well.
    existing = {_key(entry.release) for entry in _entries(projects)}
    if unknown := {release for release in given if _key(release) not in existing}:
        raise InputError(f"{', '.join(map(str, sorted(unknown)))} is not in the index")
    named = {_key(release): reason for release, reason in given.items()}
    reasons: dict[tuple[NormalizedName, Version], str | None] = {}
    for one in release_sets(_entries(projects)):
        # A yank of one release yanks its set: a core without its plugins runs on no GPU.
        in_set = [_key(release) for release in one.releases]
        for release in in_set:
            if release in named:
                reasons |= dict.fromkeys(in_set, named[release])
    changed = dict(projects)
    for name, project in projects.items():
        entries = (
            replace(one, yanked=reasons.get(_key(one.release), one.yanked))
            for one in project.entries
        )
        changed[name] = replace(project, entries=tuple(entries))
    return changed


def _key(release: IndexRelease) -> tuple[NormalizedName, Version]:
    return release.project, index_order(release.version)


def _copy_all(new: Iterable[NewWheel], folder: IndexFolder) -> None:
    begun = len(folder.written)
    try:
        for one in new:
            copy_in(one, folder)
    except BaseException:
        # No page lists the copies yet, so no reader can miss them.
        folder.delete(folder.written[begun:])
        raise


def _delete_orphans(
    folder: IndexFolder,
    projects: Projects,
    change: IndexChange,
    names: frozenset[NormalizedName] | None,
) -> tuple[str, ...]:
    """Delete files that no page has listed for the grace time; return the files that wait."""
    before = folder.unlisted()
    left = {path: before.get(path, change.now) for path in folder.orphans(projects, names)}
    # Folders that were not searched keep what waits there: only a change of theirs lists it again.
    if names is not None:
        left |= {path: at for path, at in before.items() if path.partition("/")[0] not in names}
    folder.delete([path for path, at in left.items() if change.now - at >= change.grace])
    waiting = {path: at for path, at in left.items() if change.now - at < change.grace}
    if waiting != before:
        folder.save_unlisted(waiting)
    return tuple(waiting)


def _entries(projects: Projects) -> Iterator[IndexEntry]:
    return (entry for project in projects.values() for entry in project.entries)
