"""Requirements between the wheels of a release: extras, pins and the meta wheel.

A core has one extra for each GPU target or capability, and ``all``. Each brings plugins in exactly
the core's version, as a plugin requires exactly its core: wheels of two builds never mix. Built and
split releases follow the same rules.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from archsplit.arch.target import Capability
from archsplit.devicecode.partition import (
    PTX_PACK,
    UNUSED_PACKS,
    capability_extra,
    ptx_packs,
    required_packs,
)
from archsplit.release.identity import ReleaseKind
from archsplit.wheels.filename import ALL_EXTRA, WheelName, distribution_name, extra_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from archsplit.release.identity import Identity
    from archsplit.wheels.metadata import CoreMetadata

__pure__ = True


def exact_pin(distribution: str, version: str) -> str:
    """Return the requirement of exactly one version."""
    return f"{distribution}=={version}"


def target_extras(targets: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the targets that each extra of a built core brings.

    >>> target_extras(["sm_80", "sm_90"])
    {'all': ('sm_80', 'sm_90'), 'sm80': ('sm_80',), 'sm90': ('sm_90',)}
    """
    names = tuple(targets)
    return {ALL_EXTRA: names, **{str(extra_name(name)): (name,) for name in names}}


def pack_extras(
    packs: Iterable[str], needs: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """Return the packs that each extra of a split's core brings.

    Args:
        packs: the names of all packs.
        needs: the packs of each capability.

    >>> pack_extras(["cc90", "ptx", "rest"], {"9.0": ["cc90"]})
    {'cc90': ('cc90',), 'ptx': ('ptx',), 'all': ('cc90', 'ptx')}
    """
    wanted = tuple(name for name in packs if name not in UNUSED_PACKS)
    extras = {capability_extra(Capability.parse(one)): tuple(names) for one, names in needs.items()}
    # Future GPUs have no capability here, so their pack has an extra of its own.
    newest = ptx_packs(wanted)
    return {**extras, **({PTX_PACK: newest} if newest else {}), ALL_EXTRA: wanted}


def plugin_extras(identity: Identity) -> dict[str, tuple[str, ...]]:
    """Return the targets or packs that each extra of a core brings."""
    if identity.kind is ReleaseKind.SPLIT:
        return pack_extras(identity.packs, identity.needs)
    return target_extras(identity.targets)


def pinned_extras(
    extras: Mapping[str, Sequence[str]], distributions: Mapping[str, str], version: str
) -> dict[str, tuple[str, ...]]:
    """Return the requirements of each extra.

    Args:
        extras: the plugins that each brings.
        distributions: of the plugins; a plugin that is missing here has no requirement.
    """
    return {
        extra: tuple(
            exact_pin(distributions[one], version) for one in plugins if one in distributions
        )
        for extra, plugins in extras.items()
    }


def dropped_extras(
    dropped: Iterable[str], project: str, version: str
) -> dict[str, tuple[str, ...]]:
    """Return the requirements of extras whose plugins only earlier releases have.

    They ask for a plugin of this version, which doesn't exist. So an update of such an extra leaves
    the earlier core and its plugin installed.

    >>> dropped_extras(["cc70"], "foo", "1.12")
    {'cc70': ('foo-cc70==1.12',)}
    """
    return {extra: (exact_pin(f"{project}-{extra}", version),) for extra in sorted(set(dropped))}


def plugin_pins(identity: Identity, plugin: str) -> tuple[str, ...]:
    """Return the requirements of a plugin: its core, and the packs that it is of no use without."""
    shared = required_packs(identity.packs, identity.needs.values(), plugin)
    names = (identity.packs[one].distribution for one in shared if one in identity.packs)
    return tuple(exact_pin(name, identity.version) for name in (identity.distribution, *names))


def meta_name(core: WheelName) -> WheelName:
    """Return the file name of the meta wheel: ``<core>-all``, for any machine."""
    project = distribution_name(f"{core.project}-{ALL_EXTRA}")
    return WheelName(project=project, version=core.version, platforms=("any",), build=core.build)


def meta_pin(distribution: str, version: str) -> str:
    """Return the requirement of a core with every plugin."""
    return exact_pin(f"{distribution}[{ALL_EXTRA}]", version)


def meta_metadata(core: CoreMetadata) -> CoreMetadata:
    """Return the metadata of the wheel that requires a core and every plugin.

    Args:
        core: metadata with what all distributions of the project have in common.
    """
    return replace(
        core,
        name=f"{core.name}-{ALL_EXTRA}",
        summary=f"{core.name} with the device code for every GPU that it supports.",
        requires=(meta_pin(core.name, core.version),),
        extras={},
    )
