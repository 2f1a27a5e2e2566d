"""Whether the wheels of a folder are those that its manifest lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.errors import InputError
from archsplit.release.findings import finding
from archsplit.release.manifest import MANIFEST_FILE, read_manifest
from archsplit.release.split_read import wheels_in
from archsplit.system.fs import sha256

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from archsplit.errors import Finding
    from archsplit.release.findings import ReleaseKind


def manifest_faults(folder: Path, kind: ReleaseKind) -> Iterator[Finding]:
    """Compare a folder with its manifest; a folder without one has no fault by that."""
    if not (folder / MANIFEST_FILE).exists():
        return
    try:
        manifest = read_manifest(folder / MANIFEST_FILE)
    except InputError as error:
        yield finding(kind, "unreadable-report", "", error.message)
        return
    listed = {wheel.file: wheel for wheel in manifest.wheels}
    here = {path.name: path for path in wheels_in(folder)}
    for name in sorted(set(listed) - set(here)):
        yield finding(kind, "missing-file", name, f"{MANIFEST_FILE} lists it, but it is not here")
    for name in sorted(set(here) - set(listed)):
        yield finding(kind, "not-in-report", name, f"{MANIFEST_FILE} doesn't list it")
    for name in sorted(set(here) & set(listed)):
        if (found := sha256(here[name])) != listed[name].sha256:
            expected = listed[name].sha256
            text = f"has SHA-256 {found[:16]}…, but {MANIFEST_FILE} says {expected[:16]}…"
            yield finding(kind, "changed-file", name, text)
