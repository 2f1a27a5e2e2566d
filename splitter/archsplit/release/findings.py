"""Findings of a check of wheels: their codes, and a hint for each kind of release."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from archsplit.errors import ArchsplitError, DevicePackError, ToolFailedError
from archsplit.release.identity import PluginKind
from archsplit.system.finding import Finding

_SPLIT_AGAIN = "split the fat wheel again into an empty folder"
_BUILD_AGAIN = "build that wheel again"
_COPY_BUILT = "copy it again from where it was built, or build it again"
_COPY_SPLIT = "copy it again from where it was split, or split the fat wheel again"
_TAKE_OUT = "take it out of the folder"
_NO_PINS_BY_HAND = "only archsplit should write these pins"


class ReleaseKind(enum.Enum):
    """The command that wrote a set of wheels."""

    BUILT = "built"
    SPLIT = "split"


def release_kind(plugins: PluginKind) -> ReleaseKind:
    """Return the command that writes plugins of a form: only a split makes packs."""
    return ReleaseKind.SPLIT if plugins is PluginKind.PACK else ReleaseKind.BUILT


class DescriptionCheck(NamedTuple):
    """Findings about the descriptions of wheels.

    Attributes:
        faults: file and message of each description that an index refuses or can't show.
        warnings: messages about descriptions of upstream, which an index takes.
    """

    faults: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """The hints for a finding in built wheels and in the wheels of a split.

    A word in braces is given by the check that reports the finding.
    """

    built: str
    split: str


HINTS = {
    # Files
    "damaged-wheel": Hints(built=_COPY_BUILT, split=_COPY_SPLIT),
    "damaged-pack": Hints(built=_TAKE_OUT, split=_COPY_SPLIT),
    "not-in-report": Hints(built=_TAKE_OUT, split=_TAKE_OUT),
    "missing-file": Hints(built="build it again into this folder", split=_COPY_SPLIT),
    "changed-file": Hints(
        built="build it again, or take it from where the others come from", split=_COPY_SPLIT
    ),
    "unreadable-report": Hints(
        built="build again, or remove the file", split="split again, or remove the file"
    ),
    "missing-report": Hints(
        built="build again into an empty folder, or copy the file from where it was built",
        split="split again into an empty folder, or copy the file from where it was split",
    ),
    # Whose wheels
    "one-core": Hints(
        built="put only the wheels of one release into the folder",
        split="put only the wheels of one split into the folder",
    ),
    "duplicate-wheel": Hints(
        built="leave one of them in the folder", split="leave one of them in the folder"
    ),
    "not-of-release": Hints(built=_TAKE_OUT, split=_TAKE_OUT),
    "foreign-build": Hints(
        built="build core and plugins from the same sources with the same tools",
        split="take all wheels from one split",
    ),
    "wrong-version": Hints(built=_BUILD_AGAIN, split=_SPLIT_AGAIN),
    "unknown-target": Hints(
        built="add the target to the recipe, and build again",
        split="leave the target out, or split a fat wheel that has code for it",
    ),
    "missing-cell": Hints(
        built="add these wheels, or publish without them: --without {cell}",
        split="add these wheels, or publish without them: --without {cell}",
    ),
    "incomplete-core": Hints(
        built="build the other targets too, or give --partial if more parts come",
        split="put all wheels that split wrote into one folder",
    ),
    "missing-plugin": Hints(
        built="build it with --targets {target}",
        split="put all wheels that split wrote into one folder",
    ),
    # What a wheel says of itself
    "wrong-digest": Hints(built="build core and plugins together", split=_SPLIT_AGAIN),
    "wrong-tag": Hints(built=_BUILD_AGAIN, split=_SPLIT_AGAIN),
    "other-glibc": Hints(
        built='write manylinux = "{policy}" in [targets] of the recipe, and build all wheels again',
        split=_SPLIT_AGAIN,
    ),
    "wrong-root": Hints(built=_BUILD_AGAIN, split=_SPLIT_AGAIN),
    "wrong-name": Hints(built="build the core again", split=_SPLIT_AGAIN),
    "bad-description": Hints(
        built="name a readme in [project] of the recipe, or mend its markup, and build again",
        split="mend the description of the fat wheel's project, and split its next wheel",
    ),
    "missing-license": Hints(built=_BUILD_AGAIN, split=_SPLIT_AGAIN),
    "wrong-requirement": Hints(
        built=f"build it again: {_NO_PINS_BY_HAND}",
        split=f"split the fat wheel again: {_NO_PINS_BY_HAND}",
    ),
    "loose-pin": Hints(built=f"build it again: {_NO_PINS_BY_HAND}", split="split again"),
    "unconditional-pin": Hints(built="build the core again", split=_SPLIT_AGAIN),
    "missing-requirement": Hints(built="add it to the folder", split="add it to the folder"),
    "undeclared-extra": Hints(built="build the core again", split="split the fat wheel again"),
    "incomplete-extra": Hints(built="build the core again", split="split the fat wheel again"),
    # Contents
    "wrong-files": Hints(built=_BUILD_AGAIN, split=_SPLIT_AGAIN),
    "missing-loader": Hints(built="build the core again", split=_SPLIT_AGAIN),
    "device-code-in-core": Hints(
        built="take the device code out of the core's sources, and build the core again",
        split=_SPLIT_AGAIN,
    ),
    "missing-descriptor": Hints(built=_BUILD_AGAIN, split=_SPLIT_AGAIN),
    "foreign-code": Hints(built=_BUILD_AGAIN, split=_SPLIT_AGAIN),
    "missing-code": Hints(built=_BUILD_AGAIN, split=_SPLIT_AGAIN),
    "foreign-image": Hints(built=_BUILD_AGAIN, split="take all wheels from one split"),
    "changed-image": Hints(built=_BUILD_AGAIN, split=_COPY_SPLIT),
    "missing-image": Hints(built=_BUILD_AGAIN, split=_SPLIT_AGAIN),
    "wrong-table": Hints(built="build the core again", split=_SPLIT_AGAIN),
    "missing-kernel": Hints(
        built="build it for all targets, or allow it with --allow-missing-kernels",
        split="compile it for all targets of the fat wheel",
    ),
    # Installation
    "no-environment": Hints(
        built="repair this Python's venv module, or leave this out with --no-install",
        split="repair this Python's venv module, or leave this out with --no-install",
    ),
    "not-installed": Hints(
        built="repair the core's wheel first", split="repair the core's wheel first"
    ),
    "install-failed": Hints(
        built="see what {program} says, or leave this out with --no-install",
        split="see what {program} says, or leave this out with --no-install",
    ),
    "incomplete-install": Hints(
        built="build the core again: its extras bring too little",
        split="split the fat wheel again: the core's extras bring too little",
    ),
    "import-failed": Hints(
        built="repair the package: it must be imported without plugins and without a GPU, too",
        split="see if the fat wheel can be imported; if it can, `archsplit doctor` has the reason",
    ),
    "script-failed": Hints(
        built="repair the script, or leave out --run-scripts",
        split="see if the fat wheel's script runs, or leave out --run-scripts",
    ),
    "tool-failed": Hints(
        built="repair the program that failed, and check again",
        split="repair the program that failed, and check again",
    ),
    # Anything that a reader refuses
    "unreadable": Hints(built=_COPY_BUILT, split=_COPY_SPLIT),
}
"""The hints of all findings, by code; codes are only ever added."""


def finding(
    kind: ReleaseKind, code: str, subject: str, found: str, expected: str = "", **words: str
) -> Finding:
    """Return a finding with the hint of its code.

    Args:
        words: for the braces in the hint.
    """
    hint: str = getattr(HINTS[code], kind.value)
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
