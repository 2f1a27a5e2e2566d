"""Moved from archsplit.build.provenance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.release.sbom import BillComponent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.release.manifest import Tool
from importlib.metadata import version
from typing import TYPE_CHECKING

from archsplit.release.manifest import Tool

if TYPE_CHECKING:
    from collections.abc import Iterator


_OWN_PACKAGES = ("archsplit", "cyclonedx-python-lib", "deflate", "ziglang")


def own_tools() -> Iterator[Tool]:
    """What archsplit itself decides bytes with."""
    for name in _OWN_PACKAGES:
        yield Tool(name=name, version=version(name))


LOADER = "archsplit-loader"


def loader_part(sha256_of_it: str, version: str) -> BillComponent:
    """The loader that every core carries."""
    return BillComponent(
        name=LOADER,
        version=version,
        sha256=sha256_of_it,
        license="Apache-2.0",
        description="Finds, checks, chooses and opens plugins; part of archsplit.",
    )
