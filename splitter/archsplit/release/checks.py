"""All checks of a release, built or split, with the kinds of each.

In: a `WheelSet`, which was read only from the files of a folder. Out: findings, all at once.
`WHEEL_CHECKS` lists the checks of one wheel, `RELEASE_CHECKS` the checks of all wheels together. A
check without a kind is for both kinds of releases. `archsplit.release.verify` runs
them on a folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_version

from archsplit.arch.target import Target
from archsplit.devicecode.partition import ptx_packs
from archsplit.formats.device_pack import TABLE_FILE
from archsplit.release.device_checks import (
    descriptor_faults,
    image_faults,
    needed_containers,
    plugin_faults,
    service_faults,
    table_faults,
    targets_by_container,
)
from archsplit.release.findings import finding
from archsplit.release.identity import (
    HOOK_SUFFIX,
    IDENTITY_FILE,
    LOADER_LIBRARY,
    LOADER_PACKAGE,
    Identity,
    ReleaseKind,
)
from archsplit.release.requirements import pinned_extras, plugin_extras
from archsplit.release.wheel_checks import (
    duplicate_faults,
    meta_faults,
    pin_faults,
    plugin_pin_faults,
    requirement_faults,
    requirement_holds,
)
from archsplit.release.wheel_set import WheelFacts, WheelSet, core_faults
from archsplit.system.finding import Finding
from archsplit.system.parallel import ThreadPool
from archsplit.wheels.platform_tags import PlatformTags

if TYPE_CHECKING:
    from archsplit.devicecode.registered import ContainerImages
    from archsplit.formats.device_pack import Pack
    from archsplit.release.report import Role

BUILT, SPLIT = ReleaseKind.BUILT, ReleaseKind.SPLIT
_ROLES: tuple[Role, ...] = ("core", "plugin", "meta")

Findings = Iterator[Finding]

_CORE: tuple[Role, ...] = ("core",)
_PLUGIN: tuple[Role, ...] = ("plugin",)
_META: tuple[Role, ...] = ("meta",)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckScope:
    """Extent of a check.

    Attributes:
        targets: their plugins must be there; None for all plugins that the core names.
        published: True before an upload.
        originals: for each core, the images of its fat libraries; the table is compared with them.
        complete: require every image of a fat wheel in a pack, not only those that GPUs take.
    """

    targets: tuple[Target, ...] | None = None
    published: bool = False
    originals: Mapping[str, Mapping[str, ContainerImages]] = field(default_factory=dict)
    complete: bool = False

    def wanted(self, identity: Identity) -> tuple[str, ...] | None:
        """Return the targets, or for packs the capabilities, of the plugins that must be there."""
        # None differs from (): a release may be checked without any plugin.
        if self.targets is None:
            return None
        has_packs = bool(identity.packs)
        names = (str(one.capability) if has_packs else str(one) for one in self.targets)
        return tuple(dict.fromkeys(names))

    def needed_plugins(self, identity: Identity) -> Mapping[str, tuple[str, ...]]:
        """Return the plugins that each wanted target or capability needs."""
        wanted, names = self.wanted(identity), identity.plugins_by_gpu
        return {gpu: names[gpu] for gpu in names if wanted is None or gpu in wanted}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """Release under a check, with the identity of its core."""

    release: WheelSet
    identity: Identity
    scope: CheckScope

    @property
    def table(self) -> Pack | None:
        """Table of a split's core: every image of the fat wheel."""
        return self.release.cores[0].pack if len(self.release.cores) == 1 else None

    @property
    def needs(self) -> Mapping[str, tuple[str, ...]]:
        """Plugins that each wanted target or capability needs."""
        return self.scope.needed_plugins(self.identity)

    def plugin_name(self, wheel: WheelFacts) -> str:
        """Return the target or the pack that a plugin wheel is for."""
        projects = {project: name for name, project in self.identity.plugins.items()}
        return projects[wheel.name.project]


def _wrong_version(wheel: WheelFacts, subject: _Subject) -> Findings:
    expected, metadata = subject.identity.version, wheel.metadata
    if metadata is None:
        return
    found = str(metadata.version)
    # 1.0 and 1.0.0 are one version, to installers as well.
    if canonicalize_version(found) != canonicalize_version(expected):
        yield finding("wrong-version", wheel.file, f"is version {found}", expected)


def _wrong_python_tag(wheel: WheelFacts, _: _Subject) -> Findings:
    name = wheel.name
    if (name.pythons, name.abis) != (("py3",), ("none",)):
        found = f"is tagged {'.'.join(name.pythons)}-{'.'.join(name.abis)}"
        yield finding("wrong-tag", wheel.file, found, "py3-none")


