"""Verification of a release: read all wheels of a folder, run the checks, return the fact sheet.

In: a folder of wheels, with or without its report and manifest; both are compared with the wheels.
Out: a `CheckedRelease`, or one error with all findings.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

from archsplit.errors import InputError, VerifyError
from archsplit.release.checks import CheckScope, count_images, release_faults
from archsplit.release.findings import finding
from archsplit.release.identity import ReleaseKind
from archsplit.release.manifest import MANIFEST_FILE, read_manifest
from archsplit.release.report import REPORT_FILE, ReleaseWheel, read_report
from archsplit.release.wheel_set import read_wheel_set, wheels_in
from archsplit.system.env import ZIP_EPOCH, clean_environment
from archsplit.system.fs import sha256, temporary_dir
from archsplit.wheels.platform_tags import PlatformTagCache

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from archsplit.release.context import Effects
    from archsplit.release.identity import Identity
    from archsplit.release.manifest import Manifest, WheelRecord
    from archsplit.release.report import Release, Role
    from archsplit.release.wheel_set import WheelFacts, WheelReads, WheelSet
    from archsplit.system.finding import Finding
    from archsplit.wheels.platform_tags import PlatformTags

    Reader = Callable[[Path], Release | Manifest]
    Row = ReleaseWheel | WheelRecord

_SHARED = ("version", "build_id", "interface_hash")
_READERS: Mapping[str, Reader] = {REPORT_FILE: read_report, MANIFEST_FILE: read_manifest}


def file_list_faults(
    folder: Path, listing: str, wanted: Collection[str] | None = None, damaged: Collection[str] = ()
) -> Iterator[Finding]:
    """Compare a folder with its report or manifest, if it has one.

    Args:
        listing: the file's name.
        wanted: the targets or capabilities whose wheels must be there; None for all.
        damaged: files that have a finding already, which are not compared.
    """
    if not (folder / listing).exists():
        return
    try:
        wheels = _READERS[listing](folder / listing).wheels
    except InputError as error:
        yield finding("unreadable-report", "", error.message)
        return
    for wheel in wheels:
        is_here = (folder / wheel.file).exists()
        gpus = wheel.gpus if isinstance(wheel, ReleaseWheel) else ()
        # Who wants one target has not copied the wheels of the others.
        is_wanted = is_here or wanted is None or set(gpus) <= set(wanted)
        if is_wanted and wheel.file not in damaged:
            yield from file_faults(folder / wheel.file, wheel, listing=listing)
    for name in sorted({one.name for one in wheels_in(folder)} - {one.file for one in wheels}):
        yield finding("not-in-report", name, f"{listing} doesn't list it")


def file_faults(path: Path, wheel: Row, *, listing: str = REPORT_FILE) -> Iterator[Finding]:
    """Compare a file with its row in a report or manifest, by its SHA-256.

    Raises:
        InputError: the file can't be read.
    """
    if not path.exists():
        yield finding("missing-file", wheel.file, f"{listing} lists it, but it is not here")
    elif sha256(path) != wheel.sha256:
        yield finding("changed-file", wheel.file, f"is not the file that {listing} lists")


def field_faults(release: WheelSet, *listings: str) -> Iterator[Finding]:
    """Compare a report and a manifest with the wheels, field by field.

    Args:
        listings: names of the files, beside the wheels.
    """
    wheels, identity = {wheel.path: wheel for wheel in release.wheels}, release.identity
    own = {name: getattr(identity, name) for name in _SHARED if identity}
    own |= {"project": identity.package} if identity else {}
    # Parts of a release have a folder each.
    for path in sorted({one.with_name(name) for one in wheels for name in listings}):
        # Another check finds a file that is missing or can't be read.
        with contextlib.suppress(InputError):
            listing = _READERS[path.name](path)
            pairs = [(name, getattr(listing, name), own[name]) for name in own]
            for row in listing.wheels:
                # Another check finds a wheel that is missing, damaged or foreign.
                if wheel := wheels.get(path.with_name(row.file)):
                    at = f"wheels.{row.file}"
                    pairs.append((f"{at}.size", row.size, wheel.path.stat().st_size))
                    pairs.append((f"{at}.distribution", row.distribution, wheel.name.project))
                    pairs.append((f"{at}.role", row.role, release.role(wheel) or row.role))
            for field, found, wanted in pairs:
                if found != wanted:
                    yield finding("wrong-listing", path.name, f"{field} is {found}", f"{wanted}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRelease:
    """Result of a check without findings.

    Attributes:
        identity: of the core.
        kind: the command that wrote the release.
        roles: core, plugin or meta, by file name.
        wheels: the targets of each wheel's device code, by file name.
        packs: the number of images in each pack, by file name; empty for a build.
        images: the number in all fat wheels; ``covered`` of them are in at least one pack.
        needs: the packs that each capability needs.
    """

    identity: Identity
    kind: ReleaseKind
    roles: Mapping[str, Role]
    wheels: Mapping[str, tuple[str, ...]]
    packs: Mapping[str, int]
    images: int
    covered: int
    needs: Mapping[str, tuple[str, ...]]

    @property
    def package(self) -> str:
        """Core's project."""
        return self.identity.package

    @property
    def version(self) -> str:
        """Version of all wheels."""
        return self.identity.version

    @property
    def build_id(self) -> str:
        """Id that the core shares with every plugin, 64 hexadecimal digits."""
        return self.identity.build_id


