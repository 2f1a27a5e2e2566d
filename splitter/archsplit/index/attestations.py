"""Attestations beside a file: whether they are its own; pure but for reading them."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

from archsplit.system.fs import read_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.index.release import Artifact


def attestation_faults(artifact: Artifact) -> Iterator[str]:
    """Attestations of other files: the index would refuse them, but only half-way through.

    Their signatures are the index's to check. Source of the format: PEP 740.
    """
    for path in artifact.attestations:
        if artifact.sha256 not in _subjects(read_file(path)):
            yield f"{path.name} does not attest {artifact.path.name} as it is now"


def _subjects(content: bytes) -> set[str]:
    """The digests of what is attested; none where it can't be read."""
    try:
        statement = json.loads(base64.b64decode(json.loads(content)["envelope"]["statement"]))
        return {str(one["digest"]["sha256"]) for one in statement["subject"]}
    except (ValueError, KeyError, TypeError, RecursionError):
        return set()
