"""Checks of a built release: identities, targets, pins, tags and files of its wheels.

Nothing is taken from the build but its files: targets are read from the binaries, pins from the
metadata, identities from the core and from each plugin's descriptor. All findings are collected;
`Verifier` reads the wheels, and the functions before it judge them without effects.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from archsplit.arch.target import CodeKind, Target
from archsplit.devicecode.library import read_library
from archsplit.errors import ArchsplitError, InputError, VerifyError
from archsplit.formats.elf import ELF_MAGIC
from archsplit.release.core_files import HOOK_FOLDER
from archsplit.release.findings import ReleaseKind, error_finding, finding
from archsplit.release.identity import (
    IDENTITY_FILE,
    LOADER_LIBRARY,
    LOADER_PACKAGE,
    parse_identity,
)
from archsplit.release.list_checks import report_faults
from archsplit.release.requirements import pinned_extras, plugin_extras
from archsplit.release.wheel_checks import (
    duplicate_faults,
    meta_faults,
    plugin_pin_faults,
    requirement_faults,
    requirement_holds,
)
from archsplit.system.env import ZIP_EPOCH, clean_environment
from archsplit.system.fs import temporary_dir
from archsplit.wheels.filename import ALL_EXTRA, plugin_path
from archsplit.wheels.platform_tags import PlatformTagCache
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from packaging.metadata import Metadata

    from archsplit.devicecode.library import Library
    from archsplit.release.context import Effects
    from archsplit.release.identity import Identity
    from archsplit.system.finding import Finding
    from archsplit.wheels.filename import WheelName
    from archsplit.wheels.reader import Wheel


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFacts:
    """Facts of a wheel that the checks of a release need.

    Attributes:
        name: parsed from the file name.
        members: the installed files, without those of ``.dist-info``.
        licenses: the licence files in its own folder.
        identity: of a core; None for other wheels.
        libraries: what each ELF file in it holds, by its path in the wheel.
        platforms: auditwheel's tags for those libraries; empty without a library.
    """

    file: str
    name: WheelName
    purelib: bool
    metadata: Metadata
    members: tuple[str, ...]
    licenses: tuple[str, ...]
    identity: Identity | None
    libraries: Mapping[str, Library]
    platforms: tuple[str, ...]


def release_faults(
    seen: tuple[WheelFacts, ...], identity: Identity, targets: tuple[Target, ...] | None
) -> Iterator[Finding]:
    """Find faults of a set of wheels, each for itself and all together.

    Args:
        targets: whose plugins must be there; None for all that the core names.
    """
    wanted = set(identity.targets) if targets is None else {str(target) for target in targets}
    plugins = {project: target for target, project in identity.targets.items()}
    for one in seen:
        yield from _wheel_faults(one, identity, plugins)
    projects = [one.name.project for one in seen]
    yield from duplicate_faults(ReleaseKind.BUILT, projects)
    for target in sorted(wanted - set(identity.targets)):
        yield _fault("unknown-target", target, "the core names no plugin for it")
    for target in sorted(wanted & set(identity.targets)):
        if identity.targets[target] not in projects:
            name = identity.targets[target]
            found = f"no wheel, but the core names it for {target}"
            yield _fault("missing-plugin", name, found, target=target)


def _wheel_faults(
    one: WheelFacts, identity: Identity, plugins: Mapping[str, str]
) -> Iterator[Finding]:
    yield from _common_faults(one, identity)
    project = one.name.project
    if one.identity is not None:
        yield from _core_faults(one, identity)
    elif project in plugins:
        yield from _plugin_wheel_faults(one, identity, plugins[project])
    elif project == f"{identity.package}-{ALL_EXTRA}":
        yield from meta_faults(one.file, one.metadata, one.members, identity)
    else:
        found = f"is neither the core nor one of its plugins ({', '.join(sorted(plugins))})"
        yield _fault("not-of-release", one.file, found)


def _common_faults(one: WheelFacts, identity: Identity) -> Iterator[Finding]:
    name = one.name
    if str(one.metadata.version) != identity.version:
        found = f"is version {one.metadata.version}"
        yield _fault("wrong-version", one.file, found, identity.version)
    if (name.pythons, name.abis) != (("py3",), ("none",)):
        found = f"is tagged {'.'.join(name.pythons)}-{'.'.join(name.abis)}"
        yield _fault("wrong-tag", one.file, found, "py3-none")
    if one.platforms and name.platforms != one.platforms:
        tags, expected = ".".join(name.platforms), ".".join(one.platforms)
        found = f"is tagged {tags}, but auditwheel says {expected}"
        yield _fault("wrong-tag", one.file, found)
    if one.purelib == bool(one.libraries):
        found = f"says Root-Is-Purelib: {one.purelib}, and has {len(one.libraries)} libraries"
        yield _fault("wrong-root", one.file, found)
    for file in sorted(set(one.metadata.license_files or []) - set(one.licenses)):
        found = f"has no {file}, but its metadata names it as a licence"
        yield _fault("missing-license", one.file, found)


def _core_faults(one: WheelFacts, identity: Identity) -> Iterator[Finding]:
    if one.name.project != identity.distribution:
        found = f"is {one.name.project}, but its {IDENTITY_FILE} says {identity.distribution}"
        yield _fault("wrong-name", one.file, found)
    package = identity.import_package
    face = ("__init__.py", "doctor.py", IDENTITY_FILE, LOADER_LIBRARY)
    needed = {f"{package}/doctor.py", *(f"{package}/{LOADER_PACKAGE}/{name}" for name in face)}
    for name in sorted(needed - set(one.members)):
        yield _fault("missing-loader", one.file, f"has no {name}")
    hook = f"{identity.plugins_package}/{HOOK_FOLDER}/"
    for name in one.members:
        if not name.startswith((f"{package}/", hook)):
            found = f"installs {name}, which is not below {package}/"
            yield _fault("wrong-files", one.file, found)
    for name, library in one.libraries.items():
        if library.targets:
            found = f"{name} has device code; a core has none"
            yield _fault("device-code-in-core", one.file, found)
    for requirement in one.metadata.requires_dist or []:
        if requirement.name in identity.targets.values() and requirement_holds(requirement, ""):
            found = f"requires {requirement} always; only extras may"
            yield _fault("unconditional-pin", one.file, found)
    extras = pinned_extras(plugin_extras(identity), identity.plugins, identity.version)
    expected = {extra: set(pins) for extra, pins in extras.items()}
    yield from requirement_faults(one.file, one.metadata, expected, ReleaseKind.BUILT)


def _plugin_wheel_faults(one: WheelFacts, identity: Identity, target: str) -> Iterator[Finding]:
    expected = plugin_path(identity.import_package, target, identity.library)
    if one.members != (expected,):
        found = f"installs {', '.join(one.members) or 'nothing'}"
        yield _fault("wrong-files", one.file, found, f"{expected} alone")
    for library in one.libraries.values():
        yield from plugin_faults(library, Target.parse(target), identity, subject=one.file)
    yield from plugin_pin_faults(one.file, one.metadata, identity, target)


def plugin_faults(
    library: Library, target: Target, identity: Identity, *, subject: str = ""
) -> Iterator[Finding]:
    """Check a plugin's library: its descriptor, and the code in it.

    Args:
        subject: of the findings; "" where one library alone is checked.
    """
    descriptor = library.descriptor
    if descriptor is None:
        yield _fault("missing-descriptor", subject, "has no descriptor")
    else:
        found = {
            "package": descriptor.package,
            "version": descriptor.version,
            "build id": descriptor.build_id.hex(),
            "interface hash": descriptor.interface_hash.hex(),
            "targets": ", ".join(map(str, descriptor.targets)),
        }
        expected = {
            "package": identity.package,
            "version": identity.version,
            "build id": identity.build_id,
            "interface hash": identity.interface_hash,
            "targets": str(target),
        }
        for key, value in expected.items():
            if found[key] != value:
                says = f"its descriptor says {key} {found[key]}"
                yield _fault("foreign-build", subject, says, value)
    yield from _code_faults(library, target, subject)


def _code_faults(library: Library, target: Target, subject: str) -> Iterator[Finding]:
    if not library.targets:
        yield _fault("missing-code", subject, "has no device code", str(target))
        return
    # A device link puts machine code into one container and leaves those that it read empty; PTX
    # stays in these, for the driver to link.
    used, left = library.containers, library.relocatable
    if target.kind is CodeKind.PTX and library.relocatable:
        used, left = left, used
    for number, held in enumerate((*used, *left)):
        for foreign in sorted(held - {target}):
            found = f"container {number} has foreign code for {foreign}"
            yield _fault("foreign-code", subject, found, f"{target} alone")
        if (target in held) != (number < len(used)):
            is_used = number < len(used)
            found = f"container {number} has {'no' if is_used else 'left-over'} code for {target}"
            yield _fault("missing-code" if is_used else "foreign-code", subject, found)


_fault = partial(finding, ReleaseKind.BUILT)


_DEPTH = 2
"""``<package>/_archsplit/core.json``: how many folders deep a core's identity lies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRelease:
    """Result of a check: the core's identity, and each wheel's targets by file name."""

    identity: Identity
    wheels: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """Reads wheels.

    Attributes:
        scratch: a folder for what has to be unpacked.
        platforms: the platform tags of libraries where those that are provided are there, by a
            judge that is not the one who wrote them.
    """

    scratch: Path
    platforms: Callable[[Mapping[str, Path], tuple[str, ...]], tuple[str, ...]]

    def verify(
        self,
        folder: Path,
        *,
        targets: tuple[Target, ...] | None = None,
        identity: Identity | None = None,
    ) -> CheckedRelease:
        """Check every wheel in a folder, one by one and against each other.

        Args:
            folder: holds the wheels of one release.
            targets: whose plugins must be there; None for all that the core names.
            identity: the core's, for a folder in which there is none.

        Raises:
            InputError: there is no wheel.
            VerifyError: lists every finding, sorted by wheel.
        """
        paths = _wheels_in(folder)
        findings: list[Finding] = []
        provided = _provided(paths, identity)
        seen = [one for path in paths if (one := self._seen(path, provided, findings)) is not None]
        cores = [one for one in seen if one.identity is not None]
        if len(cores) == 1:
            identity = cores[0].identity
        elif cores or identity is None:
            names = ", ".join(one.file for one in cores) or "none"
            found = f"one core is needed, and there is {names}"
            findings.append(finding(ReleaseKind.BUILT, "one-core", str(folder), found))
        wanted = None if targets is None else {str(target) for target in targets}
        findings += report_faults(folder, ReleaseKind.BUILT, wanted)
        if identity is not None:
            findings += release_faults(tuple(seen), identity, targets)
        if findings or identity is None:
            raise VerifyError("the wheels are not as promised:", findings=tuple(findings))
        return CheckedRelease(identity=identity, wheels={one.file: _held(one) for one in seen})

    def _seen(
        self, path: Path, provided: tuple[str, ...], findings: list[Finding]
    ) -> WheelFacts | None:
        try:
            with open_wheel(path) as wheel:
                wheel.check_contents()
                return self._read(wheel, provided)
        except ArchsplitError as error:
            findings.append(error_finding(ReleaseKind.BUILT, path.name, error))
            return None

    def _read(self, wheel: Wheel, provided: tuple[str, ...]) -> WheelFacts:
        own, licenses = f"{wheel.dist_info}/", f"{wheel.dist_info}/licenses/"
        members = tuple(name for name in wheel.names if not name.startswith(own))
        files: dict[str, Path] = {}
        for number, name in enumerate(members):
            if _is_elf(wheel, name):
                files[name] = self.scratch / f"{wheel.path.stem}.{number}.so"
                wheel.extract(name, files[name])
        return WheelFacts(
            file=wheel.path.name,
            name=wheel.name,
            purelib=wheel.info.purelib,
            metadata=wheel.metadata(),
            members=members,
            licenses=tuple(
                name.removeprefix(licenses) for name in wheel.names if name.startswith(licenses)
            ),
            identity=_identity(wheel, members),
            libraries={name: read_library(path) for name, path in files.items()},
            platforms=self.platforms(files, provided) if files else (),
        )


