"""Slim, undo and commit in processes that are killed at each of their changes to the disk.

``python slim_killed.py SITE FOLDER STEP [linkless]`` kills each verb before every STEPth change and
prints how many changes there were; it ends with an error as soon as an environment can't be put
back, or finished, as it must. ``linkless`` stands in for a file system without hard links.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from slim_site_samples import contents, slim, snapshot

from archsplit.slim.site_packages import commit_site, undo_site
from archsplit.slim.transaction import TRANSACTION_FOLDER
from killed_children import is_killed


class Trials:
    """An original folder, and copies of it for runs that are killed."""

    def __init__(self, original: Path, folder: Path, step: int) -> None:
        self.original = original
        self.step = step
        self.folder = folder
        slimmed = self.copy(original, "slimmed")
        slim(slimmed)
        self.slimmed = slimmed
        self.after = {
            name: state
            for name, state in contents(slimmed).items()
            if not name.startswith(TRANSACTION_FOLDER)
        }

    def copy(self, site: Path, name: str) -> Path:
        target = self.folder / name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(site, target, symlinks=True)
        return target

    def slimming(self) -> int:
        at = 0
        while True:
            site = self.copy(self.original, "again")
            before = snapshot(site)
            if not is_killed(partial(slim, site), at):
                return at
            other = self.copy(site, "other")
            undo_site(site)
            assert snapshot(site) == before, at
            continued(other)
            commit_site(other)
            assert contents(other) == self.after, at
            at += self.step

    def undoing(self) -> int:
        at = 0
        while True:
            site = self.copy(self.original, "again")
            before = snapshot(site)
            slim(site)
            if not is_killed(partial(undo_site, site), at):
                return at
            undo_site(site)
            assert snapshot(site) == before, at
            at += self.step

    def committing(self) -> int:
        at = 0
        while True:
            site = self.copy(self.original, "again")
            before = snapshot(site)
            slim(site)
            if not is_killed(partial(commit_site, site), at):
                return at
            if state(site) == "slimmed":
                undo_site(site)
                assert snapshot(site) == before, at
            else:
                commit_site(site)
                assert contents(site) == self.after, at
            at += self.step


def continued(site: Path) -> None:
    """Finish what was begun; a run that was killed at its very end has nothing to finish."""
    if state(site) != "slimmed":
        slim(site)


def state(site: Path) -> str | None:
    journal = site / TRANSACTION_FOLDER / "journal.json"
    return str(json.loads(journal.read_text())["state"]) if journal.exists() else None


def no_link(*names: object, **options: object) -> None:
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), *names)


def main(original: Path, folder: Path, step: int, *words: str) -> None:
    if "linkless" in words:
        os.link = no_link
    trials = Trials(original, folder, step)
    verbs = (trials.slimming, trials.undoing, trials.committing)
    sys.stdout.write(json.dumps({verb.__name__: verb() for verb in verbs}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
