"""Checks of the device code in plugins: libraries for one target, and packs of images.

A plugin's library must have code for its target in each container, and for no other. A pack must
have only images of its core's table, byte for byte. Each capability must find in its packs the
image that it took of the fat wheel, container by container.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.arch.compat import best_target
from archsplit.arch.target import Capability, CodeKind, Target
from archsplit.devicecode.select import runs_linked_code
from archsplit.release.findings import finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from archsplit.devicecode.registered import ContainerImages, Library
    from archsplit.formats.descriptor import Descriptor
    from archsplit.formats.device_pack import ImageKey, Pack
    from archsplit.release.identity import Identity
    from archsplit.release.wheel_set import WheelFacts
    from archsplit.system.finding import Finding

    ContainerTargets = Mapping[
        tuple[int, int], tuple[frozenset[Target], Mapping[Target, list[ImageKey]]]
    ]
    """Targets of each container, and its images by target."""


def plugin_faults(
    library: Library, target: Target, identity: Identity, *, subject: str = ""
) -> Iterator[Finding]:
    """Check a plugin's library: its descriptor, and the code in it.

    Args:
        subject: of the findings; "" if only one library is checked.
    """
    # No early end: the device code is still checked.
    if library.descriptor is None:
        yield finding("missing-descriptor", subject, "has no descriptor")
    else:
        yield from descriptor_faults(library.descriptor, identity, subject)
        targets = ", ".join(map(str, library.descriptor.targets))
        if targets != str(target):
            found = f"its descriptor says targets {targets}"
            yield finding("foreign-build", subject, found, str(target))
    yield from _code_faults(library, target, subject)


def descriptor_faults(
    descriptor: Descriptor, identity: Identity, subject: str
) -> Iterator[Finding]:
    """Compare the descriptor of a library, a pack or a table with the core's identity."""
    for name, found, expected in (
        ("package", descriptor.package, identity.package),
        ("version", descriptor.version, identity.version),
        ("build id", descriptor.build_id.hex(), identity.build_id),
        ("interface hash", descriptor.interface_hash.hex(), identity.interface_hash),
    ):
        if found != expected:
            text = f"its descriptor says {name} {found}"
            yield finding("foreign-build", subject, text, expected)


def _code_faults(library: Library, target: Target, subject: str) -> Iterator[Finding]:
    if not library.targets:
        yield finding("missing-code", subject, "has no device code", str(target))
        return
    # A device link puts machine code into one container and leaves those that it read empty; PTX
    # stays in these, for the driver to link.
    used, left = library.containers, library.relocatable
    if target.kind is CodeKind.PTX and library.relocatable:
        used, left = left, used
    for number, targets in enumerate((*used, *left)):
        for foreign in sorted(targets - {target}):
            found = f"container {number} has foreign code for {foreign}"
            yield finding("foreign-code", subject, found, f"only {target}")
        is_used = number < len(used)
        if is_used and target not in targets:
            found = f"container {number} has no code for {target}"
            yield finding("missing-code", subject, found)
        if not is_used and target in targets:
            found = f"container {number} has left-over code for {target}"
            yield finding("foreign-code", subject, found)


def image_faults(wheel: WheelFacts, table: Pack) -> Iterator[Finding]:
    """Compare the images of a pack with the core's table, by digest."""
    listed, subject = dict(table.images()), wheel.file
    for key, image in () if wheel.pack is None else wheel.pack.images_in(table):
        row = listed.get(key)
        if row is None or (row.target, row.size) != (image.target, image.size):
            found = f"image {key} is not in the fat wheel"
            yield finding("foreign-image", subject, found)
        elif wheel.digests[image.offset] != row.digest or image.form != row.form:
            found = f"image {key} differs from the one in the fat wheel"
            yield finding("changed-image", subject, found)


def service_faults(
    containers: ContainerTargets,
    keys: frozenset[ImageKey],
    capability: str,
    subject: str,
) -> Iterator[Finding]:
    """Check that a capability finds its image of the fat wheel in each container.

    Args:
        containers: see `targets_by_container`.
        keys: the images in the packs of the capability.
    """
    device = Capability.parse(capability)
    # A library has thousands of containers and few different sets of targets.
    best_by_targets: dict[frozenset[Target], Target | None] = {}
    for place, (own, keys_by_target) in containers.items():
        if own not in best_by_targets:
            best_by_targets[own] = best_target(device, own)
        best = best_by_targets[own]
        # Only the best image counts: a worse one would run slower than before the split.
        if best is not None and not keys.issuperset(keys_by_target[best]):
            found = f"container {place} has no code for {capability}, which used {best}"
            yield finding("missing-image", subject, found)


def needed_containers(
    table: Pack, containers: ContainerTargets, capability: str
) -> ContainerTargets:
    """Return the containers without the link input that linked code replaces."""
    device, replaced = Capability.parse(capability), set()
    for i, library in enumerate(table.libraries):
        rows = [((i, j), row) for j, row in enumerate(library.containers)]
        if runs_linked_code((containers[at][0] for at, row in rows if row.is_linked), device):
            replaced |= {at for at, row in rows if row.is_input}
    return {at: one for at, one in containers.items() if at not in replaced}


def targets_by_container(table: Pack) -> ContainerTargets:
    """Return the targets of each container of a table, and the images of each target."""
    containers: dict[tuple[int, int], dict[Target, list[ImageKey]]] = {}
    for key, image in table.images():
        containers.setdefault(key[:2], {}).setdefault(image.target, []).append(key)
    return {place: (frozenset(found), found) for place, found in containers.items()}


def table_faults(table: Pack, originals: Mapping[str, ContainerImages]) -> Iterator[Finding]:
    """Compare the core's table with the images of the fat libraries that it lists."""
    for library in table.libraries:
        original = originals[library.name]
        # Different numbers make a comparison one by one meaningless.
        if len(original) != len(library.containers):
            found = f"containers: {len(library.containers)}"
            yield finding("wrong-table", library.name, found, str(len(original)))
            continue
        for index, (images, row) in enumerate(zip(original, library.containers, strict=True)):
            if images != tuple(image.original for image in row.images):
                found = f"the table's container {index} is not the fat library's"
                yield finding("wrong-table", library.name, found)
