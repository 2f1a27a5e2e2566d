"""Hold installed libraries against what RECORD says of them."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

from archsplit.errors import WheelError
from archsplit.system.fs import blocks, input_errors
from archsplit.wheels.record import ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from archsplit.slim.installed import Owned


def digests_of(owned: Iterable[Owned], *, believe_record: bool) -> dict[str, str]:
    """Give the SHA-256 of each library, by its path, if RECORD has the same.

    Args:
        owned: the libraries.
        believe_record: False takes those that aren't what RECORD has the hash of, too.

    Raises:
        WheelError: some are not what RECORD says; the message lists all.
        InputError: one can't be read.
    """
    digests: dict[str, str] = {}
    findings: list[str] = []
    for each in owned:
        algorithms = {claim.row.hash_text.partition("=")[0] for claim in each.claims}
        known = (algorithms & ALGORITHMS.keys()) | {"sha256"}
        found = _hashes(each.library.path, sorted(known))
        digests[each.library.name] = found["sha256"].hex()
        if believe_record:
            findings += _disagreements(each, found)
    if findings:
        raise WheelError(
            "\n".join(findings),
            hint="install it anew, or slim it as it is with --ignore-record",
        )
    return digests


def _disagreements(owned: Owned, found: dict[str, bytes]) -> Iterator[str]:
    size = len(owned.library.plan.window)
    for claim in owned.claims:
        algorithm, _, text = claim.row.hash_text.partition("=")
        digest = base64.urlsafe_b64encode(found.get(algorithm, b"")).decode().rstrip("=")
        if not text or text != digest or claim.row.size not in {"", str(size)}:
            record = claim.distribution.record
            yield f"{owned.library.name} is not what {record} has the hash of"


def _hashes(path: Path, algorithms: Iterable[str]) -> dict[str, bytes]:
    digests = {name: hashlib.new(name) for name in algorithms}
    with input_errors(path), path.open("rb") as file:
        for block in blocks(file):
            for digest in digests.values():
                digest.update(block)
    return {name: digest.digest() for name, digest in digests.items()}
