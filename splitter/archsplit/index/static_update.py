"""Changes to a static index: wheels that are added, yanked and pruned.

First come new wheels, then the pages that name them, plugins before their core; then the pages
without the pruned releases, the core before its plugins; at last the files that no page names are
deleted. So every page that a reader has is complete, and a kill at any point leaves a sound index;
the next run completes the change.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from packaging.metadata import parse_email

from archsplit.errors import ConflictError, InputError, UsageError, VerifyError
from archsplit.index.static_model import (
    CLOSED,
    METADATA_SUFFIX,
    PROVENANCE_SUFFIX,
    SDIST_SUFFIX,
    IndexEntry,
    IndexProject,
    RetentionLimits,
    exact_pins,
    index_order,
    is_sdist,
    missing_plugins,
    prune,
    release_sets,
    requirements_first,
)
from archsplit.index.static_sources import read_distribution_metadata, read_provenance
from archsplit.release.report import find_report
from archsplit.system.fs import (
    atomic_replace,
    hash_blocks,
    hash_stream,
    input_errors,
    read_blocks,
    write_file,
)
from archsplit.wheels.filename import WheelName

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from packaging.utils import NormalizedName
    from packaging.version import Version

    from archsplit.index.static_folder import IndexFolder
    from archsplit.index.static_model import IndexRelease, ProjectStatus, ReleaseSet


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWheel:
    """A wheel that shall come into the index.

    Attributes:
        path: where it is.
        expected: the SHA-256 that a build's report has, or None.
        metadata: its METADATA, or the PKG-INFO of a source distribution.
        provenance: its provenance object; b"" without one.
    """

    path: Path
    expected: str | None
    metadata: bytes = field(repr=False)
    entry: IndexEntry
    provenance: bytes = field(default=b"", repr=False)


def new_wheels(sources: Iterable[Path]) -> list[tuple[Path, str | None]]:
    """Wheels, each with the hash that a report beside it promises.

    Args:
        sources: wheels, and folders: of a build or a split (what its report names, no more), or of
            wheels.

    Raises:
        InputError: nothing is there, or a folder has no wheel, or a report can't be read.
        WheelError: a report names a file that can't be a wheel in its folder.
    """
    found: list[tuple[Path, str | None]] = []
    for source in sources:
        if not source.is_dir():
            found.append((source, None))
        elif (reported := find_report(source)) is not None:
            found += [(source / _named(row.file), row.sha256) for row in reported.wheels]
        elif paths := sorted([*source.glob("[!.]*.whl"), *source.glob(f"[!.]*{SDIST_SUFFIX}")]):
            found += [(path, None) for path in paths]
        else:
            raise InputError(f"no wheel in {source}")
    return found


def _named(file: str) -> str:
    """A wheel's name out of a report, which can't lead out of the report's folder."""
    WheelName.parse(file)
    return file


def read_new_wheel(path: Path, expected: str | None, *, now: int) -> NewWheel:
    """Read a wheel's metadata and hash all of it.

    Raises:
        InputError: it can't be read.
        WheelError: it is not a sound wheel.
        VerifyError: it isn't what the build's report promises.
    """
    metadata = read_distribution_metadata(path)
    digest, size = _hashed(path)
    if expected not in {None, digest}:
        raise VerifyError(f"{path} is not the file that the report beside it names")
    raw, _ = parse_email(metadata)
    provenance = read_provenance(path, digest)
    entry = IndexEntry(
        file=path.name,
        sha256=digest,
        metadata_sha256="" if is_sdist(path.name) else hashlib.sha256(metadata).hexdigest(),
        provenance_sha256=hashlib.sha256(provenance).hexdigest() if provenance else "",
        size=size,
        uploaded=now,
        requires_python=raw.get("requires_python", ""),
        pins=exact_pins(raw.get("requires_dist", [])),
    )
    return NewWheel(
        path=path, expected=expected, metadata=metadata, entry=entry, provenance=provenance
    )


def copy_in(one: NewWheel, folder: IndexFolder) -> None:
    """Copy a wheel and its METADATA to their places; whole, or not at all.

    Raises:
        OutputError: they can't be written.
        InputError: the wheel changes meanwhile.
    """
    project, name = one.entry.release.project, one.entry.file
    folder.make_folder(project)
    texts = {METADATA_SUFFIX: one.metadata, PROVENANCE_SUFFIX: one.provenance}
    for beside, text in texts.items():
        if f"{name}{beside}" in one.entry.digests:
            write_file(folder.place(project, f"{name}{beside}"), text)
            folder.written.append(f"{project}/{name}{beside}")
    with atomic_replace(folder.place(project, name)) as temporary, temporary.open("wb") as file:
        digest, _ = hash_blocks(read_blocks(one.path), copy_to=file)
        if digest.hex() != one.entry.sha256:
            raise InputError(f"{one.path} changed while it was copied")
    folder.written.append(f"{project}/{name}")


