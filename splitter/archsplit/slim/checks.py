"""Try a slimmed wheel: read it again, install it, load its libraries."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from archsplit.devicecode.read import Form
from archsplit.release.trial import Trial, counted
from archsplit.wheels.filename import WheelName
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.release.context import Effects
    from archsplit.slim.libraries import SlimmedLibrary
    from archsplit.slim.request import SlimRequest


def trial_of(request: SlimRequest, workshop: Effects, folder: Path) -> Trial:
    """Prepare to load libraries, with the wheels installed that they need.

    Raises:
        VerifyError: pip refuses one of those wheels.
        WheelError: one has no wheel's name.
    """
    trial = Trial(runner=workshop.runner, folder=folder, environment=dict(workshop.environment))
    needed = folder / "needed"
    for wheel in request.needed_wheels:
        trial.install(wheel.absolute(), WheelName.parse(wheel.name), needed)
    places = (*request.needed_places, *([needed] if request.needed_wheels else []))
    return replace(trial, places=places)


def checked(
    libraries: tuple[SlimmedLibrary, ...], name: WheelName, new: Path, trial: Trial
) -> tuple[str, ...]:
    """Read the new wheel, install it, load what was changed."""
    site = new.parent / "site"
    with ThreadPoolExecutor(1) as worker, open_wheel(new) as again:
        installing = worker.submit(trial.install, new, name, site)
        again.check_contents()
        obstacle = installing.result()
    if obstacle is not None:
        return ("RECORD and all contents agree", f"install: {obstacle}")
    loads = {
        library.name: _load(trial, library, site)
        for library in libraries
        if library.plan.is_changed
    }
    return ("RECORD and all contents agree", "pip installs it", *counted(loads))


def _load(trial: Trial, library: SlimmedLibrary, site: Path) -> str:
    installed = site / library.name
    if library.plan.form is not Form.ELF or not installed.exists():
        return "not tried, because it installs as no library"
    # The old one takes the new one's place for a moment, if it is asked for at all.
    old = installed.with_name(f"{installed.name}.old")
    old.symlink_to(library.path)
    try:
        return trial.load(installed, old)
    finally:
        old.unlink()
