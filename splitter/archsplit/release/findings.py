"""Findings of a check of wheels: their codes, and a hint for each kind of release."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from archsplit.errors import ArchsplitError, DevicePackError, ToolFailedError
from archsplit.release.identity import ReleaseKind
from archsplit.system.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping


class DescriptionCheck(NamedTuple):
    """Findings about the descriptions of wheels.

    Attributes:
        faults: file and message of each description that an index refuses or can't show.
        warnings: messages about descriptions of upstream, which an index takes.
    """

    faults: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()


_AGAIN = ("build that wheel again", "split the fat wheel again into an empty folder")
_CORE_AGAIN = ("build the core again", "split the fat wheel again")
_COPY = (
    "copy it again from where it was built, or build it again",
    "copy it again from where it was split, or split the fat wheel again",
)
_PINS = tuple(f"{how} again: only archsplit should write these pins" for how in ("build", "split"))
_TAKE_OUT = "take it out of the folder"
_ONE_SPLIT = "take all wheels from one split"
_ALL_WHEELS = "put all wheels that split wrote into one folder"
_NO_INSTALL = "or leave this out with --no-install"

HINTS: Mapping[str, str | tuple[str, ...]] = {
    # Files
    "damaged-wheel": _COPY,
    "damaged-pack": (_TAKE_OUT, _COPY[1]),
    "not-in-report": _TAKE_OUT,
    "missing-file": ("build it again into this folder", _COPY[1]),
    "changed-file": ("build it again, or take it from where the others come from", _COPY[1]),
    "unreadable-report": ("build again, or remove the file", "split again, or remove the file"),
    "missing-report": (
        "archsplit build into an empty folder (pip and other frontends write none), or copy the"
        " file from where it was built",
        "split again into an empty folder, or copy the file from where it was split",
    ),
    # Whose wheels
    "one-core": "put only the wheels of one release into the folder",
    "duplicate-wheel": "leave only one of them in the folder",
    "not-of-release": _TAKE_OUT,
    "foreign-build": (
        "build core and plugins from the same sources with the same tools",
        _ONE_SPLIT,
    ),
    "wrong-version": _AGAIN,
    "unknown-target": (
        "add the target to the recipe, and build again",
        "leave the target out, or split a fat wheel that has code for it",
    ),
    "missing-cell": "add these wheels, or publish without them: --without {cell}",
    "incomplete-core": (
        "build the other targets too, or give --partial if more parts come",
        _ALL_WHEELS,
    ),
    "missing-plugin": ("build --targets {target} and gather, or build --release", _ALL_WHEELS),
    # What a wheel says of itself
    "wrong-digest": ("build core and plugins together", _AGAIN[1]),
    "wrong-tag": _AGAIN,
    "other-glibc": (
        'write manylinux = "{policy}" in [targets] of the recipe, and build all wheels again',
        _AGAIN[1],
    ),
    "wrong-root": _AGAIN,
    "wrong-name": _CORE_AGAIN,
    "bad-description": (
        "name a readme in [project] of the recipe, or fix its markup, and build again",
        "fix the description of the fat wheel's project, and split its next wheel",
    ),
    "missing-license": _AGAIN,
    "wrong-requirement": _PINS,
    "loose-pin": _PINS,
    "unconditional-pin": _CORE_AGAIN,
    "undeclared-extra": _CORE_AGAIN,
    "incomplete-extra": _CORE_AGAIN,
    # Contents
    "wrong-files": _AGAIN,
    "missing-loader": _CORE_AGAIN,
    "device-code-in-core": (
        "take the device code out of the core's sources, and build the core again",
        _AGAIN[1],
    ),
    "missing-descriptor": _AGAIN,
    "foreign-code": _AGAIN,
    "missing-code": _AGAIN,
    "foreign-image": (_AGAIN[0], _ONE_SPLIT),
    "changed-image": (_AGAIN[0], _COPY[1]),
    "missing-image": _AGAIN,
    "wrong-table": _CORE_AGAIN,
    "missing-kernel": "build it for all targets, or allow it with --allow-missing-kernels",
    # Installation
    "no-environment": f"repair this Python's venv module, {_NO_INSTALL}",
    "not-installed": "repair the core's wheel first",
    "install-failed": f"see what {{program}} says, {_NO_INSTALL}",
    "import-failed": (
        "repair the package: it must be imported without plugins and without a GPU, too",
        f"if the fat wheel can be imported, run `archsplit doctor`; else repair it, {_NO_INSTALL}",
    ),
    "tool-failed": "repair the program that failed, and check again",
    # Anything that a reader refuses
    "unreadable": _COPY,
}
"""The hints of all findings, by code: for both kinds of releases, or for built and split ones.

Codes are only ever added. A word in braces is given by the check that reports the finding.
"""


def finding(
    kind: ReleaseKind, code: str, subject: str, found: str, expected: str = "", **words: str
) -> Finding:
    """Return a finding with the hint of its code.

    Args:
        words: for the braces in the hint.
    """
    hint = HINTS[code]
    if not isinstance(hint, str):
        hint = hint[kind is ReleaseKind.SPLIT]
    return Finding(
        code=code,
        subject=subject,
        found=found,
        expected=expected,
        hint=hint.format(**words),
    )


def error_finding(kind: ReleaseKind, subject: str, error: ArchsplitError) -> Finding:
    """Return the finding that a wheel can't be read."""
    code = "damaged-pack" if isinstance(error, DevicePackError) else "damaged-wheel"
    code = "tool-failed" if isinstance(error, ToolFailedError) else code
    return finding(kind, code, subject, error.message)
