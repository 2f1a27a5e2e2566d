"""Wheels of what lies in a folder, for tests that install with a real pip."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.wheels.filename import WheelName
from archsplit.wheels.metadata import WheelInfo
from archsplit.wheels.rewrite import write_members
from archsplit.wheels.zip_writer import pack

if TYPE_CHECKING:
    from pathlib import Path


def wheel_of(
    folder: Path, project: str, package: Path, version: str = "1.2.3", *lines: str
) -> Path:
    """Pack one folder of a site; ``lines`` are more of METADATA."""
    name = WheelName.parse(f"{project.replace('-', '_')}-{version}-py3-none-any.whl")
    head = ("Metadata-Version: 2.1", f"Name: {project}", f"Version: {version}", *lines)
    members = {
        str(path.relative_to(package.parent)): path.read_bytes()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    members[f"{name.dist_info}/METADATA"] = "\n".join((*head, "")).encode()
    members[f"{name.dist_info}/WHEEL"] = WheelInfo(generator="a test", tags=name.tags).encode()
    path = folder / str(name)
    with path.open("wb") as file:
        write_members(file, name, {each: pack(text) for each, text in members.items()})
    return path
