"""The bill of materials of a mirror: each wheel, its original, and the edit between them; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.release.sbom import (
    Bill,
    BillComponent,
    distribution_address,
    encode_bill,
    own_tools,
    tool_component,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.mirror.model import MirroredWheel, MirrorState

__pure__ = True

BILL_FILE = "archsplit-mirror.cdx.json"
"""The bill beside the state."""


def mirror_bill(state: MirrorState) -> bytes:
    """Return the bill: a component for each file, with the original as its ancestor."""
    parts = [part for wheel in state.wheels for part in _components(wheel)]
    return encode_bill(
        Bill(
            subject=BillComponent(name="mirror", version="", description="A package index."),
            parts=tuple(sorted(parts, key=lambda part: part.address)),
            tools=tuple(map(tool_component, own_tools())),
        )
    )


def _components(wheel: MirroredWheel) -> Iterator[BillComponent]:
    original = wheel.original
    ancestor = BillComponent(
        name=wheel.name,
        version=wheel.version,
        sha256=original.sha256,
        license=original.license,
        address=distribution_address(wheel.name, wheel.version, file=original.file),
        description=original.url,
    )
    for file in wheel.files:
        # An unchanged wheel is the original itself, not a descendant of it.
        changed = file.sha256 != original.sha256
        yield BillComponent(
            name=file.name,
            version=file.version,
            sha256=file.sha256,
            license=original.license,
            address=distribution_address(file.name, file.version, file=file.file),
            ancestor=ancestor if changed else None,
            changes=f"archsplit {wheel.tool}: {wheel.edit}" if changed else "",
        )
