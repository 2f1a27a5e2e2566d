"""Build backend of archsplit itself: setuptools, with reproducible archives.

setuptools writes the clock, the user and the umask into a source distribution, and takes the file
list of an earlier build along. Both are corrected here, so everybody who builds a commit gets the
same bytes. `pyproject.toml` names this module with ``backend-path``.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import shutil
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    Settings = Mapping[str, str | list[str] | None] | None

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

EPOCH = "SOURCE_DATE_EPOCH"
_NOTES = re.compile(r"^[^/]+/(?:[^/]+\.egg-info/|setup\.cfg$)")
ZIP_EPOCH = "315532800"
"""1980-01-01, the first moment that a wheel can have."""


def build_wheel(
    wheel_directory: str,
    config_settings: Settings = None,
    metadata_directory: str | None = None,
) -> str:
    """Build the wheel, with a fixed time in it if the caller has set none."""
    os.environ.setdefault(EPOCH, ZIP_EPOCH)
    # The files that setuptools writes itself have modes in the archive too.
    os.umask(0o022)
    _remove_earlier_build()
    name: str = build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
    return name


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """Build the source distribution, and write it again without times, users and modes."""
    os.environ.setdefault(EPOCH, ZIP_EPOCH)
    _remove_earlier_build()
    name: str = build_meta.build_sdist(sdist_directory, config_settings)
    path = Path(sdist_directory) / name
    path.write_bytes(normalized(path.read_bytes(), int(os.environ[EPOCH])))
    return name


def normalized(archive: bytes, epoch: int) -> bytes:
    """Return a ``.tar.gz`` with sorted files, one time, one owner, and modes 644 and 755."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as source,
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=epoch) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as target,
    ):
        for member in sorted(source.getmembers(), key=lambda one: one.name):
            # Folders come into being with their files. setuptools leaves its notes in the archive:
            # they list the tree that was packed, and no tool reads them.
            if not member.isfile() or _NOTES.search(member.name):
                continue
            header = tarfile.TarInfo(member.name)
            header.size, header.mtime = member.size, epoch
            header.mode = 0o755 if member.mode & 0o100 else 0o644
            target.addfile(header, source.extractfile(member))
    return packed.getvalue()


def _remove_earlier_build() -> None:
    """Remove the files of an earlier build, which setuptools would pack again."""
    for folder in (Path("build", "lib"), *Path("build").glob("bdist.*")):
        shutil.rmtree(folder, ignore_errors=True)
    Path("archsplit.egg-info", "SOURCES.txt").unlink(missing_ok=True)
