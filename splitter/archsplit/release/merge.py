"""Merge of a release's wheels from several folders into one.

In: folders that builds or splits of one release wrote to, each with its report and manifest. Out:
one folder with all wheels, one report and one manifest. Reports must be equal in all but their
wheels, so that parts of two builds are never mixed. A build's core is written again when its last
plugin is there, with the digests of all.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from archsplit.errors import InputError, VerifyError
from archsplit.formats.device_pack import TABLE_FILE
from archsplit.release.identity import IDENTITY_FILE, CoreFiles, ReleaseKind, library_table
from archsplit.release.manifest import MANIFEST_FILE, Manifest, read_manifest
from archsplit.release.matrix import hole_findings
from archsplit.release.report import (
    REPORT_FILE,
    Release,
    find_report,
    refuse_other_release,
    releases_by_build,
    require_report,
)
from archsplit.release.verify import file_faults
from archsplit.release.wheel_set import read_identity
from archsplit.system.file_lock import LockedFolder
from archsplit.system.fs import (
    atomic_replace,
    check_output_names,
    copy_into,
    hash_stream,
    output_dir,
    replace_all,
    sha256,
    temporary_dir,
    write_file,
)
from archsplit.wheels.filename import WheelName
from archsplit.wheels.metadata import edit_wheel_info
from archsplit.wheels.platform_tags import PlatformTags
from archsplit.wheels.reader import open_wheel
from archsplit.wheels.rewrite import WheelRewrite
from archsplit.wheels.zip_writer import pack

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from archsplit.release.report import ReleaseWheel

_Record = TypeVar("_Record", Release, Manifest)
_Item = TypeVar("_Item")

_HINT = (
    "make all parts from the same files, with the same options and tools; a build also at the same"
    " SOURCE_DATE_EPOCH"
)


def gather(
    folders: Sequence[Path], *, out: Path, without: Sequence[str] = (), partial: bool = False
) -> Release:
    """Copy the wheels of several reports to ``out``, with one report and one manifest.

    All parts are of one build, or of splits of one release.

    Args:
        without: patterns of the cells that may be missing.
        partial: allow any missing cell, because further parts are gathered later.

    Raises:
        InputError: a report, a manifest or a wheel can't be read.
        VerifyError: the parts are of different builds, or a wheel isn't the one of its report, or
            a cell of the release's matrix has no wheel.
        OutputError: ``out`` can't be written, or has another release; it is unchanged.
    """
    read = {folder: require_report(folder) for folder in folders}
    earlier = find_report(out) if out.is_dir() else None
    # An earlier run has gathered parts of this release: its wheels stay in the manifest.
    if (
        earlier is not None
        and earlier.build_id == read[folders[0]].build_id
        and (out / MANIFEST_FILE).exists()
    ):
        read.setdefault(out, earlier)
    complete = _with_all_splits(read)
    parts = {folder: complete[folder] for folder in folders}
    # Before the comparison of fields, whose message would be about each field.
    if len({part.kind for part in parts.values()}) > 1:
        raise VerifyError(
            "some folders have the wheels of a split, others the wheels of a build",
            hint="merge the parts of one split, or the parts of one build",
        )
    hint = _hint(parts.values())
    # Parts of two builds differ in both lists: the reports have the simpler message.
    release = _merged(parts, hint)
    lists = _with_all_sources({folder: read_manifest(folder / MANIFEST_FILE) for folder in read})
    manifests = {folder: lists[folder] for folder in folders}
    manifest = _merged(manifests, hint)
    for folder, part in parts.items():
        _check_lists(folder, part, manifests[folder])
    with output_dir(out) as target, temporary_dir(target) as staging, LockedFolder(target):
        check_output_names(target, [MANIFEST_FILE, REPORT_FILE])
        refuse_other_release(target, release.build_id)
        _copy_wheels(parts, staging)
        _check_copies(release, staging)
        whole = release.together_with(target)
        # A part may be incomplete until the last one is gathered.
        if not partial:
            require_cells(whole, without)
        listed = manifest.together_with(target / MANIFEST_FILE)
        names = {wheel.file for wheel in release.wheels}
        before, core = whole.core, _complete_core(whole, staging, target)
        if before is not None and core is not None:
            whole = _with_core(whole, before.file, core)
            listed = _with_core(listed, before.file, core)
            names = {*(names - {before.file}), core.file}
        write_file(staging / MANIFEST_FILE, listed.as_json())
        write_file(staging / REPORT_FILE, whole.as_json())
        replace_all([*sorted(names), MANIFEST_FILE, REPORT_FILE], source=staging, target=target)
        # An earlier part of the gathering may have put it there.
        if before is not None and core is not None and before.file != core.file:
            (target / before.file).unlink(missing_ok=True)
    return whole


def _complete_core(whole: Release, staging: Path, target: Path) -> ReleaseWheel | None:
    """Write the core of a build again, with what only all of its plugins show.

    A core that was built without all plugins has no digests of their libraries, and promises the
    glibc that its own libraries need. Other cores stay as they are: the result is None.
    """
    core = whole.core
    if core is None or whole.kind is ReleaseKind.SPLIT:
        return None
    paths = {one.label: _newest(one.file, staging, target) for one in whole.plugins}
    with open_wheel(_newest(core.file, staging, target)) as wheel:
        identity = read_identity(wheel)
        if identity is None or identity.digests or paths.keys() != identity.targets.keys():
            return None
        digests = {one: _library_digest(paths[one], identity.library) for one in identity.targets}
        identity = replace(identity, digests=digests)
        tags = [WheelName.parse(path.name).platforms for path in paths.values()]
        name = replace(wheel.name, platforms=core_platforms(wheel.name.platforms, tags))
        info, folder = f"{wheel.dist_info}/WHEEL", CoreFiles(identity=identity).folder
        changed = {
            info: edit_wheel_info(wheel.read(info), tags=name.tags, build=name.build),
            f"{folder}/{IDENTITY_FILE}": identity.as_json().encode(),
            f"{folder}/{TABLE_FILE}": library_table(identity),
        }
        packed = {member: pack(content) for member, content in changed.items()}
        path = staging / str(name)
        with atomic_replace(path) as new, new.open("wb") as file:
            rewrite = WheelRewrite(wheel=wheel, name=name, changed=packed, added={})
            rewrite.write(file)
    return replace(core, file=path.name, size=path.stat().st_size, sha256=sha256(path))


def _newest(file: str, staging: Path, target: Path) -> Path:
    """Return the path of a file that is new, or was gathered earlier."""
    return staging / file if (staging / file).exists() else target / file


def _library_digest(path: Path, library: str) -> str:
    with open_wheel(path) as wheel:
        (member,) = (name for name in wheel.names if name.endswith(f"/{library}"))
        with wheel.open(member) as stream:
            return hash_stream(stream)[0].hex()


def _with_core(record: _Record, old: str, core: ReleaseWheel) -> _Record:
    """Return a report or manifest with the new core in place of the old one."""
    new: dict[str, Any] = {"file": core.file, "size": core.size, "sha256": core.sha256}
    rows: list[Any] = [replace(one, **new) if one.file == old else one for one in record.wheels]
    return replace(record, wheels=tuple(sorted(rows, key=lambda one: one.file)))


def core_platforms(core: tuple[str, ...], plugins: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the platform tags of a core: of the plugin that needs the latest glibc.

    With an earlier tag pip would install the core where it finds no plugin.
    """
    known = {tags: PlatformTags.parse(tags) for tags in (core, *plugins)}
    found = {tags: parsed.glibc for tags, parsed in known.items() if parsed is not None}
    return max(found, key=found.__getitem__) if core in found else core