def _wrong_platform_tag(wheel: WheelFacts, _: _Subject) -> Findings:
    # Wheels without libraries have no tags of auditwheel.
    if not wheel.platforms:
        return
    needed = PlatformTags.parse(wheel.platforms)
    promised = PlatformTags.parse(wheel.name.platforms)
    # A recipe may promise a later glibc than the libraries need, never an earlier one.
    if promised is None or needed is None or not needed.keep(promised):
        tags, expected = ".".join(wheel.name.platforms), ".".join(wheel.platforms)
        found = f"is tagged {tags}, but auditwheel says {expected}"
        yield finding("wrong-tag", wheel.file, found)


def _wrong_root(wheel: WheelFacts, _: _Subject) -> Findings:
    # pip installs a purelib wheel into another folder on some systems, away from its plugins.
    if wheel.purelib == bool(wheel.libraries):
        found = f"says Root-Is-Purelib: {wheel.purelib}; its libraries: {len(wheel.libraries)}"
        yield finding("wrong-root", wheel.file, found)


def _missing_license(wheel: WheelFacts, _: _Subject) -> Findings:
    named = (wheel.metadata.license_files if wheel.metadata else None) or []
    for file in sorted(set(named) - set(wheel.licenses)):
        found = f"has no {file}, but its metadata names it as a license"
        yield finding("missing-license", wheel.file, found)


def _wrong_name(wheel: WheelFacts, subject: _Subject) -> Findings:
    expected = subject.identity.distribution
    if wheel.name.project != expected:
        found = f"is {wheel.name.project}, but its {IDENTITY_FILE} says {expected}"
        yield finding("wrong-name", wheel.file, found)


def _missing_loader(wheel: WheelFacts, subject: _Subject) -> Findings:
    package = subject.identity.import_package
    names = ["__init__.py", "doctor.py", IDENTITY_FILE, LOADER_LIBRARY, TABLE_FILE]
    # Each library of a split needs its stub: the loader finds the library by it.
    if subject.release.kind is SPLIT:
        stubs = () if wheel.pack is None else (library.stub for library in wheel.pack.libraries)
        names += stubs
    needed = {f"{package}/doctor.py", *(f"{package}/{LOADER_PACKAGE}/{name}" for name in names)}
    for name in sorted(needed - set(wheel.members)):
        yield finding("missing-loader", wheel.file, f"has no {name}")


def _wrong_core_files(wheel: WheelFacts, subject: _Subject) -> Findings:
    package = subject.identity.import_package
    hook = f"{package}{HOOK_SUFFIX}/"
    for name in wheel.members:
        # A file elsewhere could belong to another project.
        if not name.startswith((f"{package}/", hook)):
            found = f"installs {name}, which is not below {package}/"
            yield finding("wrong-files", wheel.file, found)


def _code_in_core(wheel: WheelFacts, _: _Subject) -> Findings:
    for name, library in wheel.libraries.items():
        if library.targets:
            found = f"{name} has device code; a core has none"
            yield finding("device-code-in-core", wheel.file, found)


def _unconditional_pin(wheel: WheelFacts, subject: _Subject) -> Findings:
    plugins = subject.identity.plugins.values()
    for requirement in (wheel.metadata.requires_dist if wheel.metadata else None) or []:
        # A plugin that is always required would bring the code of every GPU to each user.
        if requirement.name in plugins and requirement_holds(requirement, ""):
            found = f"requires {requirement} always; only extras may"
            yield finding("unconditional-pin", wheel.file, found)


def _wrong_extras(wheel: WheelFacts, subject: _Subject) -> Findings:
    identity = subject.identity
    extras = pinned_extras(plugin_extras(identity), identity.plugins, identity.version)
    expected = {extra: set(pins) for extra, pins in extras.items()}
    if wheel.metadata is not None:
        yield from requirement_faults(wheel.file, wheel.metadata, expected)


def _missing_pins(wheel: WheelFacts, subject: _Subject) -> Findings:
    if wheel.metadata is not None:
        yield from pin_faults(wheel.file, wheel.metadata, subject.identity)
    elif subject.scope.published:
        yield finding("unreadable", wheel.file, "its METADATA is one that an index refuses")


def _wrong_plugin_files(wheel: WheelFacts, subject: _Subject) -> Findings:
    identity, name = subject.identity, subject.plugin_name(wheel)
    expected = f"{identity.plugins_package}/cuda/{name}/{identity.library}"
    # A second file could be shared with another plugin, and be lost when that one is removed.
    if wheel.members != (expected,):
        found = f"installs {', '.join(wheel.members) or 'nothing'}"
        yield finding("wrong-files", wheel.file, found, f"only {expected}")


