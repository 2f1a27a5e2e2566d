"""What a release promises: whose wheels, which targets, which pins; pure.

Every function gives faults as text, nothing where all is well; the reader of the files
(`splitter.stages.verify`) adds where.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from splitter.arch.target import CodeKind, Target
from splitter.identity import FACE_FOLDER, FILE_NAME, HOOK_FOLDER, LOADER_LIBRARY
from splitter.wheels.names import ALL_EXTRA, extra_name, plugin_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from packaging.metadata import Metadata
    from packaging.requirements import Requirement

    from splitter.devicecode.library import Library
    from splitter.identity import Identity
    from splitter.wheels.names import WheelName

__pure__ = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A wheel, as far as a release is judged by it.

    Attributes:
        name: what its file name says.
        members: what it installs, without its own folder.
        licenses: the licence files in its own folder.
        identity: of the core that it is; None for other wheels.
        libraries: what each ELF file in it holds, by its path in the wheel.
        platforms: what auditwheel makes of those libraries; none where there is no library.
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
    seen: tuple[Seen, ...], identity: Identity, targets: tuple[Target, ...] | None
) -> Iterator[str]:
    """What is wrong with a set of wheels, each for itself and all together.

    Args:
        targets: whose plugins must be there; None for all that the core names.
    """
    wanted = set(identity.targets) if targets is None else {str(target) for target in targets}
    plugins = {project: target for target, project in identity.targets.items()}
    for one in seen:
        yield from (f"{one.file}: {fault}" for fault in _wheel_faults(one, identity, plugins))
    counts = Counter(one.name.project for one in seen)
    yield from (f"{project}: {count} wheels" for project, count in counts.items() if count > 1)
    for target in sorted(wanted - set(identity.targets)):
        yield f"{target}: the core names no plugin for it"
    for target in sorted(wanted & set(identity.targets)):
        if identity.targets[target] not in counts:
            name = identity.targets[target]
            yield (
                f"{name}: no wheel, but the core names it for {target}; build it with"
                f" --targets {target}"
            )


def _wheel_faults(one: Seen, identity: Identity, plugins: Mapping[str, str]) -> Iterator[str]:
    yield from _common_faults(one, identity)
    project = one.name.project
    if one.identity is not None:
        yield from _core_faults(one, identity)
    elif project in plugins:
        yield from _plugin_wheel_faults(one, identity, plugins[project])
    elif project == f"{identity.package}-{ALL_EXTRA}":
        wanted = f"{identity.distribution}[{ALL_EXTRA}]=={identity.version}"
        yield from _requirement_faults(one, {"": {wanted}})
        yield from (f"installs {name}; a meta wheel has no files" for name in one.members)
    else:
        yield f"is neither the core nor one of its plugins ({', '.join(sorted(plugins))})"


def _common_faults(one: Seen, identity: Identity) -> Iterator[str]:
    name = one.name
    if str(one.metadata.version) != identity.version:
        yield f"is version {one.metadata.version}, expected {identity.version}"
    if (name.pythons, name.abis) != (("py3",), ("none",)):
        yield f"is tagged {'.'.join(name.pythons)}-{'.'.join(name.abis)}, expected py3-none"
    if one.platforms and name.platforms != one.platforms:
        found, expected = ".".join(name.platforms), ".".join(one.platforms)
        yield f"is tagged {found}, but auditwheel says {expected}"
    if one.purelib == bool(one.libraries):
        yield f"says Root-Is-Purelib: {one.purelib}, and has {len(one.libraries)} libraries"
    for file in sorted(set(one.metadata.license_files or []) - set(one.licenses)):
        yield f"has no {file}, but its metadata names it as a licence"


def _core_faults(one: Seen, identity: Identity) -> Iterator[str]:
    if one.name.project != identity.distribution:
        yield f"is {one.name.project}, but its {FILE_NAME} says {identity.distribution}"
    package = identity.import_package
    face = ("__init__.py", "doctor.py", FILE_NAME, LOADER_LIBRARY)
    needed = {f"{package}/doctor.py", *(f"{package}/{FACE_FOLDER}/{name}" for name in face)}
    yield from (f"has no {name}" for name in sorted(needed - set(one.members)))
    hook = f"{identity.plugins_package}/{HOOK_FOLDER}/"
    for name in one.members:
        if not name.startswith((f"{package}/", hook)):
            yield f"installs {name}, which is not below {package}/"
    for name, library in one.libraries.items():
        if library.targets:
            yield f"{name} has device code; a core has none"
    for requirement in one.metadata.requires_dist or []:
        if requirement.name in identity.targets.values() and _holds(requirement, ""):
            yield f"requires {_text(requirement)} always; only extras may"
    pins = {target: f"{name}=={identity.version}" for target, name in identity.targets.items()}
    extras = {str(extra_name(target)): {pin} for target, pin in pins.items()}
    yield from _requirement_faults(one, {ALL_EXTRA: set(pins.values()), **extras})


def _plugin_wheel_faults(one: Seen, identity: Identity, target: str) -> Iterator[str]:
    expected = plugin_path(identity.import_package, target, identity.library)
    if one.members != (expected,):
        yield f"installs {', '.join(one.members) or 'nothing'}, expected {expected} alone"
    for library in one.libraries.values():
        yield from plugin_faults(library, Target.parse(target), identity)
    yield from _requirement_faults(one, {"": {f"{identity.distribution}=={identity.version}"}})


def plugin_faults(library: Library, target: Target, identity: Identity) -> Iterator[str]:
    """What is wrong with a plugin's library: whose it is, and what code is in it."""
    descriptor = library.descriptor
    if descriptor is None:
        yield "has no descriptor"
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
                yield f"its descriptor says {key} {found[key]}, expected {value}"
    yield from _code_faults(library, target)


def _code_faults(library: Library, target: Target) -> Iterator[str]:
    if not library.targets:
        yield f"has no device code, expected {target}"
        return
    # A device link puts machine code into one container and leaves those that it read empty; PTX
    # stays in these, for the driver to link.
    used, left = library.containers, library.relocatable
    if target.kind is CodeKind.PTX and library.relocatable:
        used, left = left, used
    for number, held in enumerate((*used, *left)):
        for foreign in sorted(held - {target}):
            yield f"container {number} has foreign code for {foreign}, expected {target} alone"
        if (target in held) != (number < len(used)):
            what = "no code" if number < len(used) else "left-over code"
            yield f"container {number} has {what} for {target}"


def _requirement_faults(one: Seen, expected: Mapping[str, set[str]]) -> Iterator[str]:
    """Compare what a wheel requires, extra by extra; "" is what it requires always."""
    requirements = one.metadata.requires_dist or []
    always = {_text(each) for each in requirements if _holds(each, "")}
    for extra, wanted in sorted(expected.items()):
        held = {_text(each) for each in requirements if _holds(each, extra)}
        held = held - always if extra else always
        if held != wanted:
            where = f"[{extra}] " if extra else ""
            found = ", ".join(sorted(held)) or "nothing"
            yield f"{where}requires {found}, expected {', '.join(sorted(wanted))}"
    declared = set(one.metadata.provides_extra or [])
    for extra in sorted(set(expected) - {""} - declared):
        yield f"doesn't declare the extra {extra}"


def _holds(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _text(requirement: Requirement) -> str:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"
