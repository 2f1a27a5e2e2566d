"""Whether the wheels of a folder are those that its manifest lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from splitter.errors import InputError
from splitter.findings import finding
from splitter.provenance.manifest import FILE_NAME, read_manifest
from splitter.splitting.release import wheels_in
from splitter.system.files import sha256

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from splitter.errors import Finding
    from splitter.findings import ReleaseKind


def manifest_faults(folder: Path, kind: ReleaseKind) -> Iterator[Finding]:
    """Compare a folder with its manifest; a folder without one has no fault by that."""
    if not (folder / FILE_NAME).exists():
        return
    try:
        manifest = read_manifest(folder / FILE_NAME)
    except InputError as error:
        yield finding(kind, "unreadable-report", "", error.message)
        return
    listed = {wheel.file: wheel for wheel in manifest.wheels}
    here = {path.name: path for path in wheels_in(folder)}
    for name in sorted(set(listed) - set(here)):
        yield finding(kind, "missing-file", name, f"{FILE_NAME} lists it, but it is not here")
    for name in sorted(set(here) - set(listed)):
        yield finding(kind, "not-in-report", name, f"{FILE_NAME} doesn't list it")
    for name in sorted(set(here) & set(listed)):
        if (found := sha256(here[name])) != listed[name].sha256:
            expected = listed[name].sha256
            text = f"has SHA-256 {found[:16]}…, but {FILE_NAME} says {expected[:16]}…"
            yield finding(kind, "changed-file", name, text)
