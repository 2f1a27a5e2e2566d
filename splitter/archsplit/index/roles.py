"""Whether wheels are what their report calls them: the order of uploads goes by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.index.release import CORE, META, PLUGIN, SOURCE
from archsplit.release.identity import IDENTITY_FILE, LOADER_PACKAGE
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.index.release import Artifact, UploadRelease


def role_faults(release: UploadRelease) -> Iterator[str]:
    """Say which wheels are something else than their report says; see `_role`."""
    for one in release.artifacts:
        if one.role != SOURCE and (found := _role(one)) != one.role:
            yield f"{one.path.name} is a {found}, and its report says {one.role}"


def _role(one: Artifact) -> str:
    """A core says in a file of its own who it is, and a meta wheel has no files at all.

    Raises:
        ArchsplitError: the wheel can't be read.
    """
    with open_wheel(one.path, same_tags=False, full_record=False) as wheel:
        names = [name for name in wheel.names if not name.startswith(f"{wheel.dist_info}/")]
    if any(name.endswith(f"/{LOADER_PACKAGE}/{IDENTITY_FILE}") for name in names):
        return CORE
    return PLUGIN if names else META