def _copy_wheels(parts: Mapping[Path, Release], staging: Path) -> None:
    for folder, part in parts.items():
        for wheel in part.wheels:
            if not (folder / wheel.file).exists():
                raise InputError(
                    f"{folder} has no {wheel.file}, which its {REPORT_FILE} lists",
                    hint="copy the folder again from where it was written",
                )
            copy_into(folder / wheel.file, staging)


def _check_copies(release: Release, staging: Path) -> None:
    """Refuse wheels that differ from the report.

    The copies are compared, because later steps read them.
    """
    faults = tuple(
        fault for wheel in release.wheels for fault in file_faults(staging / wheel.file, wheel)
    )
    if faults:
        raise VerifyError("wheels differ from their reports:", findings=faults)


def require_cells(release: Release, without: Sequence[str] = ()) -> None:
    """Refuse a release with a hole in its matrix.

    Args:
        without: patterns of the cells that may be missing.

    Raises:
        VerifyError: names each hole.
    """
    if found := tuple(hole_findings(release, without)):
        raise VerifyError("the release is incomplete:", findings=found)


def require_all_cells(folders: Iterable[Path], without: Sequence[str] = ()) -> None:
    """Refuse folders whose reports, taken together for each build, have a hole.

    Raises:
        InputError: a report can't be read.
        VerifyError: names each hole.
    """
    # A folder of plain wheels has no matrix.
    for release in releases_by_build(filter(None, map(find_report, folders))).values():
        require_cells(release, without)


