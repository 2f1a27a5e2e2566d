"""Wheels with device code, as another tool than ours would have written them."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from typing import TYPE_CHECKING

from handmade_samples import THREE, Maker

if TYPE_CHECKING:
    from pathlib import Path

NAME = "fat-1.2.3-py3-none-manylinux_2_17_x86_64.whl"
METADATA = """\
Metadata-Version: 2.1
Name: fat
Version: 1.2.3
Summary: Much device code
Description-Content-Type: text/plain

A page about it.
"""
TEXT = "from pathlib import Path\n" * 40


def wheel_text(name: str, more: str = "") -> str:
    tags = name.removesuffix(".whl").split("-")[-3:]
    return f"Wheel-Version: 1.0\nGenerator: other 1\nRoot-Is-Purelib: false\n{more}" + "".join(
        f"Tag: {tags[0]}-{tags[1]}-{platform}\n" for platform in tags[2].split(".")
    )


def row(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    return f"{name},sha256={digest},{len(content)}\n"


def fat_wheel(
    folder: Path,
    *,
    name: str = NAME,
    library: bytes | None = None,
    more: dict[str, bytes] | None = None,
    record: dict[str, str] | None = None,
) -> Path:
    """A wheel; ``more`` adds or replaces members, ``record`` replaces rows."""
    project, version = name.split("-")[:2]
    release = f"{project}-{version}"
    page = METADATA.replace("Name: fat", f"Name: {project}").replace("1.2.3", version)
    members = {
        f"{project}/__init__.py": TEXT.encode(),
        f"{project}/lib{project}.so": fat_library(folder) if library is None else library,
        f"{release}.data/scripts/{project}": b"#!python\n",
        f"{release}.dist-info/METADATA": page.encode(),
        f"{release}.dist-info/WHEEL": wheel_text(name).encode(),
        **(more or {}),
    }
    itself = f"{release}.dist-info/RECORD"
    rows = {member: row(member, content) for member, content in members.items()} | (record or {})
    members[itself] = ("".join(rows.values()) + f"{itself},,\n").encode()
    path = folder / name
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members.items():
            info = zipfile.ZipInfo(member, (2024, 5, 6, 7, 8, 10))
            info.external_attr = (0o100755 if member.endswith(".so") else 0o100644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content, compresslevel=1)
    return path


def fat_library(folder: Path) -> bytes:
    place = folder / "library"
    place.mkdir(exist_ok=True)
    return Maker(folder=place).library(THREE).read_bytes()
