"""``archsplit verify``: read every wheel of a release again, and report what differs.

With ``--release``, the check of a release that is to be published.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING

from archsplit.cli import options
from archsplit.cli.files import check_folder, finding_files
from archsplit.cli.verbs import add_verb
from archsplit.errors import UsageError, VerifyError
from archsplit.system.units import count_text

if TYPE_CHECKING:
    import argparse

    from rich.console import Console

    from archsplit.release.verify import CheckedRelease

RELEASE_CHECK_SCHEMA = 1


_OPTIONS = f"""
folder DIR       the folder with the wheels of one release
{options.TARGETS}
--release        also check that a release is complete: every target, kernel and pin, the manifest,
                 and that pip and uv install it into new environments and the core can be
                 imported, with and without its plugins
{options.RELEASE_EXCEPTIONS}
--no-install     with --release: install and import nothing
--python PYTHON...  with --release: also install with this Python, a path or a version such as
                 3.12; by default with one for each Python of the release, as far as uv finds them
                 here; may be repeated
{options.JSON}
{options.FINDINGS}
"""


def run_release(arguments: argparse.Namespace, console: Console) -> int:
    """Check a release, and print the result.

    Raises:
        UsageError: only some targets were asked for.
        ToolNotFoundError: pip or uv is missing.
        VerifyError: see `check_release`.
    """
    from functools import partial

    from archsplit.index.preflight import check_descriptions_with_twine
    from archsplit.release.completeness import CheckOptions, check_release
    from archsplit.release.install_test import installers

    # A part of a release can be complete only for its own targets.
    if arguments.targets is not None:
        raise UsageError("--release checks all targets", hint="leave out --targets or --release")
    check_options = CheckOptions(
        allowed=tuple(arguments.allow_missing_kernels),
        install=not arguments.no_install,
        without=tuple(arguments.without),
        pythons=tuple(arguments.python),
    )
    if not arguments.no_install:
        # Found out at the end, it would cost the minutes of all other checks.
        installers(os.environ)
    with options.effects(console, quiet=True) as effects:
        effects.progress.begin_stage(f"checking {arguments.folder}", 0, "Checked the release")
        describe = partial(check_descriptions_with_twine, effects=effects)
        verdict = check_release(arguments.folder, effects, check_options, describe=describe)
    if arguments.json:
        options.show(options.json_text({"schema": RELEASE_CHECK_SCHEMA, **asdict(verdict)}))
        return 0
    for note in verdict.notes:
        options.say(console, f"warning: {note}")
    # A folder without a report has no matrix.
    if verdict.matrix:
        options.show(verdict.matrix)
    programs = " and ".join(verdict.installed)
    # A sample is of interest where it is smaller than the release.
    is_sample = len(verdict.sample) > 1 or len({cell.place for cell in verdict.cells}) > 1
    if is_sample:
        for place in verdict.sample:
            options.show(f"{programs} install {place}")
    is_split = verdict.kind == "split"
    kernels = "kernels as in the fat wheel" if is_split else "kernels for every target"
    installed = (
        f"{programs} install {'what is listed' if is_sample else 'them all'}, no import fails"
        if programs
        else "nothing was installed"
    )
    options.show(
        f"{verdict.project} {verdict.version}: {count_text(len(verdict.wheels), 'wheel')},"
        f" {verdict.kernels}"
        f" {kernels}, every pin has its wheel, {installed}"
    )
    return 0


VERIFY_SCHEMA = 1


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = add_verb(verbs, "verify", "archsplit verify split", "archsplit verify dist --release")
    options.add_options(parser, _OPTIONS)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Check, and print what was checked; with ``--json``, the findings too."""
    check_folder(arguments.folder)
    try:
        # The reports for CI are written also if the check fails.
        with finding_files(arguments, check="verify", checked=str(arguments.folder)):
            return _run(arguments, console)
    except VerifyError as error:
        if arguments.json:
            content = {"schema": VERIFY_SCHEMA, "findings": [asdict(one) for one in error.findings]}
            options.show(options.json_text(content))
        raise


def _run(arguments: argparse.Namespace, console: Console) -> int:
    from archsplit.release.checks import CheckScope
    from archsplit.release.verify import verify_release

    if arguments.release:
        return run_release(arguments, console)
    scope = CheckScope(targets=options.targets(arguments.targets))
    with options.effects(console, quiet=True) as effects:
        effects.progress.begin_stage(f"checking {arguments.folder}", 0, "Checked the wheels")
        release = verify_release(arguments.folder, effects, scope)
    text = options.json_text(_document(release)) if arguments.json else _text(release)
    options.show(text)
    return 0


def _document(release: CheckedRelease) -> dict[str, object]:
    """Return the content of ``--json``; a split has the counts of its images beside the wheels."""
    document: dict[str, object] = {
        "schema": VERIFY_SCHEMA,
        "package": release.package,
        "version": release.version,
        "build_id": release.build_id,
        "wheels": {name: list(targets) for name, targets in release.wheels.items()},
    }
    if release.packs:
        document |= {
            "packs": dict(release.packs),
            "images": release.images,
            "covered": release.covered,
            "needs": {capability: list(names) for capability, names in release.needs.items()},
        }
    return document


def _text(release: CheckedRelease) -> str:
    title = f"{release.package} {release.version}"
    if release.packs:
        lines = [f"{name}: unchanged images: {count}" for name, count in release.packs.items()]
        gpus = f"GPUs of capability {', '.join(release.needs)} get the same code as before"
        covered = f"images in at least one pack: {release.covered} of {release.images}"
        return "\n".join([*lines, f"{title}: {covered}; {gpus}"])
    lines = [f"{name}: {', '.join(held) or 'ok'}" for name, held in release.wheels.items()]
    return "\n".join(
        [*lines, f"{title}: {count_text(len(release.wheels), 'wheel')}, no faults found"]
    )
