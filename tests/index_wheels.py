"""Wheels as they are on the index, for the tests that are marked ``download``.

``ARCHSPLIT_TEST_CACHE`` names a folder that keeps them from one run to the next.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def index_wheel(downloads: Path, requirement: str, *platform: str) -> Path:
    """The wheel of a requirement, downloaded by pip unless it is there."""
    folder = downloads / "-".join([re.sub(r"\W+", "-", requirement), *platform])
    if not folder.is_dir():
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps")
        options = ("--only-binary=:all:", f"--dest={folder}", *platform, requirement)
        subprocess.run([*pip, *options], check=True)
    (path,) = folder.glob("*.whl")
    return path


def members(wheel: Path, suffix: str, to: Path) -> Iterator[Path]:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(suffix):
                yield Path(archive.extract(name, to))


def program(downloads: Path, requirement: str, suffix: str, to: Path) -> Path:
    """A program that a wheel ships."""
    (path,) = members(index_wheel(downloads, requirement), suffix, to)
    path.chmod(0o755)
    return path
