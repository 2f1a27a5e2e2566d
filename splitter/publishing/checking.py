"""Read every file again before anything is uploaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from splitter.errors import VerifyError
from splitter.publishing.attestations import attestation_faults
from splitter.publishing.roles import role_faults
from splitter.system.files import private_folder, writing
from splitter.wheels.reader import open_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from splitter.publishing.release import Release
    from splitter.publishing.twine import Twine


_OURS = "archsplit"
"""How the generator in WHEEL begins where archsplit wrote METADATA."""

_LINES = 2


def check_release(
    release: Release, twine: Twine, verify: Callable[[Path], object]
) -> tuple[str, ...]:
    """Check a release as a whole: our ``verify``, ``twine check``, the attestations.

    Args:
        verify: re-reads all wheels of a folder, and raises where one is not as promised.

    Returns:
        Warnings about what others wrote.

    Raises:
        VerifyError: lists what is not as promised.
        ArchsplitError: a file can't be read.
    """
    faults = [fault for one in release.artifacts for fault in attestation_faults(one)]
    if faults:
        raise VerifyError("\n  ".join(["attestations are of other files:", *faults]))
    for build in release.builds.values():
        with private_folder() as folder:
            # What the report doesn't name is not looked at, and is not published either.
            for one in build:
                with writing(folder / one.path.name):
                    (folder / one.path.name).symlink_to(one.path)
            verify(folder)
    if faults := list(role_faults(release)):
        raise VerifyError("\n  ".join(["wheels are not what their report calls them:", *faults]))
    refused, warnings = description_findings([one.path for one in release.artifacts], twine)
    if refused:
        raise VerifyError(UNFIT, findings=refused)
    return warnings


UNFIT = "an index refuses these files, or shows no page for them:"


def description_findings(
    paths: Sequence[Path], twine: Twine
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Let ``twine check`` look at files: strictly at what archsplit wrote.

    Returns:
        Faults, and warnings: what an index takes, in a description that upstream wrote.
    """
    faults: list[str] = []
    warnings: list[str] = []
    for one in twine.check(paths):
        # What docutils says of a page's markup goes on for many lines.
        said = ": ".join(filter(None, map(str.strip, one.text.splitlines()[:_LINES])))
        strict = one.is_error or _is_ours(one.path)
        (faults if strict else warnings).append(f"{one.path.name}: {said}")
    return tuple(faults), tuple(warnings)


def _is_ours(path: Path) -> bool:
    """Whether archsplit wrote a wheel's METADATA; a split's core has upstream's."""
    if path.suffix != ".whl":
        return False
    with open_wheel(path, same_tags=False, full_record=False) as wheel:
        return wheel.info.generator.startswith(_OURS)