def _with_all_splits(parts: Mapping[Path, Release]) -> Mapping[Path, Release]:
    """Return the parts, each with the sources and libraries of all splits.

    Splits of wheels for several Pythons and platforms have their own sources and libraries, and
    all else in common.
    """
    splits = [part.split for part in parts.values() if part.split]
    if not splits:
        return parts
    sources = sorted({one for split in splits for one in split.sources}, key=lambda one: one.core)
    # Parts of one split are equal already.
    if len({one.core for one in sources}) == 1:
        return parts
    common: dict[str, Any] = {
        "sources": tuple(sources),
        "libraries": _distinct(chain.from_iterable(split.libraries for split in splits)),
        "unmoved": _distinct(chain.from_iterable(split.unmoved for split in splits)),
        "notes": _distinct(chain.from_iterable(split.notes for split in splits)),
    }
    return {
        folder: replace(part, split=part.split and replace(part.split, **common))
        for folder, part in parts.items()
    }


def _distinct(items: Iterable[_Item]) -> tuple[_Item, ...]:
    return tuple(dict.fromkeys(items))


def _with_all_sources(manifests: Mapping[Path, Manifest]) -> Mapping[Path, Manifest]:
    """Return the manifests of splits, each with the fat wheels of all."""
    if any(one.origin != "wheel" for one in manifests.values()):
        return manifests
    sources = _distinct(each for one in manifests.values() for each in one.sources)
    ordered = tuple(sorted(sources, key=lambda one: one.path))
    return {folder: replace(one, sources=ordered) for folder, one in manifests.items()}


def _check_lists(folder: Path, release: Release, manifest: Manifest) -> None:
    """Compare the two lists of one folder, which were written together."""
    reported = {wheel.file: wheel.sha256 for wheel in release.wheels}
    listed = {wheel.file: wheel.sha256 for wheel in manifest.wheels}
    differing = sorted(
        file for file in reported.keys() | listed if reported.get(file) != listed.get(file)
    )
    if differing or release.build_id != manifest.build_id:
        what = ", ".join(differing) or "the build id"
        raise VerifyError(
            f"{folder}: {MANIFEST_FILE} and the report beside it differ about {what}",
            hint="copy the folder again from where it was written",
        )


def _hint(parts: Iterable[Release]) -> str:
    """Return what to do about parts that are of different builds."""
    releases = tuple(parts)
    machines = {
        WheelName.parse(wheel.file).machine
        for one in releases
        for wheel in one.wheels
        if wheel.role != "meta"
    }
    # Each library of a build has host code of its machine, so plugins are not shared as packs are.
    if len(machines) > 1 and releases[0].kind is ReleaseKind.BUILT:
        names = " and ".join(sorted(machines))
        return f"builds for {names} are a release each: verify and publish both folders"
    return _HINT


def _merged(parts: Mapping[Path, _Record], hint: str) -> _Record:
    """Return one record with the wheels of all; their other fields must be equal."""
    (first_folder, first), *others = parts.items()
    # A report's rows or a manifest's: both have a file and can be compared.
    wheels: dict[str, Any] = {wheel.file: wheel for wheel in first.wheels}
    for folder, other in others:
        if differing := list(_differing(first, other)):
            raise VerifyError(
                f"{first_folder} and {folder} are of different builds:"
                f" {', '.join(differing)} differ",
                hint=hint,
            )
        for wheel in other.wheels:
            # Equal rows are one wheel: parts may overlap.
            if wheels.setdefault(wheel.file, wheel) != wheel:
                raise VerifyError(
                    f"{wheel.file} in {folder} differs from the wheel of that name in another"
                    " folder",
                    hint=hint,
                )
    return replace(first, wheels=tuple(wheels[name] for name in sorted(wheels)))


def _differing(first: object, other: object) -> Iterator[str]:
    """Return the names of the fields that differ, apart from the wheels."""
    for field in fields(first):  # type: ignore[arg-type]  # only records get here
        left, right = getattr(first, field.name), getattr(other, field.name)
        # The name of the inner field is the useful one: `epoch`, not `build`.
        if is_dataclass(left) and is_dataclass(right):
            yield from _differing(left, right)
        elif left != right and field.name != "wheels":
            yield field.name
