"""``--variants`` of ``build`` and ``split``: experimental side output beside the wheels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.errors import InputError
from archsplit.release.variants import VARIANTS_FOLDER

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from archsplit.release.report import Report
    from archsplit.release.split_report import SplitReport
    from archsplit.release.variants import Variant


def add_variants_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--variants``."""
    parser.add_argument(
        "--variants",
        action="store_true",
        help="experimental: also write the core as wheel variants (PEP 825, a draft), into the"
        f" folder {VARIANTS_FOLDER} of the output; each requires the plugins of some GPUs",
    )


def write_built_variants(report: Report, out: Path, console: Console) -> None:
    """Write the variants of what was built.

    Raises:
        InputError: no core was built.
    """
    from archsplit.release.splitting_variants import built_variants
    from archsplit.wheels.filename import plugin_distribution

    core = next((wheel.file for wheel in report.wheels if wheel.role == "core"), None)
    if core is None:
        raise InputError("there is no core to make variants of", hint="leave out --no-core")
    plugins = {
        target: f"{plugin_distribution(report.project, target)}=={report.version}"
        for target in report.targets
    }
    variants, notes = built_variants(plugins)
    for note in notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    _write(out / core, variants, console)


def write_split_variants(report: SplitReport, out: Path, console: Console) -> None:
    """Write the variants of what was split."""
    from archsplit.release.splitting_variants import split_variants
    from archsplit.wheels.filename import WheelName

    core = out / next(wheel.file for wheel in report.wheels if wheel.role == "core")
    version = WheelName.parse(core.name).version
    requirements = {
        wheel.pack: f"{wheel.distribution}=={version}" for wheel in report.wheels if wheel.pack
    }
    _write(core, split_variants(report.needs, requirements), console)


def _write(core: Path, variants: Sequence[Variant], console: Console) -> None:
    from archsplit.release.splitting_variants import write_variants

    names = write_variants(core, variants, core.parent / VARIANTS_FOLDER)
    console.print(
        f"experimental: {len(names) - 1} wheel variants (PEP 825, a draft) and {names[-1]} in"
        f" {core.parent / VARIANTS_FOLDER}; stock installers don't take them yet",
        markup=False,
        soft_wrap=True,
    )
