"""The check of descriptions that indexes make, for a release and before an upload."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from splitter.wheels.reader import open_wheel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from splitter.publishing.twine import Twine

_OURS = "archsplit"
"""First word of the generator in WHEEL where archsplit wrote METADATA."""

_LINES = 2
"""Lines of a message that are kept: docutils goes on for many more."""


class DescriptionCheck(NamedTuple):
    """Findings of ``twine check``.

    Attributes:
        faults: file and message of each description that an index refuses or can't show.
        warnings: messages about descriptions of upstream, which an index takes.
    """

    faults: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()


def check_descriptions(paths: Sequence[Path], twine: Twine) -> DescriptionCheck:
    """Check files with ``twine check``, strictly where archsplit wrote the description."""
    faults: list[tuple[str, str]] = []
    warnings: list[str] = []
    for report in twine.check(paths):
        lines = map(str.strip, report.text.splitlines()[:_LINES])
        text = ": ".join(filter(None, lines))
        if report.is_error or _is_ours(report.path):
            faults.append((report.path.name, text))
        else:
            warnings.append(f"{report.path.name}: {text}")
    return DescriptionCheck(tuple(faults), tuple(warnings))


def _is_ours(path: Path) -> bool:
    """Return True if archsplit wrote a wheel's METADATA; a split's core has upstream's."""
    if path.suffix != ".whl":
        return False
    with open_wheel(path, same_tags=False, full_record=False) as wheel:
        return wheel.info.generator.startswith(_OURS)