def _wrong_plugin_pins(wheel: WheelFacts, subject: _Subject) -> Findings:
    if wheel.metadata is not None:
        name = subject.plugin_name(wheel)
        yield from plugin_pin_faults(wheel.file, wheel.metadata, subject.identity, name)


def _wrong_library(wheel: WheelFacts, subject: _Subject) -> Findings:
    target = Target.parse(subject.plugin_name(wheel))
    for library in wheel.libraries.values():
        yield from plugin_faults(library, target, subject.identity, subject=wheel.file)


def _wrong_digest(wheel: WheelFacts, subject: _Subject) -> Findings:
    name = subject.plugin_name(wheel)
    expected = subject.identity.digests.get(name)
    for member, digest in wheel.library_digests.items():
        # A core that was built without all of its plugins has no digest of them.
        if expected is not None and digest != expected:
            found = (
                f"{member} has the SHA-256 {digest[:16]}..., but the core has {expected[:16]}..."
            )
            yield finding("wrong-digest", wheel.file, found)


def _wrong_descriptor(wheel: WheelFacts, subject: _Subject) -> Findings:
    if wheel.pack is not None:
        yield from descriptor_faults(wheel.pack.descriptor, subject.identity, wheel.file)


def _wrong_images(wheel: WheelFacts, subject: _Subject) -> Findings:
    pack, table = wheel.pack, subject.table
    if pack is None or table is None:
        return
    # A pack of another split differs in every image; the finding about its descriptor is enough.
    if pack.descriptor.build_id == table.descriptor.build_id:
        yield from image_faults(wheel, table)


def _wrong_meta(wheel: WheelFacts, subject: _Subject) -> Findings:
    if wheel.metadata is not None:
        yield from meta_faults(wheel.file, wheel.metadata, wheel.members, subject.identity)


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelCheck:
    """A check of one wheel.

    Attributes:
        roles: the roles of wheels that are checked.
        kind: the kind of releases that is checked; None for both.
    """

    find: Callable[[WheelFacts, _Subject], Findings]
    roles: tuple[Role, ...] = _ROLES
    kind: ReleaseKind | None = None


WHEEL_CHECKS = (
    WheelCheck(find=_wrong_version),
    # The core of a split keeps upstream's tags, licenses, files and requirements.
    WheelCheck(find=_wrong_python_tag, kind=BUILT),
    WheelCheck(find=_wrong_python_tag, kind=SPLIT, roles=_META),
    WheelCheck(find=_wrong_platform_tag, kind=BUILT),
    WheelCheck(find=_wrong_root, kind=BUILT),
    WheelCheck(find=_missing_license, kind=BUILT),
    WheelCheck(find=_missing_license, kind=SPLIT, roles=(*_PLUGIN, *_META)),
    WheelCheck(find=_wrong_name, roles=_CORE),
    WheelCheck(find=_missing_loader, roles=_CORE),
    WheelCheck(find=_wrong_core_files, roles=_CORE, kind=BUILT),
    WheelCheck(find=_code_in_core, roles=_CORE, kind=BUILT),
    WheelCheck(find=_unconditional_pin, roles=_CORE, kind=BUILT),
    WheelCheck(find=_wrong_extras, roles=_CORE, kind=BUILT),
    WheelCheck(find=_missing_pins, roles=_CORE, kind=SPLIT),
    WheelCheck(find=_wrong_plugin_files, roles=_PLUGIN),
    WheelCheck(find=_wrong_library, roles=_PLUGIN, kind=BUILT),
    WheelCheck(find=_wrong_digest, roles=_PLUGIN, kind=BUILT),
    WheelCheck(find=_wrong_descriptor, roles=(*_CORE, *_PLUGIN), kind=SPLIT),
    WheelCheck(find=_wrong_images, roles=_PLUGIN, kind=SPLIT),
    WheelCheck(find=_wrong_plugin_pins, roles=_PLUGIN),
    WheelCheck(find=_wrong_meta, roles=_META),
)
"""Checks of each wheel, in the order of their findings."""


def _duplicates(subject: _Subject) -> Findings:
    projects = (wheel.name.project for wheel in subject.release.wheels)
    yield from duplicate_faults(projects)


def _other_glibc(subject: _Subject) -> Findings:
    """Find plugins that can't be installed on each system of the core."""
    # Only published wheels meet systems of other ages.
    if not subject.scope.published or len(subject.release.cores) != 1:
        return
    core = subject.release.cores[0]
    known = PlatformTags.parse(core.name.platforms)
    for wheel in subject.release.plugins.values():
        tags = PlatformTags.parse(wheel.name.platforms)
        if known is not None and tags is not None and tags.glibc > known.glibc:
            low, (major, minor) = known.policy.replace("_", "."), tags.glibc
            found = f"with glibc {low} to {major}.{minor - 1} pip finds the core, but no plugin"
            yield finding("other-glibc", wheel.file, found, policy=tags.policy)


