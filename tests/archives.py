"""Archives unpacked, for tests."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def extract_tar(archive: tarfile.TarFile, folder: Path) -> None:
    """Unpack an archive, of which no member may leave the folder.

    Python's own filters for this came with 3.10.12, 3.11.4 and 3.12; Debian 12 has 3.11.2. Without
    them only files and folders are unpacked: a link could lead out of the folder.

    Raises:
        TarError: a member has a path that leaves the folder.
    """
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
        return
    for member in archive:
        if member.name.startswith("/") or ".." in member.name.split("/"):
            raise tarfile.ReadError(f"{member.name!r} would be written outside of the folder")
        if member.isfile() or member.isdir():
            archive.extract(member, folder)
