"""``archsplit mirror``: a package index with the wheels of a resolution, for some GPUs."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from archsplit.cli import options
from archsplit.cli.files import check_path, is_on_index
from archsplit.cli.verbs import add_verb
from archsplit.errors import InputError, InterruptedByUserError, UsageError
from archsplit.system.env import output_time

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from rich.console import Console

    from archsplit.mirror.model import MirrorRequest

_LOCK_NAME = re.compile(r"[A-Za-z0-9_-]+")


_OPTIONS = f"""
inputs FILE+      requirements for pip, a wheel, a pylock.toml (PEP 751) or a uv.lock; several for
                  one environment
{options.OUT}
{options.DEVICE}
--split           make a core and a pack for each GPU, and a lock for each GPU, in place of wheels
                  for all of these GPUs
{options.EDITS}
--proprietary {{edit,keep}}  wheels whose licence forbids changes: edit them with a warning, or keep
                  them as they are (default: %(default)s)
--extra EXTRA...  an extra of a lock
--group GROUP...  a dependency group of a lock
--lock-name NAME  write pylock.NAME.toml, for several locks in one mirror (default: pylock.toml)
{options.URL}
--downloads DIR   keep the originals in this folder (default: they are removed after use)
{options.JSON}
"""


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = add_verb(
        verbs,
        "mirror",
        "archsplit mirror requirements.txt --device native --out /srv/mirror",
        "archsplit mirror uv.lock --device 8.0,9.0 --split --out /srv/mirror",
    )
    options.add_options(
        parser, _OPTIONS, proprietary="edit", recompress="off", lock_name="", url=""
    )
    parser.set_defaults(run=run, command_line=())


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Make or update a mirror."""
    _check(arguments)
    from archsplit.mirror.mirror import DOWNLOADS, update_mirror
    from archsplit.mirror.report import license_warning, mirror_json, mirror_text

    for path in arguments.inputs:
        _check_input(path)
    request = _request(arguments)
    try:
        with options.effects(console) as effects:
            report = update_mirror(request, effects)
    except KeyboardInterrupt:
        downloads = request.downloads or request.out / DOWNLOADS
        if not downloads.exists():
            raise
        raise InterruptedByUserError(
            f"interrupted; finished wheels stay in {request.out}, and downloads in {downloads}",
            hint="run the same command again to continue",
        ) from None
    if arguments.json:
        options.show(mirror_json(report))
    else:
        options.print_all(mirror_text(report), 80)
    warning = license_warning(report.wheels)
    # On stderr also with --json: such a mirror must not be published by mistake.
    if warning is not None:
        options.say(console, warning)
    return 0


def _check_input(path: Path) -> None:
    """Refuse an input that is missing, or not a file.

    Raises:
        InputError: the hint has what to name.
    """
    if is_on_index(str(path)):
        raise InputError(f"{path} is not a file", hint="write it into a requirements.txt")
    check_path(path)
    if path.is_dir():
        wheels = f"its wheels: {path}/*.whl" if any(path.glob("*.whl")) else "files in it"
        raise InputError(
            f"{path} is a folder, not a file", hint=f"name {wheels}, or a requirements.txt or lock"
        )


def _check(arguments: argparse.Namespace) -> None:
    """Refuse options that don't go together.

    Raises:
        UsageError: says which.
    """
    # No default: a mirror for wrong GPUs would install, and fail at the first kernel.
    if not arguments.device:
        raise UsageError("name the GPUs with --device", hint="--device native, or --device 9.0")
    if arguments.split and arguments.keep_ptx is not None:
        raise UsageError("--keep-ptx has no effect with --split: a pack has the GPU's own code")
    if arguments.split and arguments.unregistered is not None:
        raise UsageError("--unregistered is for slimmed wheels: a split leaves such code in cores")
    if arguments.url and not arguments.url.startswith(("https://", "http://", "file://")):
        raise UsageError(f"--url {arguments.url!r} doesn't begin with https:// or http://")
    # The name becomes a part of a file name.
    if arguments.lock_name and not _LOCK_NAME.fullmatch(arguments.lock_name):
        raise UsageError(
            f"{arguments.lock_name!r} can't be in the name of a lock",
            hint="use letters, digits, - and _",
        )


def _request(arguments: argparse.Namespace) -> MirrorRequest:
    from archsplit.devicecode.recompress import recompress_level
    from archsplit.devicecode.select import PtxPolicy
    from archsplit.mirror.model import MirrorRequest

    return MirrorRequest(
        inputs=tuple(arguments.inputs),
        out=arguments.out,
        devices=options.capabilities(arguments.device),
        ptx=PtxPolicy(arguments.keep_ptx or PtxPolicy.NEWEST.value),
        split=arguments.split,
        keeps_proprietary=arguments.proprietary == "keep",
        lock_name=arguments.lock_name,
        url=arguments.url,
        downloads=arguments.downloads,
        extras=tuple(arguments.extra),
        groups=tuple(arguments.group),
        unregistered=arguments.unregistered or "",
        recompress=recompress_level(arguments.recompress),
        now=output_time(os.environ),
    )