def _hashed(path: Path) -> tuple[str, int]:
    with input_errors(path), path.open("rb") as file:
        digest, size = hash_stream(file)
    return digest.hex(), size


if TYPE_CHECKING:
    Projects = dict[NormalizedName, IndexProject]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexChange:
    """A change to an index.

    Attributes:
        add: wheels, folders of wheels, and folders that builds wrote to.
        yank: releases, each with the reason.
        unyank: releases.
        remove: names of wheels to take off the pages.
        status: the status of projects, and of the plugins of a core with it.
        reason: of these statuses.
        url: the address of the index; None to leave that of an earlier change.
        limits: beyond which sets of releases go.
        grace: seconds for which a wheel stays after it has left all pages, for readers that have a
            page of before.
        now: seconds since 1970.
    """

    add: tuple[Path, ...] = ()
    yank: Mapping[IndexRelease, str]
    unyank: tuple[IndexRelease, ...] = ()
    remove: frozenset[str] = frozenset()
    status: Mapping[NormalizedName, ProjectStatus] = field(default_factory=dict)
    reason: str = ""
    url: str | None = None
    limits: RetentionLimits | None = None
    grace: int
    now: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexUpdate:
    """The result of a change to an index.

    Attributes:
        added: names of wheels.
        known: wheels that were on their page already, with the same bytes.
        restored: those of them that were lost or damaged, and came again.
        gone: the sets that were pruned.
        waiting: wheels that no page names, and that stay until their grace is over.
        size: bytes of all wheels that pages name.
        wheels: how many those are.
    """

    added: tuple[str, ...]
    known: tuple[str, ...]
    restored: tuple[str, ...]
    gone: tuple[ReleaseSet, ...]
    waiting: tuple[str, ...]
    size: int
    wheels: int


def update_index(folder: IndexFolder, change: IndexChange) -> IndexUpdate:
    """Carry out a change to an index.

    Raises:
        ConflictError: a wheel of that name is there with other bytes; nothing was changed.
        VerifyError: a core names plugins that neither are there nor come; nothing was changed.
        InputError: a wheel can't be read, or a release to be yanked isn't there.
        WheelError: one is not sound.
        OutputError: the index can't be written; it is as sound as before.
    """
    projects = folder.projects()
    coming = [read_new_wheel(*each, now=change.now) for each in new_wheels(change.add)]
    new, known = _sorted_out(coming, projects)
    restored = [one for one in known if not folder.has(one.entry)]
    projects = _with_status(projects, change)
    _refuse_closed(projects, new)
    url = folder.url() if change.url is None else change.url
    _require_url(coming, url)
    grown = _with(projects, [one.entry for one in (*new, *_newly_attested(known, projects))])
    _check_cores(projects, grown)
    grown = _yanked(grown, change)
    _copy_in(new, folder)
    for one in restored:
        copy_in(one, folder)
    order = requirements_first(grown)
    for name in order:
        folder.write_project(grown[name], url)
    folder.write_root(iter(order), url)
    entries = list(_entries(grown))
    pruning = prune(entries, change.limits or RetentionLimits(), now=change.now)
    left = frozenset(entry.file for one in pruning.gone for entry in one.entries) | change.remove
    final = {name: project.without(left) for name, project in grown.items()}
    for name in reversed(order):
        folder.write_project(final[name], url)
    return IndexUpdate(
        added=tuple(one.entry.file for one in new),
        known=tuple(one.entry.file for one in known),
        restored=tuple(one.entry.file for one in restored),
        gone=pruning.gone,
        waiting=_cleared(folder, final, change),
        size=sum(entry.size for entry in _entries(final)),
        wheels=sum(1 for _ in _entries(final)),
    )


def _newly_attested(known: Iterable[NewWheel], projects: Projects) -> Iterator[NewWheel]:
    """Yield known wheels that come with another provenance, as entries with their old time."""
    there = {entry.file: entry for entry in _entries(projects)}
    for one in known:
        before = there[one.entry.file]
        if one.provenance and one.entry.provenance_sha256 != before.provenance_sha256:
            entry = replace(before, provenance_sha256=one.entry.provenance_sha256)
            yield replace(one, entry=entry)


def _require_url(coming: Iterable[NewWheel], url: str) -> None:
    if not url and (attested := [one.entry.file for one in coming if one.provenance]):
        raise UsageError(
            f"{attested[0]} has a provenance, and its link has to be an absolute address",
            hint="add --url, with the address that this folder is served from",
        )