def _wheels_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder", hint="give the folder that build wrote to")
    paths = sorted(path for path in folder.glob("*.whl") if not path.name.startswith("."))
    if not paths:
        raise InputError(f"no wheel in {folder}", hint="give the folder that build wrote to")
    return paths


def _provided(paths: list[Path], identity: Identity | None) -> tuple[str, ...]:
    """Return the libraries that other wheels provide; damaged wheels are reported later."""
    identities = [] if identity is None else [identity]
    for path in paths:
        with suppress(ArchsplitError), open_wheel(path) as wheel:
            identities += filter(None, [_identity(wheel, wheel.names)])
    return tuple(name for one in identities for name in one.provided)


def _identity(wheel: Wheel, members: tuple[str, ...]) -> Identity | None:
    """Return the identity of a core; None for every other wheel."""
    for name in members:
        if (
            PurePosixPath(name).match(f"*/{LOADER_PACKAGE}/{IDENTITY_FILE}")
            and name.count("/") == _DEPTH
        ):
            return parse_identity(wheel.read(name), where=name)
    return None


def _is_elf(wheel: Wheel, name: str) -> bool:
    with wheel.open(name) as stream:
        return stream.read(len(ELF_MAGIC)) == ELF_MAGIC


def _held(one: WheelFacts) -> tuple[str, ...]:
    held = [library.targets for library in one.libraries.values()]
    return tuple(map(str, sorted(set().union(*held))))


def verify_build(
    folder: Path,
    effects: Effects,
    *,
    targets: tuple[Target, ...] | None = None,
    identity: Identity | None = None,
) -> CheckedRelease:
    """Re-read every wheel in ``folder``; see `Verifier.verify`.

    Raises:
        VerifyError: lists everything that is not as promised.
    """
    with temporary_dir() as scratch:
        judge = _judge(effects, scratch)
        verifier = Verifier(scratch=scratch, platforms=judge.platforms)
        return verifier.verify(folder, targets=targets, identity=identity)


def _judge(effects: Effects, folder: Path) -> PlatformTagCache:
    environment = clean_environment(effects.environment, temporary=folder, epoch=ZIP_EPOCH)
    environment["PYTHONPATH"] = effects.python_path
    return PlatformTagCache(runner=effects.runner, environment=environment)
