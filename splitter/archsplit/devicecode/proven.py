"""Libraries of which a GPU has proven that ``slim --unregistered zero`` changes no result.

Evidence: ``tests/gpu/evidence`` has for each row the GPU, the operations that gave the same bytes
before and after, and the digests. ``nox -s gpu_tests`` makes it, and a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.arch.target import Capability
from archsplit.system.fs import hex_digest

if TYPE_CHECKING:
    from archsplit.devicecode.select import Selection
    from archsplit.formats.reader import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenLibrary:
    """A library, by the digest of its file, and the GPUs of its evidence."""

    name: str
    distribution: str
    version: str
    sha256: str
    capabilities: tuple[Capability, ...]


PROVEN_LIBRARIES = (
    ProvenLibrary(
        name="libcublasLt.so.13",
        distribution="nvidia-cublas",
        version="13.1.0.3",
        sha256="656298c804f5adbb0df930545c17911b9584ab4e5101c0eeb65d1fe881d880f8",
        capabilities=(Capability(9, 0),),
    ),
    ProvenLibrary(
        name="libcusparse.so.12",
        distribution="nvidia-cusparse",
        version="12.6.3.3",
        sha256="09339f848f60bb1111a61ee0fe91ed0c25132b7ff63298244d7ac14e61b58466",
        capabilities=(Capability(9, 0),),
    ),
    ProvenLibrary(
        name="libcudnn_engines_precompiled.so.9",
        distribution="nvidia-cudnn-cu13",
        version="9.19.0.56",
        sha256="7f8ce268b43c0fab298cc43854a006195bc16c0ed43bedf63b11f3699e92c6ae",
        capabilities=(Capability(9, 0),),
    ),
    ProvenLibrary(
        name="libcusparseLt.so.0",
        distribution="nvidia-cusparselt-cu13",
        version="0.8.0",
        sha256="31d5cecfeca7e52228779a5b2ba3e42f01b24319a8c4e14f6cfc44b4302625eb",
        capabilities=(Capability(9, 0),),
    ),
)
"""All of them, by distribution."""


def is_proven(window: Window, selection: Selection) -> bool:
    """Return True if a library's unused code may become zeros without being asked for.

    Only for a choice by GPUs that the evidence is about: another GPU takes other code.
    """
    if not selection.devices:
        return False
    found = [
        library.sha256
        for library in PROVEN_LIBRARIES
        if selection.devices <= frozenset(library.capabilities)
    ]
    return bool(found) and hex_digest([window.data]) in found
