"""Finished wheels, looked into and changed: what a release's checks have to find."""

from __future__ import annotations

import hashlib
import zipfile
from typing import TYPE_CHECKING

from archsplit.wheels import record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def only(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


def member(wheel: Path, suffix: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(suffix))
        return archive.read(name)


def rewrite(wheel: Path, change: Callable[[str, bytes], bytes]) -> None:
    """Change members of a wheel, and make RECORD fit again, as a careless tool would."""
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    changed = {name: change(name, content) for name, content in members.items()}
    name = next(name for name in members if name.endswith("RECORD"))
    rows = [
        record.RecordRow(path=path, digest=hashlib.sha256(content).digest(), size=len(content))
        for path, content in changed.items()
        if path != name
    ]
    changed[name] = record.encode_record([*rows, record.RecordRow(path=name)])
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in changed.items():
            archive.writestr(path, content)


def in_metadata(old: bytes, new: bytes) -> Callable[[str, bytes], bytes]:
    return lambda name, content: content.replace(old, new) if name.endswith("METADATA") else content