def verify_wheel_set(
    release: WheelSet, scope: CheckScope | None = None, more: Iterable[Finding] = ()
) -> CheckedRelease:
    """Check the wheels of a folder.

    Args:
        more: findings of the caller.

    Raises:
        VerifyError: lists every finding.
    """
    extent, identity = scope or CheckScope(), release.identity
    findings = (*release_faults(release, extent), *more)
    # For mypy: without an identity there is a finding.
    if findings or identity is None:
        raise VerifyError("the wheels have faults:", findings=findings)
    images, covered = count_images(release)
    return CheckedRelease(
        identity=identity,
        kind=release.kind,
        roles={wheel.file: release.role(wheel) or "meta" for wheel in release.wheels},
        wheels={wheel.file: _targets(wheel) for wheel in release.wheels},
        packs={
            wheel.file: sum(1 for _ in wheel.pack.images())
            for wheel in release.wheels
            if wheel.pack is not None and wheel.identity is None
        },
        images=images,
        covered=covered,
        needs=extent.needed_plugins(identity) if release.kind is ReleaseKind.SPLIT else {},
    )


def _targets(wheel: WheelFacts) -> tuple[str, ...]:
    """Return the targets of the device code that a wheel brings."""
    targets = {target for library in wheel.libraries.values() for target in library.targets}
    # The table of a core lists images, but has no device code.
    if wheel.pack is not None and wheel.identity is None:
        targets |= {image.target for _, image in wheel.pack.images()}
    return tuple(map(str, sorted(targets)))


def verify_release(
    folder: Path,
    effects: Effects | None = None,
    scope: CheckScope | None = None,
    begun: WheelReads | None = None,
) -> CheckedRelease:
    """Read every wheel in a folder again, and check the release as a whole.

    Args:
        effects: to run auditwheel; None to leave the platform tags of built wheels unchecked.
        begun: see `read_wheel_set`.

    Raises:
        InputError: the folder has no wheel.
        VerifyError: lists every finding.
    """
    with temporary_dir() as scratch:
        platforms = None if effects is None else tag_cache(effects, scratch).platforms
        release = read_wheel_set(
            folder, scratch, platforms=platforms, keep_packs=False, begun=begun
        )
        extent, identity = scope or CheckScope(), release.identity
        wanted = None if identity is None else extent.wanted(identity)
        damaged = {one.subject for one in release.damaged}
        files = file_list_faults(folder, REPORT_FILE, wanted, damaged)
        listed = chain(files, field_faults(release, REPORT_FILE))
        # A split that checks its own wheels has just written the report beside them.
        return verify_wheel_set(release, extent, () if extent.originals else listed)


def tag_cache(effects: Effects, folder: Path) -> PlatformTagCache:
    """Return a cache of auditwheel's results that runs auditwheel in a clean environment."""
    environment = clean_environment(effects.environment, temporary=folder, epoch=ZIP_EPOCH)
    environment["PYTHONPATH"] = effects.python_path
    found = _found_tags(type(effects.runner), effects.python_path)
    return PlatformTagCache(runner=effects.runner, environment=environment, found=found)


@cache
def _found_tags(runner: type, python_path: str) -> dict[tuple[object, ...], PlatformTags]:
    """Return the tags that this process has found, by the bytes of libraries."""
    del runner, python_path  # They are the key: another runner or auditwheel has other results.
    return {}
