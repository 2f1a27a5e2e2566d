"""Findings of a check of wheels: their codes, each with a hint."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from archsplit.errors import ArchsplitError, DevicePackError, ToolFailedError
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


_AGAIN = "make that wheel again, in an empty folder"
_CORE_AGAIN = "make the core again"
_COPY = "copy it again from where it was made, or make it again"
_PINS = "make that wheel again: only archsplit should write these pins"
_TAKE_OUT = "take it out of the folder"
_ONE_RELEASE = "take all wheels from one release, made from the same files with the same tools"
_NO_INSTALL = "or leave this out with --no-install"

HINTS: Mapping[str, str] = {
    # Files
    "damaged-wheel": _COPY,
    "damaged-pack": _COPY,
    "not-in-report": _TAKE_OUT,
    "missing-file": _COPY,
    "changed-file": _COPY,
    "wrong-listing": "copy it again from where it was made, or make the release again",
    "unreadable-report": _COPY,
    "missing-report": "make the release again in an empty folder, with archsplit split --release or"
    " archsplit build (pip writes none), or copy the file from where it was made",
    # Whose wheels
    "one-core": "put only one release into the folder",
    "duplicate-wheel": "leave only one of them in the folder",
    "not-of-release": _TAKE_OUT,
    "foreign-build": _ONE_RELEASE,
    "wrong-version": _AGAIN,
    "unknown-target": "leave the target out, or make all wheels again with it",
    "missing-cell": "add these wheels, or publish without them: --without {cell}",
    "incomplete-core": "add its other wheels, or give --partial if more parts come",
    "missing-plugin": "add its wheel with archsplit gather, or make a release without {target}",
    # What a wheel says of itself
    "wrong-digest": "make core and plugins together",
    "wrong-tag": _AGAIN,
    "other-glibc": 'with manylinux = "{policy}" in [targets] of the recipe, make all wheels again',
    "wrong-root": _AGAIN,
    "wrong-name": _CORE_AGAIN,
    "bad-description": "name a readme in the project, or fix its markup, and make the wheel again",
    "missing-license": _AGAIN,
    "wrong-requirement": _PINS,
    "loose-pin": _PINS,
    "unconditional-pin": _CORE_AGAIN,
    "undeclared-extra": _CORE_AGAIN,
    "incomplete-extra": _CORE_AGAIN,
    # Contents
    "wrong-files": _AGAIN,
    "missing-loader": _CORE_AGAIN,
    "device-code-in-core": "take the device code out of the core's sources, and make it again",
    "missing-descriptor": _AGAIN,
    "foreign-code": _AGAIN,
    "missing-code": _AGAIN,
    "foreign-image": _ONE_RELEASE,
    "changed-image": _COPY,
    "missing-image": _AGAIN,
    "wrong-table": _CORE_AGAIN,
    "missing-kernel": "compile it for all targets, or allow it with --allow-missing-kernels",
    # Installation
    "no-environment": f"repair this Python's venv module, {_NO_INSTALL}",
    "not-installed": "repair the core's wheel first",
    "install-failed": f"see what {{program}} says, {_NO_INSTALL}",
    "import-failed": "repair the package, which must be imported without plugins and without a GPU"
    f" too (see archsplit doctor), {_NO_INSTALL}",
    "tool-failed": "repair the program that failed, and check again",
    # Anything that a reader refuses
    "unreadable": _COPY,
}
"""Hint of each finding, by its code, for builds and splits.

Codes are only ever added. A word in braces is given by the check that reports the finding.
"""


def finding(code: str, subject: str, found: str, expected: str = "", **words: str) -> Finding:
    """Return a finding with the hint of its code.

    Args:
        words: for the braces in the hint.
    """
    return Finding(
        code=code,
        subject=subject,
        found=found,
        expected=expected,
        hint=HINTS[code].format(**words),
    )


def error_finding(subject: str, error: ArchsplitError) -> Finding:
    """Return the finding that a wheel can't be read."""
    code = "damaged-pack" if isinstance(error, DevicePackError) else "damaged-wheel"
    code = "tool-failed" if isinstance(error, ToolFailedError) else code
    return finding(code, subject, error.message)
