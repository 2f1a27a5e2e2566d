"""Whether the wheels of a folder are those that its manifest lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from splitter.errors import InputError
from splitter.provenance.manifest import FILE_NAME, read_manifest
from splitter.splitting.release import wheels_in
from splitter.system.files import sha256

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def manifest_faults(folder: Path) -> Iterator[str]:
    """Compare a folder with its manifest; a folder without one has no fault by that."""
    if not (folder / FILE_NAME).exists():
        return
    try:
        manifest = read_manifest(folder / FILE_NAME)
    except InputError as error:
        yield f"{error}; build or split again, or remove it"
        return
    listed = {wheel.file: wheel for wheel in manifest.wheels}
    here = {path.name: path for path in wheels_in(folder)}
    for name in sorted(set(listed) - set(here)):
        yield f"{name}: {FILE_NAME} lists it, but it is not here; build it again"
    for name in sorted(set(here) - set(listed)):
        yield f"{name}: {FILE_NAME} doesn't list it; take it out of the folder"
    for name in sorted(set(here) & set(listed)):
        if (found := sha256(here[name])) != listed[name].sha256:
            expected = listed[name].sha256
            yield (
                f"{name}: has SHA-256 {found[:16]}…, but {FILE_NAME} says {expected[:16]}…; "
                "build it again, or take it from where the others come from"
            )
