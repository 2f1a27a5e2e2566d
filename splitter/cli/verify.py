"""``archsplit verify``: re-read every wheel of a release, and say what is not as promised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from splitter.arch.target import parse_targets
from splitter.cli import options
from splitter.cli.release_check import add_release_options, run_release

if TYPE_CHECKING:
    import argparse

    from rich.console import Console

    from splitter.splitting.verify import SplitRelease

SCHEMA = 1


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = verbs.add_parser("verify", help="re-read every wheel of a folder and check it")
    parser.add_argument("folder", type=Path, help="the folder with the wheels of one release")
    parser.add_argument(
        "--targets", metavar="LIST", help="only these targets' plugins have to be there"
    )
    add_release_options(parser)
    parser.add_argument("--json", action="store_true", help="print what was checked as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Check, and say what was checked."""
    from splitter.pipeline import check
    from splitter.splitting.release import is_split
    from splitter.splitting.verify import verify_split

    if arguments.release:
        return run_release(arguments, console)
    targets = None if arguments.targets is None else tuple(parse_targets(arguments.targets))
    if arguments.folder.is_dir() and is_split(arguments.folder):
        gpus = None if targets is None else {target.capability for target in targets}
        split = verify_split(arguments.folder, capabilities=gpus)
        print(_split_text(split, arguments))  # noqa: T201 - standard output is where data goes
        return 0
    with options.workshop(console, quiet=True) as workshop:
        release = check(arguments.folder, workshop, targets=targets)
    if arguments.json:
        content = {
            "schema": SCHEMA,
            "package": release.identity.package,
            "version": release.identity.version,
            "build_id": release.identity.build_id,
            "wheels": {name: list(targets) for name, targets in release.wheels.items()},
        }
        text = json.dumps(content, indent=2)
    else:
        lines = [f"{name}: {', '.join(held) or 'ok'}" for name, held in release.wheels.items()]
        count = len(release.wheels)
        identity = release.identity
        lines.append(f"{identity.package} {identity.version}: {count} wheels, all as promised")
        text = "\n".join(lines)
    print(text)  # noqa: T201 - standard output is where data goes
    return 0


def _split_text(release: SplitRelease, arguments: argparse.Namespace) -> str:
    """What was proven of the wheels that ``split`` wrote."""
    from dataclasses import asdict

    if arguments.json:
        return json.dumps({"schema": SCHEMA, **asdict(release)}, indent=2)
    lines = [f"{name}: {count} images, as they were" for name, count in release.packs.items()]
    gpus = f"GPUs of capability {', '.join(release.needs)} find what they found before"
    covered = f"{release.covered} of {release.images} images are in at least one pack"
    lines.append(f"{release.package} {release.version}: {covered}; {gpus}")
    return "\n".join(lines)
