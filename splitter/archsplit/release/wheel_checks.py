"""Checks of wheels against the core's identity, the same for built and split releases.

In: the metadata of wheels, and the identity of their core. Out: findings, none if all is well.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from archsplit.nvcc.cuda_libraries import is_cuda_wheel
from archsplit.release.findings import finding
from archsplit.release.requirements import meta_pin, plugin_extras, plugin_pins
from archsplit.wheels.filename import distribution_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from packaging.metadata import Metadata
    from packaging.requirements import Requirement

    from archsplit.release.identity import Identity
    from archsplit.system.finding import Finding

__pure__ = True


def duplicate_faults(projects: Iterable[str]) -> Iterator[Finding]:
    """Find distributions with several wheels: an installer would take either."""
    for project, count in Counter(projects).items():
        if count > 1:
            yield finding("duplicate-wheel", project, f"{count} wheels")


def plugin_pin_faults(
    file: str, metadata: Metadata, identity: Identity, plugin: str
) -> Iterator[Finding]:
    """Check that a plugin requires exactly its core, and the packs that it builds on.

    A plugin may also require NVIDIA's wheels with the libraries of CUDA that it is linked with.
    """
    used = {_text(each) for each in metadata.requires_dist or [] if is_cuda_wheel(each.name)}
    expected = {"": {*plugin_pins(identity, plugin), *used}}
    yield from requirement_faults(file, metadata, expected)


def meta_faults(
    file: str, metadata: Metadata, members: Iterable[str], identity: Identity
) -> Iterator[Finding]:
    """Check that a meta wheel requires the core with every plugin, and installs nothing."""
    expected = {"": {meta_pin(identity.distribution, identity.version)}}
    yield from requirement_faults(file, metadata, expected)
    for name in members:
        found = f"installs {name}; a meta wheel has no files"
        yield finding("wrong-files", file, found)


def requirement_faults(
    file: str, metadata: Metadata, expected: Mapping[str, AbstractSet[str]]
) -> Iterator[Finding]:
    """Compare the requirements of a wheel, extra by extra.

    Args:
        expected: the requirements of each extra beyond the wheel's own, which have
            the key "".
    """
    requirements = metadata.requires_dist or []
    always = {_text(each) for each in requirements if requirement_holds(each, "")}
    for extra, wanted in sorted(expected.items()):
        required = {_text(each) for each in requirements if requirement_holds(each, extra)}
        # An extra repeats the requirements that always hold.
        required = required - always if extra else always
        if required != wanted:
            where = f"[{extra}] " if extra else ""
            found = f"{where}requires {', '.join(sorted(required)) or 'nothing'}"
            yield finding("wrong-requirement", file, found, ", ".join(sorted(wanted)))
    yield from _undeclared_extras(file, metadata, set(expected) - {""})


def pin_faults(file: str, metadata: Metadata, identity: Identity) -> Iterator[Finding]:
    """Check that a core's extras bring every plugin, each in exactly the core's version.

    A core that was split keeps the requirements of its fat wheel, so that others are allowed.

    Args:
        file: the core's wheel.
    """
    version = str(metadata.version)
    yield from _incomplete_extras(file, metadata, identity)
    yield from _undeclared_extras(file, metadata, set(plugin_extras(identity)))
    for each in metadata.requires_dist or []:
        is_plugin = distribution_name(each.name) in identity.plugins.values()
        if is_plugin and str(each.specifier) != f"=={version}":
            yield finding("loose-pin", file, f"requires {each}", f"exactly =={version}")


def _incomplete_extras(file: str, metadata: Metadata, identity: Identity) -> Iterator[Finding]:
    for extra, plugins in sorted(plugin_extras(identity).items()):
        wanted = {identity.plugins[one] for one in plugins if one in identity.plugins}
        required = {
            each.name for each in metadata.requires_dist or [] if requirement_holds(each, extra)
        }
        for name in sorted(wanted - required):
            yield finding("incomplete-extra", file, f"[{extra}] doesn't bring {name}")


def _undeclared_extras(
    file: str, metadata: Metadata, extras: AbstractSet[str]
) -> Iterator[Finding]:
    for extra in sorted(extras - set(map(str, metadata.provides_extra or []))):
        yield finding("undeclared-extra", file, f"doesn't declare the extra {extra}")


def requirement_holds(requirement: Requirement, extra: str) -> bool:
    """Return True if a requirement counts for an extra; "" stands for no extra."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _text(requirement: Requirement) -> str:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"