def _with_status(projects: Projects, change: IndexChange) -> Projects:
    """Return the projects with their new statuses; plugins have that of their core."""
    if not change.status:
        return projects
    if unknown := sorted(set(change.status) - set(projects)):
        raise InputError(f"{', '.join(unknown)} is not in the index")
    changed = dict(projects)
    sets = release_sets(_entries(projects))
    for name, status in change.status.items():
        family = {name}
        for one in sets:
            members = {release.project for release in one.releases}
            family |= members if name in members else set()
        for each in family:
            reason = "" if status == "active" else change.reason
            changed[each] = replace(projects[each], status=status, reason=reason)
    return changed


def _refuse_closed(projects: Projects, new: Iterable[NewWheel]) -> None:
    for one in new:
        project = projects.get(one.entry.release.project)
        if project is not None and project.status in CLOSED:
            raise InputError(
                f"{one.entry.file} can't be added: {project.name} is {project.status}",
                hint=f"`--status {project.name}=active` lets it get new files again",
            )


def _sorted_out(
    coming: Iterable[NewWheel], projects: Projects
) -> tuple[list[NewWheel], list[NewWheel]]:
    there = {entry.file: entry for entry in _entries(projects)}
    new: dict[str, NewWheel] = {}
    known: dict[str, NewWheel] = {}
    conflicts = []
    for one in coming:
        name = one.entry.file
        before = there.get(name) or (new[name].entry if name in new else None)
        if before is None:
            new[name] = one
        elif before.sha256 == one.entry.sha256:
            known |= {name: one} if name in there else {}
        else:
            conflicts.append(f"{name}: {before.sha256} is there, {one.entry.sha256} comes")
    if conflicts:
        raise ConflictError(
            "\n  ".join(["wheels of these names are there with other bytes:", *sorted(conflicts)]),
            hint="installers may have seen the old ones: give the new ones another version",
        )
    return list(new.values()), list(known.values())


def _with(projects: Projects, entries: Iterable[IndexEntry]) -> Projects:
    new: dict[NormalizedName, list[IndexEntry]] = {}
    grown = dict(projects)
    for entry in entries:
        new.setdefault(entry.release.project, []).append(entry)
    for name, ones in new.items():
        grown[name] = grown.get(name, IndexProject(name=name, entries=())).with_entries(ones)
    return grown


def _check_cores(before: Projects, after: Projects) -> None:
    missing = set(missing_plugins(_entries(after))) - set(missing_plugins(_entries(before)))
    if missing:
        raise VerifyError(
            "\n  ".join(["users would get a core whose plugins can't be had:", *sorted(missing)]),
            hint="add the plugins before it, or with it",
        )


def _yanked(projects: Projects, change: IndexChange) -> Projects:
    given: dict[IndexRelease, str | None] = {**change.yank, **dict.fromkeys(change.unyank)}
    # 1.0 and 1.0.0 are one version, to installers as well.
    there = {_version(entry.release) for entry in _entries(projects)}
    if unknown := {release for release in given if _version(release) not in there}:
        raise InputError(f"{', '.join(map(str, sorted(unknown)))} is not in the index")
    named = {_version(release): reason for release, reason in given.items()}
    reasons: dict[tuple[NormalizedName, Version], str | None] = {}
    for one in release_sets(_entries(projects)):
        # A core without its plugins, or a plugin without its core, is of no use to anybody.
        known = [_version(release) for release in one.releases]
        for release in known:
            if release in named:
                reasons |= dict.fromkeys(known, named[release])
    return {
        name: replace(
            project,
            entries=tuple(
                replace(one, yanked=reasons.get(_version(one.release), one.yanked))
                for one in project.entries
            ),
        )
        for name, project in projects.items()
    }


def _version(release: IndexRelease) -> tuple[NormalizedName, Version]:
    return release.project, index_order(release.version)


def _copy_in(new: Iterable[NewWheel], folder: IndexFolder) -> None:
    begun = len(folder.written)
    try:
        for one in new:
            copy_in(one, folder)
    except BaseException:
        # No page names them yet.
        folder.delete(folder.written[begun:])
        raise


def _cleared(folder: IndexFolder, projects: Projects, change: IndexChange) -> tuple[str, ...]:
    """Delete what no page has named for long enough; return what has to wait."""
    before = folder.left()
    left = {path: before.get(path, change.now) for path in folder.orphans(projects)}
    folder.delete([path for path, at in left.items() if change.now - at >= change.grace])
    waiting = {path: at for path, at in left.items() if change.now - at < change.grace}
    if waiting != before:
        folder.remember_left(waiting)
    return tuple(waiting)


def _entries(projects: Projects) -> Iterator[IndexEntry]:
    return (entry for project in projects.values() for entry in project.entries)
