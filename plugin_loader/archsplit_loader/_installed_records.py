"""Installer's records (RECORD) of the plugins' libraries."""

from __future__ import annotations

import base64
import binascii
import os
import re
from glob import escape, glob
from typing import TYPE_CHECKING

from ._errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ._core import Core


def recorded_digests(core: Core, folders: Sequence[str]) -> tuple[str, ...]:
    """Return the SHA-256 of each installed plugin's library, as 64 hexadecimal digits.

    Args:
        folders: where plugins may lie; each plugin's own record lies beside such a folder.

    Raises:
        PluginError: no installer recorded a digest, so there is nothing to verify plugins by.
    """
    found = tuple(
        digest
        for folder in folders
        for name in core.targets.values()
        for digest in _digests_of(os.path.dirname(folder), name, core)  # noqa: PTH120 (as in _folders)
    )
    # To accept what has no record would make "full" mean nothing.
    if not found:
        raise PluginError(
            f"no installer has a record of {core.distribution}'s plugins, so there is nothing to "
            "verify them by; install them with pip"
        )
    return found


def _digests_of(site: str, distribution: str, core: Core) -> Iterator[str]:
    """Return the recorded digests of one distribution, of any installed version."""
    name = re.sub("[-_.]+", "_", distribution)
    pattern = (
        rf"{re.escape(core.plugins_package)}/cuda/\w+/{re.escape(core.library)},sha256=([\w-]+)"
    )
    for path in glob(f"{escape(site)}/{name}-*.dist-info/RECORD"):  # noqa: PTH207 (as in _folders)
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 (the same)
            matches = [re.match(pattern, line) for line in file]
        yield from filter(None, (_hexadecimal(each[1]) for each in matches if each))


def _hexadecimal(digest: str) -> str | None:
    """A record's digest, which is base64 without padding; None when it is none."""
    try:
        content = base64.urlsafe_b64decode(f"{digest}=")
    # An installer may use another hash, or none.
    except binascii.Error:
        return None
    return content.hex() if len(content) == 32 else None  # noqa: PLR2004 (bytes of a SHA-256)
