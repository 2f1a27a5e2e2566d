"""The check of project descriptions: indexes refuse a description that they can't render."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from archsplit.index.upload import Twine
from archsplit.release.findings import DescriptionCheck
from archsplit.system.env import without_credentials
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from archsplit.release.context import Effects

_OURS = "archsplit"
"""First word of the generator in WHEEL where archsplit wrote METADATA."""

_LINES = 2
"""Lines of a message that are kept; docutils writes many more."""


def check_descriptions(paths: Sequence[Path], twine: Twine) -> DescriptionCheck:
    """Check files with ``twine check``, strictly where archsplit wrote the description."""
    faults: list[tuple[str, str]] = []
    warnings: list[str] = []
    for report in twine.check(paths):
        lines = map(str.strip, report.text.splitlines()[:_LINES])
        text = ": ".join(filter(None, lines))
        # A warning about upstream's text can't be mended here, so it doesn't stop a release.
        if report.is_error or _is_ours(report.path):
            faults.append((report.path.name, text))
        else:
            warnings.append(f"{report.path.name}: {text}")
    return DescriptionCheck(tuple(faults), tuple(warnings))


def check_where_installed(paths: Sequence[Path], effects: Effects) -> DescriptionCheck:
    """Check files as `check_descriptions` does; without twine, warn that nothing was checked."""
    # twine belongs to the extra `publish`; `verify` must work without it.
    if find_spec("twine") is None:
        note = "no twine, which `publish` needs: descriptions were not checked"
        return DescriptionCheck((), (f"{note}; pip install 'archsplit[publish]'",))
    twine = Twine(
        runner=effects.runner,
        # `twine check` needs no password, so it gets none.
        environment=without_credentials(effects.environment),
        python_path=effects.python_path,
    )
    return check_descriptions(paths, twine)


def _is_ours(path: Path) -> bool:
    """Return True if archsplit wrote a wheel's METADATA; a split's core has upstream's."""
    if path.suffix != ".whl":
        return False
    with open_wheel(path, same_tags=False, full_record=False) as wheel:
        return wheel.info.generator.startswith(_OURS)