def _missing_plugins(subject: _Subject) -> Findings:
    identity, needs = subject.identity, subject.needs
    wanted = subject.scope.wanted(identity)
    for gpu in sorted(set(wanted or ()) - set(identity.plugins_by_gpu)):
        yield finding("unknown-target", gpu, "the core names no plugin for it")
    present = subject.release.projects
    for name in sorted({name for names in needs.values() for name in names}):
        project = identity.plugins.get(name, name)
        if project not in present:
            gpus = ", ".join(gpu for gpu, names in needs.items() if name in names)
            place = f" for {subject.release.place}" if subject.release.place else ""
            found = f"no wheel{place}, but the core names it for {gpus}"
            yield finding("missing-plugin", project, found, target=name)


def _missing_images(subject: _Subject) -> Findings:
    table, plugins = subject.table, subject.release.plugins
    packs = {name: wheel.pack for name, wheel in plugins.items() if wheel.pack is not None}
    if table is None:
        return
    keys = {
        name: frozenset(key for key, _ in pack.images_in(table)) for name, pack in packs.items()
    }
    core = subject.release.cores[0].file
    containers = targets_by_container(table)
    # One capability stands for all that no release knows yet.
    needs = {**subject.needs, "99.0": ptx_packs(subject.identity.packs)}
    for capability, names in needs.items():
        # A pack that is missing or damaged has a finding of its own.
        if names and keys.keys() >= set(names):
            found = frozenset().union(*(keys[name] for name in names))
            needed = needed_containers(table, containers, capability)
            yield from service_faults(needed, found, capability, core)
    total, covered = count_images(subject.release)
    if subject.scope.complete and covered < total:
        found_text = f"images in no pack: {total - covered} of {total}"
        yield finding("missing-image", core, found_text)


def _wrong_table(subject: _Subject) -> Findings:
    # Only a split that has just been made has its fat wheels at hand.
    if subject.table is not None and subject.scope.originals:
        originals = subject.scope.originals[subject.release.cores[0].file]
        yield from table_faults(subject.table, originals)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseCheck:
    """A check of all wheels together; `kind` is None if the check is for both kinds."""

    find: Callable[[_Subject], Findings]
    kind: ReleaseKind | None = None


RELEASE_CHECKS = (
    ReleaseCheck(find=_duplicates),
    ReleaseCheck(find=_other_glibc),
    ReleaseCheck(find=_missing_plugins),
    ReleaseCheck(find=_missing_images, kind=SPLIT),
    ReleaseCheck(find=_wrong_table, kind=SPLIT),
)
"""Checks of all wheels together."""


def release_faults(release: WheelSet, scope: CheckScope) -> Findings:
    """Run all checks on the wheels of a folder: first on each wheel, then on all together."""
    yield from release.damaged
    yield from core_faults(release)
    # A fault of a pack is found once for each core that takes it.
    found = (fault for view in release.views for fault in _view_faults(view, scope))
    yield from dict.fromkeys(found)


def _view_faults(release: WheelSet, scope: CheckScope) -> Findings:
    """Carry out all checks on the wheels that an installer takes for one core."""
    # Without an identity there is nothing to compare with; `core_faults` has the reason.
    if release.identity is None:
        return
    subject = _Subject(release=release, identity=release.identity, scope=scope)
    # Hashing releases the interpreter lock, so two wheels are checked at a time.
    with ThreadPool(2) as workers:
        for found in workers.map(lambda wheel: [*_wheel_faults(wheel, subject)], release.wheels):
            yield from found
    for check in RELEASE_CHECKS:
        if check.kind in {None, release.kind}:
            yield from check.find(subject)


def _wheel_faults(wheel: WheelFacts, subject: _Subject) -> Findings:
    release = subject.release
    role = release.role(wheel)
    # No further checks: each of them would add a finding that repeats this one.
    if role is None:
        names = ", ".join(sorted(subject.identity.plugins.values()))
        found = f"is neither the core nor one of its plugins ({names})"
        yield finding("not-of-release", wheel.file, found)
        return
    for check in WHEEL_CHECKS:
        if role in check.roles and check.kind in {None, release.kind}:
            yield from check.find(wheel, subject)


def count_images(release: WheelSet) -> tuple[int, int]:
    """Count the images of all fat wheels, and those that are in a pack."""
    total = covered = 0
    for view in release.views:
        table = view.cores[0].pack if view.cores else None
        packs = filter(None, (wheel.pack for wheel in view.plugins.values()))
        if table is not None:
            listed = {key for key, _ in table.images()}
            held = {key for pack in packs for key, _ in pack.images_in(table)}
            total, covered = total + len(listed), covered + len(listed & held)
    return total, covered
