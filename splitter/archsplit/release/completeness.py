"""Checks before publication: everything that keeps a folder from being a release, all at once.

A release, built or split, must pass its own checks, match its report and manifest, have every
kernel in every plugin, have descriptions that an index takes, and install with pip and uv.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from archsplit.errors import InputError, ToolFailedError, VerifyError
from archsplit.release.checks import CheckScope
from archsplit.release.install_test import Installer
from archsplit.release.kernel_coverage import kernel_faults, read_coverage
from archsplit.release.list_checks import manifest_faults
from archsplit.release.manifest import MANIFEST_FILE
from archsplit.release.matrix import find_holes, hole_texts, matrix_text, release_matrix
from archsplit.release.report import find_report
from archsplit.release.verify import open_tag_judge, verify_wheel_set
from archsplit.release.wheel_set import read_wheel_set, wheels_in
from archsplit.system.fs import temporary_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from archsplit.release.context import Effects
    from archsplit.release.findings import DescriptionCheck
    from archsplit.release.kernel_coverage import KernelCoverage
    from archsplit.release.matrix import Cell
    from archsplit.release.wheel_set import WheelSet
    from archsplit.system.finding import Finding

    Describe = Callable[[Sequence[Path]], DescriptionCheck]


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """Requirements of a release check.

    Attributes:
        allowed: patterns of kernels that may be missing for some targets.
        install: let pip and uv install the release, each into its own environment.
        without: patterns of the cells that may be missing.
        scripts: also run each console script of the core with ``--help``.
        pythons: interpreters to install with, by path or version, beside those that are found.
    """

    allowed: tuple[str, ...] = ()
    install: bool = True
    without: tuple[str, ...] = ()
    scripts: bool = False
    pythons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Result of a release check.

    Attributes:
        wheels: sorted by file name.
        kernels: their number, each in every plugin that must have it.
        installed: the programs that installed the release.
        sample: the Python and platform of each core that was installed.
        notes: remarks about checks that were not possible.
        cells: a row for each Python, platform and GPU; empty without a report.
        matrix: the same as a table.
    """

    project: str
    version: str
    build_id: str
    wheels: tuple[str, ...]
    kernels: int
    installed: tuple[str, ...]
    notes: tuple[str, ...]
    sample: tuple[str, ...] = ()
    cells: tuple[Cell, ...] = ()
    matrix: str = ""


def check_release(
    folder: Path,
    effects: Effects,
    demands: Requirements,
    *,
    describe: Describe,
) -> CheckResult:
    """Check a folder that is to be published.

    Args:
        describe: checks the descriptions of wheels, as an index would.

    Raises:
        VerifyError: lists every finding, and what to do about each.
        InputError: there is no wheel.
    """
    unshown: list[str] = []
    sample: list[str] = []
    with temporary_dir() as scratch:
        judge = open_tag_judge(effects, scratch)
        release = read_wheel_set(folder, scratch, platforms=judge.platforms)
        kernels = read_coverage(release)
        descriptions, warnings = _check_descriptions(release, describe)
        findings = [
            *_find_faults(release),
            *manifest_faults(folder, release.kind),
            *_holes(folder, release, demands),
            *descriptions,
            *kernel_faults(kernels.found, demands.allowed, release.kind),
            *(
                _install_faults(release, effects, scratch, demands, unshown, sample)
                if demands.install
                else ()
            ),
        ]
    if findings or release.identity is None:
        # Two checks may find the same fault.
        found = tuple(dict.fromkeys(findings))
        raise VerifyError(f"{folder} is not a release to publish:", findings=found)
    # A report that can't be read is a finding above.
    report = find_report(folder)
    cells = () if report is None else release_matrix(report)
    return CheckResult(
        cells=cells,
        matrix="" if report is None else matrix_text(report, cells),
        project=release.identity.package,
        version=release.identity.version,
        build_id=release.identity.build_id,
        wheels=tuple(wheel.file for wheel in release.wheels),
        kernels=len(frozenset().union(*kernels.found.values())),
        installed=("pip", "uv") if sample else (),
        sample=tuple(sample),
        notes=tuple(dict.fromkeys((*_notes(folder, kernels), *warnings, *unshown))),
    )


def _holes(folder: Path, release: WheelSet, demands: Requirements) -> Iterator[Finding]:
    """Find the cells of the release's matrix without wheels, as far as its report tells."""
    report = None
    with contextlib.suppress(InputError):
        report = find_report(folder)
    if report is not None:
        here = {path.name for path in wheels_in(folder)}
        # A wheel of the report that is missing here fills no cell.
        present = tuple(wheel for wheel in report.wheels if wheel.file in here)
        holes = find_holes(release_matrix(replace(report, wheels=present)), demands.without)
        for place, text in hole_texts(holes):
            yield release.fault("missing-cell", place, text, cell=f"'{place}:*'")


def _find_faults(release: WheelSet) -> tuple[Finding, ...]:
    try:
        verify_wheel_set(release, CheckScope(published=True))
    except VerifyError as error:
        return error.findings
    return ()


def _check_descriptions(
    release: WheelSet, describe: Describe
) -> tuple[list[Finding], tuple[str, ...]]:
    """Return the findings about descriptions, and the warnings."""
    # Wheels that can't be read have a finding already, and twine would stop at them.
    paths = [wheel.path for wheel in release.wheels]
    try:
        described = describe(paths)
    # A crash of twine is one more finding: the others are still of use.
    except ToolFailedError as error:
        return [release.fault("tool-failed", str(release.folder), error.message)], ()
    faults = [release.fault("bad-description", *each) for each in described.faults]
    return faults, described.warnings


def _install_faults(
    release: WheelSet,
    effects: Effects,
    scratch: Path,
    demands: Requirements,
    unshown: list[str],
    sample: list[str],
) -> Iterator[Finding]:
    # Without a common identity several cores are of several releases.
    if not release.cores or release.identity is None:
        found = "no wheel is a core that can be read, so nothing was installed"
        yield release.fault("not-installed", str(release.folder), found)
        return
    installer = Installer(
        runner=effects.runner,
        scratch=scratch,
        environment=effects.environment,
        release=release,
        scripts=demands.scripts,
        pythons=demands.pythons,
        notes=unshown,
        installed=sample,
    )
    yield from installer.faults()


def _notes(folder: Path, kernels: KernelCoverage) -> Iterator[str]:
    if not (folder / MANIFEST_FILE).exists():
        yield f"there is no {MANIFEST_FILE} to hold the wheels against"
    if kernels.unread:
        yield f"{len(kernels.unread)} images were not read for kernels: {kernels.unread[0]}"
