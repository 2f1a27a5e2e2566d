"""Moved from archsplit.split.origin."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from archsplit.wheels.reader import Wheel


_SITE_PACKAGES = ("purelib", "platlib")


def installed_place(wheel: Wheel, member: str) -> str | None:
    """Where a member is once it is installed, in site-packages; None for what goes elsewhere."""
    data = f"{wheel.dist_info.removesuffix('.dist-info')}.data/"
    if not member.startswith(data):
        return member
    scheme, _, rest = member[len(data) :].partition("/")
    return rest if scheme in _SITE_PACKAGES else None
