"""Moved from archsplit.build.pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.release.verify import CheckedRelease, Verifier
from archsplit.system.env import clean_environment
from archsplit.system.epoch import ZIP_EPOCH
from archsplit.system.fs import temporary_dir
from archsplit.wheels.repair import PlatformJudge

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.arch.target import Target
    from archsplit.release.context import Effects
    from archsplit.release.identity import Identity


def check_folder(
    folder: Path,
    workshop: Effects,
    *,
    targets: tuple[Target, ...] | None = None,
    identity: Identity | None = None,
) -> CheckedRelease:
    """Re-read every wheel in ``folder``; see `splitter.stages.verify.Verifier.verify`.

    Raises:
        VerifyError: lists everything that is not as promised.
    """
    with temporary_dir() as scratch:
        judge = _judge(workshop, scratch)
        verifier = Verifier(scratch=scratch, platforms=judge.platforms)
        return verifier.verify(folder, targets=targets, identity=identity)


def _judge(workshop: Effects, folder: Path) -> PlatformJudge:
    environment = clean_environment(workshop.environment, temporary=folder, epoch=ZIP_EPOCH)
    environment["PYTHONPATH"] = workshop.python_path
    return PlatformJudge(runner=workshop.runner, environment=environment)
