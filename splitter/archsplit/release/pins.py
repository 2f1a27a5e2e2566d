"""Whether what a split core's extras require is there, exactly; pure."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from archsplit.arch.target import Capability
from archsplit.devicecode.partition import PTX, REST, extra_of
from archsplit.release.findings import ReleaseKind, finding
from archsplit.wheels.filename import ALL_EXTRA, distribution_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from packaging.metadata import Metadata
    from packaging.requirements import Requirement

    from archsplit.errors import Finding
    from archsplit.release.split_read import SplitIdentity

__pure__ = True


_fault = partial(finding, ReleaseKind.SPLIT)


def pin_faults(
    file: str, metadata: Metadata, identity: SplitIdentity, present: Iterable[str]
) -> Iterator[Finding]:
    """What is wrong with the extras of a split's core.

    Args:
        file: the core's wheel.
        metadata: what it says of itself.
        identity: what its ``core.json`` says.
        present: the distributions that there are wheels of.
    """
    core, version, here = distribution_name(metadata.name), str(metadata.version), set(present)
    declared = set(map(str, metadata.provides_extra or []))
    requirements = metadata.requires_dist or []
    own = {pack.distribution for pack in identity.packs.values()}
    for extra, packs in sorted(expected_extras(identity).items()):
        wanted = {identity.packs[pack].distribution for pack in packs if pack in identity.packs}
        held = {each.name: each for each in requirements if _within(each, extra)}
        if extra not in declared:
            yield _fault("undeclared-extra", file, f"doesn't declare the extra {extra}")
        for name in sorted(wanted - set(held)):
            yield _fault("incomplete-extra", file, f"[{extra}] doesn't bring {name}")
    missing: dict[str, Requirement] = {}
    for each in requirements:
        name, exact = distribution_name(each.name), str(each.specifier) == f"=={version}"
        if name not in own and not (exact and name.startswith(f"{core}-")):
            continue
        if name not in here:
            missing.setdefault(name, each)
        elif not exact:
            yield _fault("loose-pin", file, f"requires {each}", f"exactly =={version}")
    for name, each in sorted(missing.items()):
        found = f"requires {each}, and there is no wheel of {name}"
        yield _fault("missing-requirement", file, found)


def expected_extras(identity: SplitIdentity) -> Mapping[str, tuple[str, ...]]:
    """The packs that each extra has to bring."""
    extras = {extra_of(Capability.parse(one)): names for one, names in identity.needs.items()}
    if PTX in identity.packs:
        extras[PTX] = (PTX,)
    return {**extras, ALL_EXTRA: tuple(name for name in identity.packs if name != REST)}


def _within(requirement: Requirement, extra: str) -> bool:
    if requirement.marker is None:
        return True
    return requirement.marker.evaluate({"extra": extra})
